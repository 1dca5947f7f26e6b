"""Methods of what the interpreter knows: scalers, optimizers, losses, gradients, models."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from halfstep.check.interpreter.arguments import Call, has_training_objects, is_infinite
from halfstep.check.interpreter.explore import Silent
from halfstep.check.torch_models import gradients
from halfstep.check.torch_models.carried import keeps_scale, product
from halfstep.check.torch_models.containers import Containers
from halfstep.check.values.kinds import (
    NOBODY,
    Average,
    Carried,
    Cleaned,
    Clipped,
    Coefficient,
    Const,
    Context,
    External,
    Grad,
    Mapping,
    Models,
    Norm,
    Optimizer,
    Params,
    Scaled,
    Scaler,
    ScaleRead,
    Schedule,
    Sequence,
    SkipTest,
    State,
    Unknown,
    Value,
)
from halfstep.check.values.objects import AVERAGE, Instance, is_optimizer, parts_of
from halfstep.check.values.regions import roots, some
from halfstep.rules import events as e

if TYPE_CHECKING:
    from halfstep.check.interpreter.machine import Machine

# Methods that return what they are called on, as far as anything here is concerned.
_SAME_WORDS = "to cuda cpu train eval half float bfloat16 double requires_grad_"
SAME = frozenset(_SAME_WORDS.split())
# Parts of a model by a method of its own: ``model.head_parameters()``.
_GIVES_PARAMETERS = re.compile(
    r"^(?!(update|set|reset|load|init|register|num|count|freeze|unfreeze|print|log|sync|copy)_)"
    r"(\w+_)?param(s|eters|_groups|eter_groups)(_\w+)?$"
)
# Whoever calls these leaves the training step to a framework.
FRAMEWORK = frozenset(["scale_loss", "manual_backward"])


class Methods:
    """Evaluates method calls for a `Machine`; ``None`` means: nobody knows."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        containers = Containers(machine)
        self._by_type: dict[type[Value], Callable[[Any, str, Call], Value | None]] = {
            Scaler: self._of_scaler,
            Optimizer: self._of_optimizer,
            Schedule: self._of_schedule,
            Average: self._of_average,
            Scaled: self._of_scaled,
            Grad: self._of_gradient,
            Params: self._of_parameters,
            Carried: self._of_carried,
            Norm: self._of_norm,
            Coefficient: self._of_norm,
            Clipped: self._of_gradient,
            SkipTest: self._of_norm,
            Unknown: self.of_unknown,
            Cleaned: self._of_gradient,
            Sequence: containers.of_sequence,
            Mapping: containers.of_mapping,
        }

    def knows(self, owner: Value) -> bool:
        """Whether methods of `owner` are looked up here."""
        return type(owner) in self._by_type

    def call(self, owner: Value, method: str, call: Call) -> Value | None:
        """``owner.method(...)``."""
        return self._by_type[type(owner)](owner, method, call)

    def _of_scaler(self, scaler: Scaler, method: str, call: Call) -> Value | None:
        if method == "scale":
            return self._scale(scaler, call)
        if method == "get_scale":
            self._machine.emit(e.READ_SCALE, call.node, scaler=scaler.id)
            return ScaleRead(scaler)
        if method in ("_found_inf_per_device", "_check_inf_per_device"):
            return self._machine.skips.found(scaler)
        if method == "is_enabled":
            return Const(scaler.enabled)
        if method in ("unscale_", "step"):
            return self._on_optimizer(scaler, method, call)
        if method == "state_dict":
            return State("scaler", scaler.id)
        if method == "load_state_dict" and scaler.enabled:
            self._machine.emit(e.LOAD, call.node, scaler=scaler.id)
        if method == "update" and scaler.enabled:
            facts = {"new_scale": True} if call.count() else {}
            self._machine.emit(e.UPDATE, call.node, scaler=scaler.id, facts=facts)
        call.evaluate_all()
        return self._machine.unknown()

    def _scale(self, scaler: Scaler, call: Call) -> Value:
        loss = call.first()
        if not scaler.enabled:
            return loss
        self._machine.emit(e.SCALE, call.node, scaler=scaler.id)
        if isinstance(loss, Sequence):
            return Sequence([Scaled(scaler, item.models) for item in loss.items])
        return Scaled(scaler, loss.models)

    def _on_optimizer(self, scaler: Scaler, method: str, call: Call) -> Value:
        value = call.first()
        optimizer = self.as_optimizer(value)
        if optimizer is None:
            self._machine.emit(e.OPAQUE, call.node, scaler=scaler.id, facts={"models": None})
            return self._machine.unknown()
        kind = e.STEP if method == "step" else e.UNSCALE
        closure = len(call.node.args) > 1 or "closure" in call.names()
        facts: dict[str, Any] = {"closure": True} if closure else {}
        if self._machine.finite_known:
            facts["guarded"] = True
        if scaler.enabled:
            who = (optimizer.id,)
            self._machine.emit(kind, call.node, scaler=scaler.id, optimizers=who, facts=facts)
        elif kind == e.STEP:
            self._machine.emit(kind, call.node, optimizers=(optimizer.id,), facts=facts)
        return self._machine.unknown()

    def as_optimizer(self, value: Value) -> Optimizer | None:
        """An optimizer, also where only its use says so."""
        if isinstance(value, Optimizer):
            return value
        if is_optimizer(value):
            return self._own_optimizer(value)
        if isinstance(value, Unknown) and value.name:
            name = self._machine.name_of(value)
            self._machine.optimizers.setdefault(name, None)
            return Optimizer(name, None)
        return None

    def _own_optimizer(self, value: Instance) -> Optimizer:
        """Of a class of the project; what its own methods do is followed there."""
        known = value.attributes.get("(optimizer)")
        if isinstance(known, Optimizer):
            return known
        made = Optimizer(f"{value.cls.node.name}#{self._machine.path.fresh()}", None)
        value.attributes["(optimizer)"] = made
        self._machine.optimizers[made.id] = None
        return made

    def _of_optimizer(self, optimizer: Optimizer, method: str, call: Call) -> Value | None:
        call.evaluate_all()
        if method == "step":
            facts: dict[str, Any] = {"closure": True} if call.count() else {}
            if self._machine.finite_known:
                facts["guarded"] = True
            self._machine.emit(e.STEP, call.node, optimizers=(optimizer.id,), facts=facts)
        elif method == "zero_grad":
            self._machine.emit(e.ZERO_GRAD, call.node, optimizers=(optimizer.id,))
        elif method == "state_dict":
            return State("optimizer", optimizer.id)
        return self._machine.unknown()

    def _of_schedule(self, schedule: Schedule, method: str, call: Call) -> Value | None:
        call.evaluate_all()
        if method == "step":
            facts: dict[str, Any] = {"epoch": True} if call.count() else {}
            if schedule.optimizer is None:
                facts["models"] = None
                self._machine.emit(e.SCHEDULE, call.node, model=schedule.id, facts=facts)
            else:
                who = (schedule.optimizer.id,)
                self._machine.emit(
                    e.SCHEDULE, call.node, model=schedule.id, optimizers=who, facts=facts
                )
        return self._machine.unknown()

    def _of_average(self, average: Average, method: str, call: Call) -> Value | None:
        call.evaluate_all()
        if method in ("update_parameters", "update"):
            facts = {"models": average.of or None}
            self._machine.emit(e.EMA, call.node, model=average.id, facts=facts)
        return self._machine.unknown()

    def _of_scaled(self, loss: Scaled, method: str, call: Call) -> Value | None:
        call.evaluate_all()
        if method == "backward":
            self._backward(call.node, loss.models, loss.scaler)
            return self._machine.unknown()
        return self._machine.unknown() if method in ("item", "tolist") else loss

    def _of_carried(self, gradient: Carried, method: str, call: Call) -> Value | None:
        call.evaluate_all()
        return gradient if keeps_scale(method) else self._machine.unknown()

    def _of_norm(
        self, norm: Norm | Coefficient | SkipTest, method: str, call: Call
    ) -> Value | None:
        clips, skips = self._machine.clips, self._machine.skips
        made = clips.of_measure(method, [norm, *call.all()])
        result = made or skips.of_call(method, [norm, *call.all()])
        if result is not None or isinstance(norm, SkipTest):
            call.evaluate_all()
            return result or norm
        return self.of_unknown(norm, method, call)

    def _backward(self, node: ast.AST, models: Models, scaler: Scaler | None) -> None:
        facts = {"models": models or None}
        self._machine.carrying = scaler
        name = scaler.id if scaler is not None else None
        self._machine.emit(e.BACKWARD, node, scaler=name, facts=facts)

    def backward_from(self, call: Call, owner: Value | None = None) -> Value | None:
        """``tensor.backward(gradient)`` with a gradient that carries a scale."""
        made = product(call.all())
        if not isinstance(made, (Carried, Scaled)):
            return None
        models = NOBODY.union(*(v.models for v in (owner, *call.all()) if v is not None))
        self._backward(call.node, models, made.scaler)
        return self._machine.unknown()

    def _of_gradient(self, gradient: Grad, method: str, call: Call) -> Value | None:
        arguments = call.given()
        facts: dict[str, Any] = {"models": gradient.of or None}
        known = self._machine.clips.of_gradient(gradient, method, call, call.all())
        if known is not None:
            return known
        if method.endswith("_") and not method.endswith("__"):
            how = gradients.of_method(method, call.node, arguments)
            self._machine.emit(e.EDIT, call.node, facts={**facts, "how": how})
        elif method == "nan_to_num":
            return Cleaned(gradient.of)
        elif method in ("data", "detach", "view", "flatten"):
            return gradient
        return self._machine.unknown()

    def _of_parameters(self, parameters: Params, method: str, call: Call) -> Value | None:
        call.evaluate_all()
        return self._machine.unknown(models=parameters.of)

    def of_unknown(self, owner: Unknown, method: str, call: Call) -> Value | None:
        """A method of something that is known by its use alone: a model, a loss, a framework."""
        if method in ("parameters", "named_parameters", "trainable_parameters"):
            return Params(frozenset([owner.region]))
        if _GIVES_PARAMETERS.search(method):
            call.evaluate_all()
            return Params(some([owner.region], ast.unparse(call.node).partition(".")[2]))
        if method == "backward":
            if (result := self.backward_from(call, owner)) is not None:
                return result
            if call.count() and not call.names() & {"retain_graph", "gradient", "create_graph"}:
                raise Silent  # accelerator.backward(loss): a framework does it
            self._backward(call.node, owner.models, None)
            return self._machine.unknown()
        if method == "zero_grad":
            self._machine.emit(e.ZERO_GRAD, call.node, facts={"models": frozenset([owner.region])})
            return self._machine.unknown()
        if method == "clip_grad_norm_":
            return self.clip("norm", frozenset([owner.region]), call, limit=0)
        if method == "no_sync" or (method == "__call__" and owner.name == "no_sync"):
            return Context("no_sync", {"chosen": bool(self._machine.chosen)})
        if method == "state_dict":
            inside = "scaler" in owner.name.lower() or owner.name == "amp"
            return State("scaler" if inside else "model")
        if method in FRAMEWORK:
            raise Silent
        if method in ("update", "update_parameters") and AVERAGE.search(owner.name):
            models = NOBODY.union(*(parts_of(v) for v in call.given()))
            facts = {"models": models or None}
            self._machine.emit(e.EMA, call.node, model=owner.name, facts=facts)
            return self._machine.unknown()
        if method == "detach":
            return self._machine.unknown(owner.name)
        if method in SAME:
            if owner.root in self._machine.averages or self._has_parameters(owner):
                self._cast(owner.root, method, call)  # data go through the loss too
            return owner
        return self._unknown_method(owner, method, call)

    def _unknown_method(self, owner: Unknown, method: str, call: Call) -> Value | None:
        values = call.all()
        if any(has_training_objects(v) for v in values):
            return None
        models = NOBODY.union(owner.models, *(v.models for v in values))
        if method in ("__call__", "forward") and self._is_model(owner):
            facts = {"models": frozenset([owner.root])}
            self._machine.emit(e.FORWARD, call.node, facts=facts)
        if not self._machine.no_grad and owner.name not in ("torch", "np"):
            models |= {owner.root}
        return self._machine.unknown(method, models if not self._machine.no_grad else NOBODY)

    def _is_model(self, owner: Unknown) -> bool:
        """Whether its parameters are asked for, in an optimizer or anywhere in the file."""
        return not self._machine.no_grad and self._has_parameters(owner)

    def _has_parameters(self, owner: Unknown) -> bool:
        owned = self._machine.optimizers.values()
        if any(of and owner.root in roots(of) for of in owned):
            return True
        module = self._machine.module
        return module is not None and module.is_model(owner.name)

    def _cast(self, root: Hashable, method: str, call: Call) -> None:
        """Record a cast in place of a model that is being trained, or of its average."""
        values = call.all()
        wanted = [v.last for v in values if isinstance(v, External)]
        dtype = method if method in ("half", "bfloat16") else next(iter(wanted), "")
        if dtype in ("half", "float16", "bfloat16"):
            machine = self._machine
            if root in machine.trained or root in machine.averages:
                self._machine.emit(e.CAST, call.node, facts={"dtype": dtype, "live": True})

    def of_module(self, owner: Instance, method: str, call: Call) -> Value | None:
        """A method that a module of the project has from torch."""
        if method in SAME:
            self._cast(owner.key, method, call)
            return owner
        if method in ("parameters", "named_parameters"):
            return Params(parts_of(owner))
        if method in ("zero_grad", "state_dict", "no_sync", "clip_grad_norm_"):
            return self.of_unknown(Unknown(owner.key), method, call)
        return None

    def clip(self, how: str, models: Models | None, call: Call, limit: int = 1) -> Value:
        """Record a clip; `limit` is the position of its limit."""
        values = [*call.given(), self._machine.unknown(), self._machine.unknown()]
        value = call.named().get("max_norm", values[limit])
        facts: dict[str, Any] = {"how": how, "models": models or None}
        if isinstance(value, Const):
            facts["max_norm"] = value.value
        if isinstance(value, ScaleRead) and not value.inverse:
            facts["max_norm_scaled"] = True
        if is_infinite(call, limit):
            facts["max_norm"] = float("inf")
        self._machine.emit(e.CLIP, call.node, facts=facts)
        return Norm(("new", self._machine.path.fresh()), "norm")
