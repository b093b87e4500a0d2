"""Who is asked, who is chosen, and what a user is told."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import pytest

from platforms.contract import API_VERSION, DeviceProfile, PlatformPlugin, Probe
from platforms.cpu.plugin import CpuPlugin
from platforms.cuda.plugin import CudaPlugin
from platforms.discovery import PlatformError, candidates, choose, installed, read_profile, select
from platforms.rocm.plugin import RocmPlugin
from tests.fake_machines import GIB, Nvml, kfd_files, machine, nvidia_files


class Toy(PlatformPlugin):
    """A stranger's platform with one device."""

    name, api, kind, found = "toy", API_VERSION, "accelerator", 1

    def profile(self, origin="probed"):
        return DeviceProfile(self.name, "toy_1", "toys", "Toy 1000", 8 * GIB, origin)

    def probe(self):
        return Probe((self.profile(),) * self.found, ("a toy was looked for",))

    def targets(self):
        return {"toy_1": self.profile("described")}

    def kernels(self):
        return ()

    def open(self, index):
        raise AssertionError("discovery opens nothing")


class Host(Toy):
    name, kind = "host", "host"


class Entry:
    """An entry point; ``content`` is what loading gives, or raises."""

    def __init__(self, name, content, value="a:b"):
        self.name, self.content, self.value, self.loaded = name, content, value, 0

    def load(self):
        self.loaded += 1
        if isinstance(self.content, BaseException):
            raise self.content
        return self.content


def variant(base=Toy, **members):
    return type("Variant", (base,), members)


def boxed(box):
    return [
        Entry("cpu", CpuPlugin(box)),
        Entry("cuda", CudaPlugin(box), "platforms.cuda.plugin:CudaPlugin"),
        Entry("rocm", RocmPlugin(box), "platforms.rocm.plugin:RocmPlugin"),
    ]


def test_the_installed_three_are_entry_points_like_any_other():
    assert {point.name for point in installed()} >= {"cpu", "cuda", "rocm"}


def test_enumerating_loads_nothing_and_a_name_loads_only_that_one():
    points = [Entry("toy", Toy), Entry("host", Host), Entry("bad", ImportError("no"))]
    assert select("toy", points=points).plugin.name == "toy"
    assert [point.loaded for point in points] == [1, 0, 0]


@pytest.mark.parametrize("devices", [1, 0])
def test_H_PLT_01_without_nvml_auto_takes_the_device_or_the_host(tmp_path, caplog, devices):
    box = machine(
        tmp_path, nvidia_files(*["NVIDIA H100"] * devices), cuda="13.0", modules={"pynvml": OSError("no library")}
    )
    with caplog.at_level(logging.INFO, "engine.platforms"):
        chosen = select("auto", points=boxed(box))
    assert chosen.plugin.name == ("cuda" if devices else "cpu")
    rejected = [record.getMessage() for record in caplog.records if "has no device here" in record.getMessage()]
    assert len(rejected) == (1 if devices else 2)
    assert all("absent" in line for line in rejected), "with the reason"


def test_H_PLT_05_the_number_of_threads_and_its_reason_are_logged(tmp_path, caplog):
    box = machine(tmp_path, {"sys/fs/cgroup/cpu.max": "400000 100000"}, cpus=8)
    with caplog.at_level(logging.INFO, "engine.platforms"):
        assert select("cpu", points=boxed(box)).profile.limits["threads"] == 4
    assert "4 threads: 8 CPUs in the affinity mask, quota 400000/100000" in caplog.text


def test_H_PLT_04_exactly_one_platform_by_a_written_precedence(tmp_path, caplog):
    points = boxed(machine(tmp_path, nvidia_files("NVIDIA H100"), cuda=None))
    assert select("auto", points=points).plugin.name == "cpu"
    assert "no CUDA support" in caplog.text
    with pytest.raises(PlatformError, match="no CUDA support"):
        select("cuda", points=points)


def test_H_PLT_04_cpu_by_name_wins_everywhere_and_loads_nobody_else(tmp_path):
    points = boxed(machine(tmp_path, nvidia_files("NVIDIA H100"), cuda="13.0"))
    assert select("auto", points=points).plugin.name == "cuda"
    for point in points:
        point.loaded = 0
    assert select("cpu", points=points).plugin.name == "cpu"
    assert [point.loaded for point in points] == [1, 0, 0]


def test_several_accelerators_are_listed_with_the_flag_that_picks_each():
    points = [Entry("toy", Toy), Entry("doll", variant(name="doll")), Entry("host", Host)]
    with pytest.raises(PlatformError) as error:
        select("auto", points=points)
    assert "--platform toy" in str(error.value) and "--platform doll" in str(error.value)
    assert "--platform host" not in str(error.value) and str(error.value).count("Toy 1000") == 2


