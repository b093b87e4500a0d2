"""Tenants take turns: what one may take while others wait, in tokens and in order."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from scheduler_toys import Collected, make, make_request, run_all, run_step, shape

from engine.batch import Sampled
from engine.fair_queue import FairQueue
from engine.sequence import Sequence

BUDGET = 32


def fill(scheduler, tenant, lengths, start=0.0, **more):
    for index, length in enumerate(lengths):
        name = f"{tenant}{index}"
        scheduler.add(make_request(name, length, arrival=start + index / 1000, tenant=tenant, **more))


def admitted(batches):
    """Requests in the order in which they were first computed."""
    return list(dict.fromkeys(work.request_id for batch in batches for work in batch.work))


def roomy(**more):
    return make(**{"blocks": 400, "budget": BUDGET, "model": 512, "caching": False} | more)


def test_tenants_take_turns():
    scheduler, runner, _ = roomy(seqs=1)
    fill(scheduler, "a", [8] * 4, max_tokens=1)
    fill(scheduler, "b", [8] * 2, start=1, max_tokens=1)
    _, batches = run_all(scheduler, runner)
    assert admitted(batches) == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_a_long_prompt_counts_for_what_it_costs():
    scheduler, runner, _ = roomy(seqs=1)
    fill(scheduler, "a", [30, 30], max_tokens=1)
    fill(scheduler, "b", [10] * 5, start=1, max_tokens=1)
    _, batches = run_all(scheduler, runner)
    assert admitted(batches) == ["b0", "b1", "a0", "b2", "b3", "b4", "a1"]


def test_an_answer_counts_for_what_it_costs():
    scheduler, runner, _ = roomy(seqs=1)
    fill(scheduler, "a", [1] * 3, max_tokens=20)
    fill(scheduler, "b", [1] * 6, start=1, max_tokens=5)
    _, batches = run_all(scheduler, runner)
    assert admitted(batches) == ["a0", "b0", "b1", "b2", "b3", "a1", "b4", "b5", "a2"]


def test_whoever_was_idle_has_saved_nothing_up():
    scheduler, runner, _ = roomy(seqs=1)
    fill(scheduler, "b", [4], max_tokens=1)
    run_step(scheduler, runner, Collected())
    fill(scheduler, "a", [8] * 40, max_tokens=1)
    for _ in range(30):
        run_step(scheduler, runner, Collected())
    scheduler.add(make_request("a late", 8, max_tokens=1, arrival=2, tenant="a"))
    fill(scheduler, "b", [8] * 9, start=3, max_tokens=1)
    _, batches = run_all(scheduler, runner)
    first = Counter(name[0] for name in admitted(batches)[:16])
    assert first == {"a": 8, "b": 8}


def test_a_stream_of_new_tenants_starves_nobody():
    """Each of them has a short prompt and comes once; a long prompt waits for no more than a few times its length."""
    scheduler, runner, _ = roomy(seqs=1)
    fill(scheduler, "first", [8], max_tokens=1)
    fill(scheduler, "long", [200], max_tokens=1)
    collected, others = Collected(), 0
    while "long0" not in collected.last:
        scheduler.add(make_request(f"new{others}", 8, max_tokens=1, arrival=1.0 + others, tenant=f"new{others}"))
        others += 1
        run_step(scheduler, runner, collected)
        assert others < 400


def test_a_slow_stream_saves_nothing_up_for_its_tenant():
    scheduler, runner, _ = roomy(seqs=2)
    scheduler.add(make_request("b slow", 4, max_tokens=400, arrival=-1.0, tenant="b"))
    fill(scheduler, "a", [24] * 60, max_tokens=1)
    for _ in range(30):
        run_step(scheduler, runner, Collected())
    fill(scheduler, "b", [24] * 20, start=3, max_tokens=1)
    first: list[str] = []
    while len(first) < 16:
        first += [name[0] for name, count in shape(run_step(scheduler, runner, Collected())) if count > 1]
    assert 6 <= first[:16].count("b") <= 10


def test_leaving_for_a_moment_clears_no_debt():
    """A tenant that sends its next prompt only when the last is done pays for all of them."""
    scheduler, runner, _ = roomy(seqs=1)
    fill(scheduler, "b", [8] * 30, start=1, max_tokens=1)
    served = Counter()
    while any(seq.request.tenant == "b" for seq in scheduler._waiting):
        if not any(seq.request.tenant == "a" for seq in scheduler._sequences.values()):
            scheduler.add(make_request(f"a{served['a']}", 32, max_tokens=1, arrival=0.5, tenant="a"))
        for name, count in shape(run_step(scheduler, runner, Collected())):
            served[name[0]] += count
        assert abs(served["a"] - served["b"]) <= BUDGET + 8


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_one_tenant_and_no_fairness_are_the_order_of_rank(policy):
    orders = []
    for fair, tenants in ((True, "a"), (False, "abc"), (True, [None])):
        scheduler, runner, _ = roomy(seqs=3, policy=policy, fair_scheduling=fair)
        for index in range(12):
            tenant = tenants[index % len(tenants)]
            request = make_request(f"r{index}", 3 + 7 * index, arrival=index, priority=index % 3, tenant=tenant)
            scheduler.add(request)
        orders.append([shape(batch) for batch in run_all(scheduler, runner)[1]])
    assert orders[0] == orders[1] == orders[2]


def test_priority_goes_before_turns():
    scheduler, runner, _ = roomy(seqs=1, policy="priority")
    fill(scheduler, "a", [8] * 3, max_tokens=1)
    fill(scheduler, "b", [8] * 2, start=1, max_tokens=1, priority=1)
    scheduler.add(make_request("c0", 8, max_tokens=1, arrival=9, priority=-1, tenant="c"))
    _, batches = run_all(scheduler, runner)
    assert admitted(batches) == ["c0", "a0", "a1", "a2", "b0", "b1"]


def test_H_SCH_03_a_preempted_request_goes_before_the_turns_of_others():
    scheduler, runner, _ = make(blocks=6, size=4, seqs=4, budget=32, model=24, caching=False)
    fill(scheduler, "a", [7, 7], max_tokens=14)
    collected, orders = Collected(), []
    while not scheduler.stats().preemptions:
        orders += shape(run_step(scheduler, runner, collected))
    fill(scheduler, "b", [4], start=1, max_tokens=1)
    _, batches = run_all(scheduler, runner)
    names = [name for batch in batches for name, _ in shape(batch)]
    assert "a1" in names and names.index("a1") < names.index("b0")


def test_H_SCH_10_a_flood_of_long_prompts_delays_neither_decodes_nor_short_prompts_of_others():
    """With the limits that are the default: no threshold, 2048 tokens in a step, 256 requests."""
    scheduler, _, _ = make(blocks=20_000, seqs=256, budget=2048, model=20_000, caching=False)

    def step(collected):
        batch = scheduler.schedule()
        collected.take(scheduler.update(batch, [Sampled(work.request_id, [1] * work.sample) for work in batch.work]))
        return {work.request_id for work in batch.work}

    scheduler.add(make_request("decoding", 5, max_tokens=200, arrival=-1.0, tenant="c"))
    step(Collected())
    fill(scheduler, "a", [10_000] * 8, max_tokens=1)
    step(Collected())
    for index in range(20):
        scheduler.add(make_request(f"b{index}", 100, max_tokens=1, arrival=1.0 + index, tenant="b"))
        collected, steps = Collected(), 0
        while f"b{index}" not in collected.last:
            steps += 1
            assert "decoding" in step(collected)
        assert steps == 1


def test_long_prompts_of_many_tenants_are_computed_one_after_another():
    """By turns all of them would be late, and all would hold blocks."""
    scheduler, runner, _ = roomy()
    for tenant in "abcde":
        fill(scheduler, tenant, [100], max_tokens=1)
    collected, unfinished = Collected(), []
    while scheduler.has_unfinished():
        run_step(scheduler, runner, collected)
        unfinished.append(len(scheduler._running))
    assert list(collected.last) == ["a0", "b0", "c0", "d0", "e0"] and max(unfinished) == 1


def test_prompts_of_one_tenant_are_computed_in_order_unless_a_threshold_cuts_them():
    """Why there is no threshold unless it is asked for: it lets a short prompt pass long ones, while these, computed
    beside each other, have their first tokens later."""
    done = {}
    for threshold in (0, 8):
        scheduler, runner, _ = roomy(long_prefill_token_threshold=threshold)
        fill(scheduler, "a", [96, 96, 8], max_tokens=1)
        collected = Collected()
        while scheduler.has_unfinished():
            run_step(scheduler, runner, collected)
        done[threshold] = list(collected.last)
    assert done[0] == ["a0", "a1", "a2"] and done[8] == ["a2", "a0", "a1"]


@settings(max_examples=60, deadline=None)
@given(
    floods=st.lists(st.lists(st.integers(8, 300), min_size=20, max_size=40), min_size=1, max_size=4),
    answers=st.integers(1, 5),
    before=st.integers(0, 30),
    length=st.integers(1, 60),
)
def test_a_tenant_waits_for_its_share_and_no_longer(floods, answers, before, length):
    """However much others have sent and however long their prompts: until a tenant's one request is through its prompt,
    each of the others has had as many tokens of prompts as it, a prompt, and a step or two."""
    scheduler, runner, _ = roomy(blocks=3000, seqs=32)
    for place, lengths in enumerate(floods):
        fill(scheduler, f"flood {place} ", lengths, max_tokens=answers)
    for _ in range(before):
        run_step(scheduler, runner, Collected())
    scheduler.add(make_request("one", length, max_tokens=1, arrival=99.0, tenant="one"))
    prompts = {name: len(seq.request.prompt) for name, seq in scheduler._sequences.items()}
    taken, collected = Counter(), Collected()
    while "one" not in collected.last:
        batch = run_step(scheduler, runner, collected)
        assert len(scheduler._running) < 32, "seats are another matter"
        for work in batch.work:
            if work.start < prompts[work.request_id]:
                taken[work.request_id.rsplit(" ", 1)[0]] += len(work.tokens)
    assert all(taken[name] <= length + 300 + 2 * BUDGET for name in taken if name != "one")


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(2, 200), min_size=30, max_size=60), min_size=2, max_size=4),
)
def test_while_all_have_more_to_do_all_get_the_same(lengths):
    scheduler, runner, _ = roomy(blocks=3000, seqs=BUDGET)
    for place, each in enumerate(lengths):
        fill(scheduler, f"{place}-", each, max_tokens=1)
    left = Counter({str(place): len(each) for place, each in enumerate(lengths)})
    served, collected = Counter(dict.fromkeys(left, 0)), Collected()
    while True:
        for name, count in shape(run_step(scheduler, runner, collected)):
            served[name.split("-")[0]] += count
        done = Counter(name.split("-")[0] for name in collected.last)
        if any(done[name] == left[name] for name in left):
            break
        assert max(served.values()) - min(served.values()) <= 200 + BUDGET, "a prompt, and a step"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 90), st.integers(1, 9)), min_size=1, max_size=60))
def test_equal_traffic_gives_equal_steps_and_nobody_starves(traffic):
    runs = []
    for _ in range(2):
        scheduler, runner, _ = roomy(blocks=40, size=8, seqs=4, model=128)
        for index, (tenant, length, answer) in enumerate(traffic):
            scheduler.add(make_request(f"r{index}", length, max_tokens=answer, arrival=index, tenant=tenant))
        collected, batches = run_all(scheduler, runner)
        assert len(collected.last) == len(traffic)
        runs.append([shape(batch) for batch in batches])
    assert runs[0] == runs[1]


@pytest.mark.parametrize("tenants", [1, 10_000])
def test_a_queue_of_ten_thousand_is_worked_off_in_few_comparisons(tenants, monkeypatch):
    """Counted, not timed: looks at a head and at a level, per request that comes, is charged and goes."""
    queue, looks = FairQueue(), Counter()
    inner = FairQueue._head
    monkeypatch.setattr(FairQueue, "_head", lambda self: (looks.update(["_head"]), inner(self))[1])
    steps = count_heap_steps(monkeypatch)
    seqs = [waiter(index, str(index % tenants)) for index in range(10_000)]
    for seq in seqs:
        queue.enter(seq)
        queue.add(seq)
    for _ in seqs:
        seq = queue.first
        queue.remove(seq)
        for _ in range(3):
            seq.scheduled += 10
            queue.charge(seq, 10)
        queue.leave(seq)
    assert not len(queue) and looks["_head"] <= 20_000
    assert steps["all"] <= 6 * len(seqs)


def count_heap_steps(monkeypatch):
    """Operations of heaps, of which each is of logarithmic cost."""
    steps = Counter()
    for name in ("heappush", "heappop", "heapreplace"):
        inner = getattr(__import__("heapq"), name)
        counted = lambda *values, inner=inner: (steps.update(["all"]), inner(*values))[1]  # noqa: E731
        monkeypatch.setattr(f"engine.fair_queue.{name}", counted)
    return steps


def waiter(index, tenant, priority=0, length=1):
    request, rank = make_request(f"r{index}", [1] * length, tenant=tenant), (priority, float(index), index)
    return Sequence(request, rank, 4, SimpleNamespace())


class QueueMachine(RuleBasedStateMachine):
    """Beside a queue that looks at everything: the same order whatever comes, is served, is put back and goes."""

    def __init__(self):
        super().__init__()
        self.queue, self.count = FairQueue(), 0
        self.waiting, self.running, self.held = [], [], []
        self.debts = {}

    @rule(tenant=st.sampled_from("abc"), priority=st.integers(0, 1), length=st.integers(1, 30), held=st.booleans())
    def come(self, tenant, priority, length, held):
        seq = waiter(self.count, tenant, priority, length)
        self.count += 1
        self.queue.enter(seq)
        (self.held if held else self.waiting).append(seq)
        if not held:
            self.queue.add(seq)

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 99))
    def release(self, pick):
        seq = self.held.pop(pick % len(self.held))
        self.waiting.append(seq)
        self.queue.add(seq)

    @precondition(lambda self: self.waiting)
    @rule(count=st.integers(1, 20))
    def serve(self, count):
        seq = self.queue.first
        assert seq is self.expected()
        self.queue.remove(seq)
        self.waiting.remove(seq)
        self.running.append(seq)
        self.charge(seq, count)

    def expected(self):
        returned = min((seq for seq in self.waiting if seq.preemptions), key=lambda seq: seq.rank, default=None)
        new = [seq for seq in self.waiting if not seq.preemptions]
        heads = {}
        for seq in sorted(new, key=lambda seq: seq.rank):
            heads.setdefault((seq.request.tenant, seq.rank[0]), seq)
        turn = min(heads.values(), key=lambda s: (s.rank[0], self.claim(s), s.rank), default=None)
        return min((seq for seq in (returned, turn) if seq is not None), key=lambda seq: seq.rank)

    def claim(self, seq):
        return seq.tenant.served + len(seq.tokens)

    @precondition(lambda self: self.running)
    @rule(pick=st.integers(0, 99), count=st.integers(1, 20))
    def go_on(self, pick, count):
        self.charge(self.running[pick % len(self.running)], count)

    def charge(self, seq, count):
        seq.scheduled += count
        debt = max(0, min(count, seq.scheduled - self.debts.get(seq.id, 0)))
        self.debts[seq.id] = max(self.debts.get(seq.id, 0), seq.scheduled)
        before = seq.tenant.served
        self.queue.charge(seq, count)
        assert seq.tenant.served == before + debt

    @precondition(lambda self: self.running)
    @rule(pick=st.integers(0, 99))
    def preempt(self, pick):
        seq = self.running.pop(pick % len(self.running))
        seq.restart()
        self.queue.add(seq)
        self.waiting.append(seq)

    @rule(pick=st.integers(0, 99))
    def end(self, pick):
        everyone = self.waiting + self.running + self.held
        if everyone:
            seq = everyone[pick % len(everyone)]
            for group in (self.waiting, self.running, self.held):
                if seq in group:
                    group.remove(seq)
                    if group is self.waiting:
                        self.queue.remove(seq)
            self.queue.leave(seq)

    def teardown(self):
        assert sorted(seq.id for seq in self.queue) == sorted(seq.id for seq in self.waiting)
        while self.waiting:
            self.serve(1)
        for seq in self.running + self.held:
            self.queue.leave(seq)
        queue = self.queue
        assert not (queue._tenants or queue._idle or queue._turns or queue._queueing), "the idle are forgotten"


def test_the_queue_is_the_one_that_looks_at_everything():
    run_state_machine_as_test(QueueMachine, settings=settings(max_examples=150, stateful_step_count=40, deadline=None))
