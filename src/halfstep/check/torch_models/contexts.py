"""Context managers that matter: autocast, ``no_grad`` and DDP's ``no_sync``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from halfstep.check.torch_models.table import functions
from halfstep.check.values.base import External, Value
from halfstep.check.values.call import Call
from halfstep.check.values.run import Run
from halfstep.rules import events as e


class Context(Value):
    """A context manager.

    Attributes:
        enter: Kind of event at its begin.
        leave: Kind of event at its end.
        facts: What is known of it.
    """

    __slots__ = ("enter", "facts", "leave")

    def __init__(self, enter: str, leave: str, facts: dict[str, Any]) -> None:
        self.enter = enter
        self.leave = leave
        self.facts = facts

    @contextmanager
    def around(self, node: ast.AST, run: Run) -> Iterator[None]:
        """Run a block in it."""
        if self.enter == e.NO_SYNC_ENTER and run.state.frame.chosen:
            self.facts["chosen"] = True
        run.emit(self.enter, node, facts=self.facts)
        autocast = run.state.frame.autocast or self.enter == e.AUTOCAST_ENTER
        try:
            with run.state.entered(autocast=autocast):
                yield
        finally:
            run.emit(self.leave, node)


class NoGrad(Context):
    """Gradients are not recorded in it."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("", "", {})

    @contextmanager
    def around(self, node: ast.AST, run: Run) -> Iterator[None]:
        with run.state.entered(no_grad=True):
            yield


def no_sync(run: Run) -> Context:
    """DDP's, in which gradients are not exchanged."""
    facts = {"chosen": run.state.frame.chosen > 0}
    return Context(e.NO_SYNC_ENTER, e.NO_SYNC_EXIT, facts)


@functions("*.autocast", "*.custom_autocast")
def _autocast(call: Call, run: Run) -> Value:
    dtype = call.named().get("dtype")
    facts: dict[str, Any] = call.constants()
    if isinstance(dtype, External):
        facts["dtype"] = dtype.last
    enabled = call.named().get("enabled")
    if enabled is not None and enabled.truth is None:
        facts["question"] = enabled.question
    return Context(e.AUTOCAST_ENTER, e.AUTOCAST_EXIT, facts)


@functions("*.no_grad", "*.inference_mode")
def _no_grad(call: Call, run: Run) -> Value:
    return NoGrad()


@functions("*.nullcontext")
def _nullcontext(call: Call, run: Run) -> Value:
    return run.unknown()


@functions("*.clear_autocast_cache")
def _clear(call: Call, run: Run) -> Value:
    run.emit(e.CACHE_CLEARED, call.node)
    return run.unknown()
