"""What ``repairs`` repairs is still broken in the interpreter as it comes: a repair that is no longer needed fails here
and is to be dropped. In a process of its own, which nothing has repaired."""

import json
import subprocess
import sys

import pytest

PROGRAM = '''
import json, torch, triton, triton.language as tl

@triton.jit
def product(a, b, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    places = at[:, None] * SIZE + at[None, :]
    tl.store(out + places, tl.dot(tl.load(a + places), tl.load(b + places), input_precision="ieee"))

@triton.jit
def copy(x, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out + at, tl.load(x + at).to(out.dtype.element_ty))

def multiplies(dtype):
    a, b = (torch.randn(16, 16).to(dtype) for _ in range(2))
    out = torch.zeros(16, 16)
    product[(1,)](a, b, out, SIZE=16)
    return torch.allclose(out, a.float() @ b.float(), rtol=1e-2, atol=1e-2)

def rounds(dtype):
    x, out = torch.rand(1024) * 2 + 1, torch.zeros(1024, dtype=dtype)
    copy[(1,)](x, out, SIZE=1024)
    return bool((out.float() == x.to(dtype).float()).all())

found = {}
torch.manual_seed(0)
for ask, name in (
    *((multiplies, name) for name in ("float32", "float16", "bfloat16")),
    *((rounds, name) for name in ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz")),
):
    try:
        found[f"{ask.__name__} {name}"] = ask(getattr(torch, name))
    except Exception as error:
        found[f"{ask.__name__} {name}"] = type(error).__name__
print(json.dumps(found))
'''


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    file = tmp_path_factory.mktemp("unrepaired") / "program.py"
    file.write_text(PROGRAM)
    made = subprocess.run([sys.executable, file], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return json.loads(made.stdout)


@pytest.mark.parametrize("kind", ["multiplies float32", "multiplies float16", "rounds float32", "rounds float16"])
def test_these_need_no_repair(kind, found):
    assert found[kind] is True


def test_products_of_bfloat16_multiply_raw_bits(found):
    assert found["multiplies bfloat16"] is False, "bfloat16 is right now: drop create_dot of repairs"


@pytest.mark.parametrize("kind", ["rounds bfloat16", "rounds float8_e4m3fn"])
def test_values_are_cut_rather_than_rounded(kind, found):
    assert found[kind] is False, "stores are rounded now: drop _convert of repairs"


def test_a_float8_of_amd_is_unknown(found):
    assert found["rounds float8_e4m3fnuz"] is not True, "it is known now: drop patch_core of repairs"
