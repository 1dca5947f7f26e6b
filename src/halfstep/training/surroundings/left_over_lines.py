"""What surrounds the engine: lines of a stock loop that stayed, other optimizers, changed weights.

None of it is an engine's own call, and all of it would be silently wrong: a clip that acts on
scaled gradients, an ``optimizer.step()`` that applies them. A look reads attributes of Python
objects and runs no torch operation, except in the first windows on a CPU; the longer ones are
taken in the first windows, and then in every 16th (gradients) or 64th (parameters of the model).
"""

from __future__ import annotations

import gc
import logging
import math
import operator
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

from halfstep.records import BadValueError, CallOrderError
from halfstep.training.call_site import CallSite, call_site, line_between
from halfstep.training.surroundings.setup_checks import (
    refuse_fp16_parameters,
    trainable_outside,
    warn_of_bf16_parameters,
)
from halfstep.training.window.loss import LossSum
from halfstep.update import NoLossScale, OptimizerSlot
from halfstep.update.optimizers.norm import GradientNorm
from halfstep.update.optimizers.observers import leaves_gradients_alone
from halfstep.update.ranks.shards import local_of

logger = logging.getLogger("halfstep")

_FIRST, _EVERY, _RARELY = 3, 16, 64  # windows
_KEY: Any = "halfstep"  # of the one hook among torch's, whose keys are numbers

_grad_of = operator.attrgetter("grad")
_dtype_of = operator.attrgetter("dtype")


