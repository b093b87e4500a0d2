"""The offline API over a core that plays a script, and once over the real one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import pytest

import engine
from engine import LLM, SamplingParams
from engine.errors import EngineDeadError, RequestError, UserError
from engine.generation_bar import generation_bar
from engine.interrupt import deferred_interrupt
from tests.checkpoints import builtin_gguf
from tests.scripted_core import BEGIN, ScriptedCore, ToyTokenizer, script

ROOT = Path(__file__).parents[2]
FOUR = SamplingParams(max_tokens=4)


class ChattyTokenizer(ToyTokenizer):
    def render_chat(self, messages, *, chat_template=None, tools=None, **options):
        if not messages:
            raise RequestError("messages is empty", "messages")
        text = "".join(f"[{message['role']}]{message['content']}" for message in messages)
        text += "[assistant]" if options["add_generation_prompt"] else ""
        return f"{chat_template or 'own'}:{text}"


def open_llm(**values):
    return LLM.over(ScriptedCore(script(**values)), ChattyTokenizer())


def texts(results):
    return [[choice.text for choice in result.outputs] for result in results]


@pytest.mark.parametrize(
    ("prompts", "ids", "text"),
    [
        ("hi", [BEGIN, 104, 105], "hi"),
        (["hi"], [BEGIN, 104, 105], "hi"),
        ([5, 6], [5, 6], None),
        ([[5, 6]], [5, 6], None),
        ((5, 6), [5, 6], None),
        ({"prompt": "hi"}, [BEGIN, 104, 105], "hi"),
        ([{"prompt_token_ids": [5, 6]}], [5, 6], None),
        ({"prompt_token_ids": [5, 6], "prompt": "as shown"}, [5, 6], "as shown"),
    ],
)
def test_forms_of_a_prompt(prompts, ids, text):
    (result,) = open_llm().generate(prompts, FOUR)
    assert result.prompt_token_ids == ids and result.prompt == text
    assert texts([result]) == [["abca"]] and result.finished and result.num_cached_tokens == 3


def test_numpy_ids():
    import numpy

    (result,) = open_llm().generate([numpy.array([5, 6]).tolist()], FOUR)
    (other,) = open_llm().generate(list(numpy.array([5, 6])), FOUR)
    assert result.prompt_token_ids == other.prompt_token_ids == [5, 6]
    assert all(type(token) is int for token in other.prompt_token_ids)


def test_answers_keep_the_order_of_the_prompts():
    llm = open_llm()
    params = [SamplingParams(max_tokens=count) for count in (9, 1, 5)]
    results = llm.generate(["x", "y", "z"], params)
    assert [result.prompt for result in results] == ["x", "y", "z"]
    assert [len(result.outputs[0].token_ids) for result in results] == [9, 1, 5]
    assert len({result.request_id for result in results + llm.generate("x")}) == 4
    assert llm.generate([]) == []


def test_defaults_are_those_users_know():
    (result,) = open_llm().generate("x")
    choice = result.outputs[0]
    assert len(choice.token_ids) == 16 and choice.finish_reason == "length"
    assert (choice.index, choice.logprobs, choice.cumulative_logprob, choice.stop_reason) == (0, None, None, None)
    assert result.prompt_logprobs is None


def test_logprobs():
    (result,) = open_llm().generate([[5, 6, 7]], SamplingParams(max_tokens=2, logprobs=2, prompt_logprobs=2))
    choice = result.outputs[0]
    assert choice.cumulative_logprob == -2.0 and len(choice.logprobs) == 2
    entry = choice.logprobs[0]
    assert list(entry) == [97, 1]
    assert (entry[97].logprob, entry[97].rank, entry[97].decoded_token) == (-1.0, 2, "a")
    assert (entry[1].logprob, entry[1].rank) == (-0.5, 1)
    assert result.prompt_logprobs[0] is None and [next(iter(row)) for row in result.prompt_logprobs[1:]] == [6, 7]


def test_H_SCH_07_stop_string_ends_the_answer_and_the_request():
    llm = open_llm(text="ab—END—cd")
    (result,) = llm.generate("x", SamplingParams(max_tokens=500, stop="—END—"))
    choice = result.outputs[0]
    assert (choice.text, choice.finish_reason, choice.stop_reason) == ("ab", "stop", "—END—")
    assert not llm._core.has_unfinished() and llm._core.generated < 30


def test_H_SCH_09_three_choices_with_a_seed():
    llm = open_llm()
    first, second = (llm.generate("x", SamplingParams(n=3, seed=7, max_tokens=16))[0] for _ in range(2))
    assert [choice.index for choice in first.outputs] == [0, 1, 2]
    assert len({choice.text for choice in first.outputs}) == 3 and texts([first]) == texts([second])


def test_a_seed_of_the_engine_repeats_a_run(opened):
    def run(seed):
        with LLM(seed=seed) as llm:
            results = llm.generate([[1], [1]], FOUR) + llm.generate([[1]], SamplingParams(n=2, max_tokens=4))
        return [text for choices in texts(results) for text in choices]

    first = run(7)
    assert first == run(7) and len(set(first)) == 4
    assert first != run(8) and len(set(run(None))) == 1


def test_chat():
    llm = open_llm()
    conversation = [{"role": "user", "content": "hi"}]
    (result,) = llm.chat(conversation, FOUR)
    assert result.prompt == "own:[user]hi[assistant]"
    assert result.prompt_token_ids == list(result.prompt.encode())
    both = llm.chat([conversation, conversation], FOUR, chat_template="T", add_generation_prompt=False)
    assert [result.prompt for result in both] == ["T:[user]hi"] * 2
    with pytest.raises(RequestError, match="prompt 1: messages is empty"):
        llm.chat([conversation, []], FOUR)


@pytest.mark.parametrize(
    ("prompts", "params", "field"),
    [
        (["ok", ""], FOUR, None),
        (["ok", []], FOUR, "prompt"),
        ([[1], [-1]], FOUR, "prompt"),
        ([[1], [5, "x"]], FOUR, "prompt"),
        (["ok", 5.0], FOUR, "prompt"),
        (["ok", {"text": "x"}], FOUR, "prompt"),
        (["ok", "ok"], [FOUR, SamplingParams(temperature=9)], "temperature"),
        (["ok", "ok"], [FOUR, SamplingParams(max_tokens=10**6)], "max_tokens"),
        (["ok", [299]], FOUR, "prompt"),
    ],
)
def test_errors_come_before_anything_runs_and_name_the_prompt(prompts, params, field):
    llm = open_llm(refuse=299)
    if field is None:
        assert llm.generate(prompts, params)[1].prompt_token_ids == [BEGIN]
        return
    with pytest.raises(RequestError, match="prompt 1: ") as error:
        llm.generate(prompts, params)
    assert error.value.param == field
    assert llm._core.generated == 0 and not llm._core.has_unfinished()
    assert texts(llm.generate("x", FOUR)) == [["abca"]]


@pytest.mark.parametrize("call", [lambda llm: llm.generate(5), lambda llm: llm.generate(["a"], [FOUR, FOUR])])
def test_calls_that_make_no_sense(call):
    with pytest.raises(RequestError):
        call(open_llm())


def test_a_failing_engine_says_so_and_stays_dead():
    llm = open_llm(crash_after=2)
    core = llm._core
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="RuntimeError: the script is over"):
            llm.generate("x", SamplingParams(max_tokens=50))
    assert core.closed


@pytest.fixture
def opened(monkeypatch):
    """Cores that ``LLM`` opens; each plays a script."""
    cores = []

    def open_core(given, offline):
        cores.append(ScriptedCore(script()))
        return cores[-1]

    monkeypatch.setattr("engine.core.EngineCore", open_core)
    return cores


def test_a_folder_with_one_gguf(tmp_path, opened):
    (tmp_path / "model.gguf").symlink_to(builtin_gguf())
    with LLM(str(tmp_path)) as llm:
        assert len(opened) == 1 and llm.get_tokenizer().vocab_size == 49152


def test_a_tokenizer_that_cannot_be_read_costs_no_start(tmp_path, opened):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"tokenizer\.json is needed"):
        LLM(str(tmp_path))
    assert opened == []


def test_a_chat_template_is_a_file_or_a_template_as_in_serve(tmp_path, opened):
    with pytest.raises(UserError, match=r"missing\.jinja: there is no such file"):
        LLM(chat_template="missing.jinja")
    assert opened == []
    (tmp_path / "own.jinja").write_text("file {{ messages[0].content }}")
    for template in (str(tmp_path / "own.jinja"), "file {{ messages[0].content }}"):
        with LLM(chat_template=template) as llm:
            own = llm._chat_template
            prompt = llm.get_tokenizer().render_chat([{"role": "user", "content": "x"}], chat_template=own)
            assert prompt == "file x"


def test_close():
    with open_llm() as llm:
        core = llm._core
        assert isinstance(llm.get_tokenizer(), ToyTokenizer)
    assert core.closed
    llm.close()
    with pytest.raises(EngineDeadError, match="closed"):
        llm.generate("x")


def press_ctrl_c(times=1, after=0.3):
    def press():
        for _ in range(times):
            time.sleep(after)
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()


def test_ctrl_c_leaves_nothing_in_the_core_between_steps():
    llm = open_llm(step_s=0.2)
    press_ctrl_c()
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["x", "y"], SamplingParams(max_tokens=1000))
    assert not llm._core.has_unfinished() and len(llm._core.aborted) == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert llm._core.generated == 2 * llm._core.steps
    assert texts(llm.generate("x", SamplingParams(max_tokens=2))) == [["ab"]]


def test_a_second_ctrl_c_does_not_wait_for_the_step():
    llm = open_llm(step_s=20)
    press_ctrl_c(times=2)
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        llm.generate("x", SamplingParams(max_tokens=1000))
    assert time.monotonic() - begin < 5
    with pytest.raises(EngineDeadError):
        llm.generate("x")


def test_a_program_that_handles_ctrl_c_keeps_its_handler():
    own = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        mine = signal.getsignal(signal.SIGINT)
        with deferred_interrupt() as check:
            assert signal.getsignal(signal.SIGINT) is mine
            check()
    finally:
        signal.signal(signal.SIGINT, own)


@pytest.mark.parametrize(
    ("terminal", "wanted", "shown"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_the_bar_shows_itself_when_it_takes_long(monkeypatch, capfd, terminal, wanted, shown):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    now = [0.0]
    with generation_bar(4, wanted, lambda: now[0]) as advance:
        advance(1, 10)
        assert capfd.readouterr().err == ""
        now[0] = 10.0
        advance(2, 30)
    assert bool(re.search(r"3/4.*4\.0 tok/s", capfd.readouterr().err)) is shown


def test_importing_names_loads_no_torch_and_nothing_is_missing():
    code = (
        "import sys; from engine import LLM, SamplingParams; from engine.entrypoints.llm import LLM as same;"
        "import engine; [getattr(engine, name) for name in engine.__all__]; assert same is LLM;"
        "print(sorted({'torch', 'numpy', 'tokenizers', 'rich'} & set(sys.modules)))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="Nothing"):
        _ = engine.Nothing


def test_the_version_is_that_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert engine.__version__ == project["version"]


@pytest.mark.parametrize(
    ("prompts", "params", "message"),
    [
        ("x", SamplingParams(stop=5), "stop: "),
        ("x", SamplingParams(stop=0), "stop: "),
        ("x", SamplingParams(stop_token_ids=7), "stop_token_ids: "),
        (["x"], {"max_tokens": 1}, r"sampling_params is dict; give SamplingParams\(...\)"),
        (["x"], [{"max_tokens": 1}], r"sampling_params\[0\] is dict"),
        (["x"], 3, "sampling_params is int"),
        ([True, 5], None, "holds True"),
        ([[5, False]], None, "holds False"),
    ],
)
def test_arguments_of_the_wrong_type_are_told(prompts, params, message):
    llm = open_llm()
    with pytest.raises(RequestError, match=message):
        llm.generate(prompts, params)
    assert texts(llm.generate("x", FOUR)) == [["abca"]]


def test_a_second_thread_is_refused_and_the_first_one_served():
    llm, inside, go_on = open_llm(), threading.Event(), threading.Event()
    step, found = llm._core.step, []

    def waiting():
        inside.set()
        assert go_on.wait(10)
        return step()

    llm._core.step = waiting
    thread = threading.Thread(target=lambda: found.extend(llm.generate("x", FOUR)))
    thread.start()
    assert inside.wait(10)
    with pytest.raises(RuntimeError, match="another thread"):
        llm.generate("y", FOUR)
    go_on.set()
    thread.join(10)
    assert texts(found) == texts(llm.generate("y", FOUR)) == [["abca"]]


def test_a_priority_nobody_looks_at_is_refused():
    llm = open_llm()
    with pytest.raises(RequestError, match=r"prompt 1: priority is 2.*--scheduling-policy priority"):
        llm.generate(["x", "y"], FOUR, priority=[0, 2])
    assert texts(llm.generate(["x"], FOUR, priority=[0])) == [["abca"]]
