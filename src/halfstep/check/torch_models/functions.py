"""Functions and classes from outside of the project: torch, and what wraps it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from halfstep.check.interpreter.arguments import Call, Given, has_training_objects
from halfstep.check.interpreter.explore import Silent
from halfstep.check.interpreter.loops import SINGLE
from halfstep.check.source.module import OPTIMIZERS
from halfstep.check.torch_models.carried import keeps_scale, product
from halfstep.check.torch_models.checkpoints import save, saves
from halfstep.check.torch_models.methods import FRAMEWORK, SAME, Methods
from halfstep.check.torch_models.skips import FINDS
from halfstep.check.values.counting import Counted, Modulo, Sum
from halfstep.check.values.kinds import (
    NOBODY,
    Average,
    Carried,
    Cleaned,
    Const,
    Context,
    External,
    Grad,
    Mapping,
    Models,
    Norm,
    Optimizer,
    Params,
    Partial,
    Repeated,
    Scaler,
    ScaleRead,
    Schedule,
    Sequence,
    Unknown,
    Value,
)
from halfstep.check.values.objects import Function, Instance, parameters_in, parts_of
from halfstep.check.values.regions import some
from halfstep.rules import events as e

if TYPE_CHECKING:
    from halfstep.check.interpreter.machine import Machine

# They return their first argument, as far as anything here is concerned.
_SAME_WORDS = """
    DistributedDataParallel DDP DataParallel compile FullyShardedDataParallel FSDP tqdm trange list
    tuple iter reversed sorted cycle chain islice set convert_sync_batchnorm
    prefetch script fully_shard
