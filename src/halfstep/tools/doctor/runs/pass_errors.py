"""Gradients, loss and result of a pass against those of FP32."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from halfstep.records import GradientError, PassError
from halfstep.tools.doctor.runs.passes import Pass


def pass_error(low: Pass, fp32: Pass) -> PassError:
    """How far a pass is from FP32 on the same batch.

    Args:
        low: The pass.
        fp32: The FP32 pass.
    """
    pairs = {
        name: (low.gradients[name], gradient)
        for name, gradient in fp32.gradients.items()
        if gradient is not None
    }
    products = {name: _products(a, b) for name, (a, b) in pairs.items()}
    total = tuple(sum(p[i] for p in products.values()) for i in range(4))
    gradients = tuple(
        GradientError(name, _cosine(p), _relative(p), p[1] / total[1] if total[1] else 0.0)
        for name, p in products.items()
    )
    return PassError(
        name=low.name,
        output_error=_output_error(low.outputs, fp32.outputs),
        loss_error=abs(low.loss - fp32.loss) / abs(fp32.loss) if fp32.loss else 0.0,
        cosine=_cosine(total),
        relative_error=_relative(total),
        gradients=gradients,
    )


def _products(low: Tensor | None, reference: Tensor) -> tuple[float, float, float, float]:
    """``low . low``, ``ref . ref``, ``low . ref``, ``|low - ref|^2``, in float64."""
    b = reference.double().reshape(-1)
    a = b * 0 if low is None else low.double().reshape(-1)
    return float(a @ a), float(b @ b), float(a @ b), float((a - b).square().sum())


def _cosine(products: tuple[float, ...]) -> float:
    size = math.sqrt(products[0]) * math.sqrt(products[1]) if products[0] >= 0 else math.nan
    return products[2] / size if size else math.nan


def _relative(products: tuple[float, ...]) -> float:
    if not math.isfinite(products[3]):
        return math.inf
    return math.sqrt(products[3] / products[1]) if products[1] else 0.0


def _output_error(low: Sequence[Tensor], reference: Sequence[Tensor]) -> float:
    """Of the worst result; NaN without one."""
    if not low or len(low) != len(reference):
        return math.nan
    return max(sample_error(a, b) for a, b in zip(low, reference, strict=True))


def sample_error(low: Tensor, reference: Tensor) -> float:
    """Relative error of one sample against another, where the reference is finite.

    Args:
        low: The sample.
        reference: The same in FP32.

    Returns:
        inf where the sample is not finite, NaN where the shapes differ.
    """
    if low.shape != reference.shape:
        return math.nan
    known = torch.isfinite(reference)
    wanted = reference[known].double()
    gap, size = float((low[known].double() - wanted).norm()), float(wanted.norm())
    if not math.isfinite(gap):
        return math.inf
    return gap / size if size else 0.0
