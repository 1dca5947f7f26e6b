"""Classes of the project that are optimizers, schedules or scalers of torch, by what they inherit.

Their own methods are followed; what they have from torch is torch's.
"""

from __future__ import annotations

from halfstep.check.torch_models.optimizers import OWN, Optimizer, Schedule, as_optimizer
from halfstep.check.torch_models.table import functions
from halfstep.check.values.base import Value
from halfstep.check.values.call import Call, Given
from halfstep.check.values.objects import Instance
from halfstep.check.values.run import Run
from halfstep.rules import events as e


def made(owner: Instance, call: Call, run: Run) -> None:
    """An object of the project is made."""
    if owner.cls.is_optimizer():
        given, name = call.given(), owner.cls.node.name
        first = given[0] if given else next(iter(call.named().values()), None)
        params = first.parameters() if first is not None else None
        optimizer = Optimizer(f"{name}@{call.node.lineno}#{run.fresh()}", params or None)
        _keep(owner, optimizer, run)
        facts = {**call.constants(), "name": name}
        run.emit(e.OPTIMIZER, call.node, optimizers=(optimizer.id,), facts=facts)
    elif owner.cls.is_schedule():
        owners = (as_optimizer(v, run) for v in call.all())
        schedule = f"schedule@{call.node.lineno}"
        run.emit(e.SCHEDULE_MADE, call.node, model=schedule)
        first_owner = next((o for o in owners if o is not None), None)
        owner.attributes[OWN] = Schedule(schedule, first_owner)
    elif owner.cls.is_scaler():
        make = functions.find("torch.amp.GradScaler")
        assert make is not None
        owner.attributes[OWN] = make(call, run) or run.unknown()


def part_of(owner: Instance, run: Run) -> Value | None:
    """The optimizer, schedule or scaler of torch that an object of the project is."""
    known = owner.attributes.get(OWN)
    if known is None and owner.cls.is_optimizer():  # a method is read alone
        return _keep(owner, Optimizer(f"{owner.cls.node.name}#{run.fresh()}", None), run)
    if known is None and owner.cls.is_schedule():
        known = owner.attributes[OWN] = Schedule(owner.cls.node.name, None)
    return known


def _keep(owner: Instance, optimizer: Optimizer, run: Run) -> Optimizer:
    owner.attributes[OWN] = optimizer
    run.state.optimizers[optimizer.id] = optimizer.params
    return optimizer


def stepped(value: Value, call: Call, run: Run) -> None:
    """A scaler steps an optimizer of the project: what else its ``step`` does."""
    if isinstance(value, Instance) and value.cls.is_optimizer() and value.has("step"):
        with run.state.entered(stepping=True):
            run.apply(value.attribute("step", run), Given(call.node, []))


def of_base(owner: Instance, name: str, call: Call, run: Run) -> Value:
    """``super().name(...)``, where the base is one of torch."""
    part = part_of(owner, run)
    if part is None or name == "__init__" or isinstance(part, Schedule):
        return run.unknown(name)
    return part.method(name, call, run) or run.unknown(name)


def moved(owner: Instance, name: str, call: Call, run: Run) -> None:
    """A schedule with a ``step`` of its own moves; its code is followed as well."""
    if name.startswith("step") and owner.cls.is_schedule() and owner.has(name):
        part = part_of(owner, run)
        if part is not None:
            part.method("step", call, run)
