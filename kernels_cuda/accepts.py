"""What rows of FlashInfer ask of a call, as its sources and its users' failures say. Standard library only."""

from __future__ import annotations

from typing import Any

from kernels_triton.calls import FLOAT8
from platforms.contract import DeviceProfile, Facts, Predicate, Verdict

HALVES = ("float16", "bfloat16")
WHOLE = ("STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE")
"""Modes that call a row while they trace, with no step to prepare."""
_BLOCK = 128
_TILE, _ITEMS = 128, 16384
"""Rows of queries in a tile of latent attention; parts of a schedule, of which half are left to splits."""


def stepwise(profile: DeviceProfile, facts: Facts) -> Verdict:
    """Every call belongs to a step that was prepared, and nobody asks for graphs of every kind of batch: captured, such
    a row serves one new token per request."""
    mode, graphs = facts.get("mode", ""), facts.get("graph_mode", "")
    if graphs == "FULL":
        return Verdict(False, "graph mode FULL: captured, it serves one new token per request, not every batch")
    return Verdict(mode not in WHOLE, f"mode {mode or 'unknown'}" + (" calls it without a step" * (mode in WHOLE)))


def attends(
    *, pages: tuple[int, ...], heads: tuple[int, ...], group: int = 0, softcap: bool = False, stored: bool = False
) -> Predicate:
    """Sizes that kernels are made for. ``group``: most query heads of a key head, 0 for any; ``softcap``: they know
    one; ``stored``: a cache of ``float8_e4m3fn`` with one scale each for keys and values may be read."""

    def check(profile: DeviceProfile, facts: Facts) -> Verdict:
        shapes, dtypes = facts.get("call_shapes", ()), facts.get("call_dtypes", ())
        names = ("heads", "kv_heads", "head_dim", "window")
        if len(shapes) < 5 or len(dtypes) != len(shapes) or len(shapes[1]) != 5 or not set(names) <= set(facts):
            return Verdict(False, "inputs of the call unknown")
        cached = _cached(profile, dtypes, stored)
        if not cached:
            return cached
        page, dim, many, few = shapes[1][2], facts["head_dim"], facts["heads"], facts["kv_heads"]
        text = f"{many} over {few} heads of {dim} in pages of {page}"
        if page not in pages or dim not in heads:
            return Verdict(False, f"{text}; needs heads of {_any(heads)} in pages of {_any(pages)}")
        if not isinstance(many, int) or not isinstance(few, int) or few < 1 or many % few:
            return Verdict(False, f"{text}; needs whole groups")
        if group and many // few > group:
            return Verdict(False, f"{text}; needs groups of at most {group}")
        if facts.get("softcap", 0.0) and not softcap:
            return Verdict(False, f"scores capped at {facts['softcap']}, which these kernels do not do")
        window = facts["window"]
        return Verdict(window is None or window > 0, f"{text}, window {window}, {cached.reason}")

    return check


def attends_latents(profile: DeviceProfile, facts: Facts) -> Verdict:
    """One type of 16 bits, latents of 512 and a rotated key of 64, heads that fill whole tiles of queries: where they
    do not, the library's kernels lose a key at the edge and its planner refuses the step."""
    shapes, dtypes = facts.get("call_shapes", ()), facts.get("call_dtypes", ())
    sizes: tuple[Any, ...] = tuple(facts.get(name) for name in ("heads", "kv_rank", "rope"))
    if len(shapes) != 7 or len(dtypes) != 7 or len(shapes[2]) != 3 or not all(isinstance(n, int) for n in sizes):
        return Verdict(False, "inputs of the call unknown")
    if dtypes[0] not in HALVES or len({*dtypes[:4]}) > 1:
        return Verdict(False, f"types {' '.join(dtypes[:4])}, needs {_any(HALVES)} for all")
    (heads, rank, rope), page = sizes, shapes[2][1]
    text = f"{heads} heads over latents of {rank} and {rope} in pages of {page}"
    if (rank, rope) != (512, 64) or page not in (16, 32, 64):
        return Verdict(False, f"{text}; needs 512 and 64 in pages of 16, 32 or 64")
    if not 0 < heads <= _TILE or _TILE % heads:
        return Verdict(False, f"{text}; needs a number of heads that divides {_TILE}")
    tokens = facts.get("max_num_batched_tokens", 0)
    if tokens * heads > _ITEMS * _TILE // 2:
        return Verdict(False, f"{text}: steps of {tokens} tokens have more parts than the {_ITEMS} of a schedule")
    return Verdict(True, text)


