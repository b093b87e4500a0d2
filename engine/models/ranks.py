"""Over how many ranks a model can be cut."""

from __future__ import annotations

from collections.abc import Iterator

from engine.errors import UserError
from engine.models.config import ModelConfig
from engine.models.moe import SHARED, expert_names


def check_ranks(model: ModelConfig, ranks: int) -> None:
    """Raises ``UserError`` naming the first size that does not divide, and the rank counts for which all do."""
    problem = next(_problems(model, ranks), "")
    if not problem:
        return
    fitting = [count for count in range(1, model.num_heads + 1) if not any(_problems(model, count))]
    raise UserError(
        f"--tensor-parallel-size={ranks} cannot be served: {problem} (model {model.name}). "
        f"Rank counts that work: {_listed(fitting)}."
    )


def _problems(model: ModelConfig, ranks: int) -> Iterator[str]:
    if ranks == 1:
        return
    heads, kv_heads = model.num_heads, model.num_kv_heads
    if heads % ranks:
        yield f"{heads} attention heads do not divide among {ranks} ranks"
    if model.mla is None and kv_heads % ranks and ranks % kv_heads:
        yield f"{kv_heads} KV heads neither divide among {ranks} ranks nor repeat evenly on them"
    for name, size, _ in _widths(model):
        if size % ranks:
            yield f"{name} {size} does not divide among {ranks} ranks"
    yield from _cut_blocks(model, ranks)
    if not model.tied_embeddings and model.vocab_size % ranks:
        yield f"the head's {model.vocab_size} rows (vocab_size) do not divide among {ranks} ranks"


def _widths(model: ModelConfig) -> Iterator[tuple[str, int, str]]:
    """(name, inner width, a module) of each kind of MLP that the model has."""
    moe = model.moe
    if moe is None or moe.dense_layers:
        yield "intermediate_size", model.intermediate_size, "mlp.down_proj"
    if moe is not None:
        names = expert_names(model)
        yield "the experts' width", moe.expert_size, names.module(0, names.down)
        if moe.shared_size:
            yield "the shared experts' width", moe.shared_size, f"{SHARED}.down_proj"


def _cut_blocks(model: ModelConfig, ranks: int) -> Iterator[str]:
    """Blocks of quantised weights that would lie on two ranks."""
    scheme = model.quantization
    if scheme is None or scheme.block is None:
        return
    rows, columns = scheme.block

    def stored(module: str) -> bool:
        return not all(scheme.ignores(f"model.layers.{layer}.{module}") for layer in range(model.num_layers))

    for name, size, module in _widths(model):
        for what, unit in (("groups", columns), ("blocks", rows)):
            if stored(module) and size % ranks == 0 and size // ranks % unit:
                yield f"{name} {size} in {what} of {unit} does not divide among {ranks} ranks"
    for name, size, unit in _attention(model, ranks, rows, columns):
        if stored("self_attn.o_proj") and size % unit:
            yield f"{name}, {size} on each of {ranks} ranks, are cut inside a block of {unit}"


def _attention(model: ModelConfig, ranks: int, rows: int, columns: int) -> Iterator[tuple[str, int, int]]:
    """(name, size on one rank, block) of each projection that is cut."""
    heads, form = model.num_heads // ranks, model.mla
    if form is not None:
        yield "the rows of the queries", heads * (form.nope + form.rope), rows
        yield "the columns of o_proj", heads * form.value, columns
        return
    yield "the rows of the queries", heads * model.head_dim, rows
    yield "the rows of the keys", max(1, model.num_kv_heads // ranks) * model.head_dim, rows
    yield "the columns of o_proj", heads * model.head_dim, columns


def _listed(counts: list[int]) -> str:
    *most, last = map(str, counts)
    return f"{', '.join(most)} or {last}" if most else last
