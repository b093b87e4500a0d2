"""Several front ends of one core: what each hears, without processes."""

from __future__ import annotations

import msgspec
import pytest
import zmq

from engine import core_links
from engine.batch import FinishReason, Output, Request, Stats
from engine.board import Board
from engine.config.kinds import MOST_DRAFTED
from engine.core_links import Links
from engine.generation import CoreInfo
from engine.messages import Abort, Add, Attach, Detach, Failed, FromCore, Hello, Lost, Outputs, Ready, Rejected
from engine.sampling_params import SamplingParams

INFO = CoreInfo("m", "/m", 10, 100, 7, 16, "0", "toy", 2, "NONE", "NONE", [], [])


class Front:
    def __init__(self, context: zmq.Context, address: str) -> None:
        self.socket = context.socket(zmq.PAIR)
        self.socket.setsockopt(zmq.RCVHWM, 1)
        self.socket.bind(address)

    def say(self, message: object) -> None:
        self.socket.send(msgspec.msgpack.encode(message))

    def hear(self) -> list[FromCore]:
        found = []
        while self.socket.poll(200):
            found.append(msgspec.msgpack.decode(self.socket.recv(), type=FromCore))
        return found


class World:
    def __init__(self, folder: str, fronts: int) -> None:
        self.context, self.board = zmq.Context(), Board()
        address = f"ipc://{folder}/"
        self.fronts = [Front(self.context, f"{address}{number}") for number in range(fronts + 1)]
        self.links = Links(self.context, f"{address}0", self.board)
        self.links.send(Ready(INFO))
        for number in range(1, fronts + 1):
            self.fronts[0].say(Attach(number, f"{address}{number}"))
        self.settle()

    def settle(self) -> list[object]:
        """What the core is told."""
        found = []
        while self.links._poller.poll(200):
            message = self.links.receive(block=False)
            if message is not None:
                found.append(message)
        while (message := self.links.receive(block=False)) is not None:
            found.append(message)
        return found


@pytest.fixture
def world(tmp_path):
    made = World(str(tmp_path), 2)
    yield made
    made.context.destroy(linger=0)


def request(name: str) -> Request:
    return Request(name, [1], SamplingParams(), 0.0)


def state(running: int = 0) -> Stats:
    return Stats(running, 0, 0.0, 0, 0, 0, 0, 0, 0)


def test_each_hears_of_its_own_requests_and_one_counts_the_step(world):
    assert [type(message) for message in world.fronts[1].hear()] == [Hello, Ready]
    assert world.fronts[2].hear() == [Hello(), Ready(INFO)]
    world.fronts[1].say(Add([request("a-0"), request("a-1")]))
    world.fronts[2].say(Add([request("b")]))
    assert len(world.settle()) == 2
    last = Output("b", [7], FinishReason.STOP)
    world.links.send(Outputs([Output("a-0", [5]), last, Output("a-1", [6])], state(3), 3))
    first, second = world.fronts[1].hear(), world.fronts[2].hear()
    assert first == [Outputs([Output("a-0", [5]), Output("a-1", [6])], state(3), 3)]
    assert second == [Outputs([last], state(3), 0)]
    assert world.board.read() == state(3)
    world.links.send(Outputs([], state(2), 9))
    assert [message.step_tokens for front in world.fronts[1:] for message in front.hear()] == [9]
    assert set(world.links._owners) == {"a-0", "a-1"}


def test_a_refusal_goes_to_who_asked_and_nothing_is_kept(world):
    for front in world.fronts[1:]:
        front.hear()
    world.fronts[2].say(Add([request("c-0"), request("c-1"), request("c-2")]))
    world.settle()
    world.links.send(Rejected("c-1", "too long"))
    assert world.fronts[2].hear() == [Rejected("c-1", "too long")] and world.fronts[1].hear() == []
    assert world.links._owners == {}


def test_requests_of_one_that_has_gone_end(world):
    world.fronts[1].say(Add([request("a")]))
    world.fronts[2].say(Add([request("b")]))
    world.settle()
    world.fronts[0].say(Detach(1))
    assert world.settle() == [Abort(["a"])]
    world.links.send(Outputs([Output("a", [], FinishReason.ABORT), Output("b", [1])], state(), 0))
    assert [message for message in world.fronts[2].hear() if isinstance(message, Outputs)] == [
        Outputs([Output("b", [1])], state(), 0)
    ]
    world.fronts[0].say(Detach(1))
    assert world.settle() == []


def test_one_that_does_not_read_is_dropped_and_holds_up_nobody(world, monkeypatch, caplog):
    monkeypatch.setattr(core_links, "MOST_UNREAD", 5)
    address = f"{world.fronts[0].socket.LAST_ENDPOINT.decode()[:-1]}9"
    deaf = world.context.socket(zmq.PAIR)  # listens nowhere
    world.fronts[0].say(Attach(9, address))
    world.fronts[1].say(Add([request("a")]))
    world.settle()
    world.links._owners["deaf"] = (9, "deaf")
    for _ in range(20):
        world.links.send(Outputs([Output("deaf", [1]), Output("a", [1])], state(), 2))
    assert world.links.receive(block=False) == Abort(["deaf"])
    assert Lost(9) in world.fronts[0].hear() and "9 has not read" in caplog.text
    assert len([message for message in world.fronts[1].hear() if isinstance(message, Outputs)]) == 20
    deaf.close()


def test_the_last_word_is_for_everybody(world):
    world.links.send(Failed("it broke"))
    assert all(Failed("it broke") in front.hear() for front in world.fronts)


def test_a_board_shows_the_latest_state_whole():
    board = Board()
    assert board.read() == state()
    for running in range(50):
        written = msgspec.structs.replace(state(running), steps={"FULL": running, "NONE": 10 ** (running % 19)})
        board.write(written)
        assert board.read() == written


def test_a_state_with_the_longest_drafts_can_be_shown():
    board = Board()
    stats = Stats(1, 0, 0.0, *[2**62] * 6, accepted=[2**62] * MOST_DRAFTED)
    for _ in range(2):
        board.write(stats)
        assert board.read() == stats