class Surroundings:
    """Looks around for one engine.

    Args:
        models: By name.
        slots: Of the optimizers.
        device: Of the trainable parameters when the engine was made.
    """

    def __init__(
        self, models: Mapping[str, nn.Module], slots: Sequence[OptimizerSlot], device: torch.device
    ) -> None:
        self._models = models
        self._slots = list(slots)
        self._device = device
        self._watches = {slot: _GradientWatch(slot) for slot in slots}
        self._outside: list[Tensor] = []
        self._to_clear: list[Tensor] = []
        self._windows = 0
        self._low = {
            name
            for name, model in models.items()
            if any(p.dtype is torch.bfloat16 for p in model.parameters() if p.requires_grad)
        }
        self._in_backward: Sequence[OptimizerSlot] = ()
        self._refuses = False
        self._reference = weakref.ref(self)

    def before_backward(self, slots: Sequence[OptimizerSlot], loss: Tensor | LossSum) -> None:
        """Look, before a micro-batch is added to the windows of some optimizers.

        Raises:
            BadValueError: The model was cast to FP16 or moved to another kind of device.
            CallOrderError: The loss carries a torch ``GradScaler``'s scale already.
        """
        if not slots[0].window.micro_batches:
            self._window_opens()
        for slot in slots:
            self._watches[slot].before_backward()
        total = loss.total if isinstance(loss, LossSum) else loss
        if self._watches[slots[0]].looks and isinstance(total, Tensor):
            factor = _last_factor(total)
            if factor is not None:
                if self._windows <= _FIRST:
                    _refuse_scaled_loss(factor)
                for slot in slots:
                    self._watches[slot].note_factor(factor)
        self._in_backward = slots
        if not self._refuses:
            self._begin_to_refuse_steps()

    def after_backward(self, slots: Sequence[OptimizerSlot]) -> None:
        """Remember the gradients as backward has left them."""
        self._in_backward = ()
        for slot in slots:
            self._watches[slot].after_backward()

    def own_window_opens(self) -> None:
        """The user's own backward follows: its gradients carry the scale as well."""
        self._begin_to_refuse_steps()

    def before_step(self, slots: Sequence[OptimizerSlot]) -> None:
        """Look at what was done to the gradients since the last backward.

        Raises:
            CallOrderError: They were edited where they are not the true ones.
            BadValueError: The model was cast to FP16.
        """
        for slot in slots:
            parameters = slot.parameters()
            if torch.float16 in set(map(_dtype_of, parameters)):
                refuse_fp16_parameters((slot.name_of(p), p) for p in parameters)
            self._watches[slot].before_step()

    def windows_close(self) -> None:
        """Drop what belongs to no optimizer, once no window is open any more."""
        self._in_backward = ()
        for slot in self._slots:
            if slot.window.is_open:
                return
        for p in self._to_clear:
            p.grad = None
        if self._refuses:
            self._end_to_refuse_steps()

    def refuse_step_of(self, optimizer: Optimizer) -> None:
        """Refuse an ``optimizer.step()`` that would apply gradients of an open window."""
        slots = [slot for slot in self._slots if slot.window.is_open]
        held = {id(p) for slot in slots for p in slot.parameters() if p.grad is not None}
        held |= {id(p) for slot in self._in_backward for p in slot.parameters()}
        if not any(id(p) in held for group in optimizer.param_groups for p in group["params"]):
            return
        name = type(optimizer).__name__
        if self._in_backward:
            raise CallOrderError(
                f"{name}.step() was called inside engine.backward(), by a hook on a parameter: an"
                " optimizer inside backward cannot be skipped on an overflow. Remove the hook and"
                " let engine.step() update the weights."
            )
        raise CallOrderError(
            f"{name}.step() inside an open window of the engine{_at(call_site())} would apply"
            " gradients that still carry the loss scale; delete that line, engine.step() updates"
            " the weights."
        )

    def refuse_unscale_of(self, grads: Sequence[Tensor]) -> None:
        """Refuse a GradScaler's ``unscale_`` of gradients of an open window."""
        slots = [slot for slot in self._slots if slot.window.is_open]
        held = {id(p.grad) for slot in slots for p in slot.parameters() if p.grad is not None}
        if any(id(grad) in held for grad in grads):
            raise CallOrderError(
                f"a GradScaler's unscale_() inside an open window of the engine{_at(call_site())}"
                " would divide gradients by a scale that they do not carry; delete that line and"
                " the scaler with it, engine.step() unscales."
            )

    def _begin_to_refuse_steps(self) -> None:
        """See every ``optimizer.step()`` and ``unscale_()`` of the process while a window is open.

        The first by torch's own hook. The kernel of the second counts no versions of the gradients
        that it changes, and has no hook: the function is replaced while a window is open.
        """
        self._refuses = True
        _refusing[id(self)] = self._reference
        torch_optimizer._global_optimizer_pre_hooks[_KEY] = _refuse_strays
        setattr(torch, _UNSCALE, _refuse_stray_unscale)

    def _end_to_refuse_steps(self) -> None:
        self._refuses = False
        _refusing.pop(id(self), None)
        if not _refusing:
            torch_optimizer._global_optimizer_pre_hooks.pop(_KEY, None)
            setattr(torch, _UNSCALE, _unscale_kernel)

    def _window_opens(self) -> None:
        self._windows += 1
        if self._windows <= _FIRST or self._windows % _RARELY == 0:
            self._look_at_parameters()
        if self._outside:
            self._to_clear = [p for p in self._outside if p.grad is None]

    def _look_at_parameters(self) -> None:
        for name, model in self._models.items():
            trainable = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
            refuse_fp16_parameters(trainable)
            moved = [n for n, p in trainable if p.device.type != self._device.type]
            if moved:
                raise BadValueError(
                    f"parameter {moved[0]!r} has moved away from {self._device.type}, where the"
                    " engine was made; move the model first, then make optimizer and engine."
                )
            if name not in self._low and warn_of_bf16_parameters(trainable):
                self._low.add(name)
        optimizers = [slot.optimizer for slot in self._slots]
        self._outside = [p for _, p in trainable_outside(optimizers, self._models)]


