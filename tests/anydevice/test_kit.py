"""Each fault of a kernel, a predicate, a runtime or a descriptor is found by the check that is about it."""

import json
import os

import pytest
import torch

import engine.cli
from engine.conformance.bands import Poisoned, banded, strided
from engine.conformance.subject import Subject
from engine.ops import OPS
from platforms.contract import Fetch, FusionOffer, FusionRule, Kernel, Memory, PlatformPlugin, Setting, Verdict, always
from platforms.discovery import select

HERE = __name__
SELECTION = select("auto")
RMS = OPS["rms_norm"].reference


def good(x, weight, *, eps):
    return RMS(x, weight, eps=eps)


def plain(x, weight, *, eps):
    """Right, with an output of its own."""
    out = torch.empty_like(x)
    out.copy_(RMS(x, weight, eps=eps))
    return out


def off(x, weight, *, eps):
    return RMS(x, weight, eps=eps) * 1.1


def odd(x, weight, *, eps):
    """Wrong in the last column of odd widths beyond those of the op's own cases."""
    found = RMS(x, weight, eps=eps)
    if x.shape[-1] == 2049:
        found[1:, -1] = 0
    return found


def beside_input(x, weight, *, eps):
    torch.as_strided(weight, (weight.shape[0] + 1,), (1,), weight.storage_offset())[-1] = 7
    return RMS(x, weight, eps=eps)


def beside_output(x, weight, *, eps):
    out = plain(x, weight, eps=eps)
    torch.as_strided(out, (1,), (1,), out.storage_offset() + out.numel())[0] = 7
    return out


def partly(x, weight, *, eps):
    """The last row is what memory held."""
    out = torch.empty_like(x)
    out[:-1] = RMS(x, weight, eps=eps)[:-1]
    return out


def changes_input(x, weight, *, eps):
    found = RMS(x, weight, eps=eps)
    x.mul_(2)
    return found


def drawn(x, weight, *, eps):
    return RMS(x, weight, eps=eps) * (1 + torch.rand((), device=x.device).to(x.dtype) * 1e-3)


def reads_flat(x, weight, *, eps):
    """Takes rows to lie one behind the other."""
    flat = torch.as_strided(x, x.shape, (x.shape[-1], 1), x.storage_offset())
    return RMS(flat, weight, eps=eps)


def refuses_strides(x, weight, *, eps):
    if not x.is_contiguous():
        raise ValueError("rows must lie one behind the other")
    return RMS(x, weight, eps=eps)


def raises(x, weight, *, eps):
    raise RuntimeError("no such instruction")


def wider(x, weight, *, eps):
    return RMS(x, weight, eps=eps).double()


def swapped(weight, x, *, eps):
    return RMS(x, weight, eps=eps)


def linear(x, weight, bias=None):
    return x @ weight if bias is None else x @ weight + bias


def pack(weights, attributes):
    return (weights[0].t().contiguous(), *weights[1:])


def unsteady_pack(weights, attributes):
    return (weights[0].t() + torch.rand(()), *weights[1:])


def spoiling_pack(weights, attributes):
    found = pack(weights, attributes)
    weights[0].zero_()
    return found


def environment(profile, facts):
    return Verdict(True, f"PATH is {os.environ.get('PATH', '')[:1]}")


class Answers:
    """Another answer each time."""

    count = 0

    def __call__(self, profile, facts):
        self.count += 1
        return Verdict(True, f"asked {self.count} times")


def norm(function, **more):
    return Kernel("rms_norm", function.__name__, f"{HERE}:{function.__name__}", **more)


class Stranger(PlatformPlugin):
    """The active platform with the given parts replaced. ``runtime``: member → replacement."""

    def __init__(self, rows=(), fusions=(), settings=(), aliases=None, runtime=None, **members):
        plugin = SELECTION.plugin
        self.name, self.api, self.kind = plugin.name, plugin.api, plugin.kind
        self.rows, self.offers, self.soft, self.known = rows, fusions, settings, aliases or {}
        self.parts = runtime or {}
        for name, value in members.items():
            setattr(self, name, value)

    def probe(self):
        return SELECTION.plugin.probe()

    def targets(self):
        return SELECTION.plugin.targets()

    def kernels(self):
        return self.rows

    def fusions(self):
        return self.offers

    def settings(self, profile, facts, level):
        return self.soft

    def aliases(self):
        return self.known

    def open(self, index):
        opened = SELECTION.plugin.open(index)
        for name, value in self.parts.items():
            setattr(opened, name, value)
        return opened


def outcome(stranger, name):
    chapter, _, rest = name.partition("/")
    (row,) = [row for row in Subject(stranger, "stranger", f"{HERE}:Stranger").checks((chapter,)) if row.name == rest]
    return row.run()


def of_row(row, check):
    return outcome(Stranger((row,)), f"kernels/{row.op}/{row.name}/{check}")


CASE = "tokens=7,hidden=127,eps=1e-05"


