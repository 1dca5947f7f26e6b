"""halfstep's own engine: it scales, unscales, clips, steps and schedules by itself."""

from __future__ import annotations

import ast
from collections.abc import Hashable
from typing import Any

from halfstep.check.torch_models.contexts import Context
from halfstep.check.torch_models.optimizers import Schedule, as_optimizer
from halfstep.check.torch_models.scales import Scaled
from halfstep.check.torch_models.table import functions
from halfstep.check.values.base import NOBODY, Models, Value
from halfstep.check.values.call import Call
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
        models: Whose parameters these have.
    """

    __slots__ = ("id", "models_", "optimizers")
    answers_methods = True
    stands_for_all = True

    def __init__(self, id_: str, optimizers: tuple[str, ...] = (), models: Models = NOBODY) -> None:
        self.id = id_
        self.optimizers = optimizers
        self.models_ = models

    @property
    def question(self) -> Hashable:
        return ("engine", self.id)

    def attribute(self, name: str, run: Run) -> Value:
        return Method(self, name) if name in _METHODS else super().attribute(name, run)

    def method(self, name: str, call: Call, run: Run) -> Value | None:
        if name == "backward":
            self._backward(call, run)
        elif name in ("step", "train_step", "abort"):
            call.evaluate_all()
            kind = e.ENGINE_DROP if name == "abort" else e.ENGINE_STEP
            run.emit(kind, call.node, model=self.id, optimizers=self.optimizers)
        elif name == "gradients":
            return EngineGradients(self)
        else:
            call.evaluate_all()
        return run.unknown(name)

    def _backward(self, call: Call, run: Run) -> None:
        loss = call.first()
        facts: dict[str, Any] = {"scaled": isinstance(loss, Scaled)}
        node = call.node.args[0] if call.node.args else None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            facts["divided"] = ast.unparse(node.right)
        models = loss.models | self.models_
        run.state.trained |= models
        run.emit(e.ENGINE_BACKWARD, call.node, model=self.id, facts=facts)


class EngineGradients(Context):
    """``engine.gradients()``: the gradients inside of it are the true ones."""

    __slots__ = ()

    def __init__(self, engine: Engine) -> None:
        super().__init__(e.ENGINE_OPEN, e.ENGINE_CLOSED, {})


@functions("halfstep.Engine")
def _new_engine(call: Call, run: Run) -> Value:
    values = call.given()
    given = values[1] if len(values) > 1 else call.named().get("optimizer")
    inside = list(given.items.values()) if isinstance(given, Mapping) else [given]
    found = [as_optimizer(v, run) for v in inside if v is not None]
    owned = [o for o in found if o is not None]
    schedules = [v.id for v in _all(call.named().get("schedule")) if isinstance(v, Schedule)]
    engine = Engine(
        f"engine@{call.node.lineno}#{run.fresh()}",
        tuple(o.id for o in owned),
        NOBODY.union(*(o.params or NOBODY for o in owned)),
    )
    facts = {"schedules": tuple(schedules), "clips": bool(call.names() & {"max_norm", "clip"})}
    run.emit(e.ENGINE, call.node, model=engine.id, optimizers=engine.optimizers, facts=facts)
    return engine


def _all(value: Value | None) -> list[Value]:
    if isinstance(value, Mapping):
        return list(value.items.values())
    return [] if value is None else [value]
