"""One page without a network: a matrix of devices and levels whose cells open their reasons. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from engine.config.fields import BY_KEY, SERVER
from engine.explain.flags import ABOUT
from engine.explain.matrix import Cell, Device
from engine.explain.page_style import SCRIPT, STYLE
from engine.explain.pieces import piece_rows, pieces_in_short
from engine.explain.same import LEVEL, until
from engine.explain.text import FUSION_COLUMNS, fusion_cells, kernel_rows, setting_cells, setting_groups
from engine.levels import DEFAULT_LEVEL, LEVELS
from engine.plan_values import Given, Plan
from engine.table import TIED, counted, written

if TYPE_CHECKING:
    from engine.weights.resolve import Model

HEADS = {
    "settings": ("setting", "value", "decided by", "why"),
    "pieces": ("pieces", "how many", "each", "code by", "why"),
    "kernels": ("op", "calls", "computed by", "why, and what every other row says"),
    "fusions": ("fusion", *FUSION_COLUMNS[1:]),
}


def render_page(
    rows: Sequence[tuple[Device, Sequence[Cell]]], notes: Sequence[str], model: Model, given: Mapping[str, Given]
) -> str:
    """The whole document. ``notes``: platforms that are left out, and why. ``given``: what the user asked for."""
    title = f"Plans for {model.name}"
    asked = given[LEVEL].value if LEVEL in given else DEFAULT_LEVEL
    mark = "asked for" if LEVEL in given else "default"
    heads = "".join(
        f'<th scope="col"{" class=asked" if level.number == asked else ""}>-O{level.number}'
        + (f" <em>{mark}</em>" if level.number == asked else "")
        + f"<small>{escape(level.purpose)}</small></th>"
        for level in LEVELS
    )
    body = "".join(_row(number, device, cells, asked) for number, (device, cells) in enumerate(rows))
    dialogs = "".join(
        _dialog(_id(number, cell), device, cell) for number, (device, cells) in enumerate(rows) for cell in cells
    )
    left_out = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n"
        "<noscript><style>dialog { display: block; position: static; margin: 1rem 0 }</style></noscript>\n</head>\n"
        f"<body>\n<header><h1>{escape(title)}</h1>\n<p>Model: {escape(model.origin)}. {_asked(given)} A cell opens "
        "every decision with its reason; the arrow keys move between cells.</p></header>\n"
        f'<main><table class="matrix"><thead><tr><th scope="col">device</th>{heads}</tr></thead>\n'
        f"<tbody>{body}</tbody></table>\n" + (f"<ul>{left_out}</ul>" if left_out else "") + "</main>\n"
        f"{dialogs}\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _asked(given: Mapping[str, Given]) -> str:
    """What the user asked for, in words; the server's settings decide nothing here, and one of them is a secret."""
    shown = [
        f"{BY_KEY[key].flag if key in BY_KEY else key} {written(row.value)} ({row.origin})"
        for key, row in given.items()
        if key not in (*ABOUT, LEVEL) and not (key in BY_KEY and BY_KEY[key].group == SERVER)
    ]
    return f"Settings of all cells: {escape('; '.join(shown))}." if shown else "No setting beside the level was given."


def _id(number: int, cell: Cell) -> str:
    return f"d{number}-O{cell.level}"


def _row(number: int, device: Device, cells: Sequence[Cell], asked: int) -> str:
    here = " <em>this machine</em>" if device.present else ""
    product = f"{device.profile.product}, {device.profile.family}" if device.profile.product else device.profile.family
    head = f'<th scope="row">{escape(device.label)}{here}<small>{escape(product)}</small></th>'
    return f"<tr>{head}{''.join(_cell(number, device, cell, asked) for cell in cells)}</tr>\n"


def _cell(number: int, device: Device, cell: Cell, asked: int) -> str:
    name = f'<span class="unseen">{escape(device.label)} at </span><span class="level">-O{cell.level}</span>'
    if cell.plan is None:
        inner = '<span class="refused">refused</span>'
    else:
        native, calls, active = _figures(cell.plan)
        facts = {
            "compile": str(cell.plan["compilation.mode"]),
            "graphs": str(cell.plan["compilation.graph_mode"]),
            "native": f"{native}/{counted(calls, 'call')}" if native else "none",
            "fusions": f"{active} active" if active else "none",
        }
        inner = "".join(
            f'<span class="fact"><i>{what}</i> <b{" class=off" if value in ("NONE", "none") else ""}>'
            f"{escape(value).replace('_', '_<wbr>')}</b></span>"
            for what, value in facts.items()
        )
    twin = ""
    if cell.plan is not None and cell.twin is not None:
        twin = f'<span class="twin">same plan as -O{cell.twin}{until(cell.plan, [cell.twin])}</span>'
    kind = ' class="asked"' if cell.level == asked else ""
    return (
        f'<td{kind}><button type="button" aria-haspopup="dialog" data-open="{_id(number, cell)}" '
        f'data-row="{number}" data-level="{cell.level}">{name}{inner}{twin}</button></td>'
    )


def _figures(plan: Plan) -> tuple[int, int, int]:
    """Calls with a kernel of the platform, all calls, and fusions that act."""
    native = sum(row.count for row in plan.kernels if row.target)
    return native, sum(row.count for row in plan.kernels), sum(row.matched > 0 for row in plan.fusions)


def _dialog(name: str, device: Device, cell: Cell) -> str:
    title = f"{device.label} at -O{cell.level}"
    if cell.plan is None:
        body = f'<p class="refused">{escape(cell.refusal)}</p>'
    else:
        body = _reasons(cell.plan)
    return (
        f'<dialog id="{name}" aria-labelledby="{name}-title"><form method="dialog"><h2 id="{name}-title">'
        f"{escape(title)}</h2><button autofocus>Close</button></form>{body}</dialog>\n"
    )


def _reasons(plan: Plan) -> str:
    keys = [key for group in setting_groups(plan).values() for key in group]
    native, calls, active = _figures(plan)
    requested, eligible = (sum(getattr(row, name) for row in plan.fusions) for name in ("requested", "eligible"))
    warnings = "".join(f"<li>{escape(text)}</li>" for text in plan.warnings)
    pieces = plan.ranges[0].pieces
    blocks = [
        ("settings", f"Settings: {len(keys)}", [setting_cells(plan, key) for key in keys]),
        *([("pieces", f"Pieces: {pieces_in_short(plan)[0]}", piece_rows(plan))] if pieces else []),
        ("kernels", f"Kernels: {native} of {counted(calls, 'call')}", kernel_rows(plan)),
        (
            "fusions",
            f"Fusions: {requested} requested, {eligible} eligible, {active} active",
            [fusion_cells(plan, row) for row in plan.fusions],
        ),
    ]
    found = "".join(
        f"<details open><summary>{escape(title)}</summary>{_table(HEADS[kind], rows)}</details>"
        for kind, title, rows in blocks
    )
    return f"<p>{escape(plan.profile.product)}; fingerprint {escape(plan.hash)}</p>{found}" + (
        f"<details open><summary>Warnings: {len(plan.warnings)}</summary><ol>{warnings}</ol></details>"
        if warnings
        else ""
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    lines = []
    for first, *others in rows:
        cells = "".join(f"<td>{_text(text)}</td>" for text in others)
        name = escape(first).replace(".", ".<wbr>")
        lines.append(f'<tr><th scope="row">{name}</th>{cells}</tr>\n')
    return f'<table class="reasons"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def _text(text: str) -> str:
    return "<br>".join(escape(line.replace(TIED, " ")) for line in text.split("\n"))
