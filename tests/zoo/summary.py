"""Figures of a run: false alarms, faults found, remedies that work; and a line for each miss."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from zoo.case import Case

Result = dict[str, Any]


def figures(cases: Mapping[str, Case], results: Mapping[str, Result]) -> dict[str, Any]:
    """Counts over the cases that ran with the doctor.

    Args:
        cases: All that were asked for.
        results: By name.
    """
    ran = {n: r for n, r in results.items() if "health" in r}
    healthy = [r for n, r in ran.items() if cases[n].truth is None]
    sick = [r for n, r in ran.items() if cases[n].truth is not None]
    told = [r["followed"] for r in ran.values() if "followed" in r]
    remedies = [text for each in told for text in each.values()]
    return {
        "healthy": len(healthy),
        "false_alarms": sum(bool(r["problem"]) for r in healthy),
        "planted": len(sick),
        "place_and_cause_right": sum(not r["problem"] for r in sick),
        "place_right": sum(r["place_is_right"] for r in sick),
        "cause_right": sum(r["cause_is_right"] for r in sick),
        "remedies_followed": len(remedies),
        "remedies_that_heal": sum(not text for text in remedies),
        "failed": sum("failed" in r for r in results.values()),
        "skipped": sum("skipped" in r for r in results.values()),
    }


def lines(cases: Mapping[str, Case], results: Mapping[str, Result]) -> Iterator[str]:
    """The figures in words, then one line for each case that is not as it should be.

    Args:
        cases, results: As in `figures`.
    """
    count = figures(cases, results)
    if count["healthy"] or count["planted"]:
        yield f"{count['false_alarms']} false alarms of {count['healthy']} healthy"
        yield (
            f"{count['place_and_cause_right']} of {count['planted']} planted with place and cause"
            f" right (place {count['place_right']}, cause {count['cause_right']})"
        )
        yield (
            f"{count['remedies_that_heal']} of {count['remedies_followed']} printed islands and"
            " scales leave the model healthy when followed to the letter"
        )
    else:
        runs = len(results) - count["failed"] - count["skipped"]
        yield f"{runs} of {len(results)} run"
    for name, result in results.items():
        if text := _wrong(result):
            yield f"  {name}: {text}"
    if count["failed"]:
        yield f"{count['failed']} failed: an error of the doctor or of the case, or out of time"
    if count["skipped"]:
        yield f"{count['skipped']} skipped: what they need is not installed"


def _wrong(result: Result) -> str:
    if "failed" in result or "skipped" in result:
        return str(result.get("failed") or result.get("skipped"))
    parts = []
    if result.get("problem"):
        parts.append(f"{result['problem']}; it said: {result['headline']}")
    for what, text in result.get("followed", {}).items():
        if text:
            parts.append(f"{what} followed: {text}")
    return "; ".join(parts)


def document(
    half: str, mode: str, cases: Mapping[str, Case], results: Mapping[str, Result]
) -> dict[str, Any]:
    """Everything, with the date and the versions, for a file.

    Args:
        half, mode: What was run.
        cases, results: As in `figures`.
    """
    return {
        "date": datetime.date.today().isoformat(),
        "half": half,
        "mode": mode,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "machine": platform.processor() or platform.machine(),
        "figures": figures(cases, results),
        "cases": dict(results),
    }
