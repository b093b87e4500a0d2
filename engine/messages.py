"""What the front end and the core process say to each other: msgpack, one message per frame."""

from __future__ import annotations

import msgspec

from engine.batch import Output, Request, Stats
from engine.generation import CoreInfo
from engine.grammar.vocabulary import Vocabulary


class Add(msgspec.Struct, frozen=True, tag=True):
    """Run these, the choices of one prompt: all of them, or none."""

    requests: list[Request]


class Learn(msgspec.Struct, frozen=True, tag=True):
    """Before the first request with structured outputs."""

    vocabulary: Vocabulary


class Abort(msgspec.Struct, frozen=True, tag=True):
    ids: list[str]


class Attach(msgspec.Struct, frozen=True, tag=True):
    """A further front end listens at ``address``: greet it with ``Hello`` and ``Ready``."""

    number: int
    address: str


class Detach(msgspec.Struct, frozen=True, tag=True):
    """A front end has gone; its requests end."""

    number: int


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End now; what is under way is dropped."""


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The first word of the core process; both ends are connected."""


class Progress(msgspec.Struct, frozen=True, tag=True):
    """A line for whoever waits for the start."""

    text: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    info: CoreInfo


class Outputs(msgspec.Struct, frozen=True, tag=True):
    """After every step, and after an abort. ``step_tokens``: tokens of the step that ran; 0: none ran."""

    outputs: list[Output]
    stats: Stats
    step_tokens: int


class Rejected(msgspec.Struct, frozen=True, tag=True):
    """Nothing of the ``Add`` that held ``request_id`` runs. The fields are those of ``RequestError``."""

    request_id: str
    message: str
    param: str | None = None
    status: int = 400


class Lost(msgspec.Struct, frozen=True, tag=True):
    """A front end does not read what it is sent; it is detached."""

    number: int


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The last word of a core that ends. ``user``: the message is that of a ``UserError``."""

    message: str
    user: bool = False


ToCore = Add | Learn | Abort | Attach | Detach | Stop
FromCore = Hello | Progress | Ready | Outputs | Rejected | Lost | Failed
