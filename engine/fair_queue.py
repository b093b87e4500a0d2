"""Requests that wait, whose tenants take turns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace

from engine.sequence import Rank, Ranked, Sequence


class FairQueue:
    """Among requests of equal priority the next is the one after whose prompt its tenant will have been served least,
    in tokens computed of all its requests, prompts and answers alike; ties and a tenant's own requests go by rank. A
    tenant without unfinished requests saves nothing up: it comes back as the least served of those that have some.
    Nothing of worse rank goes before a preempted request.

    ``fair`` false: all are one tenant, whose order is that of rank.
    """

    def __init__(self, fair: bool = True) -> None:
        self._fair = fair
        self._tenants: dict[str | None, Tenant] = {}
        self._levels: list[tuple[int, int, str | None]] = []
        self._turns: list[_Turn] = []
        self._preempted = Ranked()
        self._new = 0
        self._seen = 0

    def __len__(self) -> int:
        return self._new + len(self._preempted)

    def __iter__(self) -> Iterator[Sequence]:
        """In no order."""
        yield from self._preempted
        for tenant in self._tenants.values():
            for lane in tenant.lanes.values():
                yield from lane.waiting

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
        tenant = self._tenants.get(name)
        if tenant is None or not tenant.unfinished:
            least = self._least()
            tenant = self._tenants.get(name)
            if tenant is None:
                tenant = self._tenants[name] = Tenant(least)
                self._seen += 1
                heappush(self._levels, (least, self._seen, name))
            tenant.served = max(tenant.served, least)
        tenant.unfinished += 1
        seq.tenant = tenant

    def leave(self, seq: Sequence) -> None:
        """A request has ended."""
        seq.tenant.unfinished -= 1

    def add(self, seq: Sequence) -> None:
        """Let a request wait."""
        if seq.preemptions:
            self._preempted.add(seq)
            return
        lane = seq.tenant.lanes.get(seq.rank[0])
        if lane is None:
            lane = seq.tenant.lanes[seq.rank[0]] = Lane(seq.tenant)
        lane.waiting.add(seq)
        self._new += 1
        self._offer(lane)

    def remove(self, seq: Sequence) -> None:
        """It waits no longer."""
        if seq.preemptions:
            self._preempted.remove(seq)
            return
        lane = seq.tenant.lanes[seq.rank[0]]
        lane.waiting.remove(seq)
        self._new -= 1
        if lane.waiting:
            self._offer(lane)

    def charge(self, seq: Sequence, count: int) -> None:
        """The last ``count`` of the scheduled tokens are being computed. What is computed again is free."""
        fresh = seq.scheduled - seq.charged
        if fresh > 0:
            seq.charged = seq.scheduled
            seq.tenant.served += fresh if fresh < count else count

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

    def _offer(self, lane: Lane) -> None:
        if lane.turn is None or lane.next < lane.turn:
            lane.turn = lane.next
            heappush(self._turns, lane.turn)

    def _head(self) -> Sequence:
        # The heap holds lower bounds, as a tenant is only ever served more; they are raised where they come up.
        while True:
            turn = self._turns[0]
            lane = turn[-1]
            if turn is not lane.turn:
                heappop(self._turns)
            elif not lane.waiting:
                heappop(self._turns)
                del lane.tenant.lanes[turn[0]]
            elif turn < lane.next:
                lane.turn = lane.next
                heapreplace(self._turns, lane.turn)
            else:
                return lane.waiting.first

    def _least(self) -> int:
        """What the least served tenant with unfinished requests has had; idle ones below it are forgotten."""
        while self._levels:
            served, number, name = self._levels[0]
            tenant = self._tenants[name]
            if served < tenant.served:
                heapreplace(self._levels, (tenant.served, number, name))
            elif tenant.unfinished:
                return served
            else:
                heappop(self._levels)
                del self._tenants[name]
        return 0


@dataclass(slots=True, eq=False)
class Tenant:
    """``served``: tokens, those included that it was put forward by when it came. ``lanes``: by priority."""

    served: int
    unfinished: int = 0
    lanes: dict[int, Lane] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Lane:
    """What waits of one tenant with one priority. ``turn``: what of it in the heap counts."""

    tenant: Tenant
    waiting: Ranked = field(default_factory=Ranked)
    turn: _Turn | None = None

    @property
    def next(self) -> _Turn:
        first = self.waiting.first
        return first.rank[0], _claim(first), first.rank, self


_Turn = tuple[int, int, Rank, Lane]


def _claim(seq: Sequence) -> int:
    """What its tenant will have been served once its prompt is computed."""
    return seq.tenant.served + seq.pending
