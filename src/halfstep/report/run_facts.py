"""What a run was and how it ended, as names and texts."""

from __future__ import annotations

import math

from halfstep.records import RunRecord
from halfstep.records.step import format_number
from halfstep.report.axes import power_of_two


def facts(run: RunRecord) -> dict[str, str]:
    """The results that several runs are compared by, in the order to show them."""
    steps = run.steps
    found = {
        "format": run.format,
        "updates": f"{run.num_updates:,}",
        "skipped": f"{run.num_skipped:,}",
        "loss": from_to(steps[0].loss, steps[-1].loss) if steps else "-",
    }
    for name, value in run.validation.items():
        before = run.initial_validation.get(name)
        found[name] = format_number(value) if before is None else from_to(before, value)
    if uses_scale(run):
        found["loss scale"] = write_scale(steps[-1].next_loss_scale)
    if run.consumed_per_s:
        found["speed"] = f"{run.consumed_per_s:,.0f} {run.unit}/s"
    if run.duration_s:
        found["time"] = _duration(run.duration_s)
    return found


def origin(run: RunRecord) -> dict[str, str]:
    """Where a run comes from: what one needs to repeat it."""
    found = {
        "recipe": run.recipe,
        "format": f"{run.format} ({run.reason})" if run.reason else run.format,
        "device": run.device,
        "torch": run.torch,
        "started": run.started.replace("T", " "),
        "status": run.status,
    }
    for name, value in run.settings.items():
        found[name] = "-" if value is None else str(value)
    return found


def uses_scale(run: RunRecord) -> bool:
    """Whether a loss scale did anything in this run."""
    return any(step.loss_scale != 1 or step.next_loss_scale != 1 for step in run.steps)


def write_scale(scale: float) -> str:
    """A loss scale in full, or as a power of two where that would be long.

    Example:
        >>> write_scale(65536.0), write_scale(2.0**-10)
        ('65,536', '2⁻¹⁰')
    """
    mantissa, exponent = math.frexp(scale)
    is_long = not 2**-3 <= scale <= 2**24
    return power_of_two(exponent - 1) if mantissa == 0.5 and is_long else f"{scale:,.10g}"


def write_percent(share: float) -> str:
    """A share as a percentage of three digits.

    Example:
        >>> write_percent(0.25), write_percent(1e-9)
        ('25 %', '< 0.01 %')
    """
    return "< 0.01 %" if 0 < share < 1e-4 else f"{100 * share:.3g} %"


def from_to(before: float, after: float) -> str:
    """A value at the start and at the end."""
    return f"{format_number(before)} → {format_number(after)}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
