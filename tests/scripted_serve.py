"""``engine serve`` as a process of its own whose core plays a script: ``python -m tests.scripted_serve '{settings}'``.

Settings are canonical keys and those of ``tests.scripted_core``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.scripted_core import FACTORY, ToyTokenizer


class Tokenizer(ToyTokenizer):
    def token_bytes(self, token: int) -> bytes:
        return self.pieces[token]


def play() -> None:
    """Let every start in this process have a core that plays a script, in a process of its own."""
    from engine.client import AsyncEngine
    from engine.server import start
    from engine.weights.resolve import Model

    class Scripted(AsyncEngine):
        @classmethod
        async def start(cls, given: Any, tokenizer: Any, **more: Any) -> AsyncEngine:
            return await super().start(given, tokenizer, factory=FACTORY, **more)

    start.AsyncEngine = Scripted  # type: ignore[misc]
    start.resolve_model = lambda name: Model(Path("script"), "script", "a test")
    start.find_gguf = lambda path, weights: None
    start.load_tokenizer = lambda path: Tokenizer()  # type: ignore[assignment,return-value]


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
