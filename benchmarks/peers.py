"""The engine and every installed peer on the same GGUF, in turns: ``python benchmarks/peers.py [--quick]``.

Speeds, first tokens, memory and accuracy, each beside the goal that the engine has there, with what the machine's
memory and arithmetic gave in the same run. A peer is looked for in this interpreter, or in the one that is named:
``--peer llama.cpp=/path/to/python --peer openvino=/path/to/python``.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.compare.command import main

if __name__ == "__main__":
    sys.exit(main(about=__doc__ or ""))
