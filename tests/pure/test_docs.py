"""Invariant 10: what documents say in tables comes from the code, and the commands they show are understood."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest
from test_golden_plans import PLUGINS, TARGETS

from engine import compat
from engine.cli import COMMANDS, main
from engine.cli.explain import SWITCHES
from engine.config import FIELDS, collect
from engine.levels import FUSIONS, LEVELS
from engine.plan import plan_for
from engine.plan_values import Given
from tests.model_configs import LLAMA

ROOT = Path(__file__).parents[2]
PAGES = ("flags", "levels", "observability")
FLAGS, LEVEL_PAGE, SEEING = ((ROOT / "docs" / f"{name}.md").read_text() for name in PAGES)


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("document_tables", ROOT / "docs/tables.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines(text: str, marker: str) -> list[str]:
    """Rows of the tables between two markers, titles aside."""
    inside = text.split(f"<!-- {marker} -->\n")[1].split(f"<!-- /{marker} -->")[0]
    return [line for line in inside.splitlines() if line.startswith("| ") and not line.startswith("| ---")]


def test_every_table_stands_in_a_document(tables: ModuleType) -> None:
    texts = [(ROOT / name).read_text() for name in tables.DOCUMENTS]
    for key in tables.TABLES:
        assert any(f"<!-- {key} -->\n" in text for text in texts), key


def test_invariant_10_generated_tables_are_up_to_date(tables: ModuleType) -> None:
    assert tables.main(check=True) == 0, "run python docs/tables.py"


@pytest.mark.parametrize(
    "key", ["levels", "flags", "own-flags", "variables", "spellings", "removed", "targets", "fields"]
)
def test_a_changed_word_in_a_table_is_noticed(tables: ModuleType, key: str) -> None:
    text = f"before\n<!-- {key} -->\n{tables.TABLES[key]()}\n<!-- /{key} -->\nafter\n"
    assert tables.updated(text) == text
    for broken in (text.replace("| ---", "| x | ---", 1), re.sub(r"\| [`\w-][^|]* \|", "| other |", text, count=1)):
        assert broken != text and tables.updated(broken) == text


def test_every_setting_is_in_the_table_with_its_names() -> None:
    rows = lines(FLAGS, "flags")
    for field in FIELDS:
        starts = tuple(f"| `{flag}`" for flag in (field.flag, f"{field.flag}=true", f"--[no-]{field.flag[2:]}"))
        (row,) = [row for row in rows if row.startswith(starts)]
        assert field.help.replace("|", "\\|") in row
        assert f"`{field.environment}`" in row or not field.environment
        assert field.only or f"`{field.key}`" in row
    assert all(any(flag in row for row in lines(FLAGS, "own-flags")) for flag, _ in SWITCHES)


def test_every_spelling_is_in_the_table() -> None:
    rows = "\n".join(lines(FLAGS, "spellings"))
    for old, new in compat.KEYS.items():
        assert f"`{old}` | `{new}`" in rows
    assert all(f"`{old}`" in rows for old in (*compat.OPERATIONS, *compat.MODES, *compat.VARIABLES))
    removed = "\n".join(lines(FLAGS, "removed"))
    assert all(what in removed for what in compat.VARIABLES_NOT_TAKEN.values())
    assert all(what in removed for names in compat.NOT_TAKEN.values() for what in names.values())
    assert all(f"accepted without effect; {why}" in removed for _, why in compat.NO_EFFECT.values())


def test_every_variable_of_a_platform_is_in_the_table() -> None:
    rows = "\n".join(lines(FLAGS, "variables"))
    assert all(f"`{name}`" in rows for plugin in PLUGINS.values() for name in plugin.aliases())


@pytest.mark.parametrize("level", [level.number for level in LEVELS])
@pytest.mark.parametrize(("name", "target"), TARGETS, ids=[":".join(row) for row in TARGETS])
def test_H_OPT_08_the_table_says_what_a_level_comes_to(name: str, target: str, level: int) -> None:
    first = LEVEL_PAGE.split("<!-- resolved -->\n")[1].split("\n\n")[1].splitlines()
    named = ""
    for line in first[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        named = cells[0] or named
        if f"`{name}:{target}`" in named and f"-O{level}" in cells[1].split(", "):
            break
    else:
        raise AssertionError(f"no row for {name}:{target} at -O{level}")
    plugin = PLUGINS[name]
    plan = plan_for(plugin, plugin.targets()[target], LLAMA, {"optimization_level": Given(level, "command line")})
    assert cells[2:4] == [plan["compilation.mode"], plan["compilation.graph_mode"]]
    assert cells[5] == (", ".join(row.rule for row in plan.fusions if row.matched) or "none")


def test_every_fusion_users_know_is_in_the_level_table() -> None:
    rows = "\n".join(lines(LEVEL_PAGE, "levels"))
    assert all(name in rows for name in FUSIONS)


COMMAND_LINES = [
    line
    for text in (LEVEL_PAGE, FLAGS, SEEING, (ROOT / "docs/api.md").read_text())
    for block in re.findall(r"```bash\n(.*?)```", text, re.S)
    for line in block.splitlines()
    if not line.startswith("engine top")  # tests/anydevice/test_top.py runs those
]


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_shown_commands_are_understood(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of ``engine explain`` run; a server is not started for those of ``engine serve``."""
    program, command, *words = shlex.split(line)
    assert program == "engine" and command in COMMANDS
    if command == "explain":
        monkeypatch.chdir(tmp_path)
        (tmp_path / "config.json").write_text(CONFIG)
        assert main([command, *words]) == 0 and capsys.readouterr().out
    else:
        assert command == "serve" and collect(words, {}, command).given


CONFIG = """{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "rms_norm_eps": 1e-5,
"max_position_embeddings": 512, "torch_dtype": "float32"}"""


@pytest.mark.parametrize("name", ["docs/flags.md", "docs/levels.md", "docs/api.md", "docs/observability.md"])
def test_links_and_flags_in_prose_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / "docs" / target).exists(), target
    prose = re.sub(r"<!-- (\S+) -->.*?<!-- /\1 -->", "", text, flags=re.S)
    known = {flag for field in FIELDS for flag in (field.flag, *field.flags)}
    known |= {usage.split()[0] for usage, _ in SWITCHES}
    known |= {"--once", "--json", "--config", "--help", "--compilation-config.graph_mode", "-cc", "-cc.custom_ops"}
    for flag in re.findall(r"`(--?[a-z][\w.-]*)", prose):
        assert flag in known, flag
