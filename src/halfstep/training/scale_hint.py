"""The policy's hint for the first loss scale."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from halfstep.precision import Policy
from halfstep.training.build_lanes import ScaleSetting
from halfstep.update import DynamicLossScale

logger = logging.getLogger("halfstep")


def with_hint(
    loss_scale: ScaleSetting | Mapping[str, ScaleSetting], policy: Policy, names: Iterable[str]
) -> ScaleSetting | Mapping[str, ScaleSetting]:
    """The setting, where ``"auto"`` is a dynamic scale that starts at the policy's hint.

    Args:
        loss_scale: As for `Engine`; whatever the user gave explicitly wins.
        policy: Of the run.
        names: Of the optimizers, for a mapping that leaves some out.
    """
    if policy.init_scale is None or policy.format != "fp16":
        return loss_scale
    if isinstance(loss_scale, Mapping):
        given = {**dict.fromkeys(names, "auto"), **loss_scale}
        return {name: _hinted(each, policy.init_scale) for name, each in given.items()}
    return _hinted(loss_scale, policy.init_scale)


def _hinted(loss_scale: ScaleSetting, hint: float) -> ScaleSetting:
    if loss_scale != "auto":
        logger.info("loss_scale was given; the policy's init_scale %g is not used", hint)
        return loss_scale
    # whoever writes down a scale below 1 wants it, and the floor with it
    return DynamicLossScale(init_scale=hint, min_scale=min(1.0, hint))