"""
_SAME = SAME | frozenset(_SAME_WORDS.split())
_NAMES = (ast.Name, ast.Attribute, ast.Constant)
_HARMLESS_WORDS = "print len str int float min max sum abs isinstance hasattr round"
_HARMLESS = frozenset(_HARMLESS_WORDS.split())


class Functions:
    """Evaluates calls of external functions for a `Machine`; ``None`` means: nobody knows."""

    def __init__(self, machine: Machine, methods: Methods) -> None:
        self._machine = machine
        self._methods = methods

    def call(self, function: External, call: Call) -> Value | None:
        """``function(...)``."""
        last = function.last
        if (made := self._machine.clips.of_function(last, call)) is not None:
            return made
        if last in FINDS and (known := self._machine.skips.of_call(last, call.given())):
            return known
        special = getattr(self, f"_call_{last}", None)
        if special is not None:
            result: Value | None = special(call)
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
        if last in FRAMEWORK:
            raise Silent
        if saves(function.name, last):
            save(self._machine, call)
        values = call.all()
        made = product(values) if function.name.startswith("torch.") else None
        if made is not None and function.name.endswith("autograd.backward"):
            return self._methods.backward_from(call)
        if made is not None and keeps_scale(last):
            return made
        if any(has_training_objects(v) for v in values):
            return None
        return self._result(function, values)

    def _result(self, function: External, values: list[Value]) -> Value:
        known = function.name.startswith(("torch.", "F.", "nn.", "np.", "math.", "os."))
        if known and function.last[:1].isupper():
            # nn.Linear(settings.width, 1): two models of the same settings share no parameters
            values = [v for v in values if not isinstance(v, Unknown) or v.key == v.root]
        models = NOBODY.union(*(v.models for v in values))
        if not known and function.last not in _HARMLESS:
            models |= NOBODY.union(*(parts_of(v) for v in values))
        return self._machine.unknown(models=NOBODY if self._machine.no_grad else models)

    def _call_GradScaler(self, call: Call) -> Value:  # noqa: N802 - named after the call
        enabled = call.named().get("enabled", Const(True))
        truth = enabled.truth
        if truth is None:
            truth = self._machine.path.decide(enabled.key)
        scaler = Scaler(f"scaler@{call.node.lineno}#{self._machine.path.fresh()}", truth)
        if truth:
            self._machine.emit(e.SCALER, call.node, scaler=scaler.id, facts=call.constants())
        return scaler

    _call_ShardedGradScaler = _call_GradScaler  # noqa: N815

    def _call_Parameter(self, call: Call) -> Value:  # noqa: N802 - named after the call
        call.evaluate_all()
        return Params(frozenset([("parameter", self._machine.path.fresh())]))

    def _call_AveragedModel(self, call: Call) -> Value:  # noqa: N802 - named after the call
        return Average(f"average@{call.node.lineno}", parts_of(call.first()))

    def _call_clip_grad_norm_(self, call: Call) -> Value:
        return self._methods.clip("norm", self._clipped(call), call)

    def _call_clip_grad_norm(self, call: Call) -> Value:
        return self._methods.clip("norm", self._clipped(call), call)

    def _call_clip_grads_with_norm_(self, call: Call) -> Value:
        values = call.all()
        norm = call.named().get("total_norm", values[2] if len(values) > 2 else None)
        true = isinstance(norm, ScaleRead) or (isinstance(norm, Norm) and norm.unscaled)
        facts = {"how": "norm", "models": self._clipped(call), "max_norm_scaled": true}
        self._machine.emit(e.CLIP, call.node, facts=facts)
        return self._machine.unknown()

    def _call_clip_grad_value_(self, call: Call) -> Value:
        return self._methods.clip("value", self._clipped(call), call)

    def _call_dispatch_clip_grad(self, call: Call) -> Value:
        return self._methods.clip("norm", self._clipped(call), call)

    def _call_clear_autocast_cache(self, call: Call) -> Value:
        self._machine.emit(e.CACHE_CLEARED, call.node)
        return self._machine.unknown()

    def _call_nan_to_num(self, call: Call) -> Value:
        value, out = call.first(), call.named().get("out")
        if isinstance(out, Grad):
            self._edit(out, call)
        return Cleaned(value.of) if isinstance(value, Grad) else value

    def _call_nan_to_num_(self, call: Call) -> Value:
        value = call.first()
        if isinstance(value, Grad):
            self._edit(value, call)
        return value

    def _edit(self, gradient: Grad, call: Call) -> None:
        facts = {"how": "nan", "models": gradient.of or None}
        self._machine.emit(e.EDIT, call.node, facts=facts)

    def _call_deepcopy(self, call: Call) -> Value:
        value = call.first()
        return self._machine.unknown() if isinstance(value, (Unknown, Instance)) else value

    def _call_partial(self, call: Call) -> Value:
        values = call.given()
        return Partial(values[0], values[1:], call.named()) if values else self._machine.unknown()

    def _call_dict(self, call: Call) -> Value:
        items: dict[Any, Value] = {}
        for value in call.given():
            items.update(value.items if isinstance(value, Mapping) else {"**": value})
        return Mapping({**items, **call.named()})

    def _call_asdict(self, call: Call) -> Value:
        value = call.first()
        return Mapping(value.attributes) if isinstance(value, Instance) else value

    _call_vars = _call_asdict

    def _call_SimpleNamespace(self, call: Call) -> Value:  # noqa: N802 - named after the call
        return Mapping(dict(call.named()))

    def _call_field(self, call: Call) -> Value:
        named = call.named()
        factory = named.get("default_factory")
        if isinstance(factory, Function):
            return self._machine.call(factory, [], {})
        if isinstance(factory, External):
            return self.call(factory, Given(call.node, [], {})) or self._machine.unknown()
        return named.get("default", self._machine.unknown())

    def _call_zip(self, call: Call) -> Value:
        values = call.given()
        lengths = [len(v.items) for v in values if isinstance(v, Sequence) and v.items]
        if any(isinstance(v, SINGLE) for v in values):  # it stands for all of a list
            lengths = [1]
        if not lengths:
            whole = Repeated(Sequence([self._item(v, 0) for v in values]))
            self._machine.loops.lengths.alias(whole, values)
            return whole
        rows = range(min(lengths))
        return Sequence([Sequence([self._item(v, i) for v in values]) for i in rows])

    def _item(self, value: Value, index: int) -> Value:
        if isinstance(value, Sequence) and value.items:
            return value.items[index]
        if isinstance(value, Repeated):
            return value.item
        return (
            value
            if isinstance(value, (*SINGLE, Carried))
            else self._machine.unknown(models=value.models)
        )

    def _call_enumerate(self, call: Call) -> Value:
        values = call.given()
        start = values[1] if len(values) > 1 else call.named().get("start")
        first = start.value if isinstance(start, Const) and type(start.value) is int else 0
        return Counted(values[0] if values else None, first)

    def _call_range(self, call: Call) -> Value:
        values = call.given()
        bounds = [v.value if isinstance(v, Const) else None for v in values]
        start = bounds[0] if len(bounds) > 1 else 0
        end = bounds[1] if len(bounds) > 1 else (bounds[0] if bounds else None)
        if type(end) is int and type(start) is int:
            return Counted(None, start, max(end - start, 0))
        if type(start) is int and 0 < len(values) < 3:
            return Counted(None, start, bound=values[-1])
        return Counted(None, start if type(start) is int else 0)

    def _call_len(self, call: Call) -> Value:
        value = call.first()
        if isinstance(value, Sequence) and self._machine.loops.is_window(call.node):
            return Const(len(value.items))
        return Sum(("new", self._machine.path.fresh()), "len", ("len", value.key), 0)

    def _call_min(self, call: Call) -> Value | None:
        """``min(accumulate, total - start)``: a whole window is two rounds."""
        left = [self._machine.loops.lengths.number(v) for v in call.given() if isinstance(v, Sum)]
        plain = all(isinstance(n, _NAMES) for n in call.node.args if not isinstance(n, ast.BinOp))
        sizes = sum(isinstance(n, _NAMES) for n in call.node.args)
        if call.count() == 2 and len(left) == 1 and left[0] is not None and plain and sizes:
            return Const(min(2, left[0]))
        if any(map(has_training_objects, call.all())):
            return None
        return self._machine.unknown(models=NOBODY.union(*(v.models for v in call.all())))

    def _call_filter(self, call: Call) -> Value:
        values = call.given()
        test = call.node.args[0] if call.node.args else None
        if isinstance(test, ast.Lambda) and isinstance(values[-1], Params):
            return Params(some(values[-1].of, ast.unparse(test.body)))
        return values[-1] if values else self._machine.unknown()

    def _call_divmod(self, call: Call) -> Value:
        values = call.given()
        if len(values) != 2 or not isinstance(values[0], (Const, Sum)):
            return self._machine.unknown()
        return Sequence([self._machine.unknown(), Modulo(values[0], values[1])])

    def _call_nullcontext(self, call: Call) -> Value:
        return self._machine.unknown()

    def _call_cast(self, call: Call) -> Value:
        values = call.given()
        return values[-1] if values else self._machine.unknown()

    def _clipped(self, call: Call) -> Models | None:
        value = call.first()
        return parameters_in(value) if isinstance(value, (Params, Sequence, Unknown)) else None

    def _new_optimizer(self, name: str, call: Call) -> Value:
        values = call.all()
        params = parameters_in(values[0]) if values else NOBODY
        optimizer = Optimizer(
            f"{name}@{call.node.lineno}#{self._machine.path.fresh()}", params or None
        )
        self._machine.optimizers[optimizer.id] = optimizer.params
        facts = {**call.constants(), "name": name}
        self._machine.emit(e.OPTIMIZER, call.node, optimizers=(optimizer.id,), facts=facts)
        return optimizer

    def _new_schedule(self, call: Call) -> Value:
        known = (v for v in call.all() if not isinstance(v, Unknown))
        owners = [owner for v in known if (owner := self._methods.as_optimizer(v)) is not None]
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
