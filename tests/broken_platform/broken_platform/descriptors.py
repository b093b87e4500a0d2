"""Faults of a descriptor."""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace

from toy_platform.runtime import ToyRuntime

from broken_platform.base import Broken
from platforms.contract import (
    DeviceProfile,
    Facts,
    FusionOffer,
    FusionRule,
    Kernel,
    Predicate,
    Probe,
    Runtime,
    Setting,
    Verdict,
)


class Loud(Broken):
    name = "Broken"


class RaisesInProbe(Broken):
    def probe(self) -> Probe:
        raise OSError("no bus")


class Slow(Broken):
    def probe(self) -> Probe:
        time.sleep(2.2)
        return super().probe()


class WritesEnvironment(Broken):
    def probe(self) -> Probe:
        os.environ["BROKEN_WAS_HERE"] = "1"
        return super().probe()


class Silent(Broken):
    def probe(self) -> Probe:
        return Probe(super().probe().profiles)


class ImportsInProbe(Broken):
    def probe(self) -> Probe:
        import torch

        return Probe(evidence=(torch.__version__,))


class TrustsVariable(Broken):
    def probe(self) -> Probe:
        count = int(os.environ.get("BROKEN_DEVICES", "0"))
        return Probe(evidence=(f"BROKEN_DEVICES={count}",))


class TrustsTool(Broken):
    def probe(self) -> Probe:
        try:
            done = subprocess.run(["broken-smi"], capture_output=True, text=True, timeout=2.2)
        except (OSError, subprocess.TimeoutExpired) as error:
            return Probe(evidence=(f"broken-smi: {error}",))
        return Probe(evidence=(done.stdout,))


class Described(Broken):
    def probe(self) -> Probe:
        return Probe((self.targets()["gen2"],), ("looked up, not looked at",))


class Unfounded(Broken):
    def targets(self) -> Mapping[str, DeviceProfile]:
        return {key: replace(profile, evidence={}) for key, profile in super().targets().items()}


class Covers(Broken):
    def aliases(self) -> Mapping[str, str]:
        return {"BROKEN_TYPE": "dtype"}


class Moody(Broken):
    def settings(self, profile: DeviceProfile, facts: Facts, level: int) -> tuple[Setting, ...]:
        return (Setting("cache.block_size", int(os.environ.get("BROKEN_BLOCK", "16")), "as the variable says"),)


class Dreams(Broken):
    def settings(self, profile: DeviceProfile, facts: Facts, level: int) -> tuple[Setting, ...]:
        return (Setting("cache.speed", "high", "faster"),)


class Invents(Broken):
    def kernels(self) -> tuple[Kernel, ...]:
        return (Kernel("make_tea", "broken", "toy_platform.kernels:rms_norm"),)


class Twins(Broken):
    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(Kernel("rms_norm", name, "toy_platform.kernels:rms_norm") for name in ("one", "other"))


class TablesRaise(Broken):
    def kernels(self) -> tuple[Kernel, ...]:
        raise KeyError("gen3")


class Everywhere(Broken):
    def open(self, index: int) -> Runtime:
        return ToyRuntime(0, self.probe())


class Undecided(Broken):
    asked = itertools.count()

    def settings(self, profile: DeviceProfile, facts: Facts, level: int) -> tuple[Setting, ...]:
        return (Setting("cache.block_size", 16 << next(self.asked) % 2, "it depends"),)


class Sulks(Broken):
    def settings(self, profile: DeviceProfile, facts: Facts, level: int) -> tuple[Setting, ...]:
        raise LookupError("no mood for settings")


def _offering(rule: str, predicate: Predicate, *rules: FusionRule) -> type[Broken]:
    offers = (FusionOffer(rule, predicate), *rules)

    class Faulty(Broken):
        def fusions(self) -> tuple[FusionOffer | FusionRule, ...]:
            return offers

    return Faulty


def _blind(profile: DeviceProfile, facts: Facts) -> Verdict:
    return Verdict(True, f"head_dim {facts['head_dim']}")


def _picky(profile: DeviceProfile, facts: Facts) -> Verdict:
    return Verdict(True, f"{profile.limits['lanes']} lanes")


def _tired(profile: DeviceProfile, facts: Facts) -> Verdict:
    level = facts.get("level", 0)
    return Verdict(level < 3, f"level {level}")


_TEA = FusionRule("fuse_tea", "tea", ("brew(water, leaves) -> tea",), ("tea",), 1)

OffersBlindly = _offering("fuse_rope_kvcache", _blind)
OffersNothingKnown = _offering("fuse_tea_and_milk", _tired)
InventsRule = _offering("fuse_tea", _tired, _TEA)
Picky = _offering("fuse_rope_kvcache", _picky)
Tired = _offering("fuse_rope_kvcache", _tired)
