"""The page at ``/`` in a real browser, before a server whose core plays a script."""

from __future__ import annotations

import json
import threading
import time

import pytest

from engine.plan import plan_for
from engine.plan_values import Given
from platforms.cpu.plugin import CpuPlugin
from tests.model_configs import LLAMA
from tests.page.browser import Page, browsing
from tests.scripted_engine import Script, serving

READY = "document.querySelector('#state').textContent === 'ready'"
ENDED = "document.querySelector('#stop').hidden && !!document.querySelector('.answered:last-child .note')"
HOVERED = "document.querySelector('#card').innerText"
WIDE, PHONE = (1280, 800), (360, 740)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with browsing(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def page(browser):
    """A new tab. Whatever a test does, nothing may go wrong in it unseen, and nothing is fetched from elsewhere."""
    tab = Page(browser)
    tab.look(*WIDE)
    yield tab
    assert tab.problems == []
    hosts = {address.split("/")[2] for address in tab.requests if address.startswith("http")}
    assert len(hosts) == 1 and not [a for a in tab.requests if not a.startswith(("http", "about:", "data:,"))]
    tab.call("Page.close")


def plan():
    """A real plan, as the core hands it on."""
    plugin = CpuPlugin()
    target = next(iter(plugin.targets().values()))
    made = plan_for(plugin, target, LLAMA, {"optimization_level": Given(2, "command line")})
    return json.loads(json.dumps(made.to_json()))


def ask(page, text):
    page.run("document.querySelector('#prompt').focus()")
    page.write(text)
    page.press("Enter")


def set_fields(page, **values):
    for name, value in values.items():
        page.run(f"document.querySelector('[name={name}]').value = '{value}'")


def answer(page):
    return page.run("document.querySelector('.answered:last-child .text').textContent")


def test_a_conversation_streams_with_the_probability_of_every_token(page):
    with serving(Script(text="h€llo w", once=True, step_s=0.05), max_model_len=4000) as server:
        page.open(server.url)
        page.wait(READY)
        assert page.text("#model") == "script"
        ask(page, "hi")
        lengths = set()
        while not page.run(ENDED + " && document.querySelector('.note').textContent.includes('ended by')"):
            lengths.add(len(answer(page) or ""))
            time.sleep(0.01)
        assert len(lengths) > 3, "the answer came at once"
        assert answer(page) == "h€llo w"
        assert "10 tokens" in page.text(".note") and "ended by stop" in page.text(".note")
        assert page.run("[...document.querySelectorAll('.token')].map(t => t.textContent)") == list("h€llo w")
        page.move(".token:nth-child(2)")
        assert "bytes:" in page.wait(HOVERED)
        assert page.run("document.querySelectorAll('#card tr').length") == 3 * 6, "three tokens, each with five others"
        page.move("h1, #model")
        page.wait("document.querySelector('#card').hidden")
        ask(page, "and then?")
        page.wait("document.querySelectorAll('.answered').length === 2 && " + ENDED)


def test_tokens_are_walked_through_without_a_mouse(page):
    with serving(Script(text="abc", once=True)) as server:
        page.open(server.url)
        page.wait(READY)
        ask(page, "hi")
        page.wait("document.querySelectorAll('.token').length === 3 && " + ENDED)
        page.run("document.querySelector('.token').focus()")
        for letter in "abc":
            assert page.wait(HOVERED).split()[0] == letter == page.run("document.activeElement.textContent")
            page.press("ArrowRight")
        assert page.run("document.activeElement.textContent") == "c"
        page.press("ArrowLeft")
        assert page.run("document.activeElement.textContent") == "b"
        page.press("Escape")
        page.wait("document.querySelector('#card').hidden")


def test_every_control_is_reached_with_the_tab_key(page):
    with serving() as server:
        page.open(server.url)
        page.wait(READY)
        page.run("document.activeElement.blur()")
        seen = set()
        for _ in range(40):
            page.press("Tab")
            seen.add(page.run("document.activeElement.id || document.activeElement.name "
                              "|| document.activeElement.getAttribute('href')"))  # fmt: skip
        assert {"#playground", "#live", "#plan", "mode", "clear", "prompt", "send", "system", "temperature", "stop",
                "probabilities", "max_tokens"} <= seen  # fmt: skip


@pytest.mark.parametrize("how", ["click", "escape"])
def test_stopping_ends_the_answer_in_the_core(page, how):
    with serving(Script(step_s=0.02), max_model_len=4000) as server:
        page.open(server.url)
        page.wait(READY)
        set_fields(page, max_tokens=3000)
        ask(page, "hi")
        page.wait("document.querySelectorAll('.token').length > 3")
        page.press("Escape") if how == "escape" else page.click("#stop")
        page.wait(ENDED + " && document.querySelector('.note').textContent === 'stopped by you'")
        deadline = time.monotonic() + 20
        while not server.core.aborted and time.monotonic() < deadline:
            time.sleep(0.02)
        assert server.core.aborted and not server.core.live
        assert page.run("document.activeElement.id") == "prompt" and len(answer(page)) > 3


def test_parameters_and_the_system_prompt_reach_the_core(page):
    requests = []
    letters = list(b"ok")
    script = Script(tokens=lambda request: requests.append(request) or letters)
    with serving(script, max_model_len=4000) as server:
        page.open(server.url)
        page.wait(READY)
        page.run("document.querySelector('#system').value = 'be brief'")
        set_fields(page, temperature=0.5, top_p=0.25, top_k=7, min_p=0.125, max_tokens=40, seed=11,
                   presence_penalty=0.5, frequency_penalty=-0.5, repetition_penalty=1.5, stop="zz")  # fmt: skip
        ask(page, "hi")
        page.wait(ENDED + " && document.querySelector('.note').textContent.includes('ended by')")
        first = requests[0]
        assert server.tokenizer.decode(first.prompt) == "[system]be brief[user]hi[assistant]"
        params = first.params
        assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.25, 7, 0.125)
        assert (params.max_tokens, params.seed, params.stop, params.logprobs) == (40, 11, ["zz"], 5)
        assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.5, -0.5, 1.5)
        requests.clear()
        page.click("#probabilities")
        ask(page, "more")
        page.wait("document.querySelectorAll('.answered').length === 2 && " + ENDED)
        assert requests[0].params.logprobs is None
        told = server.tokenizer.decode(requests[0].prompt)
        assert told == f"[system]be brief[user]hi[assistant]{answer(page)}[user]more[assistant]"


