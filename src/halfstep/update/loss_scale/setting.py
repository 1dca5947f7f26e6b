"""`as_loss_scale`: the loss scale that a setting asks for."""

from __future__ import annotations

import logging

import torch

from halfstep.records import BadTypeError, BadValueError
from halfstep.update.loss_scale.base import LossScale, NoLossScale, StaticLossScale, checked_scale
from halfstep.update.loss_scale.dynamic import DynamicLossScale

logger = logging.getLogger("halfstep")


def as_loss_scale(
    spec: LossScale | float | str | None, format_name: str, hint: float | None = None
) -> LossScale:
    """The loss scale that a setting asks for.

    Args:
        spec: ``"auto"`` (dynamic for fp16, none otherwise), a number (static), ``None``, or an
            object, which is used as it is.
        format_name: Format of the run.
        hint: A policy's first scale, for ``"auto"``; what the user gave explicitly wins.

    Raises:
        BadValueError: The number is not positive and finite, or the word is unknown.
        BadTypeError: Something else.
    """
    if hint is not None and format_name == "fp16" and spec != "auto":
        logger.info("loss_scale was given; the policy's init_scale %g is not used", hint)
    if isinstance(spec, LossScale):
        return spec
    if spec is None or (spec == "auto" and format_name != "fp16"):
        return NoLossScale()
    if spec == "auto" and hint is not None:
        # whoever writes down a scale below 1 wants it, and the floor with it
        return DynamicLossScale(init_scale=hint, min_scale=min(1.0, hint))
    if spec == "auto":
        return DynamicLossScale()
    if isinstance(spec, str):
        raise BadValueError(
            f"loss_scale must be 'auto', None, a number or a loss scale object, got {spec!r}."
        )
    if isinstance(spec, (int, float)) and not isinstance(spec, bool):
        return StaticLossScale(checked_scale("loss_scale", spec))
    if isinstance(spec, type) and issubclass(spec, LossScale):
        raise BadTypeError(f"loss_scale got the class; pass an object: hs.{spec.__name__}().")
    advice = ""
    if isinstance(spec, torch.amp.GradScaler):
        advice = "; a torch GradScaler's state loads into hs.DynamicLossScale()"
    raise BadTypeError(
        "loss_scale must be 'auto', None, a number or a loss scale object, got"
        f" {type(spec).__name__}{advice}."
    )