def attends_in_bfloat16(profile: DeviceProfile, facts: Facts) -> Verdict:
    """The same in bfloat16 and pages of 32 or 64: what precompiled kernels are there for."""
    found = attends_latents(profile, facts)
    if not found:
        return found
    kind, page = facts["call_dtypes"][0], facts["call_shapes"][2][1]
    if kind != "bfloat16" or page not in (32, 64):
        return Verdict(False, f"{kind} in pages of {page}; needs bfloat16 in pages of 32 or 64")
    return found


def grouped(profile: DeviceProfile, facts: Facts) -> Verdict:
    """A scaled product by blocks of 128, one scale of each row of ``x`` for each, whole blocks, 16 bits as a result."""
    shapes, dtypes = facts.get("call_shapes", ()), facts.get("call_dtypes", ())
    if len(shapes) not in (4, 5) or len(dtypes) != len(shapes) or any(len(shape) != 2 for shape in shapes[:4]):
        return Verdict(False, "inputs of the call unknown")
    if (dtypes[0], dtypes[2]) != ("float8_e4m3fn",) * 2 or (dtypes[1], dtypes[3]) != ("float32",) * 2:
        return Verdict(False, f"types {' '.join(dtypes[:4])}, needs float8_e4m3fn with scales of float32")
    result, block = facts.get("result"), facts.get("block")
    if result not in HALVES or any(name != result for name in dtypes[4:]):
        return Verdict(False, f"result {result} and bias {' '.join(dtypes[4:]) or 'none'}, needs {_any(HALVES)}")
    (out, width), groups = shapes[2], shapes[1][1]
    text = f"{out} by {width} in blocks of {block}, {groups} scales a row"
    ok = block == (_BLOCK, _BLOCK) and isinstance(out, int) and isinstance(width, int)
    ok = ok and out % _BLOCK == 0 and width % _BLOCK == 0 and groups == width // _BLOCK
    return Verdict(ok, text + ("" if ok else f"; needs whole blocks of {_BLOCK} by {_BLOCK} and a scale for each"))


def scaled_rows(profile: DeviceProfile, facts: Facts) -> Verdict:
    """A scaled product with one scale of each row of the weight, and one of each row of ``x`` or of all; whole groups
    of 128 columns; bfloat16 as a result."""
    shapes, dtypes = facts.get("call_shapes", ()), facts.get("call_dtypes", ())
    if len(shapes) not in (4, 5) or len(dtypes) != len(shapes) or len(shapes[0]) != 2 or len(shapes[2]) != 2:
        return Verdict(False, "inputs of the call unknown")
    if (dtypes[0], dtypes[2]) != ("float8_e4m3fn",) * 2 or (dtypes[1], dtypes[3]) != ("float32",) * 2:
        return Verdict(False, f"types {' '.join(dtypes[:4])}, needs float8_e4m3fn with scales of float32")
    if (result := facts.get("result")) != "bfloat16" or any(name != result for name in dtypes[4:]):
        return Verdict(False, f"result {result} and bias {' '.join(dtypes[4:]) or 'none'}, needs bfloat16")
    (out, width), block = shapes[2], facts.get("block", ())
    if block is not None:
        return Verdict(False, f"scales of blocks of {block}, needs one per row")
    ok = isinstance(width, int) and width % _BLOCK == 0
    return Verdict(ok, f"{out} by {width}, one scale per row" + ("" if ok else f"; needs a multiple of {_BLOCK}"))


def _cached(profile: DeviceProfile, dtypes: tuple[Any, ...], stored: bool) -> Verdict:
    queries, cache, scales = dtypes[0], dtypes[1], dtypes[5:]
    if queries not in HALVES:
        return Verdict(False, f"queries of {queries}, needs {_any(HALVES)}")
    if cache == queries:
        return Verdict(not scales, f"a cache of {cache}" + (" with scales, which are not read" * bool(scales)))
    if not stored or cache != "float8_e4m3fn":
        return Verdict(False, f"queries of {queries} and a cache of {cache}")
    if FLOAT8[cache] not in profile.features:
        return Verdict(False, f"a cache of {cache}; {FLOAT8[cache]} absent")
    if profile.arch in ("sm_120", "sm_121"):
        return Verdict(False, f"a cache of {cache}: on {profile.arch} it gave users garbage (vLLM issues 41651, 54225)")
    return Verdict(tuple(scales) == ("float32", "float32"), f"a cache of {cache} with scales of {scales or 'none'}")


def _any(names: tuple[Any, ...]) -> str:
    return " or ".join(map(str, names))