def test_a_text_is_continued_and_shown_as_it_is(page):
    with serving(Script(text="<img src=x onerror=alert(1)>&amp;", once=True), max_model_len=4000) as server:
        page.open(server.url)
        page.wait(READY)
        page.click("input[value=completion] + span")
        assert not page.run("document.querySelector('#system').offsetParent")
        ask(page, "Once <b>upon</b>")
        page.wait(ENDED + " && document.querySelector('.note').textContent.includes('ended by')")
        assert answer(page) == "<img src=x onerror=alert(1)>&amp;"
        assert page.run("document.querySelector('.asked .text').textContent") == "Once <b>upon</b>"
        assert page.run("document.querySelectorAll('#log img, #log b').length") == 0
        assert page.run("document.querySelectorAll('.token').length") == len(answer(page))
        assert "/v1/completions" in page.run("document.querySelector('#command').textContent")


def test_what_the_server_refuses_is_shown_and_the_text_is_kept(page):
    with serving() as server:
        page.open(server.url)
        page.wait(READY)
        set_fields(page, max_tokens=9999)
        ask(page, "hi")
        said = page.wait("document.querySelector('.note.error')?.textContent")
        assert "9999" in said and "(max_tokens)" in said
        assert page.run("document.querySelector('#prompt').value") == "hi"
        assert [text for text in page.problems if "400" in text] == page.problems != []
        page.problems.clear()


def test_a_key_is_asked_for_and_used(page):
    with serving(Script(text="abc", once=True), api_keys=["secret"], plan=plan()) as server:
        page.open(server.url)
        page.wait("!document.querySelector('#key-form').hidden && document.activeElement.id === 'key'")
        page.write("wrong")
        page.press("Enter")
        page.wait("!document.querySelector('#key-error').hidden")
        page.write("secret")
        page.press("Enter")
        page.wait(READY)
        assert page.run("document.querySelector('#key-form').hidden")
        ask(page, "hi")
        page.wait(ENDED + " && document.querySelector('.answered .text').textContent === 'abc'")
        assert "$ENGINE_API_KEY" in page.run("document.querySelector('#command').textContent")
        assert "secret" not in page.run("document.documentElement.outerHTML")
        page.open(server.url + "/#plan")
        page.wait("document.querySelectorAll('#decisions table').length > 3")
        assert [text for text in page.problems if "401" in text and "/v1/models" in text] == page.problems != []
        page.problems.clear()


