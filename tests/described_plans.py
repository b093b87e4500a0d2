"""Plans of our own platforms on described devices, with libraries taken away and variables set."""

from __future__ import annotations

import dataclasses

from engine.config import collect
from engine.models.config import ModelConfig
from engine.plan import Plan, plan_for
from platforms.contract import DeviceProfile, FusionOffer, FusionRule, Verdict
from platforms.cpu.plugin import CpuPlugin
from platforms.cuda.plugin import CudaPlugin
from platforms.rocm.plugin import RocmPlugin

PLUGINS = {plugin.name: plugin for plugin in (CpuPlugin(), CudaPlugin(), RocmPlugin())}
TARGETS = [(name, target) for name, plugin in PLUGINS.items() for target in plugin.targets()]
AITER = "0.1.20.post1"


def described(name: str, target: str, without: str = "", **libraries: str) -> DeviceProfile:
    """``without``: a library to take away; ``libraries``: others to add, by version."""
    found = PLUGINS[name].targets()[target]
    kept = {key: value for key, value in found.libraries.items() if key != without}
    return dataclasses.replace(found, libraries=kept | libraries)


def plan(profile: DeviceProfile, model: ModelConfig, *words: str, environment: dict[str, str] | None = None) -> Plan:
    """``words``: of the command line."""
    return plan_for(PLUGINS[profile.platform], profile, model, collect(words, {}).given, environment=environment or {})


def own_rules(name: str) -> tuple[FusionRule, ...]:
    """Those that the platform brings beside the catalog."""
    return tuple(row for row in PLUGINS[name].fusions() if isinstance(row, FusionRule))


def on(found: Plan) -> set[str]:
    """Rules that rewrote something."""
    return {row.rule for row in found.fusions if row.matched}


def report(found: Plan, rule: str):
    return next(row for row in found.fusions if row.rule == rule)


def chosen(found: Plan, op: str) -> set[str]:
    """Rows that compute calls of ``op``."""
    return {row.chosen for row in found.kernels if row.op == op}


def offered(profile: DeviceProfile, rule: str, **facts: object) -> Verdict:
    """What the platform's predicate says to facts given by hand; a rule without an offer is a no."""
    offers = {row.rule: row for row in PLUGINS[profile.platform].fusions() if isinstance(row, FusionOffer)}
    return offers[rule].when(profile, facts) if rule in offers else Verdict(False, "not offered by the platform")
