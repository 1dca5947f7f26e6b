"""Tests of the program whether a step is skipped, by what decides it: are the gradients finite?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.check.values.kinds import Norm, Scaler, SkipTest, Value

if TYPE_CHECKING:
    from halfstep.check.interpreter.machine import Machine

_FINITE = frozenset(["isfinite", "isnan", "isinf"])
_SAME_WORDS = "item detach cpu clone float float64 double int bool sum any all max min values items"
_SAME = frozenset([*_SAME_WORDS.split(), "tolist", "list", "tuple", "stack", "cat", "tensor"])
FINDS = _FINITE | _SAME


class Skips:
    """Makes such tests for a `Machine`, and tells what they speak of."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.num_backwards = 0
        self._steps_before = 0  # the last backward

    def note_backward(self) -> None:
        """A new window, or more of one."""
        self.num_backwards += 1
        self._steps_before = self._machine.num_steps

    def found(self, scaler: Scaler | None, operator: str = "found") -> SkipTest:
        """What is known of the gradients, mostly before the step."""
        steps = self._machine.num_steps
        return SkipTest(scaler, operator, steps, window=self.num_backwards)

    def speaks_of_last_step(self, test: SkipTest) -> bool:
        """Whether the last step is the one that a test is about."""
        steps = self._machine.num_steps
        if test.window is None:
            return test.num_steps == steps
        return test.window == self.num_backwards and steps > self._steps_before

    def of_call(self, name: str, values: list[Value]) -> Value | None:
        """What a function or method makes of a norm or of a test; ``None`` if neither is given."""
        known = next((v for v in values if isinstance(v, (Norm, SkipTest))), None)
        if isinstance(known, Norm) and name in _FINITE:
            return self.found(None, name)
        return known if name in _SAME else None
