"""Chapter memory: what a device says about its memory, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from engine.conformance.check import Wrong, said
from platforms.contract import Fetch, Memory, Runtime

if TYPE_CHECKING:
    from engine.conformance.subject import Subject

PIECE = 64 << 20
"""Bytes of an allocation that no report may miss."""


def checks(subject: Subject) -> Iterator[tuple[str, Callable[[], str]]]:
    """Name and body of each check."""
    bodies = {
        "opens": _opens,
        "profile": _profile,
        "figures": _figures,
        "visible": _visible,
        "zeros": _zeros,
        "fetch": _fetch,
        "close-twice": _close_twice,
        "two-runtimes": _two_runtimes,
    }
    for name, body in bodies.items():
        yield name, partial(body, subject)


def _opens(subject: Subject) -> str:
    """The probe may hope; whoever lists a device must then open it, or correct the probe."""
    subject.need_device()
    try:
        runtime = subject.plugin.open(0)
    except (Exception, SystemExit) as error:
        raise Wrong(f"the probe lists {subject.devices[0].product}, and open(0) raised {said(error)}") from error
    if not isinstance(runtime, Runtime):
        raise Wrong(f"open(0) gave a {type(runtime).__name__}, not a Runtime")
    runtime.close()
    return subject.devices[0].product


def _profile(subject: Subject) -> str:
    from engine.conformance.contract import checked_profile

    profile = subject.runtime.profile
    checked_profile("the opened device's profile", profile, subject.plugin.name, "measured")
    if not profile.memory_bytes:
        raise Wrong("the opened device's profile has no memory_bytes")
    return f"{profile.arch}, {profile.family}"


def _sane(memory: Memory) -> Memory:
    if not isinstance(memory, Memory):
        raise Wrong(f"memory() gave a {type(memory).__name__}, not a Memory")
    if not 0 <= memory.available <= memory.total or not memory.total:
        raise Wrong(f"memory() says {memory.available} bytes of {memory.total} are available")
    if not memory.source:
        raise Wrong("memory() does not say who reported it")
    return memory


def _figures(subject: Subject) -> str:
    runtime = subject.runtime
    memory = _sane(runtime.memory())
    known = runtime.profile.memory_bytes
    if not 0.5 <= memory.total / known <= 2:
        raise Wrong(f"memory() says {memory.total} bytes in all, the profile {known}")
    return f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB: {memory.source}"


def _visible(subject: Subject) -> str:
    """What a cache takes is gone from what is available, and comes back."""
    import torch

    runtime = subject.runtime
    before = _sane(runtime.memory())
    if before.available < 4 * PIECE:
        raise Wrong(f"only {before.available} bytes are available, too few to look at an allocation of {PIECE}")
    with runtime.compute():
        held = runtime.zeros((PIECE // 4,), torch.float32)
        held.fill_(1.0)
        runtime.synchronize()
    during = _sane(runtime.memory())
    del held
    after = _sane(runtime.memory())
    fell, rose = before.available - during.available, after.available - during.available
    text = f"{PIECE >> 20} MiB taken: available fell by {fell / 2**20:.0f} MiB, then rose by {rose / 2**20:.0f} MiB"
    if fell >= PIECE // 2 and rose >= PIECE // 2:
        return text
    if before.shared_with_host:
        return f"{text}; other programs share this memory ({before.source})"
    raise Wrong(f"{text}; {before.source} does not see it")


def _zeros(subject: Subject) -> str:
    import torch

    runtime = subject.runtime
    count = 0
    for name in ("float32", "bfloat16", "float16", "int32", "uint8"):
        dtype = getattr(torch, name)
        for shape in ((2, 3, 4, 2, 8), (1,), (0, 4), (1 << 20,)):
            with runtime.compute():
                for _ in range(2):
                    tensor = runtime.zeros(shape, dtype)
                    if tuple(tensor.shape) != shape or tensor.dtype != dtype or not tensor.is_contiguous():
                        raise Wrong(f"zeros({shape}, {name}) gave {tensor.dtype}{list(tensor.shape)}")
                    if tensor.device.type != torch.device(runtime.device).type:
                        raise Wrong(f"zeros({shape}, {name}) lies on {tensor.device}, the device is {runtime.device}")
                    if int((tensor != 0).sum()):
                        raise Wrong(f"zeros({shape}, {name}) is not zero")
                    # What the next one may be given again is full of ones.
                    tensor.fill_(1)
                    count += 1
                    del tensor
    return f"{count} tensors"


def _fetch(subject: Subject) -> str:
    """A fetched tensor is the device's at that time, complete, on the host."""
    import torch

    runtime = subject.runtime
    with torch.inference_mode(), runtime.compute():
        start = torch.arange(1 << 16, dtype=torch.float32).to(runtime.device)
        doubled = start * 2
        fetched = runtime.fetch(doubled)
        if not isinstance(fetched, Fetch):
            raise Wrong(f"fetch() gave a {type(fetched).__name__}, not a Fetch")
        found = fetched.wait()
    if found.device != torch.empty(0).device:
        raise Wrong(f"what fetch() waits for lies on {found.device}, not on the host")
    if not torch.equal(found, torch.arange(1 << 16, dtype=torch.float32) * 2):
        raise Wrong("fetch() gave the host something else than the device computed")
    return "65536 elements"


def _close_twice(subject: Subject) -> str:
    subject.need_device()
    runtime = subject.plugin.open(0)
    runtime.close()
    runtime.close()
    return "the second close() does nothing"


def _two_runtimes(subject: Subject) -> str:
    """Two live side by side, and the end of one is not the end of the other."""
    import torch

    subject.need_device()
    one, other = subject.plugin.open(0), subject.plugin.open(0)

    def works(runtime: Runtime, where: str) -> None:
        with torch.inference_mode(), runtime.compute():
            total = runtime.zeros((8,), torch.float32) + torch.ones(8).to(runtime.device)
            runtime.synchronize()
            if runtime.fetch(total).wait().tolist() != [1.0] * 8:
                raise Wrong(f"{where} computes 0 + 1 wrong")

    works(one, "the first of two runtimes")
    works(other, "the second of two runtimes")
    one.close()
    works(other, "a runtime whose twin is closed")
    other.close()
    return "both compute; one survives the other"