class _GradientWatch:
    """Whether anybody but the engine edits the gradients of one optimizer inside a window."""

    def __init__(self, slot: OptimizerSlot) -> None:
        self._slot = slot
        self._windows = 0
        self.looks = False
        self._seen: list[tuple[Tensor | None, int]] = []
        self._norm: float | None = None
        self._edited: str | None = None
        self._site: CallSite | None = None
        self._line: CallSite | None = None
        self._factors: list[float] = []
        self._warned = False

    def before_backward(self) -> None:
        if not self._slot.window.micro_batches:
            self._windows += 1
            if self.looks:  # in the window before
                self._seen, self._edited, self._line, self._factors = [], None, None, []
            self.looks = self._windows <= _FIRST or self._windows % _EVERY == 0
        elif self.looks:
            self._compare()

    def note_factor(self, factor: Tensor) -> None:
        if factor.is_cpu:
            self._factors.append(float(factor))

    def after_backward(self) -> None:
        if self.looks:
            grads = list(map(_grad_of, self._slot.parameters()))
            self._seen = [(g, 0 if g is None else g._version) for g in grads]
            self._norm = self._norm_of(grads)
            self._site = call_site()

    def before_step(self) -> None:
        window = self._slot.window
        if not self.looks or window.true_gradients:
            return
        self._compare()
        self._warn_of_division()
        if self._edited is None or self._is_harmless():
            return
        raise CallOrderError(
            f"gradients were edited between engine.backward() and engine.step() (first"
            f" {self._edited}{_at(self._line, 'most likely by')}), where they still carry the loss"
            " scale and the size of the window. Delete that line: max_norm=... clips,"
            " engine.backward(loss) is the only backward of a window, and `with"
            " engine.gradients():` gives the true gradients to change."
        )

    def _compare(self) -> None:
        if self._edited is not None or not self._seen:
            return
        parameters = self._slot.parameters()
        if len(parameters) != len(self._seen) or all(p.grad is None for p in parameters):
            return  # a group was added, or all were cleared: others say so
        for p, (grad, version) in zip(parameters, self._seen, strict=True):
            if p.grad is not grad or (grad is not None and grad._version != version):
                self._edited = repr(self._slot.name_of(p))
                break
        else:
            norm = self._norm_of([grad for grad, _ in self._seen])
            if norm != self._norm and not (norm is None or math.isnan(norm)):
                self._edited = "through .data"
        if self._edited is not None:
            self._line = line_between(self._site, call_site(), _EDITS)

    def _norm_of(self, grads: Sequence[Tensor | None]) -> float | None:
        """A write through ``grad.data`` counts no version; on a CPU the first windows see it."""
        present = [local_of(grad) for grad in grads if grad is not None]
        if self._windows > _FIRST or not all(
            grad.is_cpu and not grad.is_sparse for grad in present
        ):
            return None
        return float(GradientNorm()(present)) if present else None

    def _is_harmless(self) -> bool:
        """Whether the gradients are the true ones already: no scale, and one mean loss."""
        window = self._slot.window
        unscaled = isinstance(self._slot.loss_scale, NoLossScale)
        return unscaled and window.divisor is None and window.num_micro_batches == 1

    def _warn_of_division(self) -> None:
        count = self._slot.window.num_micro_batches
        by_count = [factor in (count, 1 / count) for factor in self._factors]
        if count > 1 and len(by_count) == count and all(by_count) and not self._warned:
            self._warned = True
            logger.warning(
                "each loss was divided by %d, the number of micro-batches of its window: the engine"
                " averages them itself, so that the update is %d times too small. Delete the"
                " division, unless it averages something else (said once)",
                count,
                count,
            )


_EDITS = r"clip_grad|unscale_|\.grad\b|\.backward\(|_foreach_|zero_grad"
_refusing: dict[int, weakref.ref[Surroundings]] = {}


_UNSCALE = "_amp_foreach_non_finite_check_and_unscale_"
_unscale_kernel: Any = getattr(torch, _UNSCALE)


@leaves_gradients_alone
def _refuse_strays(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for surroundings in _with_open_windows():
        surroundings.refuse_step_of(optimizer)


def _refuse_stray_unscale(grads: Sequence[Tensor], *arguments: Any) -> Any:
    for surroundings in _with_open_windows():
        surroundings.refuse_unscale_of(grads)
    return _unscale_kernel(grads, *arguments)


def _with_open_windows() -> list[Surroundings]:
    """Of all engines; one that is gone, with its window, is dropped."""
    found = [(key, reference()) for key, reference in list(_refusing.items())]
    for key, surroundings in found:
        if surroundings is None:
            del _refusing[key]
    return [surroundings for _, surroundings in found if surroundings is not None]


def _last_factor(loss: Tensor) -> Tensor | None:
    """The 0-d number that a loss was multiplied or divided by last."""
    node = loss.grad_fn
    if node is None or node.name() not in ("MulBackward0", "DivBackward0"):
        return None
    factor = getattr(node, "_saved_other", None)
    if not isinstance(factor, Tensor) or factor.dim() or factor.requires_grad:
        return None
    return factor


def _refuse_scaled_loss(factor: Tensor) -> None:
    """Refuse a loss that a torch ``GradScaler`` has scaled; it is found by its scale's memory."""
    if factor.dtype is not torch.float32:
        return  # a Python number is float64
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.amp.GradScaler):
            scale = thing._scale
            if scale is not None and scale.data_ptr() == factor.data_ptr():
                raise CallOrderError(
                    f"the loss was scaled by a {type(thing).__name__} before engine.backward(),"
                    " which scales it again; delete scaler.scale(...) and the scaler with it."
                )


def _at(site: CallSite | None, how: str = "at") -> str:
    return "" if site is None else f", {how} {site}"
