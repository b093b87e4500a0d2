"""Where a device is spoken to."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from concurrent.futures import Future

import pytest

from engine.lane import Beside, Here


def test_here_has_run_when_it_returns():
    done, seen = Future(), []
    Here().run(done, lambda: seen.append(threading.current_thread()))
    assert done.done() and seen == [threading.current_thread()]


def test_beside_keeps_the_order_and_tells_what_was_raised():
    lane, seen = Beside(), []
    dones = [Future() for _ in range(200)]
    for at, done in enumerate(dones):
        lane.run(done, (lambda at=at: seen.append(at)) if at != 7 else (lambda: 1 // 0))
    for at, done in enumerate(dones):
        if at == 7:
            with pytest.raises(ZeroDivisionError):
                done.result(60)
        else:
            assert done.result(60) is None
    assert seen == [at for at in range(200) if at != 7]
    lane.close()
    lane.close()


def test_what_ran_is_told_when_the_next_says_so_or_nothing_follows():
    lane, first, second = Beside(), Future(), Future()
    waiting, told, go = threading.Event(), threading.Event(), threading.Event()

    def follow() -> None:
        waiting.set()
        told.wait(60)
        lane.tell()
        go.wait(60)

    held = Future()
    hold = threading.Event()
    lane.run(held, lambda: hold.wait(60))
    lane.run(first, lambda: None)
    lane.run(second, follow)
    hold.set()
    assert waiting.wait(60) and not first.done()
    told.set()
    assert first.result(60) is None and not second.done()
    go.set()
    assert second.result(60) is None
    lane.close()


class Held:
    """Something that can be seen to be gone."""

    def touch(self) -> None:
        return None

    def fail(self) -> None:
        raise ValueError(self)


@pytest.mark.parametrize("what", ["touch", "fail"])
def test_a_lane_holds_nothing_of_what_has_run_and_ends_when_it_is_dropped(what):
    lane, done, held = Beside(), Future(), Held()
    gone, thread = weakref.ref(held), lane._thread
    lane.run(done, getattr(held, what))
    del held
    assert (done.exception(60) is None) is (what == "touch")
    del done
    deadline = time.monotonic() + 60
    while gone() is not None and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert gone() is None
    del lane
    thread.join(60)
    assert not thread.is_alive()
