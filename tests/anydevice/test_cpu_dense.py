"""Compiled products of float32 activations and look-ups of the host: against references, and across batches and
threads bit by bit."""

import pytest
import torch

from engine.bind import load_target
from engine.ops import OPS
from engine.ops.blocks import FORMATS, dequantised, sample_blocks
from engine.ops.compare import as_tuple, difference, name_of, same_bits, truth
from kernels_cpu.library import library, open_library
from kernels_cpu.native import blocks, dense, dense_int8, embedding, float_blocks
from kernels_cpu.rows.dense import ROWS
from platforms.cpu.compilers import KERNELS
from platforms.cpu.plugin import CpuPlugin

BATCHES = (1, 2, 3, 5, 6, 7, 12, 13, 31, 64, 130)


@pytest.fixture(scope="module", autouse=True)
def runtime():
    before = torch.get_num_threads()
    opened = CpuPlugin().open(0)
    assert KERNELS in opened.profile.features, opened.profile.evidence[f"features.{KERNELS}"]
    yield opened
    torch.set_num_threads(before)


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def taken(row, op):
    """Cases of the op in which results are float32, and only int8 among storage types."""
    for case in op.cases:
        stored = case.sizes.get("storage", 2) == 2 and case.sizes.get("bytes", 1) != 2
        if case.attributes.get("result", "float32") == "float32" and stored:
            yield case


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.op}/{row.name}")
def test_a_row_is_within_its_ops_bound_of_the_reference(row):
    op, function = OPS[row.op], load_target(row.target)
    count = 0
    for case in taken(row, op):
        inputs = op.inputs(case, "float32", torch.Generator().manual_seed(7))
        given = list(inputs)
        if row.pack:
            at = [spot for spot in op.weights if spot < len(given)]
            packed = load_target(row.pack)(tuple(given[spot] for spot in at), case.attributes)
            for spot, tensor in zip(at, packed, strict=True):
                given[spot] = tensor
        found, wanted = as_tuple(function(*given, **case.attributes)), truth(op, inputs, case.attributes)
        for one, expected in zip(found, wanted, strict=True):
            assert not difference(one, expected, op.bound("float32", name_of(one.dtype)), case)
        count += 1
    assert count


@pytest.mark.parametrize(("out", "width"), [(1, 1), (15, 3), (16, 64), (33, 65), (100, 300), (17, 1029)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_products_of_any_size_equal_the_reference(out, width, dtype):
    weight, bias = random(out, width).to(getattr(torch, dtype)).float(), random(out, seed=1)
    packed, kept = dense.pack((weight, bias), {})
    assert packed.dtype == getattr(torch, dtype) and kept is bias
    for tokens in BATCHES:
        x = random(tokens, width + 5, seed=2)[:, :width]
        wanted = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
        torch.testing.assert_close(dense.linear(x, packed, bias).double(), wanted, rtol=5e-5, atol=5e-5)
        assert same_bits(dense.linear(x, packed), dense.linear(x.contiguous(), packed))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_of_16_bits_are_rounded_once(dtype):
    weight, bias, x = random(33, 65).to(dtype), random(33, seed=1).to(dtype), random(13, 65, seed=2).to(dtype)
    packed = dense.pack_widened((weight, bias), {})
    assert [part.dtype for part in packed] == [dtype, torch.float32]
    wanted = torch.nn.functional.linear(x.float(), weight.float(), bias.float())
    found = dense.widened(x, *packed)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), wanted, rtol=torch.finfo(dtype).eps, atol=1e-5)


def test_weights_of_16_bits_are_kept_in_16_bits_only_where_every_value_is_exact():
    exact = random(40, 24).half().float()
    assert dense.stored(exact) == torch.float16
    for odd in (1 + 2.0**-12, 1e-8, 7e4):
        weight = exact.clone()
        weight[39, 23] = odd
        assert dense.stored(weight) == torch.float32
    assert dense.stored(torch.tensor([[1e38, -0.0, 2.0**-130]]).bfloat16().float()) == torch.bfloat16


def test_not_a_number_and_infinity_stay_where_they_are():
    weight = random(20, 8)
    weight[3, 2] = torch.inf
    (packed,) = dense.pack((weight,), {})
    x = random(7, 8).abs() + 0.1
    x[4, 0] = torch.nan
    found, wanted = dense.linear(x, packed), torch.nn.functional.linear(x, weight)
    assert found[4].isnan().all() and (found.isfinite() == wanted.isfinite()).all()


INT8 = [
    (1, 1, None),
    (17, 70, (4, 32)),
    (33, 127, (16, 64)),
    (40, 96, (32, 32)),
    (50, 1030, None),
    (64, 2048, (64, 128)),
]


