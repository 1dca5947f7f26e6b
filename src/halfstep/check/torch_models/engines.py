"""halfstep's own engine: it scales, unscales, clips, steps and schedules by itself."""

from __future__ import annotations

import ast
from collections.abc import Hashable
from typing import Any

from halfstep.check.torch_models.contexts import Context
from halfstep.check.torch_models.optimizers import Schedule, as_optimizer
from halfstep.check.torch_models.scales import Scaled
from halfstep.check.torch_models.table import functions
from halfstep.check.values.base import NOBODY, Models, Unknown, Value
from halfstep.check.values.call import Call, Given
from halfstep.check.values.containers import Mapping
from halfstep.check.values.objects import Method
from halfstep.check.values.run import Run
from halfstep.rules import events as e

_METHODS = frozenset(["backward", "step", "train_step"])


class Engine(Value):
    """An engine of halfstep.

    Attributes:
        id: Its name.
        optimizers: What it steps; empty if nobody saw it being made.
        schedules: What it moves.
        owned: Whose parameters its optimizers have.
    """

    __slots__ = ("id", "optimizers", "owned", "schedules")
    answers_methods = True
    stands_for_all = True

    def __init__(
        self,
        id_: str,
        optimizers: tuple[str, ...] = (),
        schedules: tuple[str, ...] = (),
        owned: Models = NOBODY,
    ) -> None:
        self.id = id_
        self.optimizers = optimizers
        self.schedules = schedules
        self.owned = owned

    @property
    def question(self) -> Hashable:
        return ("engine", self.id)

    def attribute(self, name: str, run: Run) -> Value:
        return Method(self, name) if name in _METHODS else super().attribute(name, run)

    def method(self, name: str, call: Call, run: Run) -> Value | None:
        if name == "gradients":
            return EngineGradients()
        if name == "backward":
            loss = call.first()
            self._backward(loss, call.node, run, scaled=isinstance(loss, Scaled))
            return run.unknown(name)
        values = call.all()
        if name == "train_step":
            self._losses(values, call, run)
        if name in ("step", "train_step", "abort"):
            kind = e.ENGINE_DROP if name == "abort" else e.ENGINE_STEP
            self._emit(kind, call.node, run)
        return run.unknown(name)

    def _losses(self, values: list[Value], call: Call, run: Run) -> None:
        """``train_step`` calls the loss function once per micro-batch."""
        function = values[1] if len(values) > 1 else call.named().get("loss_fn")
        if function is None or not function.is_function:
            return
        for batch in values[0].iterate(2, run):
            self._emit(e.ENGINE_BACKWARD, call.node, run, in_loss=True)
            loss = run.apply(function, Given(call.node, [run.unknown(), batch]))
            self._backward(loss, call.node, run, in_loss=True)

    def _backward(self, loss: Value, node: ast.AST, run: Run, **facts: Any) -> None:
        run.state.trained |= loss.models | self.owned
        divided = loss.divided if isinstance(loss, Unknown) else None
        self._emit(e.ENGINE_BACKWARD, node, run, divided=divided, **facts)

    def _emit(self, kind: str, node: ast.AST, run: Run, **facts: Any) -> None:
        facts["schedules"] = self.schedules
        run.emit(kind, node, model=self.id, optimizers=self.optimizers, facts=facts)


class EngineGradients(Context):
    """``engine.gradients()``: the gradients inside of it are the true ones."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(e.ENGINE_OPEN, e.ENGINE_CLOSED, {})


@functions("halfstep.Engine")
def _new_engine(call: Call, run: Run) -> Value:
    values = call.given()
    given = values[1] if len(values) > 1 else call.named().get("optimizer")
    inside = list(given.items.values()) if isinstance(given, Mapping) else [given]
    found = [as_optimizer(v, run) for v in inside if v is not None]
    owned = [o for o in found if o is not None]
    schedules = _all(call.named().get("schedule"))
    engine = Engine(
        f"engine@{call.node.lineno}#{run.fresh()}",
        tuple(o.id for o in owned),
        tuple(s.id for s in schedules if isinstance(s, Schedule)),
        NOBODY.union(*(o.params or NOBODY for o in owned)),
    )
    facts = {"schedules": engine.schedules}
    run.emit(e.ENGINE, call.node, model=engine.id, optimizers=engine.optimizers, facts=facts)
    return engine


def _all(value: Value | None) -> list[Value]:
    if isinstance(value, Mapping):
        return list(value.items.values())
    return [] if value is None else [value]
