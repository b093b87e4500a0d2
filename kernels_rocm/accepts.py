"""What AITER's products, experts and attention take of a call. Standard library only. A call outside of it may end the
process instead of raising, so that each limit here is one of the library's sources (0.1.20.post1)."""

from __future__ import annotations

from kernels_triton.calls import FLOAT8, columns
from platforms.contract import DeviceProfile, Facts, Predicate, Verdict

HALVES = ("float16", "bfloat16")
BLOCK = 128
MOST_EXPERTS = 256
MOST_QUERIES = 16
"""Query heads of one head of keys that fit the smallest tile of rows."""


def float8(profile: DeviceProfile, facts: Facts) -> Verdict:
    """The device's own 8-bit float: the library takes no other, and rounds to no integers here."""
    storage = facts.get("storage", "")
    return Verdict(FLOAT8.get(storage, "") in profile.features, f"storage {storage or 'unknown'}")


def product(profile: DeviceProfile, facts: Facts) -> Verdict:
    """Both kernels want vectors of 16 along a row and 16-bit results; that of blocks wants whole ones."""
    shapes, dtypes = facts.get("call_shapes", ()), facts.get("call_dtypes", ())
    if not {"result", "block"} <= facts.keys() or len(shapes) not in (4, 5) or len(dtypes) != len(shapes):
        return Verdict(False, "result, block or inputs of the call unknown")
    kinds = f"types {' '.join(dtypes)} to {facts['result']}"
    stored = {dtypes[0], dtypes[2]}
    known = stored == {"int8"} or (len(stored) == 1 and FLOAT8.get(dtypes[0], "") in profile.features)
    if not known or dtypes[1] != "float32" or dtypes[3] != "float32" or facts["result"] not in HALVES:
        return Verdict(False, f"{kinds}, needs one 8-bit type of this device, float32 scales and a 16-bit result")
    if len(dtypes) == 5 and dtypes[4] != facts["result"]:
        return Verdict(False, f"a bias of {dtypes[4]} is read as {facts['result']}")
    width, rows, scales = columns(shapes, 0), shapes[2][0] if shapes[2] else None, columns(shapes, 1)
    if not isinstance(width, int) or not isinstance(rows, int):
        return Verdict(False, f"a weight of {rows} by {width}")
    if facts["block"] is None:
        ok = width > 0 and rows > 0 and width % 16 == 0 and rows % 16 == 0 and scales == 1
        return Verdict(ok, f"{rows} by {width}, {kinds}" + ("" if ok else "; needs multiples of 16, a scale per row"))
    if len(dtypes) == 5 or stored == {"int8"}:
        return Verdict(False, f"{kinds}: the kernel of blocks has neither a bias nor integers")
    whole = tuple(facts["block"]) == (BLOCK, BLOCK) and width > 0 and width % BLOCK == 0 and rows % BLOCK == 0
    ok = whole and scales == width // BLOCK
    wanted = "" if ok else f"; needs whole blocks of {BLOCK} by {BLOCK}, and scales of x per {BLOCK}"
    return Verdict(ok, f"{rows} by {width} in blocks of {facts['block']}{wanted}")


def experts(profile: DeviceProfile, facts: Facts) -> Verdict:
    """Types and sizes that the two products have kernels for, whichever of them is picked."""
    shapes, dtypes = facts.get("call_shapes", ()), facts.get("call_dtypes", ())
    if len(shapes) not in (4, 5) or len(dtypes) != len(shapes) or len(shapes[2]) != 3 or len(shapes[3]) != 3:
        return Verdict(False, "inputs of the call unknown")
    if len({dtypes[0], dtypes[2], dtypes[3]}) != 1 or dtypes[0] not in HALVES or dtypes[1] not in (*HALVES, "float32"):
        return Verdict(False, f"types {' '.join(dtypes)}, needs one 16-bit type for rows and experts")
    if dtypes[4:] not in ((), ("float32",)):
        return Verdict(False, f"a bias of {dtypes[4]}")
    (count, _, hidden), inner = shapes[2], shapes[3][2]
    if not all(isinstance(size, int) for size in (count, hidden, inner)):
        return Verdict(False, f"{count} experts of {inner} by {hidden}")
    # Tiles of 64 or 128 columns, and no padding where a row of experts is sorted; 288 experts fault (issue 5049).
    ok = 0 < count <= MOST_EXPERTS and hidden % BLOCK == 0 and inner % BLOCK == 0 and hidden > 0 and inner > 0
    wanted = "" if ok else f"; needs multiples of {BLOCK} and at most {MOST_EXPERTS} experts"
    return Verdict(ok, f"{count} experts of {inner} by {hidden}{wanted}")


