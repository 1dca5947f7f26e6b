"""autocast's op lists as text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from halfstep.precision import CATEGORIES, ListedOp

_NAMES = {"cpu": "CPU", "cuda": "CUDA"}


def op_lists_text(rows: Sequence[ListedOp], device_type: str | None, width: int) -> str:
    """One paragraph per device and category; ``*`` marks where CPU and CUDA differ.

    Args:
        rows: What `listed_ops` returned.
        device_type: The device to show; ``None`` for both.
        width: Columns to fill.
    """
    parts = []
    for device in (device_type,) if device_type else ("cuda", "cpu"):
        for category, meaning in (*CATEGORIES.items(), ("unknown", "newer than this halfstep")):
            names = [r.name + "*" * r.differs for r in rows if getattr(r, device) == category]
            if names:
                title = f"{_NAMES[device]}, {category} ({len(names)}): {meaning}"
                parts.append(f"{title}\n{_filled(names, width)}")
    parts.append(
        "All other ops run in the dtype of their inputs.\n"
        "* CPU and CUDA differ: halfstep policy --op NAME shows how."
    )
    return "\n\n".join(parts)


def one_op_text(rows: Sequence[ListedOp]) -> str:
    """One line per overload."""
    width = max(len(row.name) for row in rows)
    lines = [f"{'op':{width}}  {'cpu':8} cuda"]
    for row in rows:
        mark = "  differs" if row.differs else ""
        lines.append(f"{row.name:{width}}  {row.cpu:8} {row.cuda:8}{mark}".rstrip())
    shown = {category for row in rows for category in (row.cpu, row.cuda)}
    meanings = {**CATEGORIES, "inputs": "not listed: run in the dtype of their inputs"}
    lines += ["", *(f"{name}: {text}" for name, text in meanings.items() if name in shown)]
    return "\n".join(lines)


def _filled(names: Sequence[str], width: int) -> str:
    return textwrap.fill(
        " ".join(names), width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )
