"""Gradient scalers."""

from __future__ import annotations

import ast
from collections.abc import Hashable
from typing import Any

from halfstep.check.torch_models import own
from halfstep.check.torch_models.carried import Penalty
from halfstep.check.torch_models.optimizers import as_optimizer
from halfstep.check.torch_models.scales import Scaled, ScaleRead, SkipTest, found
from halfstep.check.torch_models.states import State
from halfstep.check.torch_models.table import functions
from halfstep.check.values.base import Const, Value
from halfstep.check.values.call import Call
from halfstep.check.values.containers import Sequence, flat
from halfstep.check.values.objects import Method
from halfstep.check.values.run import Run
from halfstep.rules import events as e

_METHODS = frozenset(["scale", "step", "unscale_", "update"])


class Scaler(Value):
    """A gradient scaler; a disabled one passes everything through."""

    __slots__ = ("enabled", "id")
    answers_methods = True
    is_training = True
    stands_for_all = True

    def __init__(self, id_: str, enabled: bool = True) -> None:
        self.id = id_
        self.enabled = enabled

    @property
    def question(self) -> Hashable:
        return ("scaler", self.id)

    def kept_in(self, place: str, append: ast.Attribute, run: Run) -> Value:
        run.state.names.pop(self.id, None)  # the variable that held it is used again
        run.state.give_name(self.id, place)
        return self

    def attribute(self, name: str, run: Run) -> Value:
        if name == "last_outcome":  # of halfstep's own scaler
            return SkipTest(self.id, name, run.state.num_steps)
        if name == "_per_optimizer_states":
            return found(self.id, run)
        if name == "_scale":
            return ScaleRead(self.id)
        if name == "_enabled":
            return Const(self.enabled)
        return Method(self, name) if name in _METHODS else super().attribute(name, run)

    def method(self, name: str, call: Call, run: Run) -> Value | None:
        if name == "scale":
            return self._scale(call, run)
        if name == "get_scale":
            run.emit(e.READ_SCALE, call.node, scaler=self.id)
            return ScaleRead(self.id)
        if name in ("_found_inf_per_device", "_check_inf_per_device"):
            return found(self.id, run)
        if name == "is_enabled":
            return Const(self.enabled)
        if name in ("unscale_", "step"):
            return self._on_optimizer(name, call, run)
        if name == "state_dict":
            return State("scaler", self.id)
        if name == "load_state_dict" and self.enabled:
            run.emit(e.LOAD, call.node, scaler=self.id)
        if name == "update" and self.enabled:
            facts = {"new_scale": True} if call.count() else {}
            run.emit(e.UPDATE, call.node, scaler=self.id, facts=facts)
        call.evaluate_all()
        return run.unknown()

    def _scale(self, call: Call, run: Run) -> Value:
        loss = call.first()
        if not self.enabled:
            return loss
        made = next((v.place for v in flat([loss]) if isinstance(v, Penalty)), None)
        facts = {"carried": made} if made is not None else {}
        run.emit(e.SCALE, call.node, scaler=self.id, facts=facts)
        if isinstance(loss, Sequence):
            return Sequence([Scaled(self.id, item.models) for item in loss.items])
        return Scaled(self.id, loss.models)

    def _on_optimizer(self, method: str, call: Call, run: Run) -> Value:
        optimizer = as_optimizer(call.first(), run)
        if optimizer is None:
            run.emit(e.OPAQUE, call.node, scaler=self.id, facts={"models": None})
            return run.unknown()
        kind = e.STEP if method == "step" else e.UNSCALE
        closures = [*call.given()[1:], *call.named().values()]
        facts: dict[str, Any] = {}
        if "closure" in call.names():
            facts["closure"] = True  # torch refuses it by its name, whatever it is
        elif any(closure.truth is not False for closure in closures):
            facts["closure"] = all(closure.truth for closure in closures) or "perhaps"
        if run.state.finite_known:
            facts["guarded"] = True
        who = (optimizer.id,)
        if self.enabled:
            run.emit(kind, call.node, scaler=self.id, optimizers=who, facts=facts)
        elif kind == e.STEP:
            run.emit(kind, call.node, optimizers=who, facts=facts)
        if kind == e.STEP:
            own.stepped(call.first(), call, run)
        return run.unknown()


@functions("*.GradScaler", "*.ShardedGradScaler")
def _new_scaler(call: Call, run: Run) -> Value:
    enabled = call.named().get("enabled", Const(True))
    truth = enabled.truth
    if truth is None:
        truth = run.decide(enabled.key)
    scaler = Scaler(f"scaler@{call.node.lineno}#{run.fresh()}", truth)
    if truth:
        run.emit(e.SCALER, call.node, scaler=scaler.id, facts=call.constants())
    return scaler
