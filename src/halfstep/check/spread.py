"""Work spread over cores, where that is worth the start of a process."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from halfstep.check.inspect import inspect_file
from halfstep.check.output.reports import FileReport
from halfstep.check.source.project import Project

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

    from halfstep.rules.rule import Rule

_WORTH_A_PROCESS = 300_000  # bytes; about half a second of work, against 0.05 s for a start
_PIECES_PER_PROCESS = 4
_MUCH_GARBAGE = 1_000_000  # objects; about 100 MB


def spread(
    paths: list[str], size: int, rules: Sequence[type[Rule]], jobs: int | None = None
) -> list[FileReport]:
    """Inspect files; the reports come in the order of the paths, whatever the number of jobs.

    Args:
        paths: Of the files.
        size: Of all of them together, in bytes.
        rules: From the registry.
        jobs: Processes at most; ``None`` for as many as there are cores.
    """
    jobs = jobs or min(_cores(), size // _WORTH_A_PROCESS)
    jobs = min(jobs, len(paths))
    if jobs <= 1:
        return _inspect_all((paths, [rule.code for rule in rules]))
    codes = [rule.code for rule in rules]
    length = -(-len(paths) // (jobs * _PIECES_PER_PROCESS))
    pieces = [(paths[i : i + length], codes) for i in range(0, len(paths), length)]
    with _context().Pool(jobs) as pool:
        return [report for part in pool.imap(_inspect_all, pieces) for report in part]


def _inspect_all(piece: tuple[list[str], list[str]]) -> list[FileReport]:
    from halfstep.rules.registry import load

    paths, codes = piece
    rules, project = [load(code) for code in codes], Project()
    reports = []
    with _collector_paused():
        for path in paths:
            reports.append(inspect_file(path, rules, project))
            if gc.get_count()[0] > _MUCH_GARBAGE:
                gc.collect(0)  # what an older collection has kept stays to the end
    return reports


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Syntax trees have no cycles, and the collector would go through all of them each time.

    It takes three quarters of the time of parsing.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _context() -> BaseContext:
    """A fork starts ten times faster, and is safe as long as there are no threads."""
    import multiprocessing
    import threading

    fork = "fork" in multiprocessing.get_all_start_methods() and threading.active_count() == 1
    return multiprocessing.get_context("fork" if fork else "spawn")


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
