"""How many blocks fit: numbers in, numbers out."""

import pytest

from engine.errors import UserError
from engine.memory import SAMPLER_BYTES, SCORED_LOGITS, SCORED_ROWS, activation_bytes, block_bytes, kv_space
from engine.models import Layout, build_program
from platforms.contract import Memory
from tests.profiles import MODEL

PROGRAM = build_program(MODEL, Layout("float32", 16, "float32"))
BLOCK = 2 * 16 * 1 * (8 + 8) * 4
"""Layers, tokens, KV heads, key and value, bytes."""
GIB = 2**30


def space(before, after, share=0.9, exact=None, activations=0, graphs=0, most=10**9):
    return kv_space(PROGRAM, before, after, share, exact, {"activations": activations, "graphs": graphs}, most)


def device(available):
    return Memory(16 * GIB, available, False, "driver")


def host(available):
    return Memory(16 * GIB, available, True, "system")


def test_a_block_spans_all_layers_in_the_type_of_the_cache():
    assert block_bytes(PROGRAM) == BLOCK
    assert block_bytes(build_program(MODEL, Layout("float32", 16, "bfloat16"))) == BLOCK // 2
    assert block_bytes(build_program(MODEL, Layout("float32", 32, "float32"))) == BLOCK * 2


def test_an_exact_size_is_exact_whatever_would_suffice():
    found = space(device(GIB), device(GIB), exact=10 * BLOCK + 1, activations=5 * GIB, most=3)
    assert (found.blocks, found.block_bytes) == (10, BLOCK)
    assert "asked for" in found.reason


def test_an_exact_size_beyond_what_is_there_is_refused_with_both_numbers():
    with pytest.raises(UserError, match=r"-bytes cannot .* 2\.00 GiB, and 1\.00 GiB are .*\(driver\)"):
        space(device(3 * GIB), device(GIB), exact=2 * GIB)


def test_a_device_gives_its_share_of_all_memory_less_what_anybody_uses():
    found = space(device(16 * GIB), device(10 * GIB), share=0.75, activations=GIB)
    assert found.blocks == (12 - 6 - 1) * GIB // BLOCK
    assert "0.75 of 16.00 GiB" in found.reason


def test_memory_shared_with_the_host_gives_a_share_of_what_was_available():
    found = space(host(8 * GIB), host(6 * GIB), share=0.5, activations=GIB)
    assert found.blocks == (4 - 2 - 1) * GIB // BLOCK
    assert "0.5 of 8.00 GiB available" in found.reason


def test_memory_that_others_gave_back_meanwhile_is_not_taken_for_a_negative_use():
    assert space(host(8 * GIB), host(9 * GIB), share=0.5).blocks == 4 * GIB // BLOCK


def test_no_more_blocks_than_the_longest_requests_can_use():
    found = space(device(16 * GIB), device(16 * GIB), most=7)
    assert found.blocks == 7
    assert "as many as the longest requests can use" in found.reason


@pytest.mark.parametrize(
    ("before", "after", "exact"),
    [
        (device(16 * GIB), device(GIB), None),
        (host(8 * GIB), host(GIB), None),
        (device(GIB), device(GIB), BLOCK - 1),
    ],
    ids=["device", "shared", "exact"],
)
def test_too_little_for_one_block_says_so_with_numbers_and_remedies(before, after, exact):
    remedy = "--gpu-memory-utilization" if exact is None else r"Ask for more"
    with pytest.raises(UserError, match=rf"(?s)No memory for .* a block of 0\.0 MiB .*{remedy}"):
        space(before, after, share=0.5, exact=exact)


def test_activations_grow_with_tokens_and_with_the_rows_of_logits():
    wide, vocab = 2 * MODEL.intermediate_size, MODEL.vocab_size
    logits = max(32, SCORED_ROWS) * vocab * 4
    sampling = SAMPLER_BYTES * vocab * SCORED_ROWS
    assert SCORED_ROWS * vocab < SCORED_LOGITS
    widths = sorted([2 * MODEL.head_dim * MODEL.num_heads, wide, wide, wide])[-3:]
    assert activation_bytes(PROGRAM, 2048, 32) >= 2048 * 4 * max(widths) + logits + sampling
    assert activation_bytes(PROGRAM, 4096, 32) - activation_bytes(PROGRAM, 2048, 32) >= 2048 * 4 * wide
    more = activation_bytes(PROGRAM, 2048, SCORED_ROWS + 100) - activation_bytes(PROGRAM, 2048, SCORED_ROWS)
    assert more >= 100 * vocab * (4 + SAMPLER_BYTES)


def test_a_step_of_few_tokens_has_few_rows_of_logits():
    assert activation_bytes(PROGRAM, 8, 256) < 8 * MODEL.vocab_size * (4 + SAMPLER_BYTES) + 3 * 8 * 2048


def test_prompt_scoring_of_a_large_vocabulary_is_counted_by_the_piece():
    import dataclasses

    large = build_program(dataclasses.replace(MODEL, vocab_size=2**17), Layout("float32", 16, "float32"))
    found = activation_bytes(large, 2048, 1)
    logits = SCORED_ROWS * 2**17 * 4
    assert logits + SAMPLER_BYTES * SCORED_LOGITS <= found < logits + SAMPLER_BYTES * SCORED_LOGITS + 2**21