@pytest.mark.parametrize(
    ("function", "check", "said"),
    [
        (off, CASE, "result 0 differs from the reference by"),
        (raises, CASE, "raised RuntimeError: no such instruction"),
        (wider, CASE, r"returns float64[7, 127], the reference float32[7, 127]"),
        (partly, CASE, "differs from the reference by nan"),
        (odd, "odd-sizes", "on tokens=7,hidden=2049"),
        (beside_input, "guard-bands", "input 1: "),
        (beside_output, "guard-bands", "a tensor it allocated: "),
        (changes_input, "mutation", "input x is changed"),
        (drawn, "repeatable", "is not the same twice"),
        (reads_flat, "strided-rows", "differs from the reference"),
        (swapped, "signature", "is not called like the op"),
    ],
)
def test_a_fault_of_a_kernel_fails_its_check(function, check, said):
    found = of_row(norm(function), check)
    assert found.state == "failed"
    assert said in found.detail


@pytest.mark.parametrize("check", [CASE, "odd-sizes", "guard-bands", "mutation", "repeatable", "strided-rows"])
@pytest.mark.parametrize("function", [good, plain, refuses_strides])
def test_a_right_kernel_passes(function, check):
    found = of_row(norm(function), check)
    assert found.state == "passed", found.detail


def test_a_python_error_for_strided_rows_is_counted_apart():
    assert "refused with a Python error" in of_row(norm(refuses_strides), "strided-rows").detail
    assert "0 of them refused" in of_row(norm(good), "strided-rows").detail


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (Kernel("rms_norm", "x", "no_such_package.norm:f"), "there is no such module"),
        (Kernel("rms_norm", "x", f"{HERE}:nothing"), "does not load: AttributeError"),
        (Kernel("rms_norm", "x", f"{HERE}:HERE"), "is a str, not a function"),
        (norm(good, pack=f"{HERE}:nothing"), "pack"),
    ],
)
def test_a_target_that_cannot_be_called_fails(row, said):
    found = of_row(row, "imports")
    assert found.state == "failed" and said in found.detail


@pytest.mark.parametrize(
    ("name", "said"),
    [("unsteady_pack", "is not the same twice"), ("spoiling_pack", "changes the weights"), ("pack", "")],
)
def test_a_pack_is_a_function_of_the_weights(name, said):
    found = of_row(Kernel("linear", "turned", f"{HERE}:linear", pack=f"{HERE}:{name}"), "pack")
    assert found.state == ("failed" if said else "passed")
    assert said in found.detail


@pytest.mark.parametrize(
    ("predicate", "said"),
    [
        (lambda profile, facts: None, "gave None, not a Verdict with a reason"),
        (lambda profile, facts: Verdict(facts["hidden"] > 0, "hidden"), "raised KeyError: 'hidden'"),
        (environment, "looked at the environment (PATH)"),
        (Answers(), "asked again"),
    ],
)
@pytest.mark.parametrize("field", ["needs", "accepts"])
def test_a_predicate_that_breaks_its_contract_fails(field, predicate, said):
    found = of_row(norm(good, **{field: predicate}), "predicates")
    assert found.state == "failed" and said in found.detail


def test_what_a_row_refuses_is_not_supported_and_not_passed():
    row = norm(good, needs=lambda profile, facts: Verdict(False, "needs a chip that nobody has"))
    found = of_row(row, CASE)
    assert found.state == "not supported" and "needs a chip that nobody has" in found.detail


@pytest.mark.parametrize(
    ("stranger", "name", "said"),
    [
        (Stranger((norm(good), norm(off))), "contract/ties", "share priority 0"),
        (Stranger((norm(good), norm(good))), "contract/rows", "is there twice"),
        (Stranger((Kernel("magic", "x", f"{HERE}:good"),)), "contract/rows", "there is no such op"),
        (Stranger(settings=(Setting("cache.pages", 1, "why"),)), "contract/settings", "has no setting 'cache.pages'"),
        (Stranger(settings=(Setting("cache.block_size", "many", "why"),)), "contract/settings", "block_size = 'many'"),
        (Stranger(settings=(Setting("cache.pages", 1, "why"),)), "plans/{target}/nothing-idle", "cache.pages"),
        (Stranger(aliases={"A VARIABLE": "x"}), "contract/aliases", "'A VARIABLE'"),
        (Stranger(aliases={"VARIABLE": "head_dim"}), "contract/aliases", "is the engine's own"),
        (Stranger(name="A chip"), "contract/identity", "name is 'A chip'"),
        (Stranger(fusions=(FusionOffer("fuse_magic", always("yes")),)), "fusions/table", "no rule 'fuse_magic'"),
        (
            Stranger(fusions=(FusionOffer("fuse_rope_kvcache", lambda profile, facts: None),)),
            "fusions/fuse_rope_kvcache/predicate",
            "gave None",
        ),
        (
            Stranger(fusions=(FusionOffer("fuse_rope_kvcache", always("yes"), lambda profile, facts: "many"),)),
            "fusions/fuse_rope_kvcache/predicate",
            "limited to 'many' tokens",
        ),
        (
            Stranger(fusions=(FusionRule("mine", "both", ("magic(x) -> y",), ("y",), 1),)),
            "fusions/rule/mine/both",
            "'magic(x) -> y' is not 'op(a, b) -> c' with a known op",
        ),
        (Stranger(runtime={"memory": lambda: Memory(1, 2, False, "me")}), "memory/figures", "2 bytes of 1"),
        (Stranger(runtime={"zeros": lambda shape, dtype: torch.ones(shape, dtype=dtype)}), "memory/zeros", "not zero"),
        (Stranger(runtime={"fetch": lambda x: Fetch(x + 1)}), "memory/fetch", "something else"),
        (Stranger(runtime={"graphs": lambda: Verdict(True, "soon")}), "graphs/answer", "both must say no"),
        (Stranger(runtime={"graphs": lambda: object()}), "graphs/answer", "without name, new_pool, capture"),
        (Stranger(targets=lambda: 1 / 0), "plans/tables", "ZeroDivisionError"),
        (Stranger(kernels=lambda: [][1]), "kernels/tables", "IndexError"),
    ],
)
def test_a_fault_beside_the_kernels_fails_its_check(stranger, name, said):
    found = outcome(stranger, name.format(target=next(iter(SELECTION.plugin.targets()))))
    assert found.state == "failed" and said in found.detail


