"""Conditions of fusion rules that several platforms share. What a model or a layout of ranks must be like, the rule's
own pattern says; here stands what makes a rule worth acting on, and where it would hang or disagree."""

from __future__ import annotations

from collections.abc import Callable

from platforms.contract import DeviceProfile, Facts, FusionOffer, FusionRule, Predicate, Verdict, all_of, fact

GENERATOR = "inductor"
QUANTIZERS = ("quantize_static", "quantize_dynamic")
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
MIB = 1 << 20

MLA = fact("mla", bool, "latent attention")
PLAIN_HEADS = fact("mla", lambda on: not on, "attention with separate keys and values")
COMMON_HEADS = fact("head_dim", lambda size: size in (64, 128, 256), "64, 128 or 256")
HALVES = fact("dtype", lambda name: name in ("float16", "bfloat16"), "float16 or bfloat16")
MANY_RANKS = fact("tensor_parallel_size", lambda ranks: ranks > 1, "> 1")

SUMMED_TOGETHER = all_of(
    MANY_RANKS,
    fact("batch_invariant", lambda on: not on, "sums whose order may follow the batch size"),
    fact("pipeline_parallel_size", lambda stages: stages == 1, "1: ranks of other stages never reach the warm-up"),
    fact("data_parallel_size", lambda copies: copies == 1, "1: an idle copy never reaches the warm-up"),
)
"""A fused all-reduce: several ranks that all run the same steps, and a sum whose order may follow the batch."""


def native(*ops: str) -> Predicate:
    """One of ``ops`` has a row of a table in this plan. Where none has, a code generator makes all of them, and what it
    makes of them together is faster than leaving it for one fused call."""

    def check(profile: DeviceProfile, facts: Facts) -> Verdict:
        rows = facts.get("native_ops")
        if rows is None:
            return Verdict(False, "native_ops unknown")
        found = [name for name in ops if name in rows]
        if found:
            return Verdict(True, f"{' and '.join(found)} from a kernel")
        wanted = " or ".join(f"+{name}" for name in ops if name not in QUANTIZERS)
        why = f"the compiler fuses better; custom_ops with {wanted} would bring one"
        if facts.get("mode") == "NONE":
            why = "nothing is compiled"
        elif facts.get("backend", GENERATOR) != GENERATOR:
            why = "no code is generated"
        return Verdict(False, f"no kernel in use for {', '.join(ops)}: {why}")

    return check


NORM_QUANT = native("rms_norm", *QUANTIZERS)
ACT_QUANT = native("silu_and_mul", "gelu_and_mul", *QUANTIZERS)
"""These two rules alone ask it: no compiler fuses what the others take together."""

ADD_NORM = FusionRule(
    "fuse_add_norm",
    "add_rms_norm",
    ("add(x, y) -> sum", "rms_norm(sum, weight) -> n"),
    ("n", "sum"),
    1,
    cases=tuple(
        (("tokens", tokens), ("hidden", hidden), ("eps", 1e-6))
        for tokens, hidden in ((1, 1), (3, 127), (2, 769), (5, 64))
    ),
)
ADDED_NORMS: tuple[FusionRule | FusionOffer, ...] = (ADD_NORM, FusionOffer(ADD_NORM.name, native("rms_norm")))
"""A residual and the norm after it, beside the catalog: tried after its rules, which take more calls together."""


def summed_tokens(most_bytes: Callable[[DeviceProfile, Facts], int]) -> Callable[[DeviceProfile, Facts], int]:
    """Tokens whose activations are ``most_bytes`` at most; the fact ``allreduce_max_size_mb`` (MiB) wins over it. 0
    where the width or the type is unknown."""

    def tokens(profile: DeviceProfile, facts: Facts) -> int:
        size, width = facts.get("allreduce_max_size_mb"), facts.get("hidden_size") or 0
        row = width * ITEM_BYTES.get(str(facts.get("dtype")), 0)
        return int(most_bytes(profile, facts) if size is None else size * MIB) // row if row else 0

    return tokens
