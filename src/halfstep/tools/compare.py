"""The same recipe in several formats, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from halfstep.records import RunRecord

FORMATS = ("fp32", "bf16", "fp16")


def compare(
    fit_in: Callable[[str], RunRecord], formats: Sequence[str] = FORMATS
) -> Iterator[RunRecord]:
    """Run `fit_in` for each format and yield each record as soon as it is there.

    Args:
        fit_in: Trains in the format it is given; the caller keeps everything else equal.
        formats: Names for `Engine`'s ``precision``.

    Yields:
        Records in order. An interrupted run is the last one.
    """
    for name in formats:
        run = fit_in(name)
        yield run
        if run.status == "interrupted":
            return
