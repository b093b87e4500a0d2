"""``make_plan``: values in, value out. Standard library only; no environment, no device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from engine.config.fields import BY_KEY
from engine.errors import UserError
from engine.fusion import RULES, all_ops
from engine.levels import LEVELS, Level
from engine.models import Layout, build_program
from engine.models.config import ModelConfig
from engine.plan import pieces, served, sizes
from engine.plan.facts import PARALLEL, decide_storage, model_facts
from engine.plan.fusions import PREFIX, Fuser, check_names
from engine.plan.kernels import Chooser, choose_all, choose_ranges
from engine.plan.ledger import Ledger
from engine.plan_values import Given, Plan, digest
from engine.program import Program
from platforms.contract import DeviceProfile, Facts, FusionOffer, FusionRule, Kernel, PlatformPlugin, Setting, Verdict

LIMITS = ("rope_kvcache_max_tokens", "allreduce_max_size_mb")
"""Settings beside the switches of fusions: what holds a rule to small steps."""


@dataclass(frozen=True, slots=True)
class Tables:
    """What a platform brings to a plan. ``settings``: the plugin's own function. ``compiler`` and ``graphs``: whether
    pieces can be compiled and graphs captured there; ``None``: as the profile and this version say."""

    kernels: tuple[Kernel, ...] = ()
    fusions: tuple[FusionOffer | FusionRule, ...] = ()
    settings: Callable[[DeviceProfile, Facts, int], tuple[Setting, ...]] = lambda profile, facts, level: ()
    compiler: Verdict | None = None
    graphs: Verdict | None = None

    @classmethod
    def of(cls, plugin: PlatformPlugin) -> Tables:
        """Raises ``UserError`` for a plugin that breaks or gives something else."""
        kernels = _rows(plugin, "kernels", Kernel)
        fusions = _rows(plugin, "fusions", (FusionOffer, FusionRule))
        try:
            all_ops(tuple(row for row in fusions if isinstance(row, FusionRule)))
        except ValueError as error:
            raise _broken(plugin, str(error)) from error
        return cls(kernels, fusions, lambda *asked: _rows(plugin, "settings", Setting, *asked))


@dataclass(frozen=True, slots=True)
class Observations:
    """What was learnt on the device. ``refused``: (op, row) → what went wrong at first touch. ``blocks``: KV blocks
    that fit beside the weights, once that is known, and ``space``, the sum in words."""

    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)
    blocks: int = 0
    space: str = ""


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
    names = _told(plugin, "aliases", dict)
    words = {fact: environment[name] for name, fact in names.items() if environment and name in environment}
    facts = {**words, **model_facts(model), "offline": offline}
    return make_plan(profile, facts, given, Tables.of(plugin), observations or Observations())


def _told(plugin: PlatformPlugin, member: str, read: Callable[[Any], Any], *arguments: Any) -> Any:
    # Strangers' code may raise anything, and what it raised is what there is to say.
    try:
        return read(getattr(plugin, member)(*arguments))
    except Exception as error:
        raise _broken(plugin, f"{member}() raised {type(error).__name__}: {error}") from error


def _rows(plugin: PlatformPlugin, member: str, kinds: Any, *arguments: Any) -> tuple[Any, ...]:
    rows: tuple[Any, ...] = _told(plugin, member, tuple, *arguments)
    strange = next((row for row in rows if not isinstance(row, kinds)), None)
    if strange is not None:
        raise _broken(plugin, f"{member}() holds a {type(strange).__name__}")
    return rows


def _broken(plugin: PlatformPlugin, what: str) -> UserError:
    return UserError(f"platform {plugin.name}: {what}; fix or remove the plugin")


def make_plan(
    profile: DeviceProfile, facts: Facts, config: Mapping[str, Given], tables: Tables, observations: Observations
) -> Plan:
    """Decide everything, each step seeing only the ones before it. Raises ``UserError`` where an explicit request
    cannot be served; a default that cannot is downgraded with its reason."""
    model: ModelConfig = facts["model"]
    level = _level(config)
    facts = {**facts, "level": level.number, **_asked(config)}
    ledger = Ledger(config, tables.settings(profile, facts, level.number))
    extra = tuple(row for row in tables.fusions if isinstance(row, FusionRule))
    check_names(extra, config, [PREFIX + name for name in LIMITS])

    ledger.decide("optimization_level", level.number, reason=level.purpose)
    compiler = tables.compiler if tables.compiler is not None else served.compiler(profile, facts)
    wanted_graphs = pieces.decide_mode(ledger, level, compiler)
    mode = ledger.decisions["compilation.mode"].value
    base = pieces.decide_custom_ops(ledger, mode, model)
    dtype = sizes.decide_dtype(ledger, profile, model)
    storage = ledger.settle(decide_storage(profile, model, dtype)) or ""
    sizes.decide_cache(ledger, dtype)
    sizes.decide_scheduler(ledger, model)
    for key in ("kernels", "kernel_pins", "batch_invariant", *(key for key in BY_KEY if key.startswith("parallel."))):
        ledger.decide(key)
    tuned = level.defaults["kernel_config.autotune"]
    ledger.decide("kernel_config.autotune", tuned, "level", f"-O{level.number}; no kernel here tunes itself yet")
    facts = {
        **facts,
        "dtype": dtype,
        "storage": storage,
        "mode": mode,
        "graph_mode": wanted_graphs.value,
        "kv_cache_dtype": ledger.decisions["cache.kv_cache_dtype"].value,
        "block_size": ledger.decisions["cache.block_size"].value,
        **{name: ledger.decisions[f"scheduler.{name}"].value for name in ("max_model_len", "max_num_batched_tokens")},
    }

    program = build_program(
        model, Layout(dtype, facts["block_size"], facts["kv_cache_dtype"], facts["tensor_parallel_size"], storage)
    )
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
    pieces.check_operations(ledger, base, chooser.ops)
    chooser = replace(chooser, facts={**facts, **_backed(program, chooser)})
    offers = {row.rule: row for row in tables.fusions if isinstance(row, FusionOffer)}
    most = facts["max_num_batched_tokens"]
    fuser = Fuser(ledger, level.number, offers, extra, chooser, most, served.several_programs(profile))
    ranges, fusions = fuser.fuse(program, pieces.user_ends(ledger, mode))
    for name in LIMITS:
        ledger.decide(PREFIX + name, None, "default", "the platform's own limit")
    kernels = choose_ranges([one.program for one in ranges], chooser)
    pieces.decide_pieces(ledger, mode, compiler, [one.end for one in ranges], kernels, chooser)
    capture = tables.graphs if tables.graphs is not None else served.graphs(profile, facts)
    graphs = pieces.decide_graphs(ledger, wanted_graphs, capture, kernels, chooser)
    sizes.decide_captures(ledger, graphs)
    if observations.blocks:
        sizes.decide_blocks(ledger, observations.blocks, observations.space)
    _warn(ledger, tables, chooser, facts)
    plan = Plan(profile, ledger.decisions, kernels, fusions, ranges, tuple(ledger.warnings))
    deciding = {name: profile.to_json()[name] for name in ("features", "limits", "libraries", "family")}
    body = {**plan.to_json(), "profile": deciding, "profile_origin": "", "model": repr(model)}
    return replace(plan, hash=digest(body))


def _level(config: Mapping[str, Given]) -> Level:
    key = "optimization_level"
    return LEVELS[config[key].value if key in config else BY_KEY[key].default]


def _asked(config: Mapping[str, Given]) -> dict[str, object]:
    """What of the configuration predicates may read before anything is decided."""
    keys = {name: f"parallel.{name}" for name in PARALLEL} | {"batch_invariant": "batch_invariant"}
    found = {name: config[key].value if key in config else BY_KEY[key].default for name, key in keys.items()}
    return found | {name: config[PREFIX + name].value for name in LIMITS if PREFIX + name in config}


def _backed(program: Program, chooser: Chooser) -> dict[str, object]:
    """Ops of the plain program that a row computes."""
    return {"native_ops": frozenset(row.op for row in choose_all(program, chooser) if row.target)}


def _warn(ledger: Ledger, tables: Tables, chooser: Chooser, facts: Facts) -> None:
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
    if facts["batch_invariant"]:
        ledger.warnings.append(
            "batch_invariant keeps to kernels that declare it; plain torch, which computes the rest, promises nothing"
        )
