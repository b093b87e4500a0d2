"""Models of the shapes that people serve, two layers deep: what plans are made for in tests."""

from __future__ import annotations

from dataclasses import replace

from engine.models.config import Mla, ModelConfig, Moe, Quantization
from tests.profiles import MODEL

LLAMA = replace(
    MODEL,
    name="llama",
    vocab_size=128256,
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=14336,
    max_position=8192,
    dtype="bfloat16",
    rope=replace(MODEL.rope, dim=128),
    tied_embeddings=False,
)
QWEN3 = replace(LLAMA, name="qwen3", architecture="qwen3", qk_norm=True)
STATIC = replace(LLAMA, name="llama-fp8", quantization=Quantization("fp8", "float8_e4m3fn", "tensor", "static"))
BLOCK = replace(
    LLAMA,
    name="llama-fp8-block",
    quantization=Quantization("fp8", "float8_e4m3fn", "block", "group", (128, 128)),
)
INT8 = replace(LLAMA, name="llama-int8", quantization=Quantization("compressed-tensors", "int8", "channel", "token"))
INT4 = replace(
    LLAMA,
    name="llama-awq",
    quantization=Quantization(
        "awq", "int4", "group", "none", (1, 128), scale="scales", layout="awq", weight="qweight", zero="qzeros"
    ),
)
MOE = replace(
    QWEN3, name="qwen3-moe", architecture="qwen3_moe", hidden_size=2048, moe=Moe(experts=128, top_k=8, expert_size=768)
)
MLA = replace(
    LLAMA,
    name="deepseek-v3",
    architecture="deepseek_v3",
    num_kv_heads=32,
    head_dim=192,
    rope=replace(MODEL.rope, dim=64),
    mla=Mla(q_rank=1536, kv_rank=512, nope=128, rope=64, value=128),
)
MODELS: tuple[ModelConfig, ...] = (LLAMA, QWEN3, STATIC, BLOCK, INT8, INT4, MOE, MLA)
