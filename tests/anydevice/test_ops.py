"""Every op's reference against itself in float64, over its cases."""

import pytest
import torch

from engine.fusion import RULES, all_ops
from engine.ops import OPS, Spec
from engine.ops.compare import as_tuple, name_of
from tests.throwaway import ROOT

ROWS = [(op, case, dtype) for op in OPS.values() for case in op.cases for dtype in ("float32", "bfloat16")]


def wide(tensor):
    return tensor.double() if tensor.is_floating_point() else tensor.clone()


def equal(x, y):
    return x.dtype == y.dtype and torch.equal(x.double(), y.double())


@pytest.mark.parametrize(("op", "case", "dtype"), ROWS, ids=lambda x: getattr(x, "name", str(x)))
def test_reference_matches_float64_within_its_tolerance(op, case, dtype):
    inputs = op.inputs(case, dtype, torch.Generator().manual_seed(1))
    truth = as_tuple(op.reference(*(wide(x) for x in inputs), **case.attributes))
    found = as_tuple(op.reference(*(x.clone() for x in inputs), **case.attributes))
    for expected, got in zip(truth, found, strict=True):
        relative, absolute = op.bound(dtype, name_of(got.dtype))
        rounded = expected if absolute else expected.to(got.dtype)
        torch.testing.assert_close(got.double(), rounded.double(), rtol=relative, atol=absolute)


@pytest.mark.parametrize(("op", "case"), [(o, c) for o in OPS.values() for c in o.cases], ids=str)
def test_shapes_are_what_the_reference_returns_and_only_declared_inputs_change(op, case):
    inputs = op.inputs(case, "float32", torch.Generator().manual_seed(2))
    before = [x.clone() for x in inputs]
    found = as_tuple(op.reference(*inputs, **case.attributes))
    specs = tuple(Spec(name_of(x.dtype), tuple(x.shape)) for x in inputs)
    declared = op.shapes(specs, case.attributes)
    assert declared == tuple(Spec(name_of(x.dtype), tuple(x.shape)) for x in found)
    changed = {i for i, (x, y) in enumerate(zip(inputs, before, strict=True)) if not equal(x, y)}
    assert changed == set(op.mutates)
    assert op.required <= len(inputs) <= len(op.tensors)


@pytest.mark.parametrize("op", [op for op in all_ops(RULES).values() if not op.host_reads], ids=str)
def test_a_graph_holds_every_reference_that_reads_nothing_on_the_host(op, monkeypatch):
    """A tape refuses what no graph can hold, and replays the rest on what its inputs are then."""
    monkeypatch.syspath_prepend(ROOT / "tests/toy_platform")
    from toy_platform.graphs import Tapes

    case, found = op.cases[0], []
    given, fresh = (op.inputs(case, "float32", torch.Generator().manual_seed(seed)) for seed in (3, 4))
    with torch.inference_mode():
        expected = as_tuple(op.reference(*(x.clone() for x in fresh), **case.attributes))
        graph = Tapes().capture(lambda: found.append(as_tuple(op.reference(*given, **case.attributes))), None)
        for x, new in zip(given, fresh, strict=True):
            x.copy_(new)
        graph.replay()
    assert all(equal(x, y) for x, y in zip(found[-1], expected, strict=True)), "of the run that was recorded"


def test_rms_norm_of_a_packed_row_is_the_norm_of_each_head():
    x, weight = torch.randn(5, 12), torch.randn(4)
    apart = torch.cat([OPS["rms_norm"].reference(part, weight, eps=1e-6) for part in x.split(4, -1)], -1)
    assert torch.equal(OPS["rms_norm"].reference(x, weight, eps=1e-6), apart)


@pytest.mark.parametrize("slots", [[-1, 3, -1, 7, 5], [-1, 3, 0, 7, -1], [2, -1, 5, 4, -1], [-1] * 5, [6, 1, 0, 3, 2]])
def test_a_cache_is_written_where_slots_say_and_nowhere_else(slots):
    k, v, latent, turn = (torch.randn(5, width) for width in (6, 6, 4, 2))
    cache, latents = torch.randn(2, 2, 4, 2, 3), torch.randn(2, 4, 6)
    wanted, lower = cache.clone().view(2, 8, 6), latents.clone().view(8, 6)
    for row, slot in enumerate(slots):
        if slot >= 0:
            wanted[0, slot], wanted[1, slot] = k[row], v[row]
            lower[slot, :4], lower[slot, 4:] = latent[row], turn[row]
    OPS["kv_write"].reference(k, v, cache, torch.tensor(slots), head_dim=3)
    OPS["mla_write"].reference(latent, turn, latents, torch.tensor(slots))
    assert torch.equal(cache.view(2, 8, 6), wanted) and torch.equal(latents.view(8, 6), lower)


def test_attention_equals_torch_on_a_contiguous_cache():
    heads, kv_heads, dim, length, page = 6, 2, 16, 13, 4
    cache = torch.randn(2, 4, page, kv_heads, dim, dtype=torch.float64)
    q = torch.randn(length, heads * dim, dtype=torch.float64)
    table, starts, lengths = torch.arange(4)[None].int(), torch.tensor([0, length]).int(), torch.tensor([length]).int()
    got = OPS["attention"].reference(
        q, cache, table, starts, lengths, heads=heads, kv_heads=kv_heads, head_dim=dim, scale=0.3, window=None
    )
    k, v = cache.flatten(1, 2)[:, :length].transpose(1, 2)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.view(length, heads, dim).transpose(0, 1), k, v, is_causal=True, scale=0.3, enable_gqa=True
    )
    torch.testing.assert_close(got, expected.transpose(0, 1).reshape(length, -1))


def test_H_FUS_07_odd_hidden_sizes_match_float64():
    for hidden in (1, 2, 7, 127, 768, 769, 2049):
        for rows in (1, 7, 33):
            x, weight = torch.randn(rows, hidden), torch.randn(hidden)
            truth = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
            torch.testing.assert_close(
                OPS["rms_norm"].reference(x, weight, eps=1e-6).double(), truth, rtol=2e-5, atol=1e-5
            )


def test_H_FUS_08_strided_views_give_the_result_of_a_copy():
    qkv, weight = torch.randn(5, 3 * 64), torch.randn(16)
    view = qkv[:, :64]
    assert torch.equal(
        OPS["rms_norm"].reference(view, weight, eps=1e-6), OPS["rms_norm"].reference(view.clone(), weight, eps=1e-6)
    )
