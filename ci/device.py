"""Whether the device that is here is the one a row names. Asks the project's own discovery; starts no driver."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ci.matrix import Row
from engine.errors import UserError
from platforms.discovery import Candidate

MATCHES, ABSENT, DIFFERENT = "matches", "absent", "different"


@dataclass(frozen=True, slots=True)
class Finding:
    """``state``: matches, absent (no device of that kind is here) or different (another one is). ``named`` and
    ``found`` as people read them; ``reason`` is one line, empty when it matches."""

    state: str
    named: str
    found: str
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare(row: Row, candidates: Sequence[Candidate]) -> Finding:
    """Raises ``UserError`` when the row names a target that its plugin does not describe."""
    named = f"{row.platform}:{row.target}" + (f" ({' or '.join(row.products)})" if row.products else "")
    here = [candidate for candidate in candidates if candidate.devices]
    found = ", ".join(_shown(candidate) for candidate in here) or "nothing"
    own = next((candidate for candidate in candidates if candidate.name == row.platform), None)
    if own is None:
        return Finding(ABSENT, named, found, f"no platform {row.platform} is installed; run pip install -e .")
    if own.error:
        return Finding(ABSENT, named, found, f"the platform {row.platform} broke: {own.error}")
    archs = {_arch(row, own), *row.archs}
    if not own.devices:
        others = [candidate for candidate in here if candidate.kind == "accelerator"]
        why = f"{row.platform} has no device here: {own.reason}"
        return Finding(DIFFERENT if others else ABSENT, named, found, why)
    device = own.devices[0]
    if device.arch not in archs:
        why = f"the arch is {device.arch}, not {' or '.join(sorted(archs))}"
        return Finding(DIFFERENT, named, found, why)
    words = [rf"\b{re.escape(product)}\b" for product in row.products]
    if words and not any(re.search(word, device.product, re.I) for word in words):
        why = f"the product is {device.product!r}, not {' or '.join(row.products)}"
        return Finding(DIFFERENT, named, found, why)
    return Finding(MATCHES, named, found)


def _arch(row: Row, own: Candidate) -> str:
    targets = own.plugin.targets() if own.plugin is not None else {}
    if row.target not in targets:
        there = ", ".join(sorted(targets)) or "none"
        raise UserError(f"row {row.name}: {row.platform} describes no target {row.target}; there are {there}")
    return targets[row.target].arch


def _shown(candidate: Candidate) -> str:
    device, more = candidate.devices[0], len(candidate.devices) - 1
    text = f"{candidate.name}:{device.arch} ({device.product})"
    return f"{text} and {more} more, of which the first counts" if more else text
