"""Rules by the names of their files; one is imported when it is asked for."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, overload

from halfstep.records.errors import BadValueError

if TYPE_CHECKING:
    from halfstep.rules.rule import Rule

_FOLDER = os.path.join(os.path.dirname(__file__), "catalog")


@functools.cache
def names() -> dict[str, str]:
    """Code to name of every rule, in the order of the codes.

    Example:
        >>> names()["HS101"]
        'clip-before-unscale'
    """
    stems = sorted(n[:-3] for n in os.listdir(_FOLDER) if n.startswith("hs") and n.endswith(".py"))
    pairs = (stem.split("_", 1) for stem in stems)
    return {code.upper(): name.replace("_", "-") for code, name in pairs}


@functools.cache
def load(code: str) -> type[Rule]:
    """The rule of `code`; imports its file."""
    known = names()
    if code not in known:
        raise BadValueError(f"there is no rule {code!r}; `halfstep rules` lists them all.")
    from halfstep.rules.rule import Rule  # most checks load no rule

    stem = f"{code.lower()}_{known[code].replace('-', '_')}"
    module = importlib.import_module(f"halfstep.rules.catalog.{stem}")
    (rule,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Rule)
        and value.__module__ == module.__name__
    )
    rule.code, rule.name = code, known[code]
    return rule


class Selection(Sequence["type[Rule]"]):
    """Rules that are imported when somebody looks at one; most files need none.

    Args:
        codes: Of the rules.
    """

    def __init__(self, codes: Iterable[str]) -> None:
        self.codes = tuple(codes)

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, index: int) -> type[Rule]: ...
    @overload
    def __getitem__(self, index: slice) -> Selection: ...
    def __getitem__(self, index: int | slice) -> type[Rule] | Selection:
        if isinstance(index, slice):
            return Selection(self.codes[index])
        return load(self.codes[index])


def select(chosen: Iterable[str] = (), ignored: Iterable[str] = ()) -> Selection:
    """The rules whose code begins with one of `chosen` (all, if empty) and none of `ignored`."""
    known = names()
    for prefix in (*chosen, *ignored):
        if not any(code.startswith(prefix) for code in known):
            raise BadValueError(
                f"no rule begins with {prefix!r}; give codes as HS101 or beginnings as HS1."
            )
    wanted, unwanted = tuple(chosen) or ("HS",), tuple(ignored)
    return Selection(c for c in known if c.startswith(wanted) and not c.startswith(unwanted))
