"""Optimizers and learning-rate schedules."""

from __future__ import annotations

import ast
from collections.abc import Hashable
from functools import partial
from typing import Any

from halfstep.check.source.module import OPTIMIZERS
from halfstep.check.torch_models.gradients import Params
from halfstep.check.torch_models.states import State
from halfstep.check.torch_models.table import functions
from halfstep.check.values.base import NOBODY, Const, Models, Unknown, Value
from halfstep.check.values.call import Call
from halfstep.check.values.containers import Mapping, Sequence
from halfstep.check.values.numbers import Counter
from halfstep.check.values.objects import Instance, Method, is_schedule_name
from halfstep.check.values.run import Run
from halfstep.rules import events as e

OWN = "(of torch)"  # the attribute of an object of the project that says what of torch it is


class Optimizer(Value):
    """An optimizer and the modules whose parameters it has, ``None`` if nobody knows."""

    __slots__ = ("id", "params")
    answers_methods = True
    is_training = True
    stands_for_all = True

    def __init__(self, id_: str, params: Models | None) -> None:
        self.id = id_
        self.params = params

    @property
    def question(self) -> Hashable:
        return ("optimizer", self.id)

    def kept_in(self, place: str, append: ast.Attribute, run: Run) -> Value:
        run.state.names.pop(self.id, None)  # the variable that held it is used again
        run.state.give_name(self.id, place)
        return self

    def attribute(self, name: str, run: Run) -> Value:
        if name == "param_groups":
            whole: frozenset[Hashable] = frozenset([("optimizer", self.id)])
            return Sequence([ParamGroup(self, Params(self.params or whole))])
        known = name in ("step", "zero_grad", "update")
        return Method(self, name) if known else super().attribute(name, run)

    def method(self, name: str, call: Call, run: Run) -> Value | None:
        call.evaluate_all()
        if name == "step" and not run.state.frame.stepping:
            facts: dict[str, Any] = {"closure": True} if call.count() else {}
            if run.state.finite_known:
                facts["guarded"] = True
            run.emit(e.STEP, call.node, optimizers=(self.id,), facts=facts)
        elif name == "zero_grad":
            run.emit(e.ZERO_GRAD, call.node, optimizers=(self.id,))
        elif name == "state_dict":
            return State("optimizer", self.id)
        return run.unknown()


class ParamGroup(Mapping):
    """One of ``optimizer.param_groups``."""

    __slots__ = ("owner",)

    def __init__(self, owner: Optimizer, params: Params) -> None:
        super().__init__({"params": params})
        self.owner = owner

    def assign_item(self, index: Value, value: Value, target: ast.Subscript, run: Run) -> None:
        functions = run.state.frame.functions
        by_step = bool(functions) and getattr(functions[-1], "name", "") == "step"
        if isinstance(index, Const) and index.value == "lr" and by_step:
            who, name = (self.owner.id,), f"schedule@{functions[-1].lineno}"
            run.emit(e.SCHEDULE, run.site(target), optimizers=who, model=name)
            return
        super().assign_item(index, value, target, run)


def as_optimizer(value: Value, run: Run) -> Optimizer | None:
    """An optimizer, also where only its use says so."""
    if isinstance(value, Optimizer):
        return value
    if isinstance(value, Instance):
        own = value.attributes.get(OWN)
        return own if isinstance(own, Optimizer) else None
    if isinstance(value, Unknown) and value.name:
        name = run.state.name_of(value)
        run.state.optimizers.setdefault(name, None)
        return Optimizer(name, None)
    return None


def _new_optimizer(name: str, call: Call, run: Run) -> Value:
    values = call.all()
    params = values[0].parameters() if values else NOBODY
    optimizer = Optimizer(f"{name}@{call.node.lineno}#{run.fresh()}", params or None)
    run.state.optimizers[optimizer.id] = optimizer.params
    facts = {**call.constants(), "name": name}
    run.emit(e.OPTIMIZER, call.node, optimizers=(optimizer.id,), facts=facts)
    return optimizer


for _name in OPTIMIZERS:
    functions(f"*.{_name}")(partial(_new_optimizer, _name))


class Schedule(Value):
    """A learning-rate schedule of some optimizer, or of one that was not seen."""

    __slots__ = ("id", "optimizer")
    answers_methods = True
    stands_for_all = True

    def __init__(self, id_: str, optimizer: Optimizer | None) -> None:
        self.id = id_
        self.optimizer = optimizer

    def attribute(self, name: str, run: Run) -> Value:
        return Method(self, name) if name == "step" else super().attribute(name, run)

    def method(self, name: str, call: Call, run: Run) -> Value | None:
        values = call.all()
        if name == "step":
            facts: dict[str, Any] = {"epoch": True} if call.count() else {}
            if len(values) == 1:
                facts["position"] = _position(values[0], run)
            if self.optimizer is None:
                facts["models"] = None
                run.emit(e.SCHEDULE, call.node, model=self.id, facts=facts)
            else:
                who = (self.optimizer.id,)
                run.emit(e.SCHEDULE, call.node, model=self.id, optimizers=who, facts=facts)
        return run.unknown()


def _position(value: Value, run: Run) -> Hashable:
    """What a schedule is told; the number of an outer loop is one for all rounds of the inner."""
    loops = run.state.frame.loops
    is_outer = isinstance(value, Counter) and value.loop in loops[:-1]
    return "outer" if is_outer else value.question


@functions.where(is_schedule_name)
def _new_schedule(call: Call, run: Run) -> Value:
    known = (v for v in call.all() if not isinstance(v, Unknown))
    owners = [owner for v in known if (owner := as_optimizer(v, run)) is not None]
    name = f"schedule@{call.node.lineno}"
    run.emit(e.SCHEDULE_MADE, call.node, model=name)
    return Schedule(name, owners[0] if owners else None)
