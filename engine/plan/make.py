"""``make_plan``: values in, value out. Standard library only; no environment, no device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from engine.config.fields import BY_KEY
from engine.errors import UserError
from engine.fusion import RULES, all_ops
from engine.levels import LEVELS
from engine.models import Layout, build_program
from engine.models.config import ModelConfig
from engine.plan import sizes
from engine.plan.fusions import check_names, fuse
from engine.plan.kernels import Chooser, choose_all
from engine.plan.ledger import Ledger
from engine.plan_values import Decision, Given, Plan, digest
from platforms.contract import DeviceProfile, Facts, FusionOffer, FusionRule, Kernel, PlatformPlugin, Setting, Verdict

NO_BACKEND = Verdict(False, "no backend offered")
PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
PIECE_KEYS = (
    "compilation.backend",
    "compilation.splitting_ops",
    "compilation.compile_sizes",
    "compilation.compile_ranges_endpoints",
    "compilation.debug_dump_path",
)


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
    """What was learnt on the device. ``refused``: (op, row) → what went wrong at first touch. ``blocks``: KV blocks
    that fit beside the weights, once that is known, and ``space``, the sum in words."""

    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)
    blocks: int = 0
    space: str = ""


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
        **{name: config[key].value if (key := f"parallel.{name}") in config else 1 for name in PARALLEL},
    }
    ledger = Ledger(config, tables.settings(profile, facts, number))
    extra = tuple(row for row in tables.fusions if isinstance(row, FusionRule))
    check_names(ledger, extra, config)

    ledger.decide("optimization_level", number, reason=level.purpose)
    eager = ledger.wish("enforce_eager")
    ledger.settle(eager)
    wanted_mode, wanted_graphs = sizes.requested(ledger, level, eager)
    mode = _served(ledger, wanted_mode, tables.compiler)
    backend = ledger.decide("compilation.backend", "inductor", reason="the code generator of torch.compile")
    generated = mode != "NONE" and backend == "inductor"
    why = "a code generator compiles the pieces" if generated else "no code generator compiles the pieces"
    base = tuple(ledger.decide("compilation.custom_ops", ["none" if generated else "all"], "derived", why))
    if not {"all", "none"} & set(base):
        base = ("none" if generated else "all", *base)
    dtype = sizes.decide_dtype(ledger, profile, model)
    sizes.decide_cache(ledger, dtype)
    sizes.decide_scheduler(ledger, model)
    for key in ("kernels", "kernel_pins", *(key for key in BY_KEY if key.startswith("parallel."))):
        ledger.decide(key)
    tuned = level.defaults["kernel_config.autotune"]
    ledger.decide("kernel_config.autotune", tuned, "level", f"-O{number}; no kernel here tunes itself yet")
    facts = {
        **facts,
        "dtype": dtype,
        "kv_cache_dtype": ledger.decisions["cache.kv_cache_dtype"].value,
        "max_model_len": ledger.decisions["scheduler.max_model_len"].value,
        "block_size": ledger.decisions["cache.block_size"].value,
    }

    program = build_program(model, Layout(dtype, facts["block_size"], facts["kv_cache_dtype"]))
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
    _check_operations(ledger, base, chooser)
    plain = {row.op for row in choose_all(program, chooser) if row.target}
    chooser = replace(chooser, facts={**facts, "native_ops": frozenset(plain)})
    offers = {row.rule: row for row in tables.fusions if isinstance(row, FusionOffer)}
    program, fusions = fuse(program, number, ledger, offers, extra, chooser)
    kernels = choose_all(program, chooser)
    graphs = _served(ledger, wanted_graphs, tables.graphs)
    sizes.decide_captures(ledger, graphs)
    _decide_pieces(ledger, mode, tables.compiler)
    if observations.blocks:
        sizes.decide_blocks(ledger, observations.blocks, observations.space)
    ledger.warnings += [
        f"the platform's setting {key} is none of this engine's, and not used" for key in ledger.unused()
    ]
    unknown = sorted({row.op for row in tables.kernels} - set(chooser.ops))
    if unknown:
        ledger.warnings.append(f"the platform has kernel rows for ops that do not exist: {', '.join(unknown)}")
    ranks = [name for name in PARALLEL if facts[name] > 1]
    if ranks:
        ledger.warnings.append(
            f"{', '.join(ranks)} above 1 can be planned for; serving on several devices is not built yet"
        )
    plan = Plan(profile, ledger.decisions, kernels, fusions, program, tuple(ledger.warnings))
    deciding = {name: profile.to_json()[name] for name in ("features", "limits", "libraries", "family")}
    body = {**plan.to_json(), "profile": deciding, "profile_origin": "", "model": repr(model)}
    return replace(plan, hash=digest(body))


def _served(ledger: Ledger, wanted: Decision, backend: Verdict) -> str:
    """The mode that a backend can serve: an explicit one or an exit, a default one or NONE with the reason."""
    key = wanted.key
    if wanted.value == "NONE" or backend:
        return ledger.settle(wanted)
    if ledger.user(key) is not None:
        raise UserError(
            f"{ledger.asked(key)} cannot be served: {backend.reason}. Use {BY_KEY[key].flag}=NONE, or drop "
            "the flag to take what the device offers."
        )
    return ledger.settle(Decision(key, "NONE", "derived", f"{wanted.reason} asks for {wanted.value}; {backend.reason}"))


def _decide_pieces(ledger: Ledger, mode: str, compiler: Verdict) -> None:
    """Settings that act on compiled pieces only. Raises ``UserError`` where one was given and no compiler is there;
    where a user chose to compile nothing, a warning says that it has no effect."""
    for key in PIECE_KEYS:
        if mode == "NONE" and ledger.user(key) is not None:
            if not compiler and key != "compilation.debug_dump_path" and ledger.user("compilation.mode") is None:
                raise UserError(f"{ledger.asked(key)} cannot be served: nothing is compiled ({compiler.reason}).")
            ledger.warnings.append(f"{ledger.asked(key)} has no effect: nothing is compiled.")
        if key not in ledger.decisions:
            empty: list[str] | None = None if key == "compilation.debug_dump_path" else []
            ledger.decide(key, empty, "derived", "nothing is compiled" if mode == "NONE" else "default")


def _check_operations(ledger: Ledger, custom_ops: tuple[str, ...], chooser: Chooser) -> None:
    unknown = [name for name in custom_ops if name[1:] not in chooser.ops and name not in ("all", "none")]
    if unknown:
        have = ", ".join(sorted(chooser.ops))
        ledger.warnings.append(f"custom_ops names {', '.join(unknown)}: no such op; this engine has {have}")
