"""Each fault of a kernel, a predicate, a runtime or a descriptor is found by the check that is about it."""

from dataclasses import replace

import pytest
import torch

from engine.conformance import fusions, planning
from engine.conformance.bands import Poisoned, banded, strided
from engine.conformance.subject import Subject
from platforms.contract import Fetch, FusionOffer, FusionRule, Kernel, Memory, Setting, Verdict, always, fact
from tests.strange_platform import (
    CASE,
    HERE,
    SELECTION,
    Answers,
    Fuses,
    Stranger,
    beside_input,
    beside_output,
    changes_input,
    drawn,
    environment,
    good,
    norm,
    odd,
    of_row,
    off,
    outcome,
    partly,
    plain,
    raises,
    reads_flat,
    refuses_strides,
    swapped,
    wider,
)


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
    ("name", "said"),
    [
        ("bytes_of", ""),
        ("fewer_than_none", "gave -1, not a number of bytes"),
        ("counting", "when asked again"),
        ("good", "TypeError"),
        ("nothing", "cannot be loaded"),
    ],
)
def test_a_workspace_is_bytes_for_every_call(name, said):
    found = of_row(norm(good, workspace=f"{HERE}:{name}"), "workspace")
    assert (found.state, bool(said)) in (("passed", False), ("failed", True)), found
    assert (said or " bytes") in found.detail


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("build", ""),
        ("build_unsteady", "build names ['unit "),
        ("build_wide", "names no units of work for"),
        ("build_wide", "ValueError: no tile of"),
        ("build_none", "gives no unit, on"),
        ("build_words", "'a kernel', a unit without a name or make()"),
        ("good", "TypeError: good()"),
        ("nothing", "does not load"),
    ],
)
def test_units_are_named_for_every_described_device_and_not_made(name, said):
    found = of_row(norm(good, build=f"{HERE}:{name}"), "build")
    assert (found.state, bool(said)) in (("passed", False), ("failed", True)), found
    count = len(SELECTION.plugin.targets())
    assert (said or f"units on {count} of {count} described devices") in found.detail


def test_units_are_asked_for_with_weights_as_pack_lays_them_out_and_where_the_row_serves():
    row = Kernel("linear", "turned", f"{HERE}:linear", pack=f"{HERE}:pack", build=f"{HERE}:build_turned")
    assert of_row(row, "build").state == "passed"
    first = next(iter(SELECTION.plugin.targets().values()))
    one = norm(good, needs=lambda profile, facts: Verdict(profile == first, "the first"), build=f"{HERE}:build")
    assert "1 units on 1 of " in of_row(one, "build").detail
    found = of_row(norm(good, accepts=lambda profile, facts: Verdict(False, "never"), build=f"{HERE}:build"), "build")
    assert found.state == "not supported" and "no described device with a case of the op: never" in found.detail


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


def test_a_row_that_needs_a_kind_of_model_is_asked_with_such_a_model():
    found = of_row(norm(good, needs=fact("mla", bool, "latent attention")), CASE)
    assert found.state == "passed" and found.detail == "3 calls: float32, bfloat16, float16"


def spoiled(plan, change):
    """The plan with every fused call changed."""
    ranges = []
    for one in plan.ranges:
        calls = tuple(change(call) if call.op == "rotary_kv_write" else call for call in one.program.calls)
        ranges.append(replace(one, program=replace(one.program, calls=calls)))
    return replace(plan, ranges=tuple(ranges))


def test_H_FUS_06_a_rewrite_that_loses_an_attribute_fails(monkeypatch):
    name = "fusions/fuse_rope_kvcache/attributes"
    assert outcome(Fuses(), name).state == "passed"

    def lossy(*words):
        return spoiled(planning.plan_of(*words), lambda call: replace(call, attributes={}))

    monkeypatch.setattr(fusions, "plan_of", lossy)
    found = outcome(Fuses(), name)
    assert found.state == "failed" and "rotary_kv_write on" in found.detail and "lost head_dim of" in found.detail


def test_an_off_switch_that_does_nothing_fails(monkeypatch):
    name = "fusions/fuse_rope_kvcache/off-switch"
    assert outcome(Fuses(), name).state == "passed"
    monkeypatch.setattr(fusions, "plan_of", lambda *words: planning.plan_of(*words[:4]))
    found = outcome(Fuses(), name)
    assert found.state == "failed" and "fuse_rope_kvcache=false is ignored on" in found.detail


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
    subject = Subject(stranger, f"{__name__}:SERVED", f"{__name__}:SERVED")
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
