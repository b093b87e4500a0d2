"""What a graph cannot hold is refused before a device sees it, with the op's name; its legal neighbours pass."""

import cProfile

import numpy as np
import pytest
import torch

from engine.graphs.legality import ONLY_A_DEVICE, illegal
from engine.ops.constant import constant
from tests.one_call import op_of, same, work_of

HELD = torch.arange(12.0).view(3, 4)
ELSEWHERE = torch.zeros(3, 4, device="meta")


def tried(function, *inputs, mutates=(), shapes=same, **more):
    """``function`` as an op on ``inputs``, [3, 4] in float32 unless there are others, and what is said of it."""
    inputs = inputs or (torch.ones(3, 4), torch.ones(3, 4))
    op = op_of(function, mutates, shapes, **more)
    return illegal(work_of(op, function, "", inputs, {}), {"tried": op})


def swallowed(x, y):
    try:
        return x + x.sum().item()
    except Exception:
        return x


def inside_inference(x, y):
    with torch.inference_mode():
        return x[: int(y.sum())]


def outside_inference(x, y):
    with torch.inference_mode(False):
        return x * bool((y > 0).all())


def resized(x, y):
    x.resize_(2, 2)
    return x


def swapped(x, y):
    x.data = torch.zeros(3, 4)
    return x


def put(x, y):
    x[y > 0] = y.sum()
    return x


def put_a_number(x, y):
    x[y[:, 0].long()] = 0.0
    return x


def put_rows(x, y):
    x[[0, 2]] = y[[0, 2]]
    return x


def put_one(x, y):
    x[0, 0] = y[0, 0].item()
    return x


def waits(x, y):
    torch.get_device_module(x.device).synchronize()
    return x + y


def waits_for_an_event(x, y):
    Stream().synchronize()
    return x + y


class Stream:
    def synchronize(self):
        return None


def written(x, y):
    y.mul_(2)
    return x + y


def written_through_a_view(x, y):
    y.view(-1)[2:5].zero_()
    return x + y


def written_out(x, y):
    return torch.add(x, y, out=y)


