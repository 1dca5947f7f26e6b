"""The one number that unscales, normalises and clips, and the decision to apply it.

::

    unit       = S * divisor / nominal          what the gradients carry
    grad_norm  = scaled_norm / unit             the true norm
    clip_coef  = min(1, max_norm / (grad_norm + 1e-6))
    multiplier = unit / clip_coef               what the gradients are divided by

The formula stands here twice, side by side: on floats, where the host knows the norm (a CPU, an
optimizer that cannot skip by itself), and on device tensors, where reading it would stall. A test
compares the two. On the device several optimizers are judged at once, side by side in vectors: what
a decision costs there is the number of its kernels. The drop-in scaler, whose unit is a loss scale
and nothing else, leaves out on the device what a loss scale cannot do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from halfstep.update.optimizers.gradients import (
    LARGEST_SCALE,
    SMALLEST_SCALE,
    in_float32_range,
    values_of,
)
from halfstep.update.readback import Number, is_one, on_device

_CLIP_EPS = 1e-6  # torch.nn.utils.clip_grad_norm_'s
_SMALLEST_MAXIMUM = 65504.0  # FP16's; every other format that gradients have goes further
_ROUNDING = 1e-9  # more than the few float64 roundings by which a clipped norm may pass its limit


@dataclass(slots=True)
class Factors:
    """What the gradients of a window allow, on the host.

    Attributes:
        found_inf: 1.0 if the update must not happen.
        grad_norm: True norm before clipping.
        clip_coef: At most 1.
        multiplier: What the gradients are divided by.
    """

    found_inf: float
    grad_norm: float
    clip_coef: float
    multiplier: float


@dataclass(slots=True)
class DeviceFactors:
    """`Factors` on the device; what the host knows already is a float.

    Attributes:
        found_inf: float32, 1.0 if the update must not happen.
        grad_norm: float64, the true norm before clipping.
        clip_coef: At most 1; 1.0 without clipping, else float64.
        multiplier: What the gradients are divided by; float32 where it is a tensor.
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
    *,
    exact: bool = True,
) -> Factors:
    """The decision in floats; see the module for the formula.

    Args:
        scaled_norm: 2-norm of the gradients as they are.
        unit: What they carry: scale times divisor over nominal.
        max_norm: Limit of the true norm, or ``None``.
        grads: The gradients, looked at only where dividing them could overflow.
        norm_to_clip: The norm that is limited, where it is over more gradients than these.
        exact: Whether elements are looked at where the norm alone leaves open if one overflows;
            else it counts as an overflow.
    """
    grad_norm = scaled_norm / unit
    if not math.isfinite(grad_norm):
        return Factors(1.0, grad_norm, 1.0, unit)
    limited = grad_norm if norm_to_clip is None else norm_to_clip
    clip_coef = 1.0 if max_norm is None else clip_coefficient(limited, max_norm)
    multiplier = unit / clip_coef
    overflows = _would_overflow(grad_norm * clip_coef, multiplier, grads, exact)
    return Factors(float(overflows), grad_norm, clip_coef, multiplier)


def factors_on_device(
    scaled_norm: Tensor,
    unit: Number,
    max_norm: float | Tensor | None,
    largest: float | Tensor,
    norm_to_clip: Tensor | None = None,
) -> DeviceFactors:
    """The decision in device tensors, of one optimizer or of several side by side.

    Every operation is a kernel to launch, so a factor that is known to be 1 takes none.

    Args:
        scaled_norm: float64, of shape [] or [optimizers].
        unit: A float, or float64 on the same device, of shape [] or as `scaled_norm`.
        max_norm: Limit of the true norm, likewise, or ``None``.
        largest: The largest finite number of the gradients' formats, likewise.
        norm_to_clip: 0-d float64, as for `factors_on_host`.

    Syncs: no.
    """
    divisor = None if is_one(unit) else on_device(unit, scaled_norm.device)
    grad_norm = scaled_norm if divisor is None else scaled_norm / divisor
    coef: Number = 1.0
    multiplier: Number = unit
    if max_norm is not None:
        limited = grad_norm if norm_to_clip is None else norm_to_clip
        # not below 0, where a negative unit would make the multiplier positive again
        coef = ((limited + _CLIP_EPS).reciprocal() * max_norm).clamp(0.0, 1.0)
        multiplier = coef.reciprocal() if divisor is None else divisor / coef
    norm_after: Tensor | None = grad_norm
    if norm_to_clip is None and _bounds_norm(max_norm, largest):
        norm_after = None
    elif isinstance(coef, Tensor):
        norm_after = grad_norm * coef
    found_inf = _found_inf(norm_after, multiplier, largest)
    if isinstance(multiplier, Tensor):
        multiplier = multiplier.float()
    elif not in_float32_range(multiplier):
        multiplier = 1.0  # the update does not happen
    return DeviceFactors(found_inf, grad_norm, coef, multiplier)


def _bounds_norm(max_norm: float | Tensor | None, largest: float | Tensor) -> bool:
    """Whether no finite norm is beyond the gradients' formats once it is clipped.

    One that is not finite makes the multiplier inf or NaN, which is found without it.
    """
    if not isinstance(max_norm, float) or not isinstance(largest, float):
        return False
    return max_norm * (1 + _ROUNDING) <= largest


def _found_inf(norm_after: Tensor | None, multiplier: Number, largest: float | Tensor) -> Tensor:
    """1.0 unless the multiplier fits float32 and no element overflows; NaN gives 1.0 as well.

    The norm bounds every element, so an element overflows only if the norm does. A unit that is not
    positive makes a multiplier that is not.

    Args:
        norm_after: The norm of what the division leaves; ``None`` where it cannot overflow.
        multiplier, largest: As for `factors_on_device`.
    """
    if not isinstance(multiplier, Tensor):
        assert norm_after is not None
        if not in_float32_range(multiplier):
            return torch.ones_like(norm_after, dtype=torch.float32)
        return _flags(torch.logical_not, norm_after <= largest)
    clamped = multiplier.clamp(SMALLEST_SCALE, LARGEST_SCALE)
    if norm_after is None:
        return _flags(torch.ne, clamped, multiplier)
    return _flags(torch.logical_not, (norm_after <= largest) & (clamped == multiplier))


def _flags(test: Callable[..., object], *operands: Tensor) -> Tensor:
    """A test written as 1.0 and 0.0, without a kernel for the conversion."""
    found = torch.empty_like(operands[0], dtype=torch.float32)
    test(*operands, out=found)
    return found


def factors_for_loss_scale(
    scaled_norm: Tensor, unit: float | Tensor, max_norm: float | None, grads: Sequence[Tensor]
) -> DeviceFactors:
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
    return DeviceFactors(_flags(torch.logical_not, applicable), grad_norm, coef, multiplier)


def _would_overflow(
    norm_after: float, multiplier: float, grads: Sequence[Tensor], exact: bool
) -> bool:
    """Whether a gradient that is finite now is not finite after the division.

    torch checks before it multiplies: FP16 60000 times 4 passes its check as inf.
    """
    if norm_after <= _SMALLEST_MAXIMUM:
        return False
    dtypes = {grad.dtype for grad in grads} or {torch.float32}
    if norm_after <= min(torch.finfo(dtype).max for dtype in dtypes):
        return False
    if not exact:
        return True
    stored = [values_of(grad) for grad in grads if grad.numel()]
    peaks = ((float(value.abs().max()), torch.finfo(value.dtype).max) for value in stored)
    return any(peak / multiplier > largest for peak, largest in peaks)
