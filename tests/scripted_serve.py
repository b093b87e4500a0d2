"""``engine serve`` as a process of its own whose core plays a script: ``python -m tests.scripted_serve '{settings}'``.

Settings are canonical keys and those of ``tests.scripted_core``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from tests.scripted_core import FACTORY, ToyTokenizer

if TYPE_CHECKING:
    from engine.server.start import Texts


class Tokenizer(ToyTokenizer):
    def token_bytes(self, token: int) -> bytes:
        return self.pieces[token]

    def template_for(self, tools: bool) -> None:
        return None


def load_texts(given: Any) -> Texts:
    from engine.chat_template import read_template
    from engine.config import value_of
    from engine.pooling import Pooling
    from engine.server.chat_settings import read_chat_settings
    from engine.server.start import Texts

    template, tokenizer = read_template(value_of(given, "model.chat_template")), Tokenizer()
    settings = read_chat_settings(given, template, tokenizer)  # type: ignore[arg-type]
    return Texts(tokenizer, template, settings, Pooling())  # type: ignore[arg-type]


def play() -> None:
    """Let every start in this process have a core that plays a script, in a process of its own."""
    from engine.client import AsyncEngine
    from engine.server import start, supervisor

    class Scripted(AsyncEngine):
        @classmethod
        async def start(cls, given: Any, tokenizer: Any, **more: Any) -> AsyncEngine:
            return await super().start(given, tokenizer, factory=FACTORY, **more)

    start.AsyncEngine = Scripted  # type: ignore[misc]
    start.load_texts = load_texts
    supervisor.LOADER, supervisor.DEFAULT_FACTORY = "tests.scripted_serve:load_texts", FACTORY


def main() -> int:
    from engine.errors import UserError
    from engine.plan_values import Given
    from engine.server.launch import serve

    play()
    given = {key: Given(value, "command line") for key, value in json.loads(sys.argv[1]).items()}
    try:
        return serve(given)
    except UserError as error:
        print(f"engine: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
