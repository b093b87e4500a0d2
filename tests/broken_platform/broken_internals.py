"""A descriptor that knows the engine from the inside."""

from __future__ import annotations

from collections.abc import Mapping

from broken_platform.base import Broken


class Plugin(Broken):
    """Its aliases are whatever the engine's own table holds."""

    def aliases(self) -> Mapping[str, str]:
        from engine.compat import VARIABLES

        return {str(name): "broken" for name in VARIABLES}