READS, MAKES, ELSE, WRITES = "reads values on the host", "from values of the host", "copies", "mutates does not list"
ILLEGAL = {
    "item": (lambda x, y: x * y.sum().item(), ("torch.Tensor.item", READS)),
    "bool": (lambda x, y: x if x.sum() else y, ("torch.Tensor.__bool__", READS)),
    "assert": (lambda x, y: x if (x == y).all() else y, ("torch.Tensor.__bool__", READS)),
    "int": (lambda x, y: x * int(y.sum()), ("torch.Tensor.__int__", READS)),
    "float": (lambda x, y: x * float(y.sum()), ("torch.Tensor.__float__", READS)),
    "tolist": (lambda x, y: x * sum(y[0].tolist()), ("torch.Tensor.item", READS)),
    "tolist of a tensor of its own": (lambda x, y: x * sum(HELD.tolist()[0]), ("torch.Tensor.tolist", READS)),
    "numpy": (lambda x, y: x * y.numpy().sum(), ("torch.Tensor.numpy", READS)),
    "asarray": (lambda x, y: x * np.asarray(y).sum(), ("torch.Tensor.__array__", READS)),
    "format": (lambda x, y: x * len(f"{y}"), ("torch.Tensor.__format__", READS)),
    "print": (lambda x, y: x * len(repr(y)), ("torch.Tensor.__repr__", READS)),
    "slice to a tensor": (lambda x, y: x[:, : y.sum().long()], ("aten._local_scalar_dense", READS)),
    "a number out of a tensor as index": (lambda x, y: x[y.sum().long()], ("aten._local_scalar_dense", READS)),
    "nonzero": (lambda x, y: x.nonzero(), ("torch.Tensor.nonzero", "aten.nonzero", READS)),
    "where of a condition": (lambda x, y: torch.where(x > 0)[0], ("torch.where", "aten.nonzero", READS)),
    "unique": (lambda x, y: x.unique(), ("aten._unique2", READS)),
    "masked_select": (lambda x, y: x.masked_select(y > 0), ("torch.Tensor.masked_select", READS)),
    "mask as index": (lambda x, y: x[y > 0], ("torch.Tensor.__getitem__", "aten.nonzero", READS)),
    "equal": (lambda x, y: x * torch.equal(x, y), ("torch.equal", READS)),
    "allclose": (lambda x, y: x * torch.allclose(x, y), ("torch.allclose", READS)),
    "bincount": (lambda x, y: x * x.long().view(-1).bincount()[0], ("torch.Tensor.bincount", READS)),
    "repeats in a tensor": (lambda x, y: x.repeat_interleave(y[:, 0].long(), 0), ("repeat_interleave", READS)),
    "read and kept quiet": (swallowed, ("torch.Tensor.item", READS)),
    "read in inference mode of its own": (inside_inference, ("torch.Tensor.__int__", READS)),
    "read outside inference mode": (outside_inference, ("torch.Tensor.__bool__", READS)),
    "mask in a write": (put, ("torch.Tensor.__setitem__", "aten.index_put_", "where a mask says")),
    "a number in a write by index": (put_a_number, ("torch.Tensor.__setitem__", MAKES)),
    "a read in a write": (put_one, ("torch.Tensor.item", READS)),
    "cpu": (lambda x, y: x.cpu() + y, ("torch.Tensor.cpu", "copies to another memory")),
    "pin_memory": (lambda x, y: x.pin_memory() + y, ("torch.Tensor.pin_memory", "copies to another memory")),
    "to": (lambda x, y: x.to("meta"), ("torch.Tensor.to", "copies from cpu to meta")),
    "to another's device": (lambda x, y: x.to(device="meta"), ("aten._to_copy", "copies from cpu to meta")),
    "tensor": (lambda x, y: x * torch.tensor([1.0, 2.0, 3.0, 4.0]), ("torch.tensor", "aten.lift_fresh", MAKES)),
    "tensor of a number": (lambda x, y: x * torch.tensor(2.0), ("torch.tensor", MAKES)),
    "as_tensor": (lambda x, y: x * torch.as_tensor([2.0]), ("torch.as_tensor", MAKES)),
    "asarray of a list": (lambda x, y: x * torch.asarray([2.0]), ("torch.asarray", MAKES)),
    "from_numpy": (lambda x, y: x * torch.from_numpy(np.ones(4, np.float32)), ("aten.lift_fresh", MAKES)),
    "new_tensor": (lambda x, y: x * x.new_tensor([2.0]), ("torch.Tensor.new_tensor", MAKES)),
    "list as index": (lambda x, y: x[[0, 1]], ("torch.Tensor.__getitem__", MAKES)),
    "list as index of a write": (put_rows, ("torch.Tensor.__getitem__", MAKES)),
    "a tensor of its own": (lambda x, y: x * HELD, ("torch.Tensor.mul", "float32[3, 4], which is no input")),
    "a buffer of its own": (lambda x, y: x * torch.frombuffer(bytearray(16), dtype=torch.float32), ("no input",)),
    "a tensor of its own, returned": (lambda x, y: HELD, ("did not make from its inputs",)),
    "no fake kernel": (lambda x, y: torch.ops.engine_legality.opaque(x), ("engine_legality.opaque", "no fake kernel")),
    "data_ptr": (lambda x, y: x * y.data_ptr(), ("torch.Tensor.data_ptr", "where a tensor lies")),
    "storage": (lambda x, y: x * y.untyped_storage().data_ptr(), ("torch.Tensor.untyped_storage",)),
    "writes an input": (written, ("aten.mul_", "writes y", WRITES)),
    "writes a view": (written_through_a_view, ("aten.zero_", "writes y", WRITES)),
    "writes with out": (written_out, ("torch.add", "aten.add.out", "writes y", WRITES)),
    "rand": (lambda x, y: x * torch.rand_like(y), ("torch.rand_like", "draws random numbers")),
    "dropout": (lambda x, y: torch.nn.functional.dropout(x), ("torch.nn.functional.dropout", "draws random numbers")),
    "waits": (waits, ("synchronize waits for the device",)),
    "waits for an event": (waits_for_an_event, ("synchronize waits for the device",)),
    "fails": (lambda x, y: x @ y, ("fails on fake tensors: RuntimeError",)),
    "another dtype": (lambda x, y: x.double(), ("returns float64[3, 4], the op's shapes say float32[3, 4]",)),
    "another shape": (lambda x, y: x[:2], ("returns float32[2, 4], the op's shapes say float32[3, 4]",)),
    "too many results": (lambda x, y: (x, y), ("returns 2 results, the op's shapes say 1",)),
    "no tensor": (lambda x, y: 1.0, ("returns a float, not a tensor",)),
}
LIBRARY = torch.library.Library("engine_legality", "DEF")
LIBRARY.define("opaque(Tensor x) -> Tensor")
LIBRARY.impl("opaque", lambda x: x + 1, "CPU")


@pytest.mark.parametrize("name", ILLEGAL)
@pytest.mark.parametrize("inference", [False, True], ids=["", "inference"])
def test_what_a_graph_cannot_hold_is_refused_with_op_and_cause(name, inference):
    function, words = ILLEGAL[name]
    with torch.inference_mode(inference):
        found = tried(function, torch.ones(3, 4), torch.full((3, 4), 2.0))
    assert found.startswith("tried (reference): ")
    assert all(word in found for word in words), found
    assert "; " in found


WRITTEN_WRONG = {
    "resized": (resized, "resizes x"),
    "other memory": (swapped, "resizes x or gives it other memory"),
    "a copy returned": (lambda x, y: x * 2, "returns another tensor for x"),
    "the other input": (lambda x, y: (y.zero_(), x)[1], "writes y"),
}


@pytest.mark.parametrize("name", WRITTEN_WRONG)
def test_an_input_that_may_be_written_is_written_where_it_lies(name):
    function, words = WRITTEN_WRONG[name]
    assert words in tried(function, mutates=(0,))