def routing(profile: DeviceProfile, facts: Facts) -> Verdict:
    """Which of the three choosers serves, and that it is right there."""
    names = ("scoring", "renormalize", "groups", "top_groups", "top_k", "call_shapes")
    if missing := [name for name in names if name not in facts]:
        return Verdict(False, f"{', '.join(missing)} unknown")
    scoring, groups, top_k, shapes = (facts[name] for name in ("scoring", "groups", "top_k", "call_shapes"))
    count, biased = columns(shapes, 1), len(shapes) == 5
    if not isinstance(count, int) or scoring not in ("softmax", "sigmoid"):
        return Verdict(False, f"{scoring} over {count} experts")
    text = f"the best {top_k} of {count} by {scoring}"
    if scoring == "softmax" and groups == 1 and not biased:
        return Verdict(0 < top_k <= count, text)
    text += f" in {groups} groups{' with a bias' if biased else ''}"
    if biased and (scoring != "sigmoid" or not facts["renormalize"] or groups not in (1, 8)):
        # The best two of a group are found by eight lanes for it, whatever the count of groups.
        return Verdict(False, f"{text}; needs sigmoid, shares that sum to one, and 1 or 8 groups")
    ok = groups in (1, 2, 4, 8) and count % (4 * groups) == 0 and 1 <= facts["top_groups"] <= groups
    ok = ok and 0 < top_k <= min(64, facts["top_groups"] * count // groups)
    return Verdict(ok, text + ("" if ok else "; needs 1, 2, 4 or 8 groups of a multiple of 4, and 64 at most chosen"))


def attends(profile: DeviceProfile, facts: Facts) -> Verdict:
    """Sizes of the tiles: a page holds whole ones, a head fits one."""
    names = ("heads", "kv_heads", "head_dim", "window", "call_shapes", "call_dtypes")
    if missing := [name for name in names if name not in facts]:
        return Verdict(False, f"{', '.join(missing)} unknown")
    dim, window, shapes = facts["head_dim"], facts["window"], facts["call_shapes"]
    if len(shapes) < 5 or len(shapes[1]) != 5:
        return Verdict(False, "inputs of the call unknown")
    page, kv_heads = shapes[1][2], facts["kv_heads"]
    if not all(isinstance(size, int) and size > 0 for size in (page, dim, kv_heads, facts["heads"])):
        return Verdict(False, f"pages of {page}, {facts['heads']} over {kv_heads} heads of {dim}")
    group, rest = divmod(facts["heads"], kv_heads)
    text = f"pages of {page}, {facts['heads']} over {kv_heads} heads of {dim}"
    ok = page >= 16 and page & (page - 1) == 0 and 32 <= dim <= 256 and not rest and group <= MOST_QUERIES
    if not ok:
        return Verdict(
            False, f"{text}; needs a power of two from 16 on, heads of 32 to 256, at most {MOST_QUERIES} each"
        )
    return Verdict(window is None or window > 0, f"{text}, window {window}")


def latents(profile: DeviceProfile, facts: Facts) -> Verdict:
    """Whole pages are tiles, which one group of threads shares; nothing of a row or a page is masked."""
    shapes, dtypes = facts.get("call_shapes", ()), facts.get("call_dtypes", ())
    if len(shapes) != 7 or len(dtypes) != 7 or len(shapes[2]) != 3 or not {"kv_rank", "rope"} <= facts.keys():
        return Verdict(False, "kv_rank, rope or inputs of the call unknown")
    if len(set(dtypes[:4])) != 1 or dtypes[0] not in HALVES:
        return Verdict(False, f"types {' '.join(dtypes[:4])}, needs one of 16 bits")
    sizes = page, rank, rope = shapes[2][1], facts["kv_rank"], facts["rope"]
    text = f"pages of {page} latents of {rank} and {rope}"
    if not all(isinstance(size, int) and size >= 16 and size & (size - 1) == 0 for size in sizes):
        return Verdict(False, f"{text}; needs powers of two from 16 on")
    needed, most = 2 * page * (rank + rope), profile.limits.get("shared_memory", 0)
    return Verdict(needed <= most, f"{text}: {needed} bytes of {most} shared by a group")


def cached(first: int) -> Predicate:
    """A cache of the queries' type, or of the device's 8-bit float, with a scale for keys and one for values if any:
    inputs ``first`` and the next."""

    def check(profile: DeviceProfile, facts: Facts) -> Verdict:
        dtypes, shapes = facts.get("call_dtypes", ()), facts.get("call_shapes", ())
        if len(dtypes) != len(shapes) or len(dtypes) < first:
            return Verdict(False, f"{len(dtypes)} types of {len(shapes)} inputs")
        if dtypes[0] not in HALVES or {*dtypes[5:first]} - {"float32"}:
            return Verdict(False, f"types {' '.join(dtypes)}, needs queries of 16 bits, and float32 scales")
        scales = tuple(zip(dtypes[first:], shapes[first:], strict=True))
        if dtypes[1] == dtypes[0]:
            return Verdict(not scales, f"a cache of {dtypes[1]}" + (" with scales, which are not read" * bool(scales)))
        ok = FLOAT8.get(dtypes[1], "") in profile.features and scales in ((), (("float32", (1,)),) * 2)
        wanted = "" if ok else "; needs the device's 8-bit float, two scales if any"
        return Verdict(ok, f"a cache of {dtypes[1]}{wanted}")

    return check
