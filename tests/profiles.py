"""A device, a model and tables for tests of plans: nothing real, everything explicit."""

from engine.models.config import ModelConfig, Rope
from engine.plan import Observations, Tables, make_plan, model_facts
from engine.plan_values import Given
from platforms.contract import DeviceProfile, FusionOffer, Kernel, always

DEVICE = DeviceProfile("testbed", "arch-1", "first", "Test device", 2**34, "described", {"dtype.float32"})
MODEL = ModelConfig(
    architecture="llama",
    name="tiny",
    vocab_size=64,
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    intermediate_size=32,
    max_position=256,
    rms_eps=1e-6,
    rope=Rope(10000.0, 8),
    tied_embeddings=True,
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
    qk_norm=False,
    sliding_window=None,
    dtype="float32",
    weight_format="dense",
)
ROPE_ROW = Kernel("rotary_kv_write", "fast", "nowhere:fast", priority=1)
TABLES = Tables((ROPE_ROW,), (FusionOffer("fuse_rope_kvcache", always("offered here")),))


def given(**values):
    """``given(optimization_level=1)``; dots in keys are written as double underscores."""
    return {key.replace("__", "."): Given(value, "command line") for key, value in values.items()}


def plan(tables=TABLES, profile=DEVICE, model=MODEL, observations=None, **values):
    return make_plan(profile, model_facts(model), given(**values), tables, observations or Observations())
