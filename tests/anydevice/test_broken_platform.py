"""A stranger with one fault after the other: each check of the kit finds what it is for, and says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.conformance import CHAPTERS, Outcome, checks
from tests.throwaway import ROOT

RMS = "rms_norm/broken"
FAULTS: tuple[tuple[str, str, str], ...] = (
    ("descriptors:Loud", "contract/identity", "name is 'Broken'; --platform and file names need lower-case"),
    ("broken_heavy:Plugin", "contract/imports", ", numpy"),
    ("broken_internals:Plugin", "contract/engine-internals", "imports engine.compat: a plugin knows platforms"),
    ("descriptors:RaisesInProbe", "contract/probe/here", "OSError: no bus"),
    ("descriptors:Slow", "contract/probe/here", "2 s are allowed"),
    ("descriptors:WritesEnvironment", "contract/probe/here", "the environment was changed: BROKEN_WAS_HERE"),
    ("descriptors:Silent", "contract/probe/here", "neither evidence nor problems"),
    ("descriptors:ImportsInProbe", "contract/probe/no-driver", "probe() loaded"),
    ("descriptors:TrustsVariable", "contract/probe/variables-uuid", "ValueError: invalid literal for int()"),
    ("descriptors:TrustsTool", "contract/probe/hanging-tools", "2 s are allowed"),
    ("descriptors:Described", "contract/profiles", "says broken, described; it must say broken, probed"),
    ("descriptors:Unfounded", "contract/targets", "target gen1 has no evidence"),
    ("descriptors:Covers", "contract/aliases", "that fact is the engine's own"),
    ("descriptors:Moody", "contract/settings", "looked at the environment (BROKEN_BLOCK); use aliases()"),
    ("descriptors:Dreams", "contract/settings", "the engine has no setting 'cache.speed'"),
    ("descriptors:Invents", "contract/rows", "row make_tea/broken: there is no such op"),
    ("descriptors:Twins", "contract/ties", "rows one and other share priority 0, and both take"),
    ("descriptors:TablesRaise", "kernels/tables", "KeyError: 'gen3'"),
    ("descriptors:Everywhere", "contract/open-refuses", "opened a device that is not there"),
    ("rows:Missing", f"kernels/{RMS}/imports", "target broken_platform.nowhere:wrong: there is no such module"),
    ("rows:OtherSignature", f"kernels/{RMS}/signature", "is not called like the op: rms_norm(x, weight, *, eps)"),
    ("rows:PlainYes", f"kernels/{RMS}/predicates", "gave True, not a Verdict with a reason"),
    ("rows:Fickle", f"kernels/{RMS}/predicates", "and asked again Verdict(ok=False, reason='it depends')"),
    ("rows:Wrong", f"kernels/{RMS}/tokens=7,hidden=127,eps=1e-05", "differs from the reference by"),
    ("rows:WrongBeyond2048", f"kernels/{RMS}/odd-sizes", "hidden=2049"),
    ("rows:TakesTooMuch", f"kernels/{RMS}/tokens=1,hidden=1,eps=1e-06", "no torch.bfloat16 here"),
    ("rows:WritesBeside", f"kernels/{RMS}/guard-bands", "4 bytes behind it were written, the first 0 away"),
    ("rows:ChangesInput", f"kernels/{RMS}/mutation", "input x is changed, which the op does not do"),
    ("rows:NotTwice", f"kernels/{RMS}/repeatable", "result 0 is not the same twice"),
    ("rows:Packed", f"kernels/{RMS}/strided-rows", "differs from the reference by"),
    ("rows:PackChanges", f"kernels/{RMS}/pack", "pack changes the weights it is given"),
    ("descriptors:OffersNothingKnown", "fusions/table", "there is no rule 'fuse_tea_and_milk' to offer"),
    ("descriptors:InventsRule", "fusions/rule/fuse_tea/tea", "is not 'op(a, b) -> c' with a known op"),
    ("descriptors:OffersBlindly", "fusions/fuse_rope_kvcache/predicate", "with no facts raised KeyError: 'head_dim'"),
    ("rows:WrongFused", "fusions/fuse_rope_kvcache/rotary_kv_write/broken", "result 1 of the fused call differs"),
    ("rows:LooksInGraph", "graphs/row/rms_norm/broken", "__float__ makes the host look at a tensor"),
    ("devices:Reluctant", "graphs/answer", "both must say no, or a backend be given"),
    ("devices:Idle", "graphs/replay", "the 1. time, a replay differs from the same work run step by step"),
    ("devices:Frozen", "graphs/new-contents", "after its input was refilled, a replay differs"),
    ("devices:Shared", "graphs/shared-pool", "after another graph of its pool was closed, a replay differs"),
    ("devices:Believing", "graphs/host-reads", "with a host read captured, a replay differs"),
    ("devices:Hoarding", "graphs/replay-allocates-nothing", "bytes of the device"),
    ("devices:Keeping", "graphs/close", "bytes of the device are still taken"),
    ("devices:DoesNotOpen", "memory/opens", "open(0) raised DeviceError: broken device 0: the firmware is missing"),
    ("devices:Unproved", "memory/profile", "says broken, probed; it must say broken, measured"),
    ("devices:Boasting", "memory/figures", "says 2147483648 bytes of 1073741824 are available"),
    ("devices:Blind", "memory/visible", "the data sheet does not see it"),
    ("devices:Dirty", "memory/zeros", "is not zero"),
    ("devices:Behind", "memory/fetch", "gave the host something else than the device computed"),
    ("devices:ClosesOnce", "memory/close-twice", "AttributeError"),
    ("devices:OneAtATime", "memory/two-runtimes", "the driver is gone"),
    ("rows:WrongAt64", "engine/llama/tokens-O0", "--kernels reference gives"),
    ("rows:Wrong", "engine/llama/first-touch", "row rms_norm/broken was taken out: first touch: differs"),
    ("descriptors:Sulks", "plans/gen1/llama/total", "no mood for settings"),
    ("descriptors:Twins", "plans/gen2/llama/total", "kernels one and other of rms_norm share priority 0"),
    ("descriptors:Undecided", "plans/gen1/deterministic", "is not the same twice"),
    ("descriptors:Tired", "plans/gen2/monotone", "-O3 takes away fuse_rope_kvcache, which -O2 turned on, for llama"),
    ("descriptors:Picky", "plans/gen1/reasons", "its predicate raised"),
    ("descriptors:Dreams", "plans/gen1/nothing-idle", "cache.speed"),
)
"""Module and class, the check that finds the fault, and what it says."""


@pytest.fixture(autouse=True)
def strangers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Both are importable, neither is installed; the chip is here."""
    for folder in ("toy_platform", "broken_platform"):
        monkeypatch.syspath_prepend(ROOT / "tests" / folder)
    monkeypatch.setenv("TOY_CHIP", "1")
    monkeypatch.delenv("TOY_KERNELS", raising=False)
    yield


def answer(source: str, check: str) -> Outcome:
    """What one check says of one plugin."""
    chapter, _, name = check.partition("/")
    path = source if source.startswith("broken_") or "." in source else f"broken_platform.{source}"
    found = {row.name: row for row in checks(path, (chapter,))}
    assert name in found, f"{check} is not among {', '.join(found)}"
    return found[name].run()


@pytest.mark.parametrize(("source", "check", "words"), FAULTS, ids=lambda value: value if "/" not in value else None)
def test_the_check_finds_the_fault(source: str, check: str, words: str) -> None:
    found = answer(source, check)
    assert found.state == "failed", found
    assert words in found.detail


def test_every_chapter_can_fail() -> None:
    assert {check.partition("/")[0] for _, check, _ in FAULTS} == set(CHAPTERS)