def test_a_kernel_that_first_touch_takes_out_fails_the_chapter_on_the_engine():
    stranger = Stranger((norm(off),))
    stranger_row = "engine/llama/first-touch"
    globals()["SERVED"] = stranger
    subject = Subject(stranger, f"{HERE}:SERVED", f"{HERE}:SERVED")
    (row,) = [row for row in subject.checks(("engine",)) if str(row) == stranger_row]
    found = row.run()
    assert found.state == "failed" and "row rms_norm/off was taken out: first touch" in found.detail


def test_bands_see_one_byte_on_either_side_and_poison_is_not_a_number():
    band = banded(torch.ones(3, 5), "cpu")
    assert band.broken() == "" and torch.equal(band.tensor, torch.ones(3, 5))
    torch.as_strided(band.tensor, (1,), (1,), band.tensor.storage_offset() - 1)[0] = 0
    assert band.broken() == "4 bytes before it were written, the first 4 away"
    behind = banded(torch.ones(5, dtype=torch.bfloat16), "cpu")
    torch.as_strided(behind.tensor, (1,), (1,), behind.tensor.storage_offset() + 5)[0] = 0
    assert behind.broken() == "2 bytes behind it were written, the first 0 away"
    with Poisoned() as poisoned:
        made = torch.empty(4)
    assert made.isnan().all() and poisoned.broken() == ""


def test_strided_rows_lie_between_poison():
    band, view = strided(torch.ones(3, 5), "cpu")
    assert not view.is_contiguous() and torch.equal(view, torch.ones(3, 5)) and band.broken() == ""
    assert torch.isnan(torch.as_strided(view, (3, 5), (5, 1), view.storage_offset())).any()


def test_the_command_says_passed_failed_and_not_supported_apart(capsys, tmp_path):
    globals()["SHOWN"] = Stranger((norm(off),))
    name, report = f"{HERE}:SHOWN", tmp_path / "support.csv"
    words = ["conform", name, "--chapter", "kernels", "--report", str(report)]
    assert engine.cli.main(words) == 1
    out = capsys.readouterr().out
    assert "chapter  passed  failed  not supported" in out
    assert f"failed  kernels/rms_norm/off/{CASE}" in out
    assert "rms_norm," in report.read_text()
    assert engine.cli.main([*words, "--json"]) == 1
    body = json.loads(capsys.readouterr().out)
    assert body["failed"] == sum(row["state"] == "failed" for row in body["outcomes"]) > 0
    assert engine.cli.main(["conform", SELECTION.plugin.name, "--chapter=plans"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no_such_platform"], "no platform 'no_such_platform' is installed"),
        (["no_such_package:Plugin"], "does not load: ModuleNotFoundError"),
        ([], "takes one NAME"),
        (["a", "b"], "takes one NAME"),
        (["cpu", "--chapter", "magic"], "no chapter 'magic'"),
        (["cpu", "--chapter"], "--chapter needs a value"),
        (["cpu", "--report", "x.html"], "written as .csv or .md"),
        (["cpu", "--fast"], "unknown word --fast"),
    ],
)
def test_what_cannot_be_asked_is_one_message_and_code_2(words, said, capsys):
    assert engine.cli.main(["conform", *words]) == 2
    assert said in capsys.readouterr().err


def test_checks_that_found_no_device_are_counted_and_fail_on_request(capsys):
    class Absent(Stranger):
        def probe(self):
            from platforms.contract import Probe

            return Probe(evidence=("no chip on the bus",))

    globals()["ABSENT"] = Absent((norm(good),))
    words = ["conform", f"{HERE}:ABSENT", "--chapter", "memory"]
    assert engine.cli.main(words) == 0
    assert "no device here: 8 device checks did not run" in capsys.readouterr().out
    assert engine.cli.main([*words, "--require-device"]) == 1
    assert "--require-device asks for them" in capsys.readouterr().out
