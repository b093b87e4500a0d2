"""The files of the page at ``/``: what they are served with, and that they ask for nothing the API does not have."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

from engine.server.app import ROUTES, make_app
from engine.server.protocol import ChatRequest, CompletionRequest, StreamOptions
from engine.server.site import NAMES, PATHS
from engine.server.state import ServerState

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "engine/server/page"
TEXTS = {file.name: file.read_text(encoding="utf-8") for file in sorted(FOLDER.iterdir())}
SCRIPTS = "\n".join(text for name, text in TEXTS.items() if name.endswith(".js"))


def get(path: str, **headers: str) -> httpx.Response:
    """From an application without a model, as it is while one loads."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(make_app(ServerState(), ["key"]))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(ask())


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline = ""
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        self.inline += data.strip() if self.inside in ("script", "style") else ""


@pytest.fixture(scope="module")
def tags() -> Tags:
    parser = Tags()
    parser.feed(TEXTS["index.html"])
    return parser


def test_every_file_is_served_and_every_served_one_is_there() -> None:
    assert set(TEXTS) == {"index.html", *NAMES} and len(PATHS) == len(TEXTS)


@pytest.mark.parametrize("path", PATHS)
def test_files_come_without_a_key_and_with_a_strict_policy(path: str) -> None:
    answer = get(path)
    name = "index.html" if path == "/" else path.rpartition("/")[2]
    assert answer.status_code == 200 and answer.text == TEXTS[name]
    kinds = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    assert answer.headers["content-type"].split(";")[0] == kinds[name.rpartition(".")[2]]
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = dict(part.split(maxsplit=1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'" == policy["frame-ancestors"] == policy["base-uri"]
    assert {policy[name] for name in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
    assert "unsafe" not in str(policy)
    again = get(path, **{"if-none-match": answer.headers["etag"]})
    assert again.status_code == 304 and not again.content
    assert get(path, **{"if-none-match": '"other"'}).status_code == 200


def test_the_page_holds_no_inline_code_and_names_only_its_own_files(tags: Tags) -> None:
    assert not tags.inline
    for tag, attributes in tags.tags:
        assert not [name for name in attributes if name == "style" or name.startswith("on")], tag
        for name in ("src", "href"):
            address = attributes.get(name)
            assert not address or address.startswith("#") or f"/{address}" in (*PATHS, "/metrics"), address
    for name, text in TEXTS.items():
        assert set(re.findall(r"https?://[^\s\"'`)]+", text)) <= {"http://www.w3.org/2000/svg"}, name
        assert not re.search(r"(inner|outer|Adjacent)HTML|document\.write|\beval\(|new Function", text), name
        assert len(text.splitlines()) < 400, name


def test_imports_of_scripts_exist() -> None:
    for text in (text for name, text in TEXTS.items() if name.endswith(".js")):
        for names, file in re.findall(r"import \{([^}]*)\} from \"\./([^\"]+)\"", text):
            assert file in TEXTS
            for name in names.split(","):
                assert re.search(rf"export (async )?(function\*?|const|class) {name.strip()}\b", TEXTS[file]), name


def test_every_parameter_of_the_form_is_a_field_of_both_routes(tags: Tags) -> None:
    names = {attributes.get("name") for tag, attributes in tags.tags if tag == "input"}
    fields = {name for name in names if name} - {"mode"}
    assert len(fields) >= 10
    assert fields <= ChatRequest.model_fields.keys() & CompletionRequest.model_fields.keys()
    for model, own in ((ChatRequest, ("messages", "logprobs", "top_logprobs")), (CompletionRequest, ("prompt",))):
        assert {*own, "model", "stream", "stream_options", "logprobs"} <= model.model_fields.keys()
    assert "include_usage" in StreamOptions.model_fields and "include_usage" in SCRIPTS


def test_every_route_that_scripts_ask_for_exists() -> None:
    asked = {"/" + path for path in re.findall(r"call\(\"([^\"]+)\"", SCRIPTS)}
    asked |= {"/" + path for path in re.findall(r"\"(v1/[^\"]+)\"", SCRIPTS)}
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/metrics", "/plan"} == asked
    assert asked <= {path for _, path, _, _ in ROUTES}


def test_labels_name_every_control(tags: Tags) -> None:
    text = TEXTS["index.html"]
    labelled = set(re.findall(r'<label for="([^"]+)"', text))
    for tag, attributes in tags.tags:
        if tag in ("input", "textarea"):
            name = attributes.get("id") or attributes.get("name")
            mark = re.escape(f'{"id" if attributes.get("id") else "name"}="{name}"')
            inside = re.search(rf"<label[^>]*>(?:(?!</label>).)*{mark}", text, re.S)
            assert name in labelled or inside, name
    assert re.search(r'<html lang="en">', text) and "name=\"viewport\"" in text


def test_a_wheel_holds_the_page(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "engine", tmp_path / "engine", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    code = "from setuptools import build_meta; build_meta.build_wheel('out')"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "out").glob("*.whl")
    held = zipfile.ZipFile(wheel).namelist()
    assert {f"engine/server/page/{name}" for name in TEXTS} <= set(held)
