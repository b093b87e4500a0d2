"""A stranger that is the active platform with faults put in, for tests of the kit that looks for them."""

import os

import torch

from engine.conformance.subject import Subject
from engine.ops import OPS
from platforms.contract import FusionOffer, Kernel, PlatformPlugin, Verdict, always
from platforms.discovery import select

HERE = __name__
SELECTION = select("auto")
RMS = OPS["rms_norm"].reference
CASE = "tokens=7,hidden=127,eps=1e-05"


def good(x, weight, *, eps):
    return RMS(x, weight, eps=eps)


def plain(x, weight, *, eps):
    """Right, with an output of its own."""
    out = torch.empty_like(x)
    out.copy_(RMS(x, weight, eps=eps))
    return out


def off(x, weight, *, eps):
    return RMS(x, weight, eps=eps) * 1.1


def odd(x, weight, *, eps):
    """Wrong in the last column of odd widths beyond those of the op's own cases."""
    found = RMS(x, weight, eps=eps)
    if x.shape[-1] == 2049:
        found[1:, -1] = 0
    return found


def beside_input(x, weight, *, eps):
    torch.as_strided(weight, (weight.shape[0] + 1,), (1,), weight.storage_offset())[-1] = 7
    return RMS(x, weight, eps=eps)


def beside_output(x, weight, *, eps):
    out = plain(x, weight, eps=eps)
    torch.as_strided(out, (1,), (1,), out.storage_offset() + out.numel())[0] = 7
    return out


def partly(x, weight, *, eps):
    """The last row is what memory held."""
    out = torch.empty_like(x)
    out[:-1] = RMS(x, weight, eps=eps)[:-1]
    return out


def changes_input(x, weight, *, eps):
    found = RMS(x, weight, eps=eps)
    x.mul_(2)
    return found


def drawn(x, weight, *, eps):
    return RMS(x, weight, eps=eps) * (1 + torch.rand((), device=x.device).to(x.dtype) * 1e-3)


def reads_flat(x, weight, *, eps):
    """Takes rows to lie one behind the other."""
    flat = torch.as_strided(x, x.shape, (x.shape[-1], 1), x.storage_offset())
    return RMS(flat, weight, eps=eps)


def refuses_strides(x, weight, *, eps):
    if not x.is_contiguous():
        raise ValueError("rows must lie one behind the other")
    return RMS(x, weight, eps=eps)


def raises(x, weight, *, eps):
    raise RuntimeError("no such instruction")


def wider(x, weight, *, eps):
    return RMS(x, weight, eps=eps).double()


def swapped(weight, x, *, eps):
    return RMS(x, weight, eps=eps)


def linear(x, weight, bias=None):
    return x @ weight if bias is None else x @ weight + bias


def pack(weights, attributes):
    return (weights[0].t().contiguous(), *weights[1:])


def unsteady_pack(weights, attributes):
    return (weights[0].t() + torch.rand(()), *weights[1:])


def spoiling_pack(weights, attributes):
    found = pack(weights, attributes)
    weights[0].zero_()
    return found


def bytes_of(facts):
    return 4 * facts["call_shapes"][0][-1]


def fewer_than_none(facts):
    return -1


def counting(facts, found=iter(range(1000))):  # noqa: B008
    return next(found)


class Unit:
    """Of equal name, equal work. To make it would be a fault of the kit: it takes minutes."""

    def __init__(self, name):
        self.name = name

    def make(self):
        raise AssertionError("a unit was made")


def build(profile, target, tensors, attributes):
    assert {x.device.type for x in tensors} == {"meta"} and set(attributes) == {"eps"}
    return (Unit(f"{target} for {profile.arch}"),)


def build_turned(profile, target, tensors, attributes):
    assert tensors[0].shape[-1] == tensors[1].shape[0], "weights come as pack lays them out"
    return (Unit(target),)


def build_unsteady(profile, target, tensors, attributes, found=iter(range(1000))):  # noqa: B008
    return (Unit(f"unit {next(found)}"),)


def build_wide(profile, target, tensors, attributes):
    raise ValueError(f"no tile of {tensors[0].shape[-1]} columns")


def build_none(profile, target, tensors, attributes):
    return ()


def build_words(profile, target, tensors, attributes):
    return ("a kernel",)


def environment(profile, facts):
    return Verdict(True, f"PATH is {os.environ.get('PATH', '')[:1]}")


class Answers:
    """Another answer each time."""

    count = 0

    def __call__(self, profile, facts):
        self.count += 1
        return Verdict(True, f"asked {self.count} times")


def norm(function, **more):
    return Kernel("rms_norm", function.__name__, f"{HERE}:{function.__name__}", **more)


class Stranger(PlatformPlugin):
    """The active platform with the given parts replaced. ``runtime``: member → replacement."""

    def __init__(self, rows=(), fusions=(), settings=(), aliases=None, runtime=None, **members):
        plugin = SELECTION.plugin
        self.name, self.api, self.kind = plugin.name, plugin.api, plugin.kind
        self.rows, self.offers, self.soft, self.known = rows, fusions, settings, aliases or {}
        self.parts = runtime or {}
        for name, value in members.items():
            setattr(self, name, value)

    def probe(self):
        return SELECTION.plugin.probe()

    def targets(self):
        return SELECTION.plugin.targets()

    def kernels(self):
        return self.rows

    def fusions(self):
        return self.offers

    def settings(self, profile, facts, level):
        return self.soft

    def aliases(self):
        return self.known

    def open(self, index):
        opened = SELECTION.plugin.open(index)
        for name, value in self.parts.items():
            setattr(opened, name, value)
        return opened


def outcome(stranger, name):
    chapter, _, rest = name.partition("/")
    (row,) = [row for row in Subject(stranger, "stranger", f"{HERE}:Stranger").checks((chapter,)) if row.name == rest]
    return row.run()


def of_row(row, check):
    return outcome(Stranger((row,)), f"kernels/{row.op}/{row.name}/{check}")


class Fuses(Stranger):
    """One offer that acts for every model with plain attention."""

    def __init__(self):
        row = Kernel("rotary_kv_write", "good", f"{HERE}:rotary_kv_write")
        super().__init__((row,), (FusionOffer("fuse_rope_kvcache", always("yes")),))


def rotary_kv_write(q, k, table, v, cache, slots, *, head_dim):
    q1, k1 = OPS["rotary"].reference(q, k, table, head_dim=head_dim)
    return q1, OPS["kv_write"].reference(k1, v, cache, slots, head_dim=head_dim)
