"""``engine run-batch`` whose core plays a script in a process of its own:
``python -m tests.scripted_batch '{settings}' -i FILE -o FILE``. Settings are those of ``tests.scripted_core``."""

from __future__ import annotations

import json
import sys
from typing import Any


def main() -> int:
    from engine.cli import main as engine
    from engine.cli import run_batch
    from engine.plan_values import Given
    from tests.scripted_serve import play

    play()
    read = run_batch.read_settings

    def with_script(*arguments: Any) -> Any:
        given, asked = read(*arguments)
        return given | {key: Given(value, "argument") for key, value in json.loads(sys.argv[1]).items()}, asked

    run_batch.read_settings = with_script
    return engine(["run-batch", *sys.argv[2:]])


if __name__ == "__main__":
    sys.exit(main())
