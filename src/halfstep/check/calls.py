"""Calls of the interpreter: which of them are events, and what they return."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from halfstep.check.explore import Silent
from halfstep.check.module import OPTIMIZERS, last_name
from halfstep.check.values import (
    NOBODY,
    Average,
    Class,
    Const,
    Context,
    External,
    Function,
    Grad,
    Instance,
    Mapping,
    Models,
    Optimizer,
    Params,
    Scaled,
    Scaler,
    ScaleRead,
    Schedule,
    Scope,
    Sequence,
    Unknown,
    Value,
)
from halfstep.rules import events as e

if TYPE_CHECKING:
    from halfstep.check.expressions import Expressions
    from halfstep.check.machine import Machine

# They return their first argument, as far as anything here is concerned.
_SAME = frozenset(
    [
        "DistributedDataParallel",
        "DDP",
        "DataParallel",
        "compile",
        "FullyShardedDataParallel",
        "FSDP",
        "tqdm",
        "trange",
        "list",
        "tuple",
        "iter",
        "reversed",
        "sorted",
        "cycle",
        "to",
        "cuda",
        "cpu",
        "train",
        "eval",
        "chain",
        "islice",
        "set",
        "filter",
        "deepcopy",
        "convert_sync_batchnorm",
        "prefetch",
        "zip",
        "script",
        "fully_shard",
    ]
)
_HARMLESS = frozenset(
    [
        "print",
        "len",
        "str",
        "int",
        "float",
        "min",
        "max",
        "sum",
        "abs",
        "isinstance",
        "hasattr",
        "round",
    ]
)
# Whoever calls these leaves the training step to a framework.
_FRAMEWORK = frozenset(["scale_loss", "manual_backward"])


class Calls:
    """Evaluates calls for a `Machine`."""

    def __init__(self, machine: Machine, expressions: Expressions) -> None:
        self._machine = machine
        self._expressions = expressions
        self._methods: dict[type[Value], Callable[[Any, str, Call], Value | None]] = {
            Scaler: self._of_scaler,
            Optimizer: self._of_optimizer,
            Schedule: self._of_schedule,
            Average: self._of_average,
            Scaled: self._of_scaled,
            Grad: self._of_gradient,
            Params: self._of_parameters,
            Unknown: self._of_unknown,
        }

    def call(self, node: ast.Call, scope: Scope) -> Value:
        """Evaluate a call."""
        call = Call(node, scope, self._expressions)
        if isinstance(node.func, ast.Attribute):
            owner = self._expressions.evaluate(node.func.value, scope)
            method = self._methods.get(type(owner))
            if method is not None:
                result = method(owner, node.func.attr, call)
                return result if result is not None else self._opaque(call, owner)
            function = self._expressions.attribute(owner, node.func.attr)
        else:
            function = self._expressions.evaluate(node.func, scope)
        return self._apply(function, call)

    def _apply(self, function: Value, call: Call) -> Value:
        if isinstance(function, Function):
            return self._machine.call(function, call.given(), call.named())
        if isinstance(function, Class):
            return self._instance(function, call)
        if isinstance(function, External):
            return self._external(function, call)
        if isinstance(function, Instance) and not function.cls.is_module():
            member = self._expressions.class_member(function.cls, "__call__")
            if member is not None:
                return self._apply(self._expressions.attribute(function, "__call__"), call)
        if isinstance(function, Instance):
            return self._forward(frozenset([function.key]), call)
        if isinstance(function, Unknown):
            return self._of_unknown(function, "__call__", call) or self._opaque(call, function)
        return self._opaque(call, function)

    def _instance(self, cls: Class, call: Call) -> Value:
        instance = Instance(cls)
        initializer = self._expressions.class_member(cls, "__init__")
        module = self._machine.module
        if initializer is not None:
            function = self._expressions.attribute(instance, "__init__")
            if isinstance(function, Function):
                self._machine.call(function, call.given(), call.named())
        elif module is not None:  # a dataclass
            names = [n.target.id for n in cls.node.body if _is_field(n)]  # type: ignore[attr-defined]
            instance.attributes.update(zip(names, call.given(), strict=False))
            instance.attributes.update(call.named())
        return instance

    # Methods of what is known

    def _of_scaler(self, scaler: Scaler, method: str, call: Call) -> Value | None:
        if method == "scale":
            return self._scale(scaler, call)
        if method == "get_scale":
            self._machine.emit(e.READ_SCALE, call.node, scaler=scaler.id)
            return ScaleRead(scaler)
        if method == "is_enabled":
            return Const(scaler.enabled)
        if method in ("unscale_", "step"):
            return self._on_optimizer(scaler, method, call)
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
        facts = {"closure": True} if call.count() > 1 else {}
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
        if isinstance(value, Unknown) and value.name:
            name = self._machine.name_of(value)
            self._machine.optimizers.setdefault(name, None)
            return Optimizer(name, None)
        return None

    def _of_optimizer(self, optimizer: Optimizer, method: str, call: Call) -> Value | None:
        call.evaluate_all()
        if method == "step":
            facts: dict[str, Any] = {"closure": True} if call.count() else {}
            if self._machine.finite_known:
                facts["guarded"] = True
            self._machine.emit(e.STEP, call.node, optimizers=(optimizer.id,), facts=facts)
        elif method == "zero_grad":
            self._machine.emit(e.ZERO_GRAD, call.node, optimizers=(optimizer.id,))
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
            self._backward(call.node, loss.models, loss.scaler.id)
            return self._machine.unknown()
        return self._machine.unknown() if method in ("item", "tolist") else loss

    def _backward(self, node: ast.AST, models: Models, scaler: str | None) -> None:
        facts = {"models": models or None}
        self._machine.emit(e.BACKWARD, node, scaler=scaler, facts=facts)

    def _of_gradient(self, gradient: Grad, method: str, call: Call) -> Value | None:
        arguments = call.given()
        facts: dict[str, Any] = {"models": gradient.of or None}
        if method in ("clamp_", "clip_"):
            self._machine.emit(e.CLIP, call.node, facts={**facts, "how": "hand"})
        elif method.endswith("_") and not method.endswith("__"):
            hand = any(isinstance(a, ScaleRead) for a in arguments)
            how = {"nan_to_num_": "nan", "zero_": "zero"}.get(method, "unscale" if hand else "set")
            self._machine.emit(e.EDIT, call.node, facts={**facts, "how": how})
        elif method in ("data", "detach", "view", "flatten"):
            return gradient
        return self._machine.unknown()

    def _of_parameters(self, parameters: Params, method: str, call: Call) -> Value | None:
        call.evaluate_all()
        return self._machine.unknown(models=parameters.of)

    def _of_unknown(self, owner: Unknown, method: str, call: Call) -> Value | None:
        if method in ("parameters", "named_parameters", "trainable_parameters"):
            return Params(frozenset([owner.root]))
        if method == "backward":
            if call.count() and not call.names() & {"retain_graph", "gradient", "create_graph"}:
                raise Silent  # accelerator.backward(loss): a framework does it
            self._backward(call.node, owner.models, None)
            return self._machine.unknown()
        if method == "zero_grad":
            self._machine.emit(e.ZERO_GRAD, call.node, facts={"models": frozenset([owner.root])})
            return self._machine.unknown()
        if method == "clip_grad_norm_":
            return self._clip("norm", frozenset([owner.root]), call, limit=0)
        if method == "no_sync":
            return Context("no_sync")
        if method in _FRAMEWORK:
            raise Silent
        if method in ("update", "update_parameters") and "ema" in owner.name.lower():
            models = NOBODY.union(*(self.parts_of(v) for v in call.given()))
            facts = {"models": models or None}
            self._machine.emit(e.EMA, call.node, model=owner.name, facts=facts)
            return self._machine.unknown()
        if method == "detach":
            return self._machine.unknown(owner.name)
        if method in _SAME:
            call.evaluate_all()
            return owner
        return self._unknown_method(owner, method, call)

    def _unknown_method(self, owner: Unknown, method: str, call: Call) -> Value | None:
        values = call.all()
        if any(_has_training_objects(v) for v in values):
            return None
        models = NOBODY.union(owner.models, *(v.models for v in values))
        if not self._machine.no_grad and owner.name not in ("torch", "np"):
            models |= {owner.root}
        return self._machine.unknown(method, models if not self._machine.no_grad else NOBODY)

    def _forward(self, models: Models, call: Call) -> Value:
        values = call.all()
        if self._machine.no_grad:
            return self._machine.unknown()
        self._machine.emit(e.FORWARD, call.node)
        return self._machine.unknown(models=models.union(*(v.models for v in values)))

    # Functions from outside

    def _external(self, function: External, call: Call) -> Value:
        last = function.last
        special = getattr(self, f"_call_{last}", None)
        if special is not None:
            result: Value = special(call)
            return result
        if last in OPTIMIZERS:
            return self._new_optimizer(last, call)
        if "lr_scheduler" in function.name or (last.endswith(("LR", "Restarts")) and call.count()):
            return self._new_schedule(call)
        if last in ("autocast", "custom_autocast"):
            return self._autocast(function, call)
        if last in ("no_grad", "inference_mode"):
            return Context("no_grad")
        if last in _SAME and call.count():
            values = call.all()
            return values[0] if len(values) == 1 or last != "chain" else Sequence(values)
        if last in _FRAMEWORK:
            raise Silent
        values = call.all()
        if any(_has_training_objects(v) for v in values):
            return self._opaque(call, function)
        return self._result(function, values)

    def _result(self, function: External, values: list[Value]) -> Value:
        known = function.name.startswith(("torch.", "F.", "nn.", "np.", "math.", "os."))
        models = NOBODY.union(*(v.models for v in values))
        if not known and function.last not in _HARMLESS:
            models |= NOBODY.union(*(self.parts_of(v) for v in values))
        return self._machine.unknown(models=NOBODY if self._machine.no_grad else models)

    def parts_of(self, value: Value) -> Models:
        """Modules that may be in `value`."""
        if isinstance(value, Params):
            return value.of
        if isinstance(value, Unknown):
            return value.models | frozenset([value.root])
        if isinstance(value, Instance):
            return frozenset([value.key])
        if isinstance(value, Sequence):
            return NOBODY.union(*(self.parts_of(item) for item in value.items))
        if isinstance(value, Mapping):
            return NOBODY.union(*(self.parts_of(item) for item in value.items.values()))
        return value.models

    # pylint: names of torch after _call_
    def _call_GradScaler(self, call: Call) -> Value:  # noqa: N802 - named after the call
        enabled = call.named().get("enabled", Const(True))
        truth = enabled.truth
        if truth is None:
            truth = self._machine.path.decide(enabled.key)
        scaler = Scaler(f"scaler@{call.node.lineno}#{self._expressions.count()}", truth)
        if truth:
            self._machine.emit(e.SCALER, call.node, scaler=scaler.id, facts=call.constants())
        return scaler

    _call_ShardedGradScaler = _call_GradScaler  # noqa: N815

    def _call_AveragedModel(self, call: Call) -> Value:  # noqa: N802 - named after the call
        return Average(f"average@{call.node.lineno}", self.parts_of(call.first()))

    def _call_clip_grad_norm_(self, call: Call) -> Value:
        return self._clip("norm", self._clipped(call), call)

    def _call_clip_grad_norm(self, call: Call) -> Value:
        return self._clip("norm", self._clipped(call), call)

    def _call_clip_grad_value_(self, call: Call) -> Value:
        return self._clip("value", self._clipped(call), call)

    def _call_dispatch_clip_grad(self, call: Call) -> Value:
        return self._clip("norm", self._clipped(call), call)

    def _call_enumerate(self, call: Call) -> Value:
        from halfstep.check.expressions import Counted

        values = call.given()
        start = values[1] if len(values) > 1 else call.named().get("start")
        first = start.value if isinstance(start, Const) and type(start.value) is int else 0
        return Counted(values[0] if values else None, first)

    def _call_range(self, call: Call) -> Value:
        from halfstep.check.expressions import Counted

        bounds = [v.value if isinstance(v, Const) else None for v in call.given()]
        start = bounds[0] if len(bounds) > 1 else 0
        end = bounds[1] if len(bounds) > 1 else (bounds[0] if bounds else None)
        if type(end) is int and type(start) is int:
            return Counted(None, start, max(end - start, 0))
        return Counted(None, start if type(start) is int else 0)

    def _call_super(self, call: Call) -> Value:
        return self._machine.unknown("super")

    def _call_nullcontext(self, call: Call) -> Value:
        return self._machine.unknown()

    def _call_cast(self, call: Call) -> Value:
        values = call.given()
        return values[-1] if values else self._machine.unknown()

    def _clipped(self, call: Call) -> Models | None:
        value = call.first()
        return self.parts_of(value) if isinstance(value, (Params, Sequence, Unknown)) else None

    def _clip(self, how: str, models: Models | None, call: Call, limit: int = 1) -> Value:
        values = [*call.given(), self._machine.unknown(), self._machine.unknown()]
        value = call.named().get("max_norm", values[limit])
        facts: dict[str, Any] = {"how": how, "models": models or None}
        if isinstance(value, Const):
            facts["max_norm"] = value.value
        if isinstance(value, ScaleRead):
            facts["max_norm_scaled"] = True
        if _is_infinite(call, limit):
            facts["max_norm"] = float("inf")
        self._machine.emit(e.CLIP, call.node, facts=facts)
        return self._machine.unknown("norm")

    def _new_optimizer(self, name: str, call: Call) -> Value:
        values = call.all()
        params = self.parts_of(values[0]) if values else NOBODY
        optimizer = Optimizer(
            f"{name}@{call.node.lineno}#{self._expressions.count()}", params or None
        )
        self._machine.optimizers[optimizer.id] = optimizer.params
        facts = {**call.constants(), "name": name}
        self._machine.emit(e.OPTIMIZER, call.node, optimizers=(optimizer.id,), facts=facts)
        return optimizer

    def _new_schedule(self, call: Call) -> Value:
        owners = [v for v in call.all() if isinstance(v, Optimizer)]
        name = f"schedule@{call.node.lineno}"
        self._machine.emit(e.SCHEDULE_MADE, call.node, model=name)
        return Schedule(name, owners[0] if owners else None)

    def _autocast(self, function: External, call: Call) -> Value:
        named = call.named()
        dtype = named.get("dtype")
        facts: dict[str, Any] = call.constants()
        if isinstance(dtype, External):
            facts["dtype"] = dtype.last
        return Context("autocast", facts)

    def _opaque(self, call: Call, owner: Value) -> Value:
        """A call that nobody can look into; what it was given is not certain any more."""
        values = [owner, *call.all()]
        if any(isinstance(v, Grad) for v in values):
            return self._machine.unknown()
        inside = [part for value in values for part in _training_objects(value)]
        scalers = [p.id for p in inside if isinstance(p, Scaler)]
        scalers += [p.scaler.id for p in inside if isinstance(p, Scaled)]
        optimizers = tuple(p.id for p in inside if isinstance(p, Optimizer))
        if scalers or optimizers:
            scaler = scalers[0] if scalers else None
            self._machine.emit(e.OPAQUE, call.node, scaler=scaler, optimizers=optimizers)
        models = NOBODY.union(*(v.models for v in values))
        return self._machine.unknown(models=models)


class Call:
    """A call and its arguments, each evaluated once and when first asked for."""

    def __init__(self, node: ast.Call, scope: Scope, expressions: Expressions) -> None:
        self.node = node
        self._scope = scope
        self._expressions = expressions
        self._given: list[Value] | None = None
        self._named: dict[str, Value] | None = None

    def count(self) -> int:
        """Number of arguments."""
        return len(self.node.args) + len(self.node.keywords)

    def names(self) -> set[str]:
        """Of the arguments given by name."""
        return {keyword.arg for keyword in self.node.keywords if keyword.arg}

    def given(self) -> list[Value]:
        """Arguments by position."""
        if self._given is None:
            self._given = list(self._positional())
        return self._given

    def _positional(self) -> Iterator[Value]:
        for node in self.node.args:
            value = self._expressions.evaluate(node, self._scope)
            if isinstance(node, ast.Starred) and isinstance(value, Sequence):
                yield from value.items
            else:
                yield value

    def named(self) -> dict[str, Value]:
        """Arguments by name."""
        if self._named is None:
            self._named = {
                keyword.arg or "**": self._expressions.evaluate(keyword.value, self._scope)
                for keyword in self.node.keywords
            }
        return self._named

    def all(self) -> list[Value]:
        """All arguments."""
        return [*self.given(), *self.named().values()]

    def evaluate_all(self) -> None:
        """For what happens in them."""
        self.all()

    def first(self) -> Value:
        """The first argument, by position or by name."""
        values = self.all()
        return values[0] if values else Const(None)

    def constants(self) -> dict[str, Any]:
        """Arguments by name whose value is a constant."""
        return {n: v.value for n, v in self.named().items() if isinstance(v, Const)}


def _training_objects(value: Value) -> Iterator[Value]:
    if isinstance(value, (Scaler, Optimizer, Scaled)):
        yield value
    elif isinstance(value, Sequence):
        for item in value.items:
            yield from _training_objects(item)
    elif isinstance(value, Mapping):
        for item in value.items.values():
            yield from _training_objects(item)
    elif isinstance(value, Instance):
        for item in value.attributes.values():
            if isinstance(item, (Scaler, Optimizer, Scaled)):
                yield item


def _has_training_objects(value: Value) -> bool:
    return next(_training_objects(value), None) is not None


def _is_infinite(call: Call, limit: int) -> bool:
    nodes = [*call.node.args[limit : limit + 1], *(k.value for k in call.node.keywords)]
    texts = {ast.unparse(node) for node in nodes}
    return bool(texts & {"float('inf')", "math.inf", "np.inf", "torch.inf", "inf"})


def _is_field(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and last_name(node.target) is not None
