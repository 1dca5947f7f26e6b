"""The one number that unscales, normalises and clips, and the decision to apply it.

::

    unit       = S * divisor / nominal          what the gradients carry
    grad_norm  = scaled_norm / unit             the true norm
    clip_coef  = min(1, max_norm / (grad_norm + 1e-6))
    multiplier = unit / clip_coef               what the gradients are divided by

The formula stands here twice, side by side: on floats, where the host knows the norm (a CPU, an
optimizer that cannot skip by itself), and on device tensors, where reading it would stall. A test
compares the two. The drop-in scaler, whose unit is a loss scale and nothing else, leaves out on the
device what a loss scale cannot do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from halfstep.update.optimizers.gradients import LARGEST_SCALE, SMALLEST_SCALE, values_of

_CLIP_EPS = 1e-6  # torch.nn.utils.clip_grad_norm_'s
_SMALLEST_MAXIMUM = 65504.0  # FP16's; every other format that gradients have goes further

Number = TypeVar("Number", float, Tensor)


@dataclass(slots=True)
class Factors(Generic[Number]):
    """What the gradients of a window allow.

    Attributes:
        found_inf: 1.0 if the update must not happen; on the device a 0-d float32 tensor.
        grad_norm: True norm before clipping.
        clip_coef: At most 1.
        multiplier: What the gradients are divided by; on the device a 0-d float32 tensor.
    """

    found_inf: Number
    grad_norm: Number
    clip_coef: Number
    multiplier: Number


@dataclass(frozen=True)
class LossScaleFactors:
    """`Factors` on the device, of gradients that carry a loss scale or nothing.

    Attributes:
        found_inf: 0-d float32, 1.0 if the update must not happen.
        grad_norm: 0-d float64, the true norm before clipping.
        clip_coef: At most 1; a tensor only where the device has to compute it.
        multiplier: What the gradients are divided by: 1.0, or a 0-d float32 tensor.
    """

    found_inf: Tensor
    grad_norm: Tensor
    clip_coef: float | Tensor
    multiplier: float | Tensor


def clip_coefficient(norm: float, max_norm: float) -> float:
    """What a gradient of this norm is multiplied by, as in `torch.nn.utils.clip_grad_norm_`."""
    return min(1.0, max_norm / (norm + _CLIP_EPS))


def factors_on_host(
    scaled_norm: float,
    unit: float,
    max_norm: float | None,
    grads: Sequence[Tensor],
    norm_to_clip: float | None = None,
) -> Factors[float]:
    """The decision in floats; see the module for the formula.

    Args:
        scaled_norm: 2-norm of the gradients as they are.
        unit: What they carry: scale times divisor over nominal.
        max_norm: Limit of the true norm, or ``None``.
        grads: The gradients, looked at only where dividing them could overflow.
        norm_to_clip: The norm that is limited, where it is over more gradients than these.
    """
    grad_norm = scaled_norm / unit
    if not math.isfinite(grad_norm):
        return Factors(1.0, grad_norm, 1.0, unit)
    limited = grad_norm if norm_to_clip is None else norm_to_clip
    clip_coef = 1.0 if max_norm is None else clip_coefficient(limited, max_norm)
    multiplier = unit / clip_coef
    overflows = _would_overflow(grad_norm * clip_coef, multiplier, grads)
    return Factors(float(overflows), grad_norm, clip_coef, multiplier)


def factors_on_device(
    scaled_norm: Tensor,
    unit: Tensor,
    max_norm: float | None,
    grads: Sequence[Tensor],
    norm_to_clip: Tensor | None = None,
) -> Factors[Tensor]:
    """The decision in device tensors; nothing waits.

    Args:
        scaled_norm: 0-d float64.
        unit: 0-d float64 on the same device.
        max_norm: Limit of the true norm, or ``None``.
        grads: Only their dtypes are looked at.
        norm_to_clip: 0-d float64, as for `factors_on_host`.
    """
    grad_norm = scaled_norm / unit
    coef = torch.ones_like(grad_norm)
    if max_norm is not None:
        limited = grad_norm if norm_to_clip is None else norm_to_clip
        coef = (max_norm / (limited + _CLIP_EPS)).clamp(max=1.0)
    multiplier = unit / coef
    # the norm bounds every element, so an element overflows only if the norm does
    limit = min(torch.finfo(dtype).max for dtype in {grad.dtype for grad in grads})
    in_range = (multiplier >= SMALLEST_SCALE) & (multiplier <= LARGEST_SCALE)
    applicable = (unit > 0) & (grad_norm * coef <= limit) & in_range  # false for NaN as well
    return Factors((~applicable).float(), grad_norm, coef, multiplier.float())


def factors_for_loss_scale(
    scaled_norm: Tensor, unit: float | Tensor, max_norm: float | None, grads: Sequence[Tensor]
) -> LossScaleFactors:
    """`factors_on_device` in fewer operations, where the unit is a loss scale.

    A loss scale is in the normal range of float32, and clipping only makes the multiplier larger.

    Args:
        scaled_norm: 0-d float64.
        unit: 1.0 for gradients that are unscaled; else a 0-d float32 tensor on the same device.
        max_norm: Limit of the true norm, or ``None``.
        grads: Only their dtypes are looked at.

    Syncs: no.
    """
    grad_norm = scaled_norm if isinstance(unit, float) else scaled_norm / unit
    largest = min(torch.finfo(dtype).max for dtype in {grad.dtype for grad in grads})
    coef: float | Tensor = 1.0
    if max_norm is None or max_norm >= largest:
        multiplier, applicable = unit, grad_norm <= largest  # false for NaN as well
    else:
        coef = (max_norm / (grad_norm + _CLIP_EPS)).clamp(max=1.0)
        wide = unit / coef
        multiplier, applicable = wide.float(), wide <= LARGEST_SCALE  # inf where the norm is
    found_inf = torch.empty((), dtype=torch.float32, device=scaled_norm.device)
    torch.logical_not(applicable, out=found_inf)
    return LossScaleFactors(found_inf, grad_norm, coef, multiplier)


def _would_overflow(norm_after: float, multiplier: float, grads: Sequence[Tensor]) -> bool:
    """Whether a gradient that is finite now is not finite after the division.

    torch checks before it multiplies: FP16 60000 times 4 passes its check as inf.
    """
    if norm_after <= _SMALLEST_MAXIMUM:
        return False
    if norm_after <= min(torch.finfo(dtype).max for dtype in {grad.dtype for grad in grads}):
        return False
    stored = [values_of(grad) for grad in grads if grad.numel()]
    peaks = ((float(value.abs().max()), torch.finfo(value.dtype).max) for value in stored)
    return any(peak / multiplier > largest for peak, largest in peaks)
