"""What the front end gives to whoever asked for text: values shared by the HTTP routes and the offline API."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.batch import FinishReason, TokenLogprobs


class Delta(msgspec.Struct, frozen=True):
    """News of one choice (``index`` of ``n``) of one request since its last delta.

    ``text``: complete characters only, stop strings already held back or cut. ``token_ids`` and ``logprobs`` (one per
    token, when asked for) are the tokens behind it; a token whose text is held back comes with the delta that shows it
    or ends it. ``prompt_logprobs`` comes with the first delta of choice 0: one entry per prompt token but the first.
    ``stop_reason``: the stop string or stop token id that ended it, ``None`` for the end token or a length limit.
    ``pooled``: see ``Sampled``.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    cached_tokens: int = 0
    pooled: bytes | None = None


class CoreInfo(msgspec.Struct, frozen=True):
    """What a started core tells its front end. ``hidden_size``: of a vector. ``summary``: rows (label, value, reason)
    of the start-up table. ``phases``: seconds per start-up phase, in order. ``policy``, ``max_num_seqs``: of the
    scheduler. ``built`` and ``loaded``: functions that pieces were compiled into at this start, and that came from the
    cache. ``plan``: as ``Plan.to_json`` writes it."""

    model_name: str
    model_path: str
    vocab_size: int
    max_model_len: int
    num_blocks: int
    block_size: int
    plan_hash: str
    platform: str
    level: int
    compile_mode: str
    graph_mode: str
    summary: list[tuple[str, str, str]]
    phases: list[tuple[str, float]]
    policy: str = "fcfs"
    max_num_seqs: int = 1
    hidden_size: int = 0
    built: int = 0
    loaded: int = 0
    plan: dict[str, Any] = {}
