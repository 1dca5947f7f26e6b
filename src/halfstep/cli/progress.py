"""What a user sees while a run goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from halfstep.records import RunRecord, StepRecord
from halfstep.records.step import format_number


class TrainingProgress:
    """A bar in a terminal, a line every so many steps elsewhere.

    Args:
        console: Where to.
        log_every: Steps between two lines; ``None``: none in a terminal, every tenth of the run
            elsewhere.
    """

    def __init__(self, console: Console, log_every: int | None) -> None:
        self._console = console
        self._log_every = log_every
        self._bar = Progress(
            TextColumn("{task.fields[format]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            console=console,
        )
        self._task: TaskID | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Show the bar, if there is one, inside the context."""
        if not self._console.is_terminal:
            yield
            return
        with self._bar:
            yield

    def on_step(self, run: RunRecord, record: StepRecord) -> None:
        """Show one step."""
        steps = run.settings["steps"]
        if self._console.is_terminal:
            if len(run.steps) == 1:
                self._task = self._bar.add_task("", total=steps, format=run.format, state="")
            assert self._task is not None
            self._bar.update(self._task, completed=len(run.steps), state=_state(run, record))
        every = self._log_every
        if every is None:
            every = 0 if self._console.is_terminal else max(1, steps // 10)
        if every and (record.step % every == 0 or record.step == 1):
            line = str(record) if record.skipped else f"{record} skipped=False"
            self._console.print(line, markup=False, soft_wrap=True)


def _state(run: RunRecord, record: StepRecord) -> str:
    state = f"loss={format_number(record.loss)} scale={record.loss_scale:g}"
    speed = run.consumed_per_s
    return f"{state} {speed:,.0f} {run.unit}/s" if speed else state
