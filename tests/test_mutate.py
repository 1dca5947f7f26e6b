"""`scripts/mutants.py`: which changes of a source there are, and which lines a seed draws."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mutants import Mutant, draw, find_mutants

SOURCE = '''"""A module with 1 number in its docstring."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any


Number = int | float


@dataclass(frozen=True)
class Scale:
    """Doubles at most 3 times."""

    value: float = 2.0

    def grow(self, limit: "int | None" = None, times: int | None = 3) -> float:
        """Not at 0."""
        if not (limit is None or  # ü is two bytes
                times < limit) and self.value > -1:
            raise ValueError(f"{times + 1} is too large")
        logger.info("grown", stacklevel=2)
        for step in range(0, times):
            if step == 2: continue
            self.value *= 2
        self.last = (times) + (1)
        assert times > 0
        return min([self.value], default=0.5)
'''


def replaced(text: str) -> list[str]:
    """What the characters `text`, in the one place where they can be changed, become."""
    found = find_mutants(SOURCE, "a.py")
    return [m.replacement for m in found if SOURCE[m.start : m.end] == text]


def test_mutants_all_parse_and_differ_from_the_source() -> None:
    mutants = find_mutants(SOURCE, "a.py")
    original = ast.dump(ast.parse(SOURCE))
    changed = [ast.dump(ast.parse(mutant.applied(SOURCE))) for mutant in mutants]
    assert original not in changed
    assert len(set(changed)) == len(changed) > 20


def test_mutants_of_this_project_all_parse() -> None:
    for file in sorted((Path(__file__).parents[1] / "src/halfstep/update").rglob("*.py")):
        source = file.read_text(encoding="utf-8")
        for mutant in find_mutants(source, file.name):
            ast.parse(mutant.applied(source))


def test_mutants_leave_text_types_and_assertions_alone() -> None:
    kept = ("module", "Number", "TYPE_CHECKING", "Any", "@dataclass", "Doubles", "Not at", "assert")
    for mutant in find_mutants(SOURCE, "a.py"):
        assert not any(word in mutant.before for word in kept), mutant
        if "too large" in mutant.before or "grown" in mutant.before:
            assert mutant.after == "pass"  # the statement, not its words
        if mutant.before.startswith("def grow"):
            assert '(self, limit: "int | None" = None, times: int | None = ' in mutant.after


@pytest.mark.parametrize(
    ("text", "replacements"),
    [
        ("<", ["<=", ">="]),
        (">", [">=", "<="]),
        ("is", ["is not"]),
        ("or", ["and"]),
        ("and", ["or"]),
        ("not", [""]),
        ("+", ["-"]),
        ("==", ["!="]),
        ("min", ["max"]),
        ("0.5", ["1.5", "(-0.5)"]),
        ("3", ["4", "(-3)"]),
        ("continue", ["break"]),
        ("self.value *= 2", ["pass"]),
        ("default=0.5", [""]),
        ("step == 2", ["not (step == 2)"]),
        ("min([self.value], default=0.5)", ["None"]),
    ],
)
def test_mutants_change_each_kind_of_thing_in_its_place(text: str, replacements: list[str]) -> None:
    assert replaced(text) == replacements


def test_mutant_names_its_lines_before_and_after() -> None:
    (mutant,) = [m for m in find_mutants(SOURCE, "a.py") if m.replacement == "max"]
    assert (mutant.path, SOURCE.splitlines()[mutant.line - 1].strip()) == ("a.py", mutant.before)
    assert mutant.after == "return max([self.value], default=0.5)"


def test_draw_is_the_same_for_the_same_seed() -> None:
    sources = {"a.py": SOURCE, "b.py": SOURCE}
    first = draw(sources, seed=1, count=8)
    assert first == draw(dict(reversed(sources.items())), seed=1, count=8)
    assert first != draw(sources, seed=2, count=8)


def test_draw_takes_one_mutant_per_line_and_never_more_lines_than_there_are() -> None:
    def lines(mutants: list[Mutant]) -> list[int]:
        return [mutant.line for mutant in mutants]

    drawn = lines(draw({"a.py": SOURCE}, seed=1, count=1000))
    assert sorted(drawn) == sorted(set(lines(find_mutants(SOURCE, "a.py"))))
