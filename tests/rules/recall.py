"""The rules against the truth: which wrong programs they find, by verdict and kind of edit.

``python tests/rules/recall.py`` prints the tables and what was missed; ``held`` as an argument
takes the held-out loops, a number that many programs two edits away.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

import torch
from loops import HELD_OUT, LOOPS
from mutations import all_mutants, double_mutants
from programs import FORMS, Program, flat
from recorder import record
from trial import Environment, Harness
from verdicts import CLOCK, INERT, RAISES, SCALE_LAW, STILL, UNSEEN, VALUE, verdict

from halfstep.check.linter import check_text
from halfstep.records.finding import Finding
from halfstep.rules import registry
from halfstep.rules.judge import judge

READINGS = ("running", *FORMS)
RULES = registry.select(["HS1"])


@dataclass(frozen=True)
class Judged:
    """A program, its verdict, and what the rules say in each of the `READINGS`."""

    program: Program
    truth: str
    found: dict[str, list[Finding]]

    def is_as_demanded(self, reading: str, without: str = "") -> bool:
        """Whether the findings are what the verdict demands; `without` is a rule left out."""
        found = [f for f in self.found[reading] if f.code != without]
        strong = [f for f in found if f.severity != "note"]
        if self.truth in (RAISES, VALUE, STILL):
            return bool(strong)
        if self.truth == CLOCK:
            return any(f.code in ("HS109", "HS110") for f in found)
        if self.truth in (SCALE_LAW, INERT):
            return all(f.severity == "warning" for f in strong)
        return self.truth == UNSEEN or not strong


def findings(program: Program, reading: str) -> list[Finding]:
    """What the rules say about a program in one of the `READINGS`."""
    if reading != "running":
        return check_text("program.py", FORMS[reading](program), RULES)
    sys.modules["faults"] = Harness(program, Environment(fault_window=2)).module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        events, _ = record(flat(program))
    return judge(events, RULES)


def judged(program: Program) -> Judged:
    """The truth about a program and the findings beside it."""
    found = {reading: findings(program, reading) for reading in READINGS}
    return Judged(program, verdict(program), found)


def judge_all(programs: list[Program]) -> list[Judged]:
    """All of them, on all cores."""
    cores = min(len(os.sched_getaffinity(0)), 8)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores, context, torch.set_num_threads, (1,)) as pool:
        return list(pool.map(judged, programs, chunksize=32))


@dataclass
class Table:
    """Programs and those judged as demanded, per verdict, edit and reading."""

    total: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    right: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    missed: list[tuple[str, Judged]] = field(default_factory=list)

    @classmethod
    def of(cls, rows: Iterable[Judged], without: str = "") -> Table:
        """Count `rows`; `without` is a rule that is left out."""
        result = cls()
        for row in rows:
            for reading in READINGS:
                key = (row.truth, row.program.edit, reading)
                result.total[key] += 1
                result.right[key] += row.is_as_demanded(reading, without)
                if not row.is_as_demanded(reading, without):
                    result.missed.append((reading, row))
        return result

    def shares(self, *truths: str) -> dict[tuple[str, str, str], float]:
        return {k: self.right[k] / n for k, n in self.total.items() if k[0] in truths}

    def __str__(self) -> str:
        rows = sorted({key[:2] for key in self.total})
        lines = [f"{'verdict':10} {'edit':22} " + " ".join(f"{r:>11}" for r in READINGS)]
        for truth, edit in rows:
            keys = [(truth, edit, reading) for reading in READINGS]
            cells = (f"{self.right[k]}/{self.total[k]}" for k in keys)
            lines.append(f"{truth:10} {edit:22} " + " ".join(f"{c:>11}" for c in cells))
        return "\n".join(lines)


def main(arguments: list[str]) -> None:
    loops = HELD_OUT if "held" in arguments else LOOPS
    numbers = [int(argument) for argument in arguments if argument.isdigit()]
    programs = double_mutants(loops, numbers[0]) if numbers else all_mutants(loops)
    table = Table.of(judge_all(programs))
    print(table)
    for reading, row in table.missed:
        codes = sorted({f"{f.code} {f.severity} {f.line}" for f in row.found[reading]})
        print(f"{row.truth} | {reading} | {row.program.name} | {row.program.edit} | {codes}")
        print("    " + "; ".join(" ".join(op) for op in row.program.body))


if __name__ == "__main__":
    main(sys.argv[1:])
