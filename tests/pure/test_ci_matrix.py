"""The rows of the CI matrix, and the workflow that is made from them."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from ci.command import main
from ci.github import WORKFLOW, render
from ci.matrix import ROOT, Row, find_row, read_matrix
from ci.steps import install
from ci.tiers import TIERS, present
from engine.errors import UserError
from platforms.cpu.plugin import CpuPlugin
from platforms.cuda.plugin import CudaPlugin
from platforms.rocm.plugin import RocmPlugin

ROWS = read_matrix()
PLUGINS = {plugin.name: plugin for plugin in (CpuPlugin(), CudaPlugin(), RocmPlugin())}
JOBS = yaml.safe_load((ROOT / WORKFLOW).read_text())["jobs"]
GOOD = """
[defaults.cpu]
image = "python:3.12"
[[row]]
name = "a"
platform = "cpu"
target = "x86-64-v3"
labels = ["x"]
tiers = ["pure", "device"]
"""


def row_id(row: Row) -> str:
    return row.name


def test_the_hardware_of_the_issue_is_there() -> None:
    targets = {f"{row.platform}:{row.target}" for row in ROWS}
    assert {"cpu:x86-64-v3", "cpu:x86-64-v4", "cpu:armv8.2"} <= targets
    assert {"cuda:sm_90", "cuda:sm_100", "cuda:sm_120", "rocm:gfx942", "rocm:gfx950"} <= targets
    products = {product for row in ROWS for product in row.products}
    assert {"H100", "H200", "B200", "RTX PRO 6000", "RTX 5090", "MI300X", "MI355X"} <= products


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_a_row_names_what_exists(row: Row) -> None:
    targets = PLUGINS[row.platform].targets()
    assert row.target in targets and targets[row.target].arch not in row.archs
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(row.extras) <= set(extras)
    host, slash, _ = row.image.partition("/")
    assert not slash or not set(host) & set(".:"), "an image is named without the host it lies on"


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_a_row_lists_every_tier_that_has_something_to_run_and_no_other(row: Row) -> None:
    for tier in TIERS:
        if tier.name != "bench":
            assert (tier.name in row.tiers) == present(tier, row.platform, ROOT), tier.name
        elif tier.name in row.tiers:
            assert present(tier, row.platform, ROOT)


def test_rows_of_one_target_differ_by_product() -> None:
    for row in ROWS:
        for other in ROWS:
            if row is not other and (row.platform, row.target) == (other.platform, other.target):
                assert row.products and not set(row.products) & set(other.products)


def test_the_workflow_is_what_the_matrix_renders() -> None:
    assert (ROOT / WORKFLOW).read_text() == render(ROWS), "run python -m ci render github"


def test_the_workflow_has_a_job_per_row_and_the_three_triggers() -> None:
    workflow = yaml.safe_load(render(ROWS))
    triggers = workflow[True]  # YAML 1.1 reads the key `on` so
    assert list(JOBS) == [row.name for row in ROWS]
    assert triggers["push"] == {"branches": ["main"]} and len(triggers["schedule"]) == 1
    choice = triggers["workflow_dispatch"]["inputs"]["row"]
    assert choice["type"] == "choice" and choice["options"] == ["all", *JOBS] and choice["default"] == "all"
    assert workflow["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_a_job_says_what_its_row_says(row: Row) -> None:
    job = JOBS[row.name]
    assert job["runs-on"] == list(row.labels) and f"inputs.row == '{row.name}'" in job["if"]
    assert job["container"]["image"] == row.image and job["container"].get("options", "") == row.container
    assert job["timeout-minutes"] > row.timeout > 0
    assert job["concurrency"] == {"group": f"hardware-{row.name}", "cancel-in-progress": False}
    uses = [step["uses"].partition("@")[0] for step in job["steps"] if "uses" in step]
    assert uses == ["actions/checkout", "actions/upload-artifact"]
    package, model, command = (step["run"] for step in job["steps"] if "run" in step)
    assert (package, model) == install(row) and ",".join((*row.extras, "test")) in package
    assert command.startswith(f"python3 -m ci run {row.name} ")
    upload = job["steps"][-1]
    assert upload["if"] == "always()" and upload["with"]["path"] == command.split()[-1]


def test_accelerators_get_their_devices_into_the_container() -> None:
    options = {row.platform: row.container for row in ROWS}
    assert "--gpus" in options["cuda"] and "/dev/kfd" in options["rocm"] and "/dev/dri" in options["rocm"]


def test_texts_are_quoted_whatever_they_hold() -> None:
    odd = Row("odd", "cpu", "x86-64-v3", ('a: "b"', "#c", "é"), "x:1", ("pure",), container="--env 'A: B' # no")
    job = yaml.safe_load(render([odd]))["jobs"]["odd"]
    assert job["runs-on"] == list(odd.labels) and job["container"]["options"] == odd.container
    assert job["timeout-minutes"] == 1440


def test_json_has_the_rows_with_their_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["name"] for row in rows] == [row.name for row in ROWS]
    assert rows[0]["run"].startswith("python3 -m ci run ") and len(rows[0]["install"]) == 2
    assert set(Row.__slots__) < set(rows[0])


def test_list_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    found = capsys.readouterr().out
    assert all(row.name in found and f"{row.platform}:{row.target}" in found for row in ROWS)


def test_render_github_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "github", "--stdout"]) == 0
    assert capsys.readouterr().out == render(ROWS)


def test_an_unknown_row_says_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="h10; the nearest are h100"):
        find_row(ROWS, "h10")
    with pytest.raises(UserError, match="there are cpu-x86-64-v3, "):
        find_row(ROWS, "????")
    assert main(["run", "mi300"]) == 2
    assert "the nearest are mi300x" in capsys.readouterr().err


def matrix(folder: Path, text: str) -> tuple[Row, ...]:
    file = folder / "matrix.toml"
    file.write_text(text)
    return read_matrix(file)


def test_defaults_fill_what_a_row_leaves_out(tmp_path: Path) -> None:
    (row,) = matrix(tmp_path, GOOD)
    assert (row.image, row.tiers, row.timeout) == ("python:3.12", ("pure", "device"), 0)
    (row,) = matrix(tmp_path, GOOD + 'image = "python:3.13"\n')
    assert row.image == "python:3.13"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('name = "a"', 'name = "A b"', "name = 'A b'"),
        ('name = "a"', "", "row 1: missing name"),
        ('labels = ["x"]', "", "row a: missing labels"),
        ('labels = ["x"]', "labels = []", "labels is empty"),
        ('labels = ["x"]', 'labels = "x"', "labels = 'x'; give a list"),
        ('labels = ["x"]', 'lables = ["x"]', "unknown field lables; did you mean labels"),
        ('["pure", "device"]', '["device", "pure"]', "in this order"),
        ('["pure", "device"]', '["pure", "pure"]', "in this order"),
        ('["pure", "device"]', '["prue"]', "give some of pure, cross-compile, anydevice, device, bench"),
        ('["pure", "device"]', "[]", "tiers = []"),
        ('"python:3.12"', '"python"', "give NAME:TAG"),
        ('"python:3.12"', '"python:latest"', "not latest"),
        ('"python:3.12"', "3", "image = 3; give a text"),
        ('target = "x86-64-v3"', 'target = ""', "target = ''"),
        ('target = "x86-64-v3"', 'target = "v3"\ntimeout = -1', "timeout = -1; give whole minutes"),
        ('target = "x86-64-v3"', 'target = "v3"\ntimeout = true', "timeout = True; give whole minutes"),
        ('target = "x86-64-v3"', 'target = "v3"\nextras = ["a\'b"]', "extras holds"),
        ('platform = "cpu"', "platform = []", "missing image"),
        ("[[row]]", "[row]", "one or more"),
        ("[defaults.cpu]", "[defaults.cpu]\nname = 'x'", "defaults.cpu: unknown field name"),
        ("[defaults.cpu]", "[default.cpu]", "unknown field default; did you mean defaults"),
        ("[[row]]", "[[row", "cannot be read"),
    ],
)
def test_a_wrong_matrix_is_refused_with_the_place(tmp_path: Path, before: str, after: str, said: str) -> None:
    assert before in GOOD
    with pytest.raises(UserError) as caught:
        matrix(tmp_path, GOOD.replace(before, after, 1))
    assert said in str(caught.value) and "matrix.toml" in str(caught.value)


def test_two_rows_of_one_name_and_no_row_and_no_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="more than one row is named a"):
        matrix(tmp_path, GOOD + GOOD[GOOD.index("[[row]]") :])
    with pytest.raises(UserError, match="one or more"):
        matrix(tmp_path, "")
    with pytest.raises(UserError, match="cannot be read"):
        read_matrix(tmp_path / "absent.toml")


def test_the_package_shadows_nothing_and_imports_lightly() -> None:
    assert "ci" not in sys.stdlib_module_names and "ci" not in importlib.metadata.packages_distributions()
    code = "import sys, ci.command, ci.github, ci.run; sys.exit(bool({'torch', 'numpy', 'yaml'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_python_m_ci_from_the_root() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ci", "run", "b20"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "the nearest are b200" in done.stderr and "Traceback" not in done.stderr


def test_the_readme_knows_every_tier_and_every_exit_code() -> None:
    text = (ROOT / "ci/README.md").read_text()
    for tier in TIERS:
        assert f"| `{tier.name}` |" in text and tier.path.replace("{platform}", "PLATFORM") in text
    assert all(f"| {code} |" in text for code in (0, 1, 2, 3)) and "130, 143" in text
    example = text.partition("```toml\n")[2].partition("```")[0]
    body = tomllib.loads(example)
    assert set(body["row"][0]) <= set(Row.__slots__) and body["row"][0]["target"] in CudaPlugin().targets()
