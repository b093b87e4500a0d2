"""``--html``: one page, complete, well formed, and safe whatever a platform says."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from test_config_only import CONFIG
from test_golden_plans import PLUGINS, TARGETS
from toy_plans import PROFILE, ToyPlugin, toy_model

from engine.cli import main
from engine.config import collect
from engine.explain.matrix import Cell, Device, devices, matrix
from engine.explain.page import render_page
from engine.weights.resolve import Model
from platforms.contract import DeviceProfile

VOID = {"meta", "br", "wbr"}
MODEL = Model(Path("toy"), "toy", "a file")
NASTY = "<script>alert('x')</script>\"'&"


class Page(HTMLParser):
    """The elements of a document. Fails where a tag is left open or closed twice."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs)
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


def page(*words: str, profile: DeviceProfile = PROFILE) -> str:
    given = collect(words, {}, "explain").given
    found = [Device("toy", ToyPlugin(), profile, True), Device("toy:v1", ToyPlugin(), profile, False)]
    return render_page(matrix(found, toy_model(), given, {}), ["platform <b> is left out"], MODEL, given)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("page") / "plans.html"
    assert main(["explain", "-O1", "--html", str(file)]) == 0
    return file.read_text(encoding="utf-8")


def test_every_target_at_every_level_has_a_cell_that_opens_its_reasons(whole: str) -> None:
    found = Page(whole)
    text = "".join(found.text)
    assert all(":".join(target) in text for target in TARGETS)
    ids = [attrs["id"] for attrs in found.all("dialog")]
    opened = [attrs["data-open"] for attrs in found.all("button") if "data-open" in attrs]
    assert sorted(map(str, ids)) == sorted(map(str, opened)) and len(set(ids)) == len(ids)
    here = [plugin for plugin in PLUGINS.values() if plugin.probe().profiles]
    assert len(ids) >= 4 * (len(TARGETS) + len(here))
    counted = Counter(attrs["data-level"] for attrs in found.all("button") if "data-open" in attrs)
    assert set(counted) == {"0", "1", "2", "3"} and len(set(counted.values())) == 1


def test_it_needs_nothing_else(whole: str) -> None:
    assert not re.search(r"https?:|//[a-z]|@import|url\(|<link|<img|<iframe|\bsrc=|\bhref=", whole)
    found = Page(whole)
    assert len(found.all("style")) == 2 and len(found.all("script")) == 1
    assert found.all("html") == [{"lang": "en"}]
    assert {"charset": "utf-8"} in found.all("meta")
    assert any(attrs.get("name") == "viewport" for attrs in found.all("meta"))


def test_it_can_be_used_by_keyboard_and_in_the_dark(whole: str) -> None:
    assert ":focus-visible" in whole and "prefers-color-scheme: dark" in whole and "outline: none" not in whole
    found = Page(whole)
    labels = {attrs["id"] for attrs in found.all("h2")}
    assert all(attrs["aria-labelledby"] in labels for attrs in found.all("dialog"))
    assert not any("tabindex" in attrs for _, attrs in found.tags)


def test_the_present_device_comes_first(whole: str) -> None:
    found, notes = devices({})
    assert notes == [] and found[0].present and not any(row.present for row in found if ":" in row.label)
    kinds = [row.present for row in found]
    assert kinds == sorted(kinds, reverse=True)
    assert "this machine" in whole


def test_a_cell_says_what_the_plan_says() -> None:
    text = page("-O2")
    (device, cells), _ = matrix([Device("toy", ToyPlugin(), PROFILE, True)] * 2, toy_model(), {}, {})
    assert device.label == "toy" and [cell.level for cell in cells] == [0, 1, 2, 3]
    flat = re.sub(r"\s+", " ", " ".join(Page(text).text))
    for cell in cells:
        assert cell.plan is not None
        for decision in cell.plan.decisions.values():
            assert decision.reason in flat or decision.reason == "asked for" or decision.key.endswith("level")
        for choice in cell.plan.kernels:
            assert choice.op in flat and choice.reason in flat
            assert all(verdict.reason in flat for _, verdict in choice.considered if not verdict)
        for row in cell.plan.fusions:
            assert row.rule in flat and row.reason in flat
    assert [cell.twin for cell in cells] == [None, None, None, 2] and "same plan as -O2, until" in text


def test_a_level_that_cannot_serve_a_request_says_why() -> None:
    text = page("-cc.mode=NONE", "-cc.graph_mode=FULL")
    found = Page(text)
    assert len([1 for attrs in found.all("span") if attrs.get("class") == "refused"]) == 8
    assert "-cc.graph_mode=FULL (command line) cannot be served" in " ".join(found.text)


def test_whatever_a_platform_says_is_text() -> None:
    nasty = replace(PROFILE, product=NASTY, family=NASTY, arch=NASTY)
    text = page("--kernel", "linear=reference", "-cc.splitting_ops=<script>", profile=nasty)
    found = Page(text)
    assert len(found.all("script")) == 1 and NASTY in "".join(found.text)
    bad = Device(NASTY, ToyPlugin(), PROFILE, True)
    other = render_page([(bad, [Cell(0, None, NASTY)])], [NASTY], Model(Path("x"), NASTY, NASTY), {})
    assert len(Page(other).all("script")) == 1 and "<script>alert" not in other


def test_settings_are_shown_and_secrets_are_not() -> None:
    text = page("-O1", "--max-num-seqs", "17", "--api-key", "sesame")
    assert "--max-num-seqs 17 (command line)" in text and "sesame" not in text
    assert "-O1 <em>asked for</em>" in text and "-O2 <em>default</em>" in page()


def test_a_name_narrows_the_page() -> None:
    name, target = TARGETS[0]
    alone, _ = devices(collect(["--platform", f"{name}:{target}"], {}).given)
    assert [row.label for row in alone] == [f"{name}:{target}"]
    several, _ = devices(collect(["--platform", TARGETS[-1][0]], {}).given)
    assert {row.profile.platform for row in several} == {TARGETS[-1][0]}
    assert len(several) >= len([1 for row in TARGETS if row[0] == TARGETS[-1][0]])


def test_a_file_that_cannot_be_written_exits_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["explain", "--platform", ":".join(TARGETS[0]), "--html"]
    for place in (tmp_path, tmp_path / "absent" / "x.html"):
        assert main([*words, str(place)]) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"engine: error: --html {place}: cannot be written: ") and err.count("\n") == 1
    assert main([*words, str(tmp_path / "x.html")]) == 0


def test_a_name_that_is_no_text_is_written_all_the_same(tmp_path: Path) -> None:
    """A folder's name may hold bytes of another encoding."""
    folder = tmp_path / b"odd\xff<b>".decode("utf-8", "surrogateescape")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    page = tmp_path / "page.html"
    assert main(["explain", str(folder), "--platform", "cpu:x86-64-v3", "--html", str(page)]) == 0
    assert "odd\\udcff&lt;b&gt;" in page.read_text()
