"""Requests that wait, whose tenants take turns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace

from engine.sequence import Rank, Ranked, Sequence


class FairQueue:
    """Among requests of equal priority the next is the one after whose prompt its tenant will have been served least,
    in tokens computed of all its requests, prompts and answers alike; ties and a tenant's own requests go by rank. A
    tenant that has nothing waiting saves nothing up: it begins beside those whose turn it is. Nothing of worse rank
    goes before a preempted request.

    ``fair`` false: all are one tenant, whose order is that of rank.
    """

    def __init__(self, fair: bool = True) -> None:
        self._fair = fair
        self._tenants: dict[str | None, Tenant] = {}
        self._idle: list[tuple[int, int, Tenant]] = []
        self._turns: list[_Turn] = []
        self._preempted = Ranked()
        self._new = self._queueing = self._unfinished = self._left = 0
        # Tokens that a tenant which always waits has had as its share: where one that did not wait begins.
        self._clock = 0.0
        self._latest: Tenant | None = None

    def __len__(self) -> int:
        return self._new + len(self._preempted)

    def __iter__(self) -> Iterator[Sequence]:
        """In no order."""
        yield from self._preempted
        for tenant in self._tenants.values():
            for line in tenant.lines.values():
                yield from line.waiting

    @property
    def first(self) -> Sequence:
        """Whose turn it is."""
        heads = [self._preempted.first] if self._preempted else []
        if self._new:
            heads.append(self._head())
        return min(heads, key=lambda seq: seq.rank)

    def enter(self, seq: Sequence) -> None:
        """A request has come, though it may not wait yet. Once, before anything else is said of it; it gets its
        tenant."""
        name = seq.request.tenant if self._fair else None
        seq.tenant = self._tenants.setdefault(name, Tenant(name))
        seq.tenant.unfinished += 1
        self._unfinished += 1

    def leave(self, seq: Sequence) -> None:
        """A request has ended. An idle tenant is forgotten once it has no more than any other would begin with."""
        tenant = seq.tenant
        tenant.unfinished -= 1
        self._unfinished -= 1
        if not self._unfinished:
            for kept in (self._tenants, self._idle, self._turns):
                kept.clear()
            self._clock, self._latest = 0.0, None
        elif not tenant.unfinished:
            self._left += 1
            heappush(self._idle, (tenant.served, self._left, tenant))
        while self._idle and self._idle[0][0] <= self._clock:
            tenant = heappop(self._idle)[-1]
            known = self._tenants.get(tenant.name) is tenant
            if known and not tenant.unfinished and tenant.served <= self._clock:
                del self._tenants[tenant.name]

    def add(self, seq: Sequence) -> None:
        """Let a request wait."""
        if seq.preemptions:
            self._preempted.add(seq)
            return
        if not seq.tenant.waiting:
            if not self._queueing and self._latest is not None:
                self._clock = max(self._clock, self._latest.served)
            seq.tenant.served = max(seq.tenant.served, int(self._clock))
            if not self._queueing:
                self._clock = max(self._clock, seq.tenant.served)
            self._queueing += 1
        seq.tenant.waiting += 1
        line = seq.tenant.lines.get(seq.rank[0])
        if line is None:
            line = seq.tenant.lines[seq.rank[0]] = Line(seq.tenant)
        line.waiting.add(seq)
        self._new += 1
        self._offer(line)

    def remove(self, seq: Sequence) -> None:
        """It waits no longer."""
        if seq.preemptions:
            self._preempted.remove(seq)
            return
        line = seq.tenant.lines[seq.rank[0]]
        line.waiting.remove(seq)
        seq.tenant.waiting -= 1
        self._queueing -= not seq.tenant.waiting
        self._new -= 1
        if line.waiting:
            self._offer(line)

    def charge(self, seq: Sequence, count: int) -> None:
        """The last ``count`` of the scheduled tokens are being computed. What is computed again is free."""
        fresh = seq.scheduled - seq.charged
        if fresh > 0:
            seq.charged = seq.scheduled
            seq.tenant.served += fresh if fresh < count else count
            prompt = seq.scheduled - count < seq.goal
            if prompt:
                self._latest = seq.tenant
            if prompt or seq.tenant.waiting:
                self._clock += fresh / (self._queueing + (not seq.tenant.waiting))

    def in_turn(self, running: Iterable[Sequence]) -> list[Sequence]:
        """Running requests, in order of rank, in the order in which their prompts are computed."""
        prompts, claims = list(running), dict[Tenant, int]()
        for seq in prompts:
            claims.setdefault(seq.tenant, _claim(seq))
        return sorted(prompts, key=lambda seq: (seq.rank[0], claims[seq.tenant], seq.rank))

    def overtakes(self, seq: Sequence, prompt: Sequence, running: Iterable[Sequence]) -> bool:
        """Whether one that waits goes before the rest of a ``prompt`` that runs: by what both tenants will have been
        served then, if none of its own tenant's among the ``running`` is still to be computed."""
        if (seq.rank[0], _claim(seq)) >= (prompt.rank[0], _claim(prompt)):
            return False
        return all(seq.tenant is not other.tenant or other.decoding for other in running)

    def _offer(self, line: Line) -> None:
        if line.turn is None or line.next < line.turn:
            line.turn = line.next
            heappush(self._turns, line.turn)

    def _head(self) -> Sequence:
        # The heap holds lower bounds, as a tenant is only ever served more; they are raised where they come up.
        while True:
            turn = self._turns[0]
            line = turn[-1]
            if turn is not line.turn:
                heappop(self._turns)
            elif not line.waiting:
                heappop(self._turns)
                del line.tenant.lines[turn[0]]
            elif turn < line.next:
                line.turn = line.next
                heapreplace(self._turns, line.turn)
            else:
                return line.waiting.first


@dataclass(slots=True, eq=False)
class Tenant:
    """``served``: tokens, those included that it was put forward by when it began to wait. ``waiting``,
    ``unfinished``: how many requests. ``lines``: by priority."""

    name: str | None
    served: int = 0
    waiting: int = 0
    unfinished: int = 0
    lines: dict[int, Line] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Line:
    """What waits of one tenant with one priority. ``turn``: what of it in the heap counts."""

    tenant: Tenant
    waiting: Ranked = field(default_factory=Ranked)
    turn: _Turn | None = None

    @property
    def next(self) -> _Turn:
        first = self.waiting.first
        return first.rank[0], _claim(first), first.rank, self


_Turn = tuple[int, int, Rank, Line]


def _claim(seq: Sequence) -> int:
    """What its tenant will have been served once its prompt is computed."""
    return seq.tenant.served + seq.pending
