"""One chart as SVG: a panel per case, a bar per engine; follows the reader's light or dark theme."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from benchmarks.compare.goals import ENGINE, ROWS, Values

WIDTH, LABEL, BAR, GAP, HEAD, PANEL_GAP = 760, 110, 18, 6, 26, 18
STYLE = """
text{font:13px system-ui,sans-serif;fill:#24292f}.title{font-weight:600}.quiet{fill:#57606a;font-size:12px}
.own{fill:#0a6cc4}.peer{fill:#afb8c1}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.quiet{fill:#9198a1}.own{fill:#4ea3f1}.peer{fill:#59636e}}
"""


def chart(values: Values, names: Sequence[str], caption: str) -> str:
    """Cases counted in tokens per second, each panel with a scale of its own."""
    cases = [row.name for row in ROWS if row.unit == "tokens/s" and ENGINE in values.get(row.name, {})]
    parts: list[str] = []
    inner = WIDTH // 2 - PANEL_GAP
    height = 0
    for index, case in enumerate(cases):
        left, top = (index % 2) * WIDTH // 2 + PANEL_GAP // 2, (index // 2) * (_panel(len(names)) + PANEL_GAP)
        parts += _bars(case, [(name, values[case][name]) for name in names if name in values[case]], left, top, inner)
        height = max(height, top + _panel(len(names)))
    parts.append(f'<text class="quiet" x="{PANEL_GAP // 2}" y="{height + 20}">{escape(caption)}</text>')
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height + 30}" width="{WIDTH}" role="img" '
        f'aria-label="Tokens per second of each engine">\n<style>{STYLE}</style>\n{body}\n</svg>\n'
    )


def _panel(bars: int) -> int:
    return HEAD + bars * (BAR + GAP)


def _bars(case: str, found: list[tuple[str, float]], left: int, top: int, width: int) -> list[str]:
    parts = [
        f'<text class="title" x="{left}" y="{top + 16}">{escape(case)}'
        '<tspan class="quiet" dx="6">tokens/s</tspan></text>'
    ]
    room, most = width - LABEL - 56, max(value for _, value in found)
    for index, (name, value) in enumerate(found):
        y, length = top + HEAD + index * (BAR + GAP), max(1.0, room * value / most)
        parts += [
            f'<text x="{left + LABEL - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>',
            f'<rect class="{"own" if name == ENGINE else "peer"}" x="{left + LABEL}" y="{y}" width="{length:.1f}" '
            f'height="{BAR}" rx="2"/>',
            f'<text x="{left + LABEL + length + 6:.1f}" y="{y + 14}">{value:,.0f}</text>',
        ]
    return parts
