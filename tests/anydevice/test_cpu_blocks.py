"""Products of quantised activations with weights in blocks: every form that this host can run, against float64, and
each against itself whatever the number of tokens and of threads."""

import os
import subprocess
import sys

import pytest
import torch

from engine.bind import load_target
from engine.ops import OPS
from engine.ops.blocks import FORMATS, GROUP, block_of, dequantised, sample_blocks
from engine.ops.compare import difference, same_bits
from engine.ops.quant import LARGEST
from kernels_cpu.library import library, open_library
from kernels_cpu.native.blocks import pack, rows_of, strip_bytes
from kernels_cpu.rows.blocks import ROWS
from platforms.cpu.compilers import KERNELS
from platforms.cpu.plugin import CpuPlugin

OP = OPS["scaled_block_linear"]
TOKENS = (1, 2, 3, 7, 8, 9, 16, 17, 33, 47, 130)
ROW_COUNTS = (1, 15, 16, 17, 50)
KINDS = torch.int8, torch.int16


def forms(profile):
    return [row for row in ROWS if row.needs(profile, {})]


def exact(profile):
    return [row for row in forms(profile) if not row.rounds]


def rounded(profile):
    found = [row for row in forms(profile) if row.rounds]
    return found or pytest.skip("this processor has no tiles of bfloat16: compiled in test_cross.py, and not run")


@pytest.fixture(scope="module", autouse=True)
def runtime():
    before = torch.get_num_threads()
    opened = CpuPlugin().open(0)
    assert KERNELS in opened.profile.features, opened.profile.evidence[f"features.{KERNELS}"]
    yield opened
    torch.set_num_threads(before)


def columns_for(format, blocks=3):
    block = block_of(format)[0]
    return block * (blocks if block > GROUP else 13 * blocks)


