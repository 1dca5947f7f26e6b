"""The report of one visit to a machine: facts, a table for each case, and two files.

The files are rewritten after each case, so that a run that is killed keeps what it had.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_bench.cases import Row
from benchmarks.update import machine


class Report:
    """Entries of cases, printed as they come and written to a folder.

    Args:
        facts: What the figures depend on; ``date`` and ``device`` name the files.
        folder: Where the files go; ``None`` writes nothing.
        sections: What alone is measured; a part does not replace the files of the whole.

    Raises:
        OSError: The files cannot be written, found out before anything is measured.
    """

    def __init__(
        self, facts: Row, folder: Path | None, sections: Sequence[str] | None = None
    ) -> None:
        self.facts = facts
        self.entries: list[Row] = []
        self.path: Path | None = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            slug = re.sub(r"[^a-z0-9]+", "-", str(facts["device"]).lower()).strip("-")
            part = "".join(f"-{section}" for section in sections or ())
            self.path = folder / f"{facts['date']}-gpu-{slug}{part}.json"
            self._write()

    def add(self, entry: Row) -> None:
        """Note what became of a case."""
        self.entries.append(entry)
        print(f"\n{as_text(entry)}", flush=True)
        self._write()

    def _write(self) -> None:
        if self.path is None:
            return
        content = json.dumps({**self.facts, "cases": self.entries}, indent=1) + "\n"
        _replace(self.path, content)
        texts = [facts_as_text(self.facts), *map(as_text, self.entries)]
        _replace(self.path.with_suffix(".txt"), "\n\n".join(texts) + "\n")


def _replace(path: Path, content: str) -> None:
    beside = path.with_name(path.name + ".new")
    beside.write_text(content, encoding="utf-8")
    os.replace(beside, path)


def facts_of(device: torch.device, command: str, minutes: float) -> Row:
    """What the figures depend on."""
    properties = torch.cuda.get_device_properties(device)
    return {
        "date": date.today().isoformat(),
        "device": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "cuda": torch.version.cuda,
        **machine(),
        "command": command,
        "minutes": minutes,
    }


def facts_as_text(facts: Mapping[str, Any]) -> str:
    """One line."""
    memory = f"{gibibytes(facts['memory_bytes'])} GiB"
    return (
        f"{facts['device']} ({facts['compute_capability']}, {memory}),"
        f" {facts['cpu']}, torch {facts['torch']}, CUDA {facts['cuda']}, python {facts['python']},"
        f" {facts['date']}: {facts['command']}"
    )


def as_text(entry: Mapping[str, Any]) -> str:
    """A heading, the table of a case or why there is none, and its notes."""
    lines = [f"{entry['section']}: {entry['name']} ({entry['seconds']:g} s)"]
    for kind in ("left_out", "error"):
        if kind in entry:
            lines.append(f"  {kind.replace('_', ' ')}: {entry[kind]}")
    lines += _table(entry.get("rows", {}))
    lines += [f"  {note}" for note in entry.get("notes", [])]
    if "failure" in entry:
        lines.append(f"  FAILED: {entry['failure']}")
    return "\n".join(lines)


def _table(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    if not rows:
        return []
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    heads = [column.replace("_bytes", "_GiB").replace("_", " ") for column in columns]
    cells = [
        [name, *(_cell(column, row.get(column)) for column in columns)]
        for name, row in rows.items()
    ]
    widths = [max(map(len, each)) for each in zip(["", *heads], *cells, strict=True)]
    return [
        "  " + "  ".join(
            text.ljust(width) if i == 0 else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (["", *heads], *cells)
    ]  # fmt: skip


def _cell(column: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) == 3 and all(isinstance(each, (int, float)) for each in value):
            low, median, high = value
            return f"{_number(median)} [{_number(low)}, {_number(high)}]"
        return ", ".join(map(str, value)) or "-"
    if column.endswith("_bytes"):
        return gibibytes(value)
    return _number(value) if isinstance(value, (int, float)) else str(value)


def _number(value: float) -> str:
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 100 else f"{value:.3f}"


def gibibytes(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.2f}"