def test_a_write_beside_what_may_be_written_is_refused_in_one_storage_too():
    whole = torch.zeros(2, 3, 4)

    def beyond(x, y):
        torch.as_strided(x, (24,), (1,), 0).zero_()
        return x

    assert "writes y" in tried(beyond, whole[0], whole[1], mutates=(0,))
    assert "writes beside x" in tried(beyond, whole[0], torch.ones(3, 4), mutates=(0,))
    assert tried(lambda x, y: x.zero_(), whole[0], whole[1], mutates=(0,)) == ""
    assert "writes x" in tried(lambda x, y: (x.zero_(), y)[1], whole[0], whole[1], mutates=(1,))


def indexed(x, y):
    x.index_copy_(0, torch.arange(3, device=x.device), y)
    return x


def temporaries(x, y):
    total = x + y
    total.add_(1).clamp_(max=3)
    total[:, 1:].zero_()
    total[torch.arange(2, device=x.device)] += 1
    return total


@constant
def halves(device, count):
    return torch.tensor([0.5] * count, device=device)


LEGAL = {
    "masked_fill": (lambda x, y: x.masked_fill(y > 0, 0.0), ()),
    "where": (lambda x, y: torch.where(y > 0, x, 0.0), ()),
    "index_select": (lambda x, y: x.index_select(0, y[:, 0].long()), ()),
    "a tensor as index": (lambda x, y: x[y[:, 0].long()], ()),
    "gather": (lambda x, y: x.gather(1, y.argmax(1, keepdim=True).expand(3, 4)), ()),
    "index_copy_": (indexed, (0,)),
    "copy_": (lambda x, y: x.copy_(y), (0,)),
    "a view of what may be written": (lambda x, y: (x.view(-1)[:4].copy_(y[0]), x)[1], (0,)),
    "temporaries": (temporaries, ()),
    "views": (lambda x, y: x.view(-1).unflatten(0, (3, 4)).transpose(0, 1).t(), ()),
    "the input itself": (lambda x, y: x, ()),
    "sizes": (lambda x, y: x if x.shape[0] < len(y) + x.numel() else y, ()),
    "numbers": (lambda x, y: torch.clamp(x * 2.0 + 1, -3, 3), ()),
    "fills": (lambda x, y: x + torch.full((4,), 0.1, device=x.device) + torch.zeros_like(y), ()),
    "its own device": (lambda x, y: x.to(y.device) + y.to(x), ()),
    "constants": (lambda x, y: x * halves(x.device, 4), ()),
    "sort and top": (lambda x, y: x.sort(-1).values + x.topk(4, -1).values, ()),
    "scan": (lambda x, y: x.cumsum(0) * y.softmax(-1), ()),
    "scatter": (lambda x, y: torch.zeros_like(x).scatter(-1, y.long(), x), ()),
    "attention of torch": (lambda x, y: torch.nn.functional.scaled_dot_product_attention(x, y, y), ()),
    "no dropout": (lambda x, y: torch.nn.functional.dropout(x, training=False), ()),
    "repeats as a number": (lambda x, y: x.repeat_interleave(2, 0)[::2], ()),
    "repeats with a size": (lambda x, y: x.repeat_interleave(y[:, 0].long(), 0, output_size=3), ()),
}


@pytest.mark.parametrize("name", LEGAL)
@pytest.mark.parametrize("inference", [False, True], ids=["", "inference"])
def test_legal_neighbours_pass(name, inference):
    function, mutates = LEGAL[name]
    with torch.inference_mode(inference):
        assert tried(function, torch.ones(3, 4), torch.ones(3, 4), mutates=mutates) == ""


def test_a_profiler_that_is_running_is_left_alone():
    profile = cProfile.Profile()
    profile.enable()
    try:
        found = [tried(lambda x, y: x + y), tried(lambda x, y: x * y.sum().item())]
    finally:
        profile.disable()
    assert found[0] == "" and READS in found[1]
    assert profile.getstats()


def test_constants_are_kept_only_as_real_tensors():
    before = halves(torch.device("cpu"), 5)
    assert tried(lambda x, y: x * halves(x.device, 5)[:4]) == ""
    assert tried(lambda x, y: x * halves(x.device, 6)[:4]) == ""
    assert halves(torch.device("cpu"), 5) is before
    assert type(halves(torch.device("cpu"), 6)) is torch.Tensor
    assert halves(torch.device("cpu"), 6).tolist() == [0.5] * 6


def test_inputs_of_one_call_lie_on_one_device():
    assert "has inputs on cpu and meta" in tried(lambda x, y: x, torch.ones(3, 4), ELSEWHERE)

    def filled(x):
        return x.copy_(torch.zeros(3, 4, device="meta"))

    assert "takes tensors on cpu and meta" in tried(filled, torch.ones(3, 4), mutates=(0,))


def test_an_op_declared_to_read_on_the_host_is_refused_even_where_it_does_not_here():
    assert "declared to read values on the host" in tried(lambda x, y: x + y, host_reads=True)


def test_what_only_a_device_can_refuse_says_why_it_passes_here():
    assert len({work for work, _ in ONLY_A_DEVICE}) == len(ONLY_A_DEVICE)
    assert all(work and why for work, why in ONLY_A_DEVICE)
