"""Everything a platform plugin may import. Standard library only."""

from platforms.contract.fusion import FusionOffer, FusionRule
from platforms.contract.graphs import CapturedGraph, GraphBackend, Work
from platforms.contract.kernel import Kernel
from platforms.contract.plugin import API_VERSION, DeviceError, Fetch, PlatformPlugin, Runtime
from platforms.contract.profile import DeviceProfile, Memory, Probe, Setting
from platforms.contract.verdict import (
    Facts,
    Predicate,
    Verdict,
    all_of,
    always,
    any_of,
    arch,
    fact,
    family,
    feature,
    library,
    limit,
)

__all__ = [name for name in dir() if not name.startswith("_")]
