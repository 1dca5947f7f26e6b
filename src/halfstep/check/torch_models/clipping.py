"""torch's clips, and those of libraries that call them."""

from __future__ import annotations

from typing import Any

from halfstep.check.torch_models.gradients import Params
from halfstep.check.torch_models.norms import Norm, measured
from halfstep.check.torch_models.scales import ScaleRead
from halfstep.check.torch_models.table import functions
from halfstep.check.values.base import Const, Models, Unknown, Value
from halfstep.check.values.call import Call, is_infinite
from halfstep.check.values.containers import Sequence
from halfstep.check.values.run import Run
from halfstep.rules import events as e


@functions("*.clip_grad_norm_", "*.clip_grad_norm", "*.dispatch_clip_grad")
def _by_norm(call: Call, run: Run) -> Value:
    return clip("norm", _clipped(call), call, run)


@functions("*.clip_grad_value_")
def _by_value(call: Call, run: Run) -> Value:
    return clip("value", _clipped(call), call, run)


@functions("*.clip_grads_with_norm_")
def _by_given_norm(call: Call, run: Run) -> Value:
    values = call.all()
    norm = call.named().get("total_norm", values[2] if len(values) > 2 else None)
    true = isinstance(norm, ScaleRead) or (isinstance(norm, Norm) and norm.unscaled)
    facts = {"how": "norm", "models": _clipped(call), "max_norm_scaled": true}
    run.emit(e.CLIP, call.node, facts=facts)
    return run.unknown()


def clip(how: str, models: Models | None, call: Call, run: Run, limit: int = 1) -> Value:
    """Record a clip; `limit` is the position of its limit."""
    values = [*call.given(), run.unknown(), run.unknown()]
    value = call.named().get("max_norm", values[limit])
    facts: dict[str, Any] = {"how": how, "models": models or None}
    if isinstance(value, Const):
        facts["max_norm"] = value.value
    if isinstance(value, ScaleRead) and not value.inverse:
        facts["max_norm_scaled"] = True
    if is_infinite(call, limit):
        facts["max_norm"] = float("inf")
    run.emit(e.CLIP, call.node, facts=facts)
    if facts.get("max_norm") == float("inf"):
        return measured(models or frozenset(), call.node, run)
    return Norm(("new", run.fresh()))


def _clipped(call: Call) -> Models | None:
    value = call.first()
    return value.parameters() if isinstance(value, (Params, Sequence, Unknown)) else None