def test_both_vendors_on_one_machine_are_a_question_for_the_user(tmp_path):
    class Both:
        cuda, hip = "13.0", "7.2"

    box = machine(tmp_path, {**nvidia_files("A100"), **kfd_files(90402)}, cuda=Both.cuda, hip=Both.hip)
    with pytest.raises(PlatformError, match="2 platforms have a device"):
        select("auto", points=boxed(box))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (ImportError("libtoy.so.2 is missing"), "libtoy.so.2 is missing"),
        (SystemExit("left"), "SystemExit: left"),
        (SyntaxError("bad"), "SyntaxError"),
        (variant(api=API_VERSION + 1), f"version {API_VERSION + 1}, this is {API_VERSION}"),
        (variant(api=None), "version None"),
        (object, "not a PlatformPlugin"),
        (len, "not a PlatformPlugin"),
        (type("Half", (PlatformPlugin,), {"name": "toy", "api": API_VERSION}), "abstract"),
        (variant(name="other"), "its name is 'other'"),
        (variant(kind="gpu"), "its kind is 'gpu'"),
        (variant(__init__=lambda self: 1 / 0), "ZeroDivisionError"),
    ],
)
def test_H_PLT_09_a_plugin_that_does_not_load(content, said, caplog):
    points = [Entry("toy", content, "toy_package:Toy"), Entry("host", Host)]
    chosen = select("auto", points=points)
    assert chosen.plugin.name == "host"
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "toy" in warning.getMessage() and said in warning.getMessage()
    (row,) = [row for row in chosen.rows if row.name == "toy"]
    assert said in row.error and said in json.dumps(row.to_json())
    with pytest.raises(PlatformError) as error:
        select("toy", points=points)
    assert "toy_package:Toy" in str(error.value) and said in str(error.value)


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        (lambda self: 1 / 0, "ZeroDivisionError"),
        (lambda self: None, "NoneType"),
        (lambda self: Probe((1,)), "not a Probe of DeviceProfiles"),
        (lambda self: Probe((Host().profile(),)), "platform 'host'"),
        (lambda self: (_ for _ in ()).throw(TimeoutError("socket")), "socket"),
    ],
)
def test_H_PLT_09_a_plugin_whose_probe_breaks(probe, said, caplog):
    points = [Entry("toy", variant(probe=probe)), Entry("host", Host)]
    assert select("auto", points=points).plugin.name == "host"
    assert "toy" in caplog.text and said in caplog.text
    with pytest.raises(PlatformError, match=said):
        select("toy", points=points)


def test_probes_that_hang_share_one_limit():
    hanging = {"probe": lambda self: time.sleep(30)}
    points = [Entry("toy", variant(**hanging)), Entry("doll", variant(name="doll", **hanging)), Entry("host", Host)]
    started = time.monotonic()
    chosen = select("auto", points=points)
    assert time.monotonic() - started < 3
    assert chosen.plugin.name == "host"
    assert [row.error for row in chosen.rows if row.name != "host"] == ["its probe did not answer in 2 s"] * 2


def test_a_name_registered_twice_is_nobody_s():
    points = [Entry("toy", Toy, "a:Toy"), Entry("toy", Toy, "b:Toy"), Entry("host", Host)]
    chosen = select("auto", points=points)
    assert chosen.plugin.name == "host"
    with pytest.raises(PlatformError, match=r"a:Toy(.|\n)*b:Toy"):
        select("toy", points=points)


def test_several_devices_of_one_platform_are_index_0_and_a_count():
    chosen = select("auto", points=[Entry("toy", variant(found=4)), Entry("host", Host)])
    assert (chosen.index, chosen.present) == (0, True)
    assert "4 devices" in chosen.reason and "4 devices; index 0 is taken" in chosen.rows[0].evidence


def test_asking_for_a_device_that_is_not_here_says_what_was_found_and_what_to_do(tmp_path):
    with pytest.raises(PlatformError) as error:
        select("cuda", points=boxed(machine(tmp_path, cuda="13.0")))
    message = str(error.value)
    assert "--platform cuda" in message and "/dev/nvidiactl absent" in message and "pynvml" in message
    assert "--platform auto" in message and "sm_90" in message


def test_H_PLT_10_asking_for_a_device_that_two_variables_hide_names_both(tmp_path):
    environ = {"ROCR_VISIBLE_DEVICES": "2,5", "HIP_VISIBLE_DEVICES": "2"}
    box = machine(tmp_path, kfd_files(*[90402] * 8), hip="7.2", environ=environ)
    with pytest.raises(PlatformError, match=r"HIP_VISIBLE_DEVICES=2 .*ROCR_VISIBLE_DEVICES=2,5"):
        select("rocm", points=boxed(box))


@pytest.mark.parametrize("request_", ["nvidia", "coda", "", "Toy2"])
def test_an_unknown_name_lists_the_known_ones(request_):
    with pytest.raises(PlatformError) as error:
        select(request_, points=[Entry("toy", Toy), Entry("cuda", CudaPlugin)])
    assert "toy" in str(error.value) and "cuda" in str(error.value)
    assert request_ != "coda" or "nearest: cuda" in str(error.value)


