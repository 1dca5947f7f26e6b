"""Moving averages of a model's weights: torch's own, and those that a name gives away."""

from __future__ import annotations

from halfstep.check.torch_models.table import functions
from halfstep.check.values.base import NOBODY, Models, Unknown, Value
from halfstep.check.values.call import Call
from halfstep.check.values.objects import Instance, Method, is_average_name
from halfstep.check.values.run import Run
from halfstep.rules import events as e

UPDATES = frozenset(["update", "update_parameters"])


class Average(Value):
    """A moving average of some model's weights."""

    __slots__ = ("id", "of")
    answers_methods = True

    def __init__(self, id_: str, of: Models) -> None:
        self.id = id_
        self.of = of

    def attribute(self, name: str, run: Run) -> Value:
        if name == "module":
            run.state.averages.add(("average", self.id))
            return Unknown(("average", self.id), name)
        return Method(self, name) if name in UPDATES else super().attribute(name, run)

    def method(self, name: str, call: Call, run: Run) -> Value | None:
        call.evaluate_all()
        if name in UPDATES:
            _record(call, self.id, self.of, run)
            run.emit(e.WEIGHTS, call.node, facts={"models": self._weights()})
        return run.unknown()

    def called(self, call: Call, run: Run) -> Value | None:
        call.evaluate_all()
        facts = {"models": self._weights(), "no_grad": True}
        run.emit(e.FORWARD, call.node, facts=facts)
        return run.unknown()

    def _weights(self) -> Models:
        return frozenset([("average", self.id)])


@functions("*.AveragedModel")
def _new_average(call: Call, run: Run) -> Value:
    return Average(f"average@{call.node.lineno}", call.first().parts())


def _is_average(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last[:1].isupper() and is_average_name(last)


@functions.where(_is_average)
def _new_average_of_others(call: Call, run: Run) -> Value:
    """``ModelEma(model)`` of timm and its like, by the name and by what it is given."""
    given = [v for v in call.all() if v.holds_weights(run)]
    if not given:
        return run.unknown()
    return Average(f"average@{call.node.lineno}", given[0].parts())


def update_of_project(owner: Instance, name: str, call: Call, run: Run) -> bool:
    """Whether a moving average of the project's own moves; its code is followed as well."""
    is_average = owner.cls.is_average() and name in UPDATES
    if is_average and any(v.holds_weights(run) for v in call.all()):
        models = NOBODY.union(*(v.parts() for v in call.all()))
        _record(call, f"{owner.cls.node.name}#{owner.number}", models, run)
        return True
    return False


def update_by_name(owner: Unknown, call: Call, run: Run) -> Value:
    """An average that nothing but its name shows moves."""
    _record(call, owner.name, NOBODY.union(*(v.parts() for v in call.given())), run)
    return run.unknown()


def _record(call: Call, name: str, models: Models, run: Run) -> None:
    run.emit(e.EMA, call.node, model=name, facts={"models": models or None})
