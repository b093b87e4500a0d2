"""Text to token ids and back, and conversations to prompts."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from engine.errors import RequestError
from engine.tokenizer.detokenizer import Detokenizer
from engine.tokenizer.pieces import Pieces
from engine.tokenizer.template import RESERVED_NAMES, render_template

if TYPE_CHECKING:
    import tokenizers

SHORT = 1024  # characters; the library lets other threads go on only while it encodes a batch
_log = logging.getLogger("engine")


class Tokenizer:
    """A model's tokenizer, made by ``load_tokenizer``.

    ``vocab_size``: ids are below it, added tokens included. ``bos_id``: the begin token, ``None`` without one.
    ``eos_ids``: every token that ends an answer. ``chat_template``: the default template, ``None`` without one.
    ``pieces``: the bytes of each token.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        source: str,
        vocab_size: int,
        bos_id: int | None,
        eos_ids: frozenset[int],
        prefix: Sequence[int],
        suffix: Sequence[int],
        templates: Mapping[str, str],
        names: Mapping[str, str],
    ) -> None:
        self.vocab_size, self.bos_id, self.eos_ids = vocab_size, bos_id, eos_ids
        self.pieces = Pieces(backend, vocab_size, source)
        self._backend = backend
        self._prefix, self._suffix = list(prefix), list(suffix)
        self._templates, self._names = dict(templates), dict(names)
        self._warned = False

    @property
    def chat_template(self) -> str | None:
        return self._templates.get("default")

    def template_for(self, tools: bool) -> str | None:
        """The model's template for conversations with or without tools."""
        return (self._templates.get("tool_use") if tools else None) or self.chat_template

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of ``text``; special tokens written out in it become their ids. ``add_special_tokens`` puts the begin
        and end tokens around it that the model's files ask for. A begin token that is doubled by this is kept, and
        logged once. Raises ``RequestError`` for text with half of a surrogate pair."""
        ids = self._encode(text, "prompt")
        if not add_special_tokens:
            return ids
        if self.bos_id is not None and self._prefix[-1:] == [self.bos_id] == ids[:1] and not self._warned:
            self._warned = True
            _log.warning(
                "a prompt starts with the begin token %r and gets another one in front; send add_special_tokens=false "
                "for prompts that already have it (logged once)",
                self.token_text(self.bos_id),
            )
        return [*self._prefix, *ids, *self._suffix]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text of ``ids``; U+FFFD for bytes that are not UTF-8. Unknown ids add nothing."""
        stream = Detokenizer(self, skip_special_tokens)
        return stream.push(ids) + stream.flush()

    def token_bytes(self, token: int) -> bytes:
        """UTF-8 bytes of one token, possibly a part of a character; empty for an unknown id."""
        return self.pieces[token]

    def token_text(self, token: int) -> str:
        """One token for display, special ones included. A part of a character is shown as ``bytes:\\xe2\\x82``."""
        piece = self.pieces[token]
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt of a conversation. ``chat_template`` replaces the model's; ``kwargs`` are further variables for
        it. Raises ``RequestError`` without a template, or when the template refuses the conversation."""
        if clash := sorted(RESERVED_NAMES & kwargs.keys()):
            raise RequestError(f"{clash[0]!r} is not a template variable to set", "chat_template_kwargs")
        return render_template(
            chat_template or self._needed_template(bool(tools)),
            messages,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=self._names | kwargs,
        )

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_special_tokens: bool = False, **options: Any
    ) -> list[int]:
        """Ids of ``render_chat(messages, **options)``. ``add_special_tokens`` adds the begin token unless the template
        wrote it."""
        ids = self._encode(self.render_chat(messages, **options), "messages")
        if not add_special_tokens or ids[: len(self._prefix)] == self._prefix:
            return ids
        return [*self._prefix, *ids]

    def _encode(self, text: str, param: str) -> list[int]:
        try:
            if len(text) <= SHORT:
                return list(self._backend.encode(text, add_special_tokens=False).ids)
            (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
            return list(encoding.ids)
        except TypeError as error:
            raise RequestError("the text holds half of a surrogate pair, which is not a character", param) from error

    def _needed_template(self, tools: bool) -> str:
        template = self.template_for(tools)
        if template is None:
            raise RequestError(
                "a chat template is needed and this model has none; start the server with --chat-template FILE, or use "
                "/v1/completions",
                "messages",
            )
        return template
