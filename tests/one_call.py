"""Work of one call, over tensors named after their place."""

from engine.ops import Op
from engine.ops.compare import specs_of
from engine.work import BoundCall, Work


def same(specs, attributes):
    return (specs[0],)


def op_of(function, mutates=(), shapes=same, **more):
    return Op("tried", function, shapes, lambda *_: (), (), {}, mutates, **more)


def work_of(op, function, row, inputs, attributes, plain=None):
    names = [f"i{at}" for at in range(len(inputs))]
    count = len(op.shapes(specs_of(plain or inputs), attributes)) - len(op.mutates)
    outputs = [*(f"o{at}" for at in range(count)), *(names[at] for at in op.mutates)]
    call = BoundCall(op.name, row, function, tuple(names), tuple(outputs), attributes, op.mutates)
    return Work([call], dict(zip(names, inputs, strict=True)))