def activations(tokens, columns, rng, largest=False, kind=torch.int8):
    most = 127 if kind == torch.int8 else LARGEST
    x = torch.randint(-most, most + 1, (tokens, columns), generator=rng, dtype=kind)
    if largest:
        x = torch.where(x < 0, -most, most).to(kind)
    return x, torch.rand((tokens, columns // GROUP), generator=rng) / 100


def product(row, x, scales, packed, bias, format):
    given = (packed,) if bias is None else (packed, bias)
    return load_target(row.target)(x, scales, *given, format=format, result="float32")


def check(forms, format, tokens, rows, largest, bias, kind):
    rng = torch.Generator().manual_seed(tokens * 1000 + rows)
    columns = columns_for(format)
    weight = sample_blocks(rows, columns, format, rng, largest)
    x, scales = activations(tokens, columns, rng, largest, kind)
    added = torch.randn(rows, generator=rng) if bias else None
    packed, *_ = pack((weight,), {"format": format})
    assert rows_of(packed, format, columns) == rows and packed.data_ptr() % 64 == 0
    wide = None if added is None else added.double()
    wanted = OP.reference(x, scales.double(), weight, wide, format=format, result="float64")
    relative, absolute = OP.bound("float32", "float32")
    bound = relative, absolute * float(wanted.abs().max())
    for row in forms:
        found = product(row, x, scales, packed, added, format)
        assert not difference(found, wanted, bound, (row.name, format, tokens, rows))


def check_all(profile, formats):
    for format in formats:
        for place, tokens in enumerate(TOKENS):
            for rows in ROW_COUNTS[place % 2 :: 2]:
                kind = KINDS[(place // 2 + rows) % 2]
                check(exact(profile), format, tokens, rows, (place + rows) % 3 == 0, rows % 3 == 0, kind)


def test_every_form_is_exact_to_float32_for_every_format_and_shape(runtime):
    assert len(exact(runtime.profile)) > 1
    check_all(runtime.profile, FORMATS)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("format", FORMATS)
def test_a_tokens_result_is_the_same_in_every_batch_and_with_every_number_of_threads(runtime, format, kind):
    rng = torch.Generator().manual_seed(3)
    columns = columns_for(format)
    weight, bias = sample_blocks(70, columns, format, rng), torch.randn(70, generator=rng)
    x, scales = activations(130, columns, rng, kind=kind)
    packed, *_ = pack((weight,), {"format": format})
    path, threads = library().path, runtime.profile.limits["threads"]
    try:
        for row in exact(runtime.profile):
            whole = product(row, x, scales, packed, bias, format)
            for team in (1, 2, 3):
                open_library(path, team, None)
                for tokens in TOKENS:
                    first = 130 - tokens if team == 2 else 0
                    part = slice(first, first + tokens)
                    found = product(row, x[part], scales[part], packed, bias, format)
                    assert same_bits(found, whole[part]), (row.name, tokens, team)
    finally:
        open_library(path, threads, None)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("format", FORMATS)
def test_tiles_give_the_bits_of_registers_as_wide(runtime, format, kind):
    wide = [row for row in forms(runtime.profile) if row.name in ("amx", "vnni")]
    if len(wide) < 2:
        pytest.skip("this processor has no tiles: compiled for one that has in test_cross.py, and not run")
    rng = torch.Generator().manual_seed(9)
    columns = columns_for(format, 10)
    weight, bias = sample_blocks(70, columns, format, rng), torch.randn(70, generator=rng)
    packed, *_ = pack((weight,), {"format": format})
    for tokens in (17, 24, 33, 60, 200):
        x, scales = activations(tokens, columns, rng, tokens == 60, kind)
        found, wanted = (product(row, x, scales, packed, bias, format) for row in wide)
        assert same_bits(found, wanted), tokens


ROUNDING = 2**-7 + 2**-16
"""Of a product: both operands are rounded to bfloat16, each by 2**-8 at most."""


@pytest.mark.parametrize("format", FORMATS)
def test_rounded_products_miss_by_what_rounding_of_their_operands_may_cost(runtime, format):
    (row,), columns = rounded(runtime.profile), columns_for(format, 10)
    for tokens, rows, largest in ((33, 50, False), (64, 15, True), (130, 70, False)):
        rng = torch.Generator().manual_seed(tokens)
        weight = sample_blocks(rows, columns, format, rng, largest)
        x, scales = activations(tokens, columns, rng, largest)
        packed, *_ = pack((weight,), {"format": format})
        added = torch.randn(rows, generator=rng) if tokens == 33 else None
        found = product(row, x, scales, packed, added, format)
        wide = None if added is None else added.double()
        wanted = OP.reference(x, scales.double(), weight, wide, format=format, result="float64")
        values = (x.unflatten(-1, (-1, GROUP)) * scales[..., None].double()).flatten(-2)
        terms = values.abs() @ dequantised(weight, format, "float64").abs().t()
        bound = (ROUNDING + columns * 2**-24) * terms + 1e-6
        assert bool(((found - wanted).abs() <= bound).all()), (tokens, rows)
        assert not bool((found == wanted).all())


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_rounded_products_leave_few_tokens_and_sixteen_bits_exact(runtime, kind):
    (row,), rng = rounded(runtime.profile), torch.Generator().manual_seed(12)
    weight, other = sample_blocks(70, 1024, "q4_1", rng), exact(runtime.profile)[0]
    packed, *_ = pack((weight,), {"format": "q4_1"})
    for tokens in (1, 16, 32, 100) if kind == torch.int16 else (1, 16, 32):
        x, scales = activations(tokens, 1024, rng, kind=kind)
        given = x, scales, packed, None, "q4_1"
        assert same_bits(product(row, *given), product(other, *given)), tokens


def test_rounded_products_are_the_same_with_every_number_of_threads(runtime):
    """And in every place of a batch as large, whatever the others are."""
    (row,), rng = rounded(runtime.profile), torch.Generator().manual_seed(13)
    weight, bias = sample_blocks(999, 1024, "q4_1", rng), torch.randn(999, generator=rng)
    x, scales = activations(130, 1024, rng)
    packed, *_ = pack((weight,), {"format": "q4_1"})
    order = torch.randperm(130, generator=rng)
    path, threads = library().path, runtime.profile.limits["threads"]
    whole = product(row, x, scales, packed, bias, "q4_1")
    try:
        for team in (1, 2, 3):
            open_library(path, team, None)
            found = product(row, x[order].contiguous(), scales[order].contiguous(), packed, bias, "q4_1")
            assert same_bits(found, whole[order]), team
    finally:
        open_library(path, threads, None)


def test_rows_of_activations_may_lie_apart_and_nothing_beside_a_result_is_written(runtime):
    rng = torch.Generator().manual_seed(5)
    for row in forms(runtime.profile):
        for tokens in (1, 5, 40):
            x, scales = activations(tokens, 512, rng)
            weight = sample_blocks(37, 256, "q4_1", rng)
            packed, *_ = pack((weight,), {"format": "q4_1"})
            apart = product(row, x[:, 32:288], scales[:, 1:9], packed, None, "q4_1")
            close = product(row, x[:, 32:288].contiguous(), scales[:, 1:9].contiguous(), packed, None, "q4_1")
            assert same_bits(apart, close)


def test_wide_weights_are_taken_in_turns(runtime):
    """More columns and tokens than fit a cache at a time."""
    rng = torch.Generator().manual_seed(6)
    for format, columns in (("q4_1", 9824), ("q6_k", 9728)):
        weight = sample_blocks(35, columns, format, rng)
        x, scales = activations(150, columns, rng)
        packed, *_ = pack((weight,), {"format": format})
        wanted = OP.reference(x, scales.double(), weight, None, format=format, result="float64")
        for row in forms(runtime.profile):
            found = product(row, x, scales, packed, None, format)
            assert float((found - wanted).norm() / wanted.norm()) < (2**-8 if row.rounds else 1e-6)
            if row.rounds:
                continue
            assert same_bits(product(row, x[:9], scales[:9], packed, None, format), found[:9])
            assert same_bits(product(row, x[:1], scales[:1], packed, None, format), found[:1])


def test_no_tokens_are_no_rows(runtime):
    rng = torch.Generator().manual_seed(8)
    packed, *_ = pack((sample_blocks(50, 256, "q4_1", rng),), {"format": "q4_1"})
    for kind in KINDS:
        x, scales = activations(0, 256, rng, kind=kind)
        assert all(product(row, x, scales, packed, None, "q4_1").shape == (0, 50) for row in forms(runtime.profile))


def test_results_too_many_for_a_cache_have_the_bits_of_few(runtime):
    rng = torch.Generator().manual_seed(7)
    for kind in KINDS:
        weight, bias = sample_blocks(512, 256, "q4_1", rng), torch.randn(512, generator=rng)
        x, scales = activations(130, 256, rng, kind=kind)
        packed, *_ = pack((weight,), {"format": "q4_1"})
        for row in exact(runtime.profile):
            found = product(row, x, scales, packed, bias, "q4_1")
            for first in range(0, 130, 26):
                part = slice(first, first + 26)
                assert same_bits(product(row, x[part], scales[part], packed, bias, "q4_1"), found[part])


@pytest.mark.parametrize("format", FORMATS)
def test_packing_leaves_the_file_as_it_is_and_takes_no_more_room_than_it_allows(format):
    rng = torch.Generator().manual_seed(4)
    columns = columns_for(format, 4)
    wide = torch.zeros((33, block_of(format)[1] * columns // block_of(format)[0] + 5), dtype=torch.uint8)
    weight = wide[:, 3:-2]
    weight.copy_(sample_blocks(33, columns, format, rng))
    before = weight.clone()
    packed, again = (pack((weight,), {"format": format})[0] for _ in range(2))
    assert same_bits(weight, before) and same_bits(packed, again)
    assert strip_bytes(format, columns // GROUP) <= 1.1 * 16 * weight.shape[1]
    contiguous, *_ = pack((weight.contiguous(),), {"format": format})
    assert same_bits(packed, contiguous)


MASKED = {"avx512f": ("avx2", "portable", "neon"), "avx,asimddp": ("portable",)}
MASKED_RUN = """
import kernels_cpu.build as build
from tests.anydevice.test_cpu_blocks import CpuPlugin, check_all, forms
every = build.sources
build.sources = lambda: [source for source in every() if source.stem == "team" or source.stem.startswith("blocks")]
profile = CpuPlugin().open(0).profile
print(forms(profile)[0].name)
check_all(profile, FORMATS)
"""


@pytest.mark.parametrize("words", MASKED)
def test_another_processor_has_its_own_form(words, tmp_path):
    """Compiled without instructions that this processor has, and run. A library of a few sources has its own folder."""
    environ = {**os.environ, "ENGINE_CPU_DISABLE_ISA": words, "ENGINE_CACHE_ROOT": str(tmp_path)}
    code = MASKED_RUN.replace("FORMATS", repr(FORMATS if "512" in words else ("q4_1", "q8_0", "q6_k")))
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] in MASKED[words]
