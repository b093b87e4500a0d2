"""Legality of segments, looked at once on a machine: what passed is remembered by everything it depends on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.compile.cut import Segment
from engine.graphs.works import Works
from engine.ops import Op
from engine.plan_values import digest
from engine.remembered import passed, remember
from engine.work import Work


class Checked:
    """``base``: what the code of references depends on beside the segment, plain values. ``folder``: of what passed;
    unwritable is no error. A check costs seconds, most of them imports of torch. Never remembered: a refusal, and what
    passed under a profiler, beside which waits go unseen."""

    def __init__(self, ops: Mapping[str, Op], base: Mapping[str, Any], folder: Path) -> None:
        self._ops, self._base, self._folder = ops, base, folder

    def __call__(self, segment: Segment, work: Work, works: Works) -> str:
        """Why the segment's work cannot be captured, or nothing."""
        calls = [(placed.call.op, placed.call.row, placed.outputs, placed.inputs) for placed in work.calls]
        sizes = [tuple(value.shape) for value in work.values if value is not None]
        file = self._folder / f"{digest([self._base, segment.structure, calls, sizes])}.json"
        if passed(file):
            return ""
        from engine.graphs.legality import illegal

        problem = illegal(work, self._ops, works.values)
        if not problem and sys.getprofile() is None:
            remember(file, f"a {segment.kind} of {len(work.calls)} calls may be captured")
        return problem