def int8_case(tokens, out, width, block, scales, seed=0):
    """x, its scales, weight, its scales; all codes at their limits in some rows."""
    rng = torch.Generator().manual_seed(seed)
    x, weight = (torch.randint(-128, 128, (n, width), generator=rng).to(torch.int8) for n in (tokens, out))
    x[0], weight[0], weight[-1] = -128, -128, 127
    high, columns = block or (1, width)
    shape = {"tensor": (1,), "token": (tokens, 1), "group": (tokens, -(-width // columns))}[scales]
    sides = (-(-out // high), -(-width // columns)) if block else (out,)
    x_scale, weight_scale = (torch.rand(size, generator=rng) / width for size in (shape, sides))
    return x, x_scale, weight, weight_scale


@pytest.mark.parametrize(("out", "width", "block"), INT8)
@pytest.mark.parametrize("scales", ["tensor", "token", "group"])
def test_int8_products_of_any_size_equal_the_reference(out, width, block, scales):
    attributes = {"result": "float32", "block": block}
    whole = int8_case(130, out, width, block, scales)
    bias = random(out)
    packed = dense_int8.pack((*whole[2:], bias), attributes)
    found = dense_int8.scaled_linear(*whole[:2], *packed, **attributes)
    wanted = OPS["scaled_linear"].reference(*(x.double() if x.is_floating_point() else x for x in whole), **attributes)
    torch.testing.assert_close(found.double(), wanted.double() + bias, rtol=1e-5, atol=1e-5)
    for tokens in BATCHES:
        own = whole[1] if scales == "tensor" else whole[1][-tokens:]
        part = dense_int8.scaled_linear(whole[0][-tokens:], own, *packed, **attributes)
        assert same_bits(part, found[-tokens:]), tokens


def products():
    """Name, and a product with fixed weights as a function of activations."""
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        (packed,) = dense.pack((random(77, 768).to(kind).float(),), {})
        yield str(kind), lambda x, packed=packed: dense.linear(x, packed)
    for format in FORMATS:
        (packed,) = blocks.pack((sample_blocks(77, 768, format, torch.Generator()),), {"format": format})
        yield (
            format,
            lambda x, packed=packed, format=format: float_blocks.block_linear(x, packed, format=format),
        )


def test_a_token_has_the_same_bits_in_every_batch_and_with_any_number_of_threads():
    threads = torch.get_num_threads()
    x = random(130, 768)
    for name, product in products():
        whole = product(x)
        for tokens in BATCHES:
            assert same_bits(product(x[-tokens:]), whole[-tokens:]), (name, tokens)
    found = {name: product(x) for name, product in products()}
    try:
        open_library(library().path, 3 if threads != 3 else 2, None)
        for name, product in products():
            assert same_bits(product(x), found[name]), name
    finally:
        open_library(library().path, threads, None)


@pytest.mark.parametrize("format", FORMATS)
def test_rows_of_a_table_in_blocks_are_the_references_bit_for_bit(format):
    table = sample_blocks(33, 768, format, torch.Generator())
    for ids in (torch.tensor([32]), torch.arange(33), torch.tensor([5] * 40)):
        found = embedding.block_embedding(ids, table, format=format, result="float32")
        assert same_bits(found, dequantised(table, format)[ids])


@pytest.mark.parametrize("format", FORMATS)
def test_largest_codes_and_factors_lose_nothing(format):
    weight = sample_blocks(18, 256, format, torch.Generator(), largest=True)
    (packed,) = blocks.pack((weight,), {"format": format})
    wanted = dequantised(weight, format, "float64")
    found = float_blocks.block_linear(torch.eye(256), packed, format=format)
    torch.testing.assert_close(found.double(), wanted.t(), rtol=2**-22, atol=1e-9)


def test_results_too_many_for_a_cache_have_the_bits_of_few():
    x, bias = random(130, 64), random(512)
    (packed,) = dense.pack((random(512, 64),), {})
    whole = int8_case(130, 512, 64, None, "token")
    attributes = {"block": None, "result": "float32"}
    weights = dense_int8.pack((*whole[2:], bias), attributes)

    def products(part):
        yield dense.linear(x[part], packed, bias)
        yield dense_int8.scaled_linear(whole[0][part], whole[1][part], *weights, **attributes)

    for name, found in zip(("dense", "int8"), products(slice(130)), strict=True):
        for first in range(0, 130, 26):
            part = slice(first, first + 26)
            assert same_bits(dict(zip(("dense", "int8"), products(part), strict=True))[name], found[part]), name


def test_no_tokens_are_no_rows():
    (packed,) = dense.pack((random(9, 4),), {})
    assert dense.linear(torch.empty(0, 4), packed).shape == (0, 9)
