"""`OptimizerSlot`: one optimizer with its window, loss scale, limits and counters."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from halfstep.records import BadValueError
from halfstep.update.decision.clipping import Clip, check_max_norm
from halfstep.update.decision.measured import Measured, carried
from halfstep.update.decision.veto import Condition
from halfstep.update.loss_scale.base import LossScale, SkipsInARow
from halfstep.update.optimizers.adapter import OptimizerAdapter
from halfstep.update.optimizers.gradients import (
    GradientCollector,
    Gradients,
    divide_,
    non_finite_parameters,
    values_of,
)
from halfstep.update.optimizers.norm import GradientNorm
from halfstep.update.optimizers.square_sums import SquareSums
from halfstep.update.ranks.ranks import ONE, Ranks
from halfstep.update.readback import Number, on_device
from halfstep.update.step.counters import Counters
from halfstep.update.step.exchange import exchange_norm
from halfstep.update.step.launched_step import LaunchedStep, is_on_a_device
from halfstep.update.step.window import Window


class OptimizerSlot:
    """An optimizer with its window, loss scale, limits and counters.

    Args:
        name: The user's, where there are several.
        optimizer: Any optimizer whose step needs no closure.
        loss_scale: See `as_loss_scale`; may be shared with other slots.
        max_norm: Limit of the true gradient norm, or ``None``.
        clip: A callable on the parameters with their true gradients instead.
        fuse: See `OptimizerAdapter`.
        names: ``id(parameter)`` to name, for messages.
        vetoes: See `halfstep.update.decision.veto`.
    """

    def __init__(
        self,
        name: str,
        optimizer: Optimizer,
        loss_scale: LossScale,
        *,
        max_norm: float | None = None,
        clip: Clip | None = None,
        fuse: str | bool = "auto",
        names: Mapping[int, str] | None = None,
        vetoes: Sequence[Condition] = (),
    ) -> None:
        if max_norm is not None:
            check_max_norm(max_norm)
        self.name = name
        self.optimizer = optimizer
        self.loss_scale = loss_scale
        self.max_norm = max_norm
        self.vetoes = list(vetoes)
        self.counters = Counters()
        self._skips = SkipsInARow()
        self._last_try = -1
        self.window = Window()
        self.adapter = OptimizerAdapter(optimizer, fuse)
        self.clip = clip
        self._collector = GradientCollector(optimizer)
        self._norm = GradientNorm()
        self._square_sums = SquareSums()
        self._names = dict(names or {})

    @property
    def is_near_collapse(self) -> bool:
        """Whether the next skip would be one too many."""
        scale = self.loss_scale
        skips = max(self._skips.count, scale.num_consecutive_skips)
        return skips >= scale.max_consecutive_skips - 1

    def use(self, loss_scale: LossScale) -> None:
        """Go on with another loss scale, as at the start of a run."""
        self.loss_scale = loss_scale
        self._skips.restart(0)

    def is_new_try(self, number: int) -> bool:
        """Whether a skip is the first one at this try of the loss scale."""
        is_new, self._last_try = number != self._last_try, number
        return is_new

    def observe(self, skipped: bool, scale: float) -> None:
        """Count skips of this optimizer alone: others that share its scale may be doing well.

        Raises:
            ScaleCollapse: Too many in a row.
        """
        self._skips.observe(skipped, scale, self.loss_scale.max_consecutive_skips)

    def state_dict(self) -> dict[str, Any]:
        """Counters, and what conditions have learnt; the loss scale has its own."""
        conditions = (getattr(condition, "state_dict", dict) for condition in self.vetoes)
        return {
            "counters": dataclasses.asdict(self.counters),
            "num_consecutive_skips": self._skips.count,
            "vetoes": [state() for state in conditions],
        }

    def check_state(self, state: dict[str, Any]) -> None:
        """Refuse a state of other conditions than this slot's."""
        was, now = len(state["vetoes"]), len(self.vetoes)
        if was != now:
            raise BadValueError(
                f"the state was saved with {was} conditions (veto=...), this engine has {now};"
                " build it with the conditions of the run that wrote it."
            )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.counters = Counters(**state["counters"])
        self._skips.restart(state["num_consecutive_skips"])
        for condition, saved in zip(self.vetoes, state["vetoes"], strict=True):
            load = getattr(condition, "load_state_dict", None)
            if saved and load is not None:
                load(saved)

    def parameters(self) -> list[Tensor]:
        """Every parameter of the optimizer."""
        return self._collector.all_parameters()

    def clear_gradients(self) -> None:
        """Set every gradient to ``None``."""
        self._collector.clear()

    def drop_window(self) -> None:
        """Forget the window and its gradients."""
        self.window = Window()
        self.clear_gradients()

    def gradients(self) -> dict[str, Tensor]:
        """Parameter name to gradient, where there is one."""
        found = ((self.name_of(p), p.grad) for p in self.parameters())
        return {name: grad for name, grad in found if grad is not None}

    def name_of(self, parameter: Tensor) -> str:
        """The parameter's dotted name, or its shape."""
        return self._names.get(id(parameter), f"a parameter of shape {tuple(parameter.shape)}")

    def unscale_(self, ranks: Ranks = ONE) -> None:
        """Make ``.grad`` the true gradients: unscaled and normalised, not clipped.

        Args:
            ranks: Those that train together; several exchange the weights of their windows.

        Syncs: no.
        """
        scale, weight, divided = self._scale_now(), self.window.weight, self.window.nominal
        if ranks.are_several:
            weight = ranks.sum(on_device(weight, ranks.device).reshape(1))[0] / ranks.copies_of_data
            divided *= ranks.averaged_over
        self._divide(carried(scale, weight, divided))

    def _divide(self, unit: Number) -> None:
        grads = self._collector.collect()[1]
        if isinstance(unit, Tensor) and unit.is_cpu:
            unit = float(unit)
        if isinstance(unit, Tensor):
            harmless = torch.where(unit == 0, 1.0, unit)  # an empty window is dropped anyway
            torch._foreach_div_([values_of(grad) for grad in grads], harmless.float())
        elif unit and grads:
            divide_(grads, unit)
        self.window.true_gradients = True

    def measure(self, ranks: Ranks = ONE) -> Measured:
        """One read of the gradients.

        Args:
            ranks: Those that train together; with several, norm and unit are known once they have
                exchanged the square sums.

        Syncs: no.
        """
        gradients = self._collector.collect()
        params, grads, are_dense = gradients
        scale = self._scale_now()
        if ranks.are_several:
            measured = self._measured(gradients, math.nan, 1.0, scale)
            measured.squares = self._square_sums(gradients, ranks)
            return measured
        if not grads:
            return self._measured(gradients, 0.0, 1.0, scale)
        norm = self._norm(grads, key=params, are_dense=are_dense)
        return self._measured(gradients, norm, self._unit_of(scale), scale)

    def clip_by_callable(self, measured: Measured, ranks: Ranks = ONE) -> None:
        """Let the clip callable work on the true gradients, and read what it leaves.

        Args:
            measured: What `measure` found, after the exchange; written.
            ranks: As there.
        """
        norm, unit = measured.norm, measured.unit
        known_bad = isinstance(norm, float) and not math.isfinite(norm)
        is_empty = isinstance(unit, float) and unit == 0
        if self.clip is None or known_bad or is_empty or not measured.has_gradients:
            return
        if not measured.is_true:
            self._divide(unit)
        self.clip(measured.gradients.params)
        gradients = self._collector.collect()  # the callable may have replaced some
        measured.gradients = gradients
        if ranks.are_several:
            squares = self._square_sums(gradients, ranks)
            measured.left_by_clip = exchange_norm(squares, ranks)
        else:
            measured.left_by_clip = self._norm(gradients.grads)

    def kernel_can_skip(self, measured: Measured) -> bool:
        """Whether the kernel can skip this update by itself, without the host knowing.

        Near the limit of skips in a row the host looks, so that the error can name parameters.
        """
        return (
            isinstance(measured.norm, Tensor)  # not so without gradients
            and measured.gradients.are_dense
            and measured.left_by_clip is None
            and not self.is_near_collapse
            and self.adapter.can_skip_itself(measured.gradients.params)
        )

    def launched_step(self) -> LaunchedStep:
        """What is known of the step that is about to be launched."""
        return LaunchedStep.of(self.counters.attempts + 1, self.optimizer, self.window)

    def bad_parameters(self) -> list[str]:
        """Names of the parameters whose gradient is not finite.

        Syncs: yes, once per parameter.
        """
        return non_finite_parameters(self._names, self.parameters())

    def some_names(self) -> str:
        """A few parameter names, for a message."""
        names = [self._names.get(id(p), "unnamed") for p in self.parameters()]
        return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")

    def _unit_of(self, scale: Number) -> Number:
        """What the gradients carry."""
        window = self.window
        if window.true_gradients:
            return 1.0
        return carried(scale, window.weight, window.nominal)

    def _scale_now(self) -> Number:
        """The loss scale: a float where the host knows it, else a float64 copy on the device."""
        scale = self.loss_scale.known_value
        return self.loss_scale.value.double() if scale is None else scale

    def _measured(
        self,
        gradients: Gradients,
        norm: Number,
        unit: Number,
        scale: Number,
    ) -> Measured:
        window = self.window
        rates = [group["lr"] for group in self.optimizer.param_groups]
        on_a_device = [rate for rate in rates if is_on_a_device(rate)]
        return Measured(
            self.name,
            gradients,
            norm,
            unit,
            scale,
            window.weight,
            window.sums(),
            self.max_norm,
            self.vetoes,
            rates=on_a_device,
            nominal=window.nominal,
            is_true=window.true_gradients,
            has_divisor=window.divisor is not None,
            metric_names=tuple(window.metrics),
            has_gradients=bool(gradients.grads),
        )
