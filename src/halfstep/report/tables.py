"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from halfstep.numerics import Classified
from halfstep.records import RunRecord, StepRecord
from halfstep.records.step import format_number

_COLOURS = {
    "overflow": "red",
    "underflow": "red",
    "inf": "red",
    "nan": "red",
    "subnormal": "yellow",
    "rounded": "",
}


def run_table(runs: Sequence[RunRecord]) -> Table:
    """One row per run: where the loss went, what was skipped, how fast. Fits 80 columns."""
    metrics = list(dict.fromkeys(name for run in runs for name in run.validation))
    show_status = any(run.status != "finished" for run in runs)
    first = runs[0]
    title = f"{first.recipe} on {first.device}, torch {first.torch}"
    if policy := first.settings.get("policy"):
        title += f"\npolicy: {policy}"
    table = Table(title=title, box=box.SIMPLE_HEAD)
    table.add_column("format")
    for name in ("updates", "skipped", "loss", *metrics, "scale", f"{first.unit}/s"):
        table.add_column(name, justify="right")
    if show_status:
        table.add_column("status")
    for run in runs:
        speed = run.consumed_per_s
        cells = [
            run.format,
            str(run.num_updates),
            str(run.num_skipped),
            _from_to(run.steps[0].loss, run.steps[-1].loss) if run.steps else "-",
            *(_metric(run, name) for name in metrics),
            f"{run.steps[-1].next_loss_scale:g}" if run.steps else "-",
            f"{speed:,.0f}" if speed else "-",
        ]
        table.add_row(*cells, *([run.status] if show_status else []))
    return table


def resume_table(straight: Sequence[StepRecord], resumed: Sequence[StepRecord]) -> Table:
    """Two rows per step, straight above resumed; what differs is red."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for name in ("step", "run", *_RESUME_COLUMNS):
        table.add_column(name, justify="left" if name == "run" else "right")
    others = {record.step: record for record in resumed}
    for left in straight:
        right = others.get(left.step)
        for name, record, other in (("straight", left, right), ("resumed", right, left)):
            cells = [_resume_cell(record, other, column) for column in _RESUME_COLUMNS]
            table.add_row(str(left.step), name, *cells)
    return table


_RESUME_COLUMNS = ("batch", "data", "lr", "loss_scale", "updated", "loss", "checksum")


def _resume_cell(record: StepRecord | None, other: StepRecord | None, column: str) -> Text:
    if record is None:
        return Text("-")
    value = getattr(record, column)
    shown = ",".join(map(format_number, value)) if isinstance(value, list) else value
    shown = f"{shown:.9g}" if isinstance(shown, float) else str(shown)
    same = other is not None and str(getattr(other, column)) == str(value)
    return Text(shown, style="" if same else "red")


def explain_table(rows: Sequence[tuple[str, Classified]]) -> Table:
    """One row per value, scale and format.

    Args:
        rows: Format name and classification.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for name in ("value", "scale"):
        table.add_column(name, justify="right")
    table.add_column("format")
    table.add_column("becomes", justify="right")
    table.add_column("category")
    table.add_column("error", justify="right")
    table.add_column("sign exponent significand")
    group: tuple[float, float] | None = None
    for name, row in rows:
        key = (row.value, row.scale)
        if group is not None and repr(key) != repr(group):
            table.add_section()
        group = key
        table.add_row(
            f"{row.value:.6g}",
            f"{row.scale:g}",
            name,
            f"{row.rounded:.6g}",
            Text(row.category, style=_COLOURS.get(row.category, "")),
            f"{row.error:.2g}" if row.error else "0",
            f"{row.sign} {row.exponent} {row.mantissa}",
        )
    return table


def _metric(run: RunRecord, name: str) -> str:
    if name not in run.validation:
        return "-"
    if name not in run.initial_validation:
        return format_number(run.validation[name])
    return _from_to(run.initial_validation[name], run.validation[name])


def _from_to(before: float, after: float) -> str:
    return f"{format_number(before)} -> {format_number(after)}"
