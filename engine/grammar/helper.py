"""A process that compiles what clients send, so that neither time nor a crash of it is the server's.

One line in, JSON of ``StructuredOutputsParams``; one line out, ``null`` or [why it cannot be compiled, which part of
it]. A compilation that takes longer than ``LIMIT_S`` ends the process by SIGALRM.
"""

from __future__ import annotations

import resource
import signal
import sys

import msgspec

from engine.grammar.contract import GrammarError
from engine.grammar.guidance import GuidanceCompiler
from engine.grammar.vocabulary import Vocabulary
from engine.structured_outputs import StructuredOutputsParams

LIMIT_S = 3
MAX_BYTES = 2**31


def main() -> None:
    """Until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    compiler = GuidanceCompiler(Vocabulary([bytes([byte]) for byte in range(256)] + [b""], [256], [256]))
    decoder = msgspec.json.Decoder(StructuredOutputsParams)
    for line in sys.stdin.buffer:
        signal.alarm(LIMIT_S)
        answer = None
        try:
            compiler.compile(decoder.decode(line))
        except GrammarError as error:
            answer = str(error), error.part
        signal.alarm(0)
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
