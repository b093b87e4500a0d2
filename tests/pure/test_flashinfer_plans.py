"""Which rows of FlashInfer the plans of real models come to."""

from __future__ import annotations

import pytest

from tests.described_plans import chosen, described, plan
from tests.model_configs import MLA, STATIC


@pytest.mark.parametrize(
    ("target", "words", "expected"),
    [
        ("sm_90", ("--block-size", "64"), "flashinfer"),
        ("sm_100", ("--block-size", "64"), "flashinfer_trtllm"),
        ("sm_103", ("--block-size", "32"), "flashinfer_trtllm"),
        ("sm_100", (), "flashinfer_trtllm"),
        ("sm_90", (), "flashinfer"),
        ("sm_100", ("--block-size", "16"), "flashinfer"),
        ("sm_100", ("--block-size", "64", "--dtype", "float16"), "flashinfer"),
    ],
)
def test_attention_over_latents(target, words, expected):
    assert chosen(plan(described("cuda", target), MLA, *words), "mla_attention") == {expected}


def test_products_of_one_scale_per_row_are_ours_unless_another_is_asked_for():
    profile = described("cuda", "sm_100", cutlass_dsl="4.8.1")
    assert chosen(plan(profile, STATIC), "scaled_linear") == {"triton_tma"}
    asked = plan(profile, STATIC, "--kernel", "scaled_linear=flashinfer_prims")
    assert chosen(asked, "scaled_linear") == {"flashinfer_prims"}
    found = [row for row in plan(profile, STATIC, "-O3").kernels if row.op == "scaled_linear"]
    assert found and all("flashinfer_prims" in row.rivals for row in found)