def test_a_described_target_is_not_probed():
    plugin = variant(probe=lambda self: 1 / 0)
    chosen = select("toy:toy_1", points=[Entry("toy", plugin)])
    assert (chosen.profile.origin, chosen.present, chosen.requested) == ("described", False, "toy:toy_1")
    assert "described" in chosen.reason
    with pytest.raises(PlatformError, match="toy_1"):
        select("toy:toy_9", points=[Entry("toy", plugin)])
    with pytest.raises(PlatformError, match="visibility variable"):
        select("toy:0", points=[Entry("toy", plugin)])
    broken = variant(targets=lambda self: 1 / 0)
    with pytest.raises(PlatformError, match="ZeroDivisionError"):
        select("toy:toy_1", points=[Entry("toy", broken)])


def test_a_path_tries_an_uninstalled_plugin(tmp_path, monkeypatch):
    (tmp_path / "stranger.py").write_text(
        "from platforms.contract import *\n"
        "class Shelf: pass\n"
        "class Mine(PlatformPlugin):\n"
        "    name, api = 'mine', API_VERSION\n"
        "    def probe(self): return Probe((DeviceProfile('mine', 'm1', 'm', 'Mine', 0, 'probed'),))\n"
        "    def targets(self): return {}\n"
        "    def kernels(self): return ()\n"
        "    def open(self, index): ...\n"
        "Shelf.mine = Mine()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert select("stranger:Mine", points=[]).plugin.name == "mine"
    assert select("stranger:Shelf.mine", points=[]).profile.arch == "m1"
    for request, said in (("stranger:Other", "AttributeError"), ("strange:Mine", "ModuleNotFoundError")):
        with pytest.raises(PlatformError, match=said):
            select(request, points=[])


def test_without_a_host_there_is_a_table_and_no_choice():
    with pytest.raises(PlatformError, match="a toy was looked for"):
        choose(candidates([Entry("toy", variant(found=0))]))
    with pytest.raises(PlatformError, match="none is installed"):
        select("auto", points=[])


def test_a_saved_profile_is_replayed_without_a_probe(tmp_path):
    library = Nvml([("NVIDIA H100 80GB HBM3", (9, 0), 80 * GIB)])
    here = select("auto", points=boxed(machine(tmp_path / "there", cuda="13.0", modules={"pynvml": library})))
    for number, content in enumerate((here.to_json(), here.profile.to_json())):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(content))
        profile = read_profile(str(path))
        assert profile == here.profile
        points = boxed(machine(tmp_path / "here"))
        again = select("auto", profile=profile, points=points)
        assert (again.plugin.name, again.profile, again.present) == ("cuda", here.profile, False)
        assert [point.loaded for point in points] == [0, 1, 0]
        assert select("cuda", profile=profile, points=points).profile == profile
        with pytest.raises(PlatformError, match="leave --platform out"):
            select("cpu", profile=profile, points=points)
        with pytest.raises(PlatformError, match="no platform 'cuda' is installed"):
            select("auto", profile=profile, points=[Entry("host", Host)])


@pytest.mark.parametrize(
    "content", ["", "[]", "null", "{", '{"profile": 3}', '{"platform": "cuda"}', '{"profile": null, "rows": []}', None]
)
def test_a_file_that_is_no_profile_is_a_user_s_error(tmp_path, content):
    path = Path(tmp_path / "saved.json")
    if content is not None:
        path.write_text(content)
    with pytest.raises(PlatformError, match=r"--profile .*saved\.json"):
        read_profile(str(path))


def test_the_table_survives_json(tmp_path):
    chosen = select("auto", points=boxed(machine(tmp_path)))
    body = json.loads(json.dumps(chosen.to_json()))
    assert [row["name"] for row in body["rows"]] == ["cpu", "cuda", "rocm"]
    assert DeviceProfile.from_json(body["profile"]) == chosen.profile


class Hanging(Entry):
    """An import that never ends."""

    def load(self):
        time.sleep(30)


def test_H_PLT_09_a_plugin_whose_import_never_ends():
    points = [Hanging("toy", None, "toy_package:Toy"), Entry("host", Host), Entry("doll", variant(name="doll"))]
    started = time.monotonic()
    chosen = select("auto", points=points)
    assert time.monotonic() - started < 3 and chosen.plugin.name == "doll", "the others had their time"
    assert "importing it did not end in 2 s" in chosen.rows[0].error
    with pytest.raises(PlatformError, match=r"toy_package:Toy does not load: importing it did not end"):
        select("toy", points=points)
    assert select("host", points=points).plugin.name == "host"


def test_H_PLT_09_damaged_metadata_of_a_stranger_s_package(tmp_path, monkeypatch, caplog):
    for name, file in (("one", "entry_points.txt"), ("two", "METADATA")):
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / file).write_bytes(b"\xff\xfe\x00[engine.platforms")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert {point.name for point in installed()} >= {"cpu", "cuda", "rocm"}
    assert str(tmp_path) in caplog.text


@pytest.mark.parametrize(
    ("word", "meant"),
    [("h100", "cuda:sm_90"), ("gfx942", "rocm:gfx942"), ("MI300X", "rocm:gfx942"), ("amd:gfx942", "rocm:gfx942")],
)
def test_a_device_given_for_a_platform_is_found_by_its_product(word: str, meant: str) -> None:
    with pytest.raises(PlatformError, match=f"--platform {word}: did you mean {meant}"):
        select(word)
