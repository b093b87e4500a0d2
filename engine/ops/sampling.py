"""From logits to tokens: the best one, penalties, and one draw per row.

No program calls these; the sampler does, with the row that the plan chose for each, or by its own means where that is
the reference.
"""

from __future__ import annotations

from typing import Any

from engine.ops.spec import EXACT, Case, Spec, op

UNIT = 2.0**32
"""Probabilities are whole numbers, units of 2**-32 of the most likely token's: their sums are exact in any order."""
GOLDEN, MIX_1, MIX_2 = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
"""0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9 and 0x94D049BB133111EB in two's complement: the constants of SplitMix64."""


def _logits(case: Case, rng: Any) -> Any:
    """Some tie, one row ends at a spread of 1e4."""
    import torch

    x = torch.randn((case.sizes["tokens"], case.sizes["vocab"]), generator=rng) * 4
    x[:, 1::5] = x[:, ::5][:, : x[:, 1::5].shape[1]]
    x[-1] *= 2e3
    return x


def _argmax_shapes(specs: tuple[Spec, ...], attributes: Any) -> tuple[Spec, ...]:
    rows = (specs[0].shape[0],)
    return Spec("int64", rows), Spec(specs[0].dtype, rows)


def _penalize_inputs(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    import torch

    n, vocab, slots = case.sizes["tokens"], case.sizes["vocab"], case.sizes["tokens"] + 2
    counts = torch.randint(-3, 4, (slots, vocab), generator=rng).clamp(min=0).to(torch.int32)
    seen = (counts > 0) | (torch.rand((slots, vocab), generator=rng) < 0.2)
    order = torch.randperm(slots, generator=rng)[:n]
    repetition, frequency, presence = (torch.rand(n, generator=rng) for _ in range(3))
    return _logits(case, rng), seen, counts, order, 0.5 + repetition, frequency - 0.5, presence - 0.5


_SIZES = tuple(Case({"tokens": n, "vocab": v}) for n, v in [(1, 1), (3, 7), (2, 1000), (5, 4097)])


@op(
    shapes=_argmax_shapes,
    inputs=lambda case, dtype, rng: (_logits(case, rng),),
    cases=(*_SIZES, Case({"tokens": 2, "vocab": 12289})),
    tolerance=EXACT,
)
def argmax(logits: Any) -> Any:
    """The best token of each row, and its logit. logits: [rows, vocab] float32 → [rows] int64, [rows]. Of equals the
    lowest id; NaN is above all, and no other NaN is better than the first."""
    tokens = logits.argmax(-1)
    return tokens, logits.gather(1, tokens[:, None]).squeeze(1)


def _mask_inputs(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    """Words with every bit, with none and with some; the last may have bits for tokens that there are not. A token is
    kept, unless it is the only one."""
    import torch

    n, vocab = case.sizes["tokens"], case.sizes["vocab"]
    words = -(-vocab // 32)
    allowed = torch.randint(-(2**31), 2**31, (n, words), generator=rng)
    kind = torch.randint(0, 3, (n, words), generator=rng)
    allowed = torch.where(kind == 0, -1, torch.where(kind == 1, 0, allowed)).to(torch.int32)
    allowed[:, 0] = allowed[:, 0] | 1 if vocab > 1 else 0
    return _logits(case, rng), allowed


@op(shapes=lambda specs, attributes: (specs[0],), inputs=_mask_inputs, cases=_SIZES, tolerance=EXACT, mutates=(0,))
def mask(logits: Any, allowed: Any) -> Any:
    """Logits of what is allowed, in place. logits: [rows, vocab] float32; allowed: [rows, words] int32, bit ``t % 32``
    of word ``t // 32`` for token ``t``: those without it get -inf."""
    import torch

    places = torch.arange(32, dtype=torch.int32, device=allowed.device)
    bits = (allowed[:, :, None] >> places & 1).flatten(1)[:, : logits.shape[1]]
    return logits.masked_fill_(bits == 0, -torch.inf)


_SUM = {"float64": (1e-12, 1e-12), **dict.fromkeys(("float32", "float16", "bfloat16"), (1e-6, 2e-3))}
"""Of logits up to 2e4 in float32, whose unit in the last place is 2e-3, whatever the model's dtype."""


@op(shapes=lambda specs, attributes: (specs[0],), inputs=_penalize_inputs, cases=_SIZES, tolerance=_SUM, weights=(1, 2))
def penalize(logits: Any, seen: Any, counts: Any, slots: Any, repetition: Any, frequency: Any, presence: Any) -> Any:
    """Logits after the penalties of each row. logits: [rows, vocab] float32; seen: [slots, vocab] bool, tokens of
    prompt and output; counts: [slots, vocab] int32, of the output; slots: [rows] int64; the penalties: [rows] float32.

    A token that was seen has its logit divided by the repetition penalty where positive, multiplied where not; then
    ``frequency * count`` is taken off, and ``presence`` where the count is not 0. Sources: Keskar et al., "CTRL",
    section 4.1; the OpenAI API for the other two.
    """
    import torch

    factor = repetition[:, None].to(logits.dtype)
    again = torch.where(logits > 0, logits / factor, logits * factor)
    found, made = torch.where(seen[slots], again, logits), counts[slots]
    return found - frequency[:, None] * made - presence[:, None] * (made > 0)


def _draw_inputs(case: Case, dtype: str, rng: Any) -> tuple[Any, ...]:
    import torch

    n, vocab = case.sizes["tokens"], case.sizes["vocab"]
    temperature = torch.rand(n, generator=rng) + 0.5
    top_k = torch.randint(0, vocab + 1, (n,), generator=rng)
    top_p, min_p = torch.rand(n, generator=rng) * 0.9 + 0.1, torch.rand(n, generator=rng) * 0.1
    if case.sizes["plain"]:
        top_k, top_p, min_p = torch.zeros_like(top_k), torch.ones(n), torch.zeros(n)
    keys = torch.randint(-(2**62), 2**62, (n,), generator=rng)
    return _logits(case, rng), temperature, top_k, top_p.double(), min_p, keys


@op(
    shapes=lambda specs, attributes: (Spec("int64", (specs[0].shape[0],)),),
    inputs=_draw_inputs,
    cases=tuple(Case({**case.sizes, "plain": at % 2}) for at, case in enumerate((*_SIZES, *_SIZES[1:]))),
    tolerance=EXACT,
)
def draw(logits: Any, temperature: Any, top_k: Any, top_p: Any, min_p: Any, keys: Any) -> Any:
    """One token per row. logits: [rows, vocab] float32; temperature: [rows] float32, above 0; top_k: [rows] int64, 0
    for no limit; top_p: [rows] float64 in (0, 1]; min_p: [rows] float32 in [0, 1]; keys: [rows] int64 that name the
    draws → [rows] int64. Where a row holds NaN or its maximum is infinite, a kernel gives any id of the vocabulary.

    In the order of falling logits, ties by lower id, a row keeps its first ``top_k`` tokens, of these the first whose
    predecessors' probabilities sum to less than ``top_p`` of theirs, and of these those with at least ``min_p`` of the
    most likely one's. The token is the winner of an exponential race among them: token i arrives after
    -ln(u_i) / p_i, where u_i in (0, 1) is noise of (key, i), so that a draw depends on nothing but row and key.
    """
    import torch

    logits = logits.float()
    vocab = logits.shape[1]
    order = (-logits).argsort(dim=-1, stable=True)
    weights = ((logits - logits.amax(-1, keepdim=True)) / temperature[:, None].float()).exp()
    mass = (weights * UNIT).to(torch.int64)
    rank = torch.arange(vocab, device=logits.device)
    sorted_mass = mass.gather(1, order) * (rank < torch.where(top_k > 0, top_k, vocab)[:, None])
    total = sorted_mass.sum(-1, keepdim=True)
    target = (top_p[:, None].double() * total).ceil().to(torch.int64).clamp(min=1).minimum(total)
    sorted_mass = sorted_mass * (sorted_mass.cumsum(-1) - sorted_mass < target)
    kept = torch.zeros_like(mass).scatter(1, order, sorted_mass) * (weights >= min_p[:, None].float())
    bits = (rank * GOLDEN + keys[:, None]) * MIX_1
    bits = (bits ^ ((bits >> 32) & 0xFFFFFFFF)) * MIX_2
    noise = (bits.double() * 2.0**-64 + (0.5 + 2.0**-54)).log()
    return (noise / kept).argmax(-1)