def test_charts_draw_what_the_server_does(page):
    with serving(Script(step_s=0.01), max_model_len=4000) as server:
        page.open(server.url + "/#live")
        stop = threading.Event()

        def load():
            while not stop.is_set():
                server.completion(max_tokens=40)

        thread = threading.Thread(target=load)
        thread.start()
        try:
            page.wait("[...document.querySelectorAll('.chart path')].every(path => /M.*L/.test(path.getAttribute('d')) "
                      "|| path.closest('.chart').innerText.includes('–'))")  # fmt: skip
            assert float(page.wait("(text => text !== '–' && text)(document.querySelector('.figures dd').textContent)"))
            page.wait("document.querySelectorAll('.figures dd')[1].textContent === '1'")
        finally:
            stop.set()
            thread.join()
        labels = page.run("[...document.querySelectorAll('.chart svg')].map(one => one.getAttribute('aria-label'))")
        assert len(labels) == 6 and labels[0].startswith("Tokens per second: generated ")
        page.move(".chart svg")
        page.wait("/now|ago/.test(document.querySelector('.when:not(.since)').textContent)")


def test_the_plan_is_shown_with_its_reasons(page):
    decided = plan()
    with serving(plan=decided) as server:
        assert server.client.get("/plan").json()["plan"] == decided
        page.open(server.url + "/#plan")
        page.wait("document.querySelectorAll('#decisions table').length > 3")
        page.run("document.querySelectorAll('#decisions details').forEach(one => { one.open = true; })")
        text = page.text("#decisions")
        for row in decided["kernels"]:
            assert row["op"] in text and row["chosen"] in text and row["reason"] in text
        for row in decided["fusions"]:
            assert row["rule"] in text and row["reason"] in text
        for key, row in decided["decisions"].items():
            assert key in text and row["origin"] in text
        sizes = ", ".join(map(str, decided["decisions"]["compilation.capture_sizes"]["value"]))
        assert sizes in text and decided["hash"] in text


@pytest.mark.parametrize("view", ["playground", "live", "plan"])
def test_it_fits_a_phone_and_follows_the_scheme(page, view):
    with serving(Script(text="abc " * 40, once=True), max_model_len=4000, plan=plan()) as server:
        page.open(f"{server.url}/#{view}")
        page.wait(READY)
        if view == "playground":
            ask(page, "a long line of a message " * 6)
            page.wait(ENDED + " && document.querySelector('.note').textContent.includes('ended by')")
        elif view == "plan":
            page.wait("document.querySelectorAll('#decisions table').length > 3")
            page.run("document.querySelectorAll('#decisions details').forEach(one => { one.open = true; })")
        grounds = set()
        for scheme in ("light", "dark"):
            page.look(*PHONE, scheme)
            page.wait(f"innerWidth === {PHONE[0]}")
            assert page.run("document.documentElement.scrollWidth") <= PHONE[0]
            grounds.add(page.run("getComputedStyle(document.body).backgroundColor"))
        assert len(grounds) == 2
        assert page.run(f"document.querySelector('nav a[href=\"#{view}\"]').ariaCurrent") == "page"


def test_it_says_that_the_model_still_loads(page):
    with serving(filled=False) as server:
        page.open(server.url)
        page.wait("document.querySelector('#state').textContent.includes('still loading')")
        assert [text for text in page.problems if "503" in text] == page.problems
        page.problems.clear()


def test_it_works_below_a_root_path(page):
    with serving(Script(text="abc", once=True), root_path="/api") as server:
        page.open(server.url + "/api/")
        page.wait(READY)
        ask(page, "hi")
        page.wait(ENDED + " && document.querySelector('.answered .text').textContent === 'abc'")
        assert {address.split("/")[3] for address in page.requests if address.startswith("http")} == {"api"}
