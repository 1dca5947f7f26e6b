"""Run records on disk, written while the run goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from halfstep.records import BadValueError, RunRecord
from halfstep.records.run import validation_row


class RunFiles:
    """One JSON Lines file per run; several runs get their format into the file name.

    All files are opened at once, so that a folder that cannot be written to is known before any
    training. What a file held before stays until its first line is written; a new file that got
    no line is removed again.

    Args:
        path: Where to, or ``None`` to write nothing.
        names: One per run, for the file names.

    Raises:
        BadValueError: A file cannot be opened.
    """

    def __init__(self, path: Path | None, names: Sequence[str]) -> None:
        self._files: dict[str, TextIO] = {}
        self._new: set[str] = set()
        self._written: set[str] = set()
        self._validations: dict[str, int] = {}  # how many are in the file
        if path is None:
            return
        for name in names:
            one = path if len(names) == 1 else path.with_suffix(f".{name}{path.suffix}")
            if not one.exists():
                self._new.add(name)
            try:
                self._files[name] = one.open("a", encoding="utf-8")
            except OSError as error:
                self._remove_empty()
                raise BadValueError(
                    f"cannot write the record to {str(one)!r}: {error.strerror}; create the folder"
                    " or choose another path."
                ) from error

    def note(self, name: str, run: RunRecord) -> None:
        """Append the newest step of a run, after its header the first time.

        A validation stands before the step that followed it.
        """
        if name not in self._files:
            return
        if name in self._written:
            self._write_validations(name, run)
            self._write(name, run.steps[-1].to_dict())
            return
        self._write(name, run.header())
        for step in run.steps:  # a resumed run begins with the steps made before
            self._write(name, step.to_dict())
        self._write_validations(name, run)

    def close(self, name: str, run: RunRecord) -> None:
        """Append the results of a run."""
        if name in self._files:
            if name not in self._written:
                self._write(name, run.header())
            self._write_validations(name, run)
            self._write(name, run.footer())

    def _write_validations(self, name: str, run: RunRecord) -> None:
        for one in run.validations[self._validations.get(name, 0) :]:
            self._write(name, validation_row(one))
        self._validations[name] = len(run.validations)

    def _write(self, name: str, row: dict[str, Any]) -> None:
        if name not in self._written:
            self._files[name].truncate(0)
        self._written.add(name)
        self._files[name].write(json.dumps(row, allow_nan=False) + "\n")
        self._files[name].flush()

    def _remove_empty(self) -> None:
        for name, file in self._files.items():
            file.close()
            if name in self._new - self._written:
                Path(file.name).unlink(missing_ok=True)

    def __enter__(self) -> RunFiles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove_empty()
