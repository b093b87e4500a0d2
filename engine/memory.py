"""How many KV blocks fit. Pure arithmetic on bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.errors import UserError
from engine.program import Program
from platforms.contract import Memory

ITEM = {
    **{"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2},
    **{"float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "int8": 1, "uint8": 1, "int16": 2, "int32": 4},
}
"""Bytes of an element. A value of another type counts as 8."""

SCORED_ROWS = 512
"""Rows of prompt log-probabilities that a step is sized for. A step that scores more lives off the share that is left
to others."""
SAMPLER_BYTES = 31
"""Peak of the sampler per logit of a row that is drawn, measured: weights, their integer form, sums and masks."""
SCORED_LOGITS = 2**23
"""Logits that the sampler scores at once."""

_REMEDY = (
    "Raise --gpu-memory-utilization or --kv-cache-memory-bytes, lower --max-num-batched-tokens or --max-num-seqs, or "
    "use a smaller model."
)


@dataclass(frozen=True, slots=True)
class Space:
    """``blocks`` of ``block_bytes`` each, and the sum in words."""

    blocks: int
    block_bytes: int
    reason: str


def weight_bytes(program: Program) -> int:
    """Bytes of a rank's weights, before kernels pack them."""
    return sum(ITEM[weight.dtype] * _product(list(weight.shape)) for weight in program.weights.values())


def block_bytes(program: Program) -> int:
    """Bytes of one block over all caches of a program."""
    return sum(spec.page * spec.heads * sum(spec.dims) * ITEM[spec.dtype] for spec in program.caches.values())


def activation_bytes(program: Program, tokens: int, seqs: int, query: int = 1) -> int:
    """Upper estimate of what a step of ``tokens`` tokens and ``seqs`` requests needs beside weights and caches: the
    three largest values, the logits of every row that takes a token or, up to ``SCORED_ROWS``, scores a prompt, and
    what the sampler makes of them, and what experts make of tokens in one layer. ``query``: tokens, drafts included, of
    a request that generates. Not counted: what kernels keep to work in."""
    seqs, scored, rows = min(seqs, tokens), min(SCORED_ROWS, tokens), min(seqs * query, tokens)
    logits = program.values[program.outputs["logits"]]
    vocab = logits.shape[-1]
    assert isinstance(vocab, int)
    sampling = SAMPLER_BYTES * vocab * max(seqs, min(scored, max(1, SCORED_LOGITS // vocab)))
    head = ITEM.get(logits.dtype, 8) * vocab * max(rows, scored)
    return head + sampling + body_bytes(program, tokens, seqs, max(rows, scored))


def body_bytes(program: Program, tokens: int, seqs: int, rows: int = 0) -> int:
    """What a step needs beside weights, caches, logits and sampler: its three largest values, and what experts make."""
    sizes = {"tokens": tokens, "requests": seqs, "requests+1": seqs + 1, "rows": rows}
    total = [
        ITEM.get(value.dtype, 8) * _product([sizes.get(dim, 0) if isinstance(dim, str) else dim for dim in value.shape])
        for name, value in program.values.items()
        if name not in program.caches and name != program.outputs["logits"]
    ]
    return _expert_bytes(program, tokens) + sum(sorted(total)[-3:])


def _expert_bytes(program: Program, tokens: int) -> int:
    """In the layer where it is most: gate, up and result of every token at each expert that it visits, as kernels sort
    them, or what the reference holds of one expert, in float32, if that is more."""
    widest = 0
    for call in program.calls:
        if call.op == "moe":
            x, _, gate_up = call.inputs[:3]
            _, gates, hidden = program.weights[gate_up].shape
            item = ITEM[program.values[x].dtype]
            sorted_copies = call.attributes["top_k"] * (gates + hidden) * item
            one_expert = 2 * (gates + hidden) * ITEM["float32"] + gates // 2 * item
            widest = max(widest, tokens * max(sorted_copies, one_expert))
    return widest


def kv_space(
    program: Program,
    before: Memory,
    after: Memory,
    share: float,
    exact: int | None,
    needs: Mapping[str, int],
    most: int,
    asked: str = "--kv-cache-memory-bytes",
) -> Space:
    """``before`` loading the weights and ``after`` packing them. ``exact``: bytes that ``asked`` asks for. ``needs``:
    bytes that serving will take besides, by what for (``activations``, ``graphs``). ``most``: blocks that could ever be
    used. Raises ``UserError`` where not one block fits."""
    size, kept = block_bytes(program), sum(needs.values())
    less = " and ".join(f"{sized(nbytes)} of {name}" for name, nbytes in needs.items() if nbytes)
    if exact is not None:
        budget, said = exact, f"{sized(exact)} asked for with {asked}"
        if exact > after.available:
            raise UserError(
                f"{asked} cannot be served: that is {sized(exact)}, and {sized(after.available)} are available after "
                f"loading the weights ({after.source}). Ask for less."
            )
    elif before.shared_with_host:
        budget = int(before.available * share) - max(0, before.available - after.available) - kept
        said = f"{share:g} of {sized(before.available)} available, less weights, {less}"
    else:
        budget = int(after.total * share) - (after.total - after.available) - kept
        said = f"{share:g} of {sized(after.total)}, less what is in use, {less}"
    fit = budget // size
    if fit < 1:
        raise UserError(
            f"No memory for the cache blocks: {sized(max(0, budget))} for a block of {sized(size)} ({said}). "
            + ("Ask for more, or drop it." if exact is not None else _REMEDY)
        )
    if exact is None and fit > most:
        return Space(most, size, f"as many as the longest requests can use; {said}")
    return Space(fit, size, said)


def _product(numbers: list[int]) -> int:
    total = 1
    for number in numbers:
        total *= number
    return total


def sized(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**28 else f"{nbytes / 2**20:.1f} MiB"
