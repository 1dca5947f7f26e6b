"""The rules against the truth: which wrong programs they find, by verdict and kind of edit.

``python tests/rules/recall.py`` prints the table over all one-edit mutants.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from programs import FORMS, Program, correct_loops, flat, mutants
from recorder import record
from trial import CLOCK, ENVIRONMENTS, RAISES, VALUE, Harness, verdict

from halfstep.check.linter import check_text
from halfstep.records.finding import Finding
from halfstep.rules import registry
from halfstep.rules.judge import judge
from halfstep.rules.rule import Rule

READINGS = ("running", *FORMS)
# The training step does less than is written there, in every environment alike: the reference
# does no more either. Work after the step, and a step whose gradients are gone.
INERT = frozenset(["HS103", "HS126"])


def findings(program: Program, reading: str, rules: list[type[Rule]]) -> list[Finding]:
    """What the rules say about a program in one of the `READINGS`."""
    if reading != "running":
        return check_text("program.py", FORMS[reading](program), rules)
    sys.modules["faults"] = Harness(program, ENVIRONMENTS[2]).module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        events, _ = record(flat(program))
    return judge(events, rules)


def as_demanded(truth: str, found: list[Finding]) -> bool:
    """Whether the findings are what the verdict demands."""
    strong = [f for f in found if f.severity != "note"]
    if truth in (RAISES, VALUE):
        return bool(strong)
    if truth == CLOCK:
        return any(f.code in ("HS109", "HS110") for f in found)
    return all(f.code in INERT for f in strong)


@dataclass
class Table:
    """Programs and those judged as demanded, per verdict, edit and reading."""

    total: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    right: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    missed: list[tuple[str, str, Program]] = field(default_factory=list)

    def shares(self, *truths: str) -> dict[tuple[str, str, str], float]:
        return {k: self.right[k] / n for k, n in self.total.items() if k[0] in truths}

    def __str__(self) -> str:
        rows = sorted({key[:2] for key in self.total})
        lines = [f"{'verdict':8} {'edit':10} " + " ".join(f"{r:>11}" for r in READINGS)]
        for truth, edit in rows:
            keys = [(truth, edit, reading) for reading in READINGS]
            cells = (f"{self.right[k]}/{self.total[k]}" for k in keys)
            lines.append(f"{truth:8} {edit:10} " + " ".join(f"{c:>11}" for c in cells))
        return "\n".join(lines)


def all_mutants() -> list[Program]:
    """Every one-edit mutant of every correct loop."""
    return [mutant for program in correct_loops() for mutant in mutants(program)]


def table(judged: Iterable[tuple[Program, str]], rules: list[type[Rule]]) -> Table:
    """Read every program in every way."""
    result = Table()
    for program, truth in judged:
        for reading in READINGS:
            key = (truth, program.edit, reading)
            result.total[key] += 1
            if as_demanded(truth, findings(program, reading, rules)):
                result.right[key] += 1
            else:
                result.missed.append((truth, reading, program))
    return result


if __name__ == "__main__":
    whole = table([(m, verdict(m)) for m in all_mutants()], registry.select())
    print(whole)
    for truth, reading, program in whole.missed:
        print(f"{truth} {reading} {program.name} {program.edit}")
        print("    " + "; ".join(" ".join(op) for op in program.body))
