"""Starting a core: the device is given back when it fails, caches are sized last, the first request finds it warm."""

import dataclasses

import pytest

import engine.core
from engine import LLM, SamplingParams
from engine.config import from_keywords
from engine.core import EngineCore
from engine.errors import UserError
from engine.sampler import Sampler
from platforms.contract import DeviceError, Kernel, Memory, PlatformPlugin
from platforms.discovery import select
from tests.caches import fresh_root
from tests.checkpoints import hf_config, random_weights, write_hf
from tests.word_tokenizer import write_word_tokenizer

EVENTS = []


def pack(weights, attributes):
    EVENTS.append("pack")
    return (weights[0].t().contiguous(), *weights[1:])


def linear(x, weight, bias=None):
    return x @ weight if bias is None else x @ weight + bias


class Watched(PlatformPlugin):
    """The active platform with one packing row of its own, and a runtime whose calls are seen. ``memory`` replaces what
    the runtime reports."""

    def __init__(self, plugin, memory=None):
        self.plugin, self.memory = plugin, memory
        self.name, self.api, self.kind = plugin.name, plugin.api, plugin.kind

    def probe(self):
        return self.plugin.probe()

    def targets(self):
        return self.plugin.targets()

    def kernels(self):
        return (Kernel("linear", "turned", f"{__name__}:linear", pack=f"{__name__}:pack"),)

    def open(self, index):
        runtime = self.plugin.open(index)
        memory, zeros, close = runtime.memory, runtime.zeros, runtime.close
        runtime.memory = lambda: EVENTS.append("memory") or (self.memory or memory)()
        runtime.zeros = lambda *args: EVENTS.append("zeros") or zeros(*args)
        runtime.close = lambda: EVENTS.append("close") or close()
        return runtime


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path_factory):
    EVENTS.clear()
    monkeypatch.setenv("ENGINE_CACHE_ROOT", str(fresh_root(tmp_path_factory.mktemp("cache"))))


@pytest.fixture
def start(monkeypatch, tmp_path):
    config = hf_config("llama", tie_word_embeddings=True)
    write_hf(tmp_path, config, random_weights(config, seed=1))

    def make(memory=None, seemed=None, **settings):
        selection = select("auto")
        selection = dataclasses.replace(selection, profile=dataclasses.replace(selection.profile, **(seemed or {})))
        watched = dataclasses.replace(selection, plugin=Watched(selection.plugin, memory))
        monkeypatch.setattr(engine.core, "select", lambda asked: watched)
        settings = {"model": str(tmp_path), "dtype": "float32", "max_model_len": 64, **settings}
        return EngineCore(from_keywords(**settings))

    return make


def test_caches_are_sized_when_everything_is_packed(start):
    core = start()
    core.close()
    first, second = (at for at, event in enumerate(EVENTS) if event == "memory")
    assert "pack" in EVENTS[first:second]
    assert set(EVENTS[second + 1 :]) == {"zeros", "close"}
    assert EVENTS.count("close") == 1


def test_a_device_that_is_not_what_the_probe_said_is_reported_and_planned_for_as_it_is(start, caplog):
    start().close()
    assert "the probe had" not in caplog.text
    core = start(seemed={"arch": "another", "memory_bytes": 1 << 20})
    core.close()
    assert core.plan.profile.arch == select("auto").profile.arch and core.plan.profile.origin == "measured"
    assert "the probe had said another" in caplog.text and "the probe had said 0.0 GiB" in caplog.text


def test_a_core_has_a_pool_of_blocks_for_each_group_of_its_program(start):
    core = start(block_size=8, kv_cache_memory_bytes=1 << 20)
    groups = core._scheduler._blocks.groups
    core.close()
    assert [(group.num_blocks, group.block_size) for group in groups] == [(core.info.num_blocks, 8)]


def test_memory_that_does_not_suffice_gives_the_device_back(start):
    with pytest.raises(UserError, match="No memory for the cache blocks"):
        start(memory=lambda: Memory(1 << 20, 1 << 10, False, "a small device"))
    assert EVENTS[-1] == "close"


def test_a_device_that_fails_while_loading_is_given_back_and_named(start):
    def fail():
        raise DeviceError("the device fell off")

    with pytest.raises(UserError, match="fell off"):
        start(memory=fail)
    assert EVENTS[-1] == "close"


@pytest.mark.parametrize("error", [RuntimeError("cold"), KeyboardInterrupt()], ids=repr)
def test_a_warm_up_that_fails_gives_the_device_back(start, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(EngineCore, "_warm_up", fail)
    with pytest.raises(type(error)):
        start()
    assert EVENTS[-1] == "close"


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({}, [[False, True], [False, True]]),
        ({"block_size": 1, "max_num_seqs": 2}, [[False, True], [False, True]]),
        ({"max_num_seqs": 1}, [[False], [False]]),
    ],
    ids=str,
)
def test_the_warm_up_draws_and_decodes_and_leaves_no_request_behind(start, monkeypatch, settings, steps):
    seen = []
    sample = Sampler.sample

    def watch(self, logits, names, *rest):
        seen.append([self._states[name].params.greedy for name in names])
        return sample(self, logits, names, *rest)

    monkeypatch.setattr(Sampler, "sample", watch)
    core = start(**settings)
    core.close()
    assert seen == steps, "whether each request is greedy"
    assert not core._worker.runner._sampler._states
    assert not core.has_unfinished()


def test_blocks_of_one_token_answer_as_blocks_of_sixteen(tmp_path):
    write_hf(tmp_path, config := hf_config("llama"), random_weights(config, seed=1))
    write_word_tokenizer(tmp_path, config["vocab_size"])
    answers = []
    for size in (1, 16):
        settings = {"block_size": size, "max_model_len": 64, "kv_cache_memory_bytes": "1M", "dtype": "float32"}
        with LLM(model=str(tmp_path), **settings) as llm:
            greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
            answers.append([one.outputs[0].token_ids for one in llm.generate(["w3 w4 w5", "w9"], greedy, False)])
    assert answers[0] == answers[1]
    assert [len(ids) for ids in answers[0]] == [8, 8]
