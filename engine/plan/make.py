"""``make_plan``: values in, value out. Standard library only; no environment, no device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from engine.config.fields import BY_KEY
from engine.fusion import RULES, all_ops
from engine.levels import FUSIONS, LEVELS, TUNING, Level
from engine.models import Layout, build_program
from engine.models.config import ModelConfig
from engine.plan import backend, captures, modes, pieces, sizes, weight_blocks
from engine.plan.drafting import decide_drafting
from engine.plan.facts import PARALLEL, STAGES, decide_stages, decide_storage, model_facts
from engine.plan.fusions import LIMITS, PREFIX, Fuser, check_names
from engine.plan.kernels import REFERENCE, Chooser, ask, check_idle_pins, choose_all, choose_ranges
from engine.plan.ledger import Ledger
from engine.plan.ranges import compiled_sizes, with_fixed, with_pieces
from engine.plan.rounding import decide_rounding, wish_rounding
from engine.plan.sampling import choose_sampling
from engine.plan.tables import Tables, told
from engine.plan.times import Rounds
from engine.plan_values import Given, Plan, digest
from platforms.contract import DeviceProfile, Facts, FusionOffer, FusionRule, Kernel, PlatformPlugin, Verdict

PACKED = "packed_linear"
"""The op that multiplies weights of four bits."""


@dataclass(frozen=True, slots=True)
class Observations:
    """What was learnt on the device. ``refused``: (op, row) → what went wrong at first touch. ``blocks``: KV blocks
    that fit beside the weights, once that is known, and ``space``, the sum in words. ``graphs``: what the opened
    runtime said where it captures none. ``uncaptured``: (``FULL`` or ``PIECEWISE``, tokens) → why such a graph could
    not be captured at start. ``times``: (op, row or ``reference``, call as a choice words it) → seconds on the
    device, of rows that were measured in turns."""

    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)
    blocks: int = 0
    space: str = ""
    graphs: Verdict | None = None
    uncaptured: Mapping[tuple[str, int], str] = field(default_factory=dict)
    times: Mapping[tuple[str, str, str], Rounds] = field(default_factory=dict)


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
    names = told(plugin, "aliases", dict)
    words = {fact: environment[name] for name, fact in names.items() if environment and name in environment}
    facts = {**words, **model_facts(model), "offline": offline}
    return make_plan(profile, facts, given, Tables.of(plugin), observations or Observations())


def make_plan(
    profile: DeviceProfile, facts: Facts, config: Mapping[str, Given], tables: Tables, observations: Observations
) -> Plan:
    """Decide everything, each step seeing only the ones before it. Raises ``UserError`` where an explicit request
    cannot be served; a default that cannot is downgraded with its reason."""
    model: ModelConfig = facts["model"]
    level = _level(config)
    facts = {**facts, "level": level.number, **_asked(config)}
    ledger = Ledger(config, tables.soft(profile, facts, level.number))
    rounding = wish_rounding(ledger, level)
    facts["rounding"] = rounding.value
    extra = tuple(row for row in tables.fusions if isinstance(row, FusionRule))
    check_names(extra, config, [PREFIX + name for name in LIMITS])

    ledger.own("optimization_level", level.number, level.purpose)
    ledger.own("performance_mode")
    able = tables.compiler
    compilers = backend.Compilers(able, able) if able is not None else backend.Compilers.of(profile, facts)
    wanted_graphs = modes.decide_mode(ledger, level, compilers)
    mode = ledger.decisions["compilation.mode"].value
    base = backend.decide_custom_ops(ledger, mode, model, profile, compilers)
    pins = ledger.user("kernel_pins") or {}
    in_blocks = partial(weight_blocks.taken, model, tables.kernels, profile, facts, observations.refused, pins=pins)
    dtype = sizes.decide_dtype(ledger, profile, model, lambda kind: bool(in_blocks(kind).rows))
    willing = {row.name: _needed(row, profile, facts, observations) for row in tables.kernels if row.op == PACKED}
    blocks, decision = weight_blocks.Taken(), decide_storage(profile, model, dtype, willing)
    if model.blocks is not None:
        plain = ledger.user("kernels") == REFERENCE
        blocks, decision = weight_blocks.decide(model, dtype, in_blocks(dtype), plain)
    storage = ledger.settle(decision) or ""
    sizes.decide_cache(ledger, profile, model, dtype)
    decide_drafting(ledger)
    sizes.decide_scheduler(ledger, model)
    most = ledger.decisions["scheduler.max_num_batched_tokens"].value
    pieces.check_sizes(ledger, most)
    for key in ("kernels", "kernel_pins", "batch_invariant", *(key for key in BY_KEY if key.startswith("parallel."))):
        ledger.own(key)
    decide_stages(ledger, model)
    tuned = level.defaults["kernel_config.autotune"]
    ledger.decide("kernel_config.autotune", tuned, "level", f"-O{level.number}; {TUNING[level.tuning]}")
    facts = {
        **facts,
        "dtype": dtype,
        "storage": "" if model.blocks else storage,
        **blocks.facts,
        "mode": mode,
        "backend": ledger.decisions[backend.BACKEND].value,
        "graph_mode": wanted_graphs.value,
        "kv_cache_dtype": ledger.decisions["cache.kv_cache_dtype"].value,
        "block_size": ledger.decisions["cache.block_size"].value,
        **{name: ledger.decisions[f"scheduler.{name}"].value for name in ("max_model_len", "max_num_batched_tokens")},
    }

    program = build_program(
        model,
        Layout(
            dtype,
            facts["block_size"],
            facts["kv_cache_dtype"],
            facts["tensor_parallel_size"],
            facts["storage"],
            blocks.ways,
        ),
    )
    sizes.decide_weights(ledger, profile, program)
    chooser = Chooser(
        profile,
        facts,
        tables.kernels,
        all_ops((*RULES, *extra)),
        ledger.decisions["kernel_pins"].value or {},
        base,
        observations.refused,
        ledger.decisions["kernels"].value == "reference",
        observations.times,
    )
    chooser.check_pins()
    backend.check_operations(ledger, base, chooser.ops, chooser.pins)
    capture = _captures(observations, tables, profile, facts)
    plain = choose_all(program, chooser)
    graph_mode = modes.foreseen(ledger, wanted_graphs, capture, plain, chooser)
    if graph_mode != facts["graph_mode"]:
        facts = {**facts, "graph_mode": graph_mode}
        chooser = replace(chooser, facts=facts)
        plain = choose_all(program, chooser)
    chooser = replace(chooser, facts={**facts, "native_ops": frozenset(row.op for row in plain if row.target)})
    offers = {row.rule: row for row in tables.fusions if isinstance(row, FusionOffer)}
    fuser = Fuser(ledger, level.number, offers, extra, chooser, most)
    ranges, fusions = fuser.fuse(program, pieces.user_ends(ledger, mode))
    for name in LIMITS:
        ledger.own(PREFIX + name, None, "the platform's own limit")
    kernels = choose_ranges([one.program for one in ranges], chooser)
    sampling = choose_sampling(chooser, model.vocab_size)
    check_idle_pins(ledger, (*kernels, *sampling), chooser)
    decide_rounding(ledger, rounding, (*kernels, *sampling), tables.kernels)
    ends = [one.end for one in ranges]
    between = pieces.decide_pieces(ledger, mode, compilers, ends, kernels, chooser, (*RULES, *extra))
    graphs = modes.decide_graphs(ledger, wanted_graphs, capture, between, kernels, chooser)
    captured = captures.decide_captures(ledger, graphs, observations.uncaptured)
    if mode == "PIECEWISE":
        ranges = with_fixed(ranges, compiled_sizes(ledger, captured))
        ranges = with_pieces(ranges, between, ledger.decisions[backend.BACKEND].value, kernels, chooser.ops)
    if observations.blocks:
        sizes.decide_blocks(ledger, observations.blocks, observations.space)
    _warn(ledger, tables, chooser, facts)
    kernels = (*kernels, *sampling)
    plan = Plan(profile, ledger.decisions, kernels, fusions, ranges, tuple(ledger.warnings), between=between)
    return replace(plan, hash=_fingerprint(plan, model))


_WISHES = frozenset({"optimization_level", "performance_mode", "enforce_eager", "kernels", "kernel_pins"})
_NOT_RUN = _WISHES | {pieces.CACHE, pieces.DUMP, pieces.BUNDLE, sizes.BLOCKS}
"""Decisions that are no part of what runs: wishes that are seen in other decisions, in rows and in fusions, as those of
``PREFIX`` are; where files lie; and how many blocks of KV cache there was memory for, which differs at each start."""


def _fingerprint(plan: Plan, model: ModelConfig) -> str:
    """The same for plans that run the same, whoever asked for what in which words."""
    profile = plan.profile.to_json()
    counted = (key for key in sorted(plan.decisions) if key not in _NOT_RUN and not key.startswith(PREFIX))
    body = {
        "device": {name: profile[name] for name in ("platform", "arch", "family", "features", "limits", "libraries")},
        "model": repr(model),
        "settings": {key: plan[key] for key in counted},
        "kernels": [(row.op, row.call, row.count, row.chosen, row.target) for row in plan.kernels],
        "fusions": {row.rule: row.ranges for row in plan.fusions if row.matched},
        "ranges": [
            (one.start, one.end, [(row.calls, row.count, row.generator) for row in one.pieces]) for one in plan.ranges
        ],
        "between": plan.between,
    }
    return digest(body)


def _needed(row: Kernel, profile: DeviceProfile, facts: Facts, observations: Observations) -> Verdict:
    """Whether a row can be used on the device, whatever the call."""
    refused = observations.refused.get((row.op, row.name))
    return ask(row.needs, profile, facts) if refused is None else Verdict(False, f"first touch: {refused}")


def _captures(observations: Observations, tables: Tables, profile: DeviceProfile, facts: Facts) -> Verdict:
    """Whether graphs can be captured: as the opened device says, the tables, the profile."""
    said = (verdict for verdict in (observations.graphs, tables.graphs) if verdict is not None)
    return next(said, backend.CAPTURES(profile, facts))


def _level(config: Mapping[str, Given]) -> Level:
    key = "optimization_level"
    return LEVELS[config[key].value if key in config else BY_KEY[key].default]


def _asked(config: Mapping[str, Given]) -> dict[str, object]:
    """What of the configuration predicates may read before anything is decided."""
    keys = {name: f"parallel.{name}" for name in PARALLEL} | {"batch_invariant": "batch_invariant"}
    found = {name: config[key].value if key in config else BY_KEY[key].default for name, key in keys.items()}
    return found | {name: config[PREFIX + name].value for name in LIMITS if PREFIX + name in config}


def _warn(ledger: Ledger, tables: Tables, chooser: Chooser, facts: Facts) -> None:
    ledger.warnings += [
        f"the platform's setting {key} is not used: there is none of that name that a platform decides"
        for key in ledger.unused()
    ]
    unknown = sorted({row.op for row in tables.kernels} - set(chooser.ops))
    if unknown:
        ledger.warnings.append(f"the platform has kernel rows for ops that do not exist: {', '.join(unknown)}")
    known = {*FUSIONS, *(row.name for row in tables.fusions if isinstance(row, FusionRule))}
    offered = sorted({row.rule for row in tables.fusions if isinstance(row, FusionOffer)} - known)
    if offered:
        ledger.warnings.append(f"the platform offers fusions that do not exist: {', '.join(offered)}")
    ranks = [name for name in PARALLEL if facts[name] > 1 and name != STAGES]
    if ranks:
        ledger.warnings.append(
            f"{', '.join(ranks)} above 1 can be planned for; serving on several devices is not built yet"
        )
    if facts[STAGES] > 1:
        ledger.warnings.append(
            f"{STAGES} {facts[STAGES]} is recorded only: layers are not cut into stages, so the plan is of a device "
            "that holds all of them; serving on several devices is not built yet"
        )
    if facts["batch_invariant"]:
        ledger.warnings.append(
            "batch_invariant keeps to kernels that declare it; plain torch and generated code, which compute the rest, "
            "promise nothing"
        )
