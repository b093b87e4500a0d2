"""``make_plan``: values in, value out. Standard library only; no environment, no device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.config.fields import BY_KEY
from engine.errors import UserError
from engine.fusion import RULES, all_ops
from engine.levels import LEVELS
from engine.models import build_program
from engine.models.config import ModelConfig
from engine.plan import sizes
from engine.plan.fusions import check_names, fuse
from engine.plan.kernels import Chooser, choose_all
from engine.plan.ledger import Ledger
from engine.plan_values import Given, Plan, digest
from platforms.contract import DeviceProfile, Facts, FusionOffer, FusionRule, Kernel, PlatformPlugin, Setting, Verdict

NO_BACKEND = Verdict(False, "no backend offered")


@dataclass(frozen=True, slots=True)
class Tables:
    """What a platform brings to a plan. ``settings``: the plugin's own function. ``compiler`` and ``graphs``: whether
    pieces can be compiled and graphs captured there."""

    kernels: tuple[Kernel, ...] = ()
    fusions: tuple[FusionOffer | FusionRule, ...] = ()
    settings: Callable[[DeviceProfile, Facts, int], tuple[Setting, ...]] = lambda profile, facts, level: ()
    compiler: Verdict = NO_BACKEND
    graphs: Verdict = NO_BACKEND

    @classmethod
    def of(cls, plugin: PlatformPlugin) -> Tables:
        return cls(plugin.kernels(), plugin.fusions(), plugin.settings)


@dataclass(frozen=True, slots=True)
class Observations:
    """What was learnt on the device. ``refused``: (op, row) → what went wrong at first touch."""

    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)


def model_facts(model: ModelConfig) -> dict[str, Any]:
    """What predicates may ask about a model."""
    return {
        "model": model,
        "architecture": model.architecture,
        "hidden_size": model.hidden_size,
        "num_heads": model.num_heads,
        "num_kv_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "qk_norm": model.qk_norm,
        "quantized": False,
        "weight_format": model.weight_format,
        "mla": False,
        "moe": False,
    }


def plan_for(
    plugin: PlatformPlugin,
    profile: DeviceProfile,
    model: ModelConfig,
    given: Mapping[str, Given],
    observations: Observations | None = None,
    environment: Mapping[str, str] | None = None,
    offline: bool = False,
) -> Plan:
    """``make_plan`` with a plugin's tables. ``environment``: variables that the plugin's aliases turn into facts.
    ``offline``: no server in front."""
    names = plugin.aliases()
    words = {fact: environment[name] for name, fact in names.items() if environment and name in environment}
    facts = {**words, **model_facts(model), "offline": offline}
    return make_plan(profile, facts, given, Tables.of(plugin), observations or Observations())


def make_plan(
    profile: DeviceProfile, facts: Facts, config: Mapping[str, Given], tables: Tables, observations: Observations
) -> Plan:
    """Decide everything, each step seeing only the ones before it. Raises ``UserError`` where an explicit request
    cannot be served; a default that cannot is downgraded with its reason."""
    model: ModelConfig = facts["model"]
    number = (
        config["optimization_level"].value if "optimization_level" in config else BY_KEY["optimization_level"].default
    )
    level = LEVELS[number]
    facts = {
        **facts,
        "level": number,
        "batch_invariant": False,
        **{
            name: config[key].value if (key := f"parallel.{name}") in config else 1
            for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
        },
    }
    ledger = Ledger(config, tables.settings(profile, facts, number))
    extra = tuple(row for row in tables.fusions if isinstance(row, FusionRule))
    check_names(ledger, extra, config)

    ledger.decide("optimization_level", number, reason=level.purpose)
    eager = ledger.decide("enforce_eager")
    requested_mode, requested_graphs = sizes.requested(ledger, level, eager)
    mode = _served(ledger, "compilation.mode", requested_mode, tables.compiler, eager, number)
    backend = ledger.decide("compilation.backend", "inductor", reason="the code generator of torch.compile")
    generated = mode != "NONE" and backend == "inductor"
    ledger.decide(
        "compilation.custom_ops",
        ["none" if generated else "all"],
        "derived",
        "a code generator compiles the pieces" if generated else "no code generator compiles the pieces",
    )
    base = tuple(ledger.decisions["compilation.custom_ops"].value)
    if not {"all", "none"} & set(base):
        base = ("none" if generated else "all", *base)
    dtype = sizes.decide_dtype(ledger, profile, model)
    sizes.decide_cache(ledger, dtype)
    sizes.decide_scheduler(ledger, model)
    for key in ("kernels", "kernel_pins", *(key for key in BY_KEY if key.startswith("parallel."))):
        ledger.decide(key)
    ledger.decide("kernel_config.autotune", level.defaults["kernel_config.autotune"], "level", f"-O{number}")
    facts = {
        **facts,
        "dtype": dtype,
        "kv_cache_dtype": ledger.decisions["cache.kv_cache_dtype"].value,
        "max_model_len": ledger.decisions["scheduler.max_model_len"].value,
        "block_size": ledger.decisions["cache.block_size"].value,
    }

    program = build_program(model, dtype, facts["block_size"], facts["kv_cache_dtype"])
    chooser = Chooser(
        profile,
        facts,
        tables.kernels,
        all_ops((*RULES, *extra)),
        ledger.user("kernel_pins") or {},
        base,
        observations.refused,
        ledger.decisions["kernels"].value == "reference",
    )
    chooser.check_pins()
    offers = {row.rule: row for row in tables.fusions if isinstance(row, FusionOffer)}
    program, fusions = fuse(program, number, ledger, offers, extra, chooser)
    kernels = choose_all(program, chooser)
    graphs = _served(ledger, "compilation.graph_mode", requested_graphs, tables.graphs, eager, number)
    sizes.decide_captures(ledger, graphs)
    for key in ("compilation.splitting_ops", "compilation.compile_sizes", "compilation.compile_ranges_endpoints"):
        ledger.decide(key, [], "derived", f"mode {mode}: nothing is compiled" if mode == "NONE" else "default")
    ledger.decide("compilation.debug_dump_path")
    plan = Plan(profile, ledger.decisions, kernels, fusions, program, tuple(ledger.warnings))
    body = {**plan.to_json(), "profile": profile.to_json(), "model": repr(model)}
    return Plan(profile, ledger.decisions, kernels, fusions, program, tuple(ledger.warnings), digest(body))


def _served(ledger: Ledger, key: str, wanted: str, backend: Verdict, eager: bool, level: int) -> str:
    """The mode that a backend can serve: an explicit one or an exit, a default one or NONE with the reason."""
    if wanted == "NONE" or backend:
        origin = "command line" if eager else "level"
        reason = "enforce_eager" if eager else f"-O{level}"
        return ledger.decide(key, wanted, origin, reason)
    if ledger.user(key) is not None:
        raise UserError(
            f"{ledger.asked(key)} cannot be served: {backend.reason}. Use {BY_KEY[key].flag}=NONE, or drop "
            "the flag to take what the device offers."
        )
    return ledger.set(key, "NONE", "derived", f"-O{level} asks for {wanted}; {backend.reason}")
