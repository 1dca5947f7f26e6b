"""From an engine's settings, each one for all optimizers or by name, to its optimizer slots."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from halfstep.precision import Policy
from halfstep.training.engine.names import check_name, for_each
from halfstep.training.followers.schedule import Schedule, check_schedule
from halfstep.update import Joint, LossScale, OptimizerSlot, as_loss_scale
from halfstep.update.decision.clipping import Clip, check_clip
from halfstep.update.decision.veto import checked_conditions
from halfstep.update.optimizers.gradients import parameter_names
from halfstep.update.ranks.find import inner_models

Limit = float | Joint | None
ScaleSetting = LossScale | float | str | None


def build_slots(
    models: Mapping[str, nn.Module],
    optimizers: Mapping[str, Optimizer],
    *,
    policy: Policy,
    max_norm: Limit | Mapping[str, float | None],
    clip: Clip | None,
    loss_scale: ScaleSetting | Mapping[str, ScaleSetting],
    fuse: str | bool,
    veto: Any,
) -> list[OptimizerSlot]:
    """One slot per optimizer, in the order of the mapping.

    Args:
        models, optimizers: By name.
        policy: Of the run; says what ``loss_scale="auto"`` is.
        max_norm, clip, loss_scale, fuse, veto: As for `Engine`.
    """
    check_clip(clip, max_norm)
    per_slot = None if isinstance(max_norm, Joint) else max_norm
    limits = for_each("max_norm", per_slot, optimizers)
    scales = _loss_scales(loss_scale, optimizers, policy)
    conditions = checked_conditions(veto)
    names = _names(models)
    return [
        OptimizerSlot(
            name,
            optimizer,
            scales[name],
            max_norm=limits[name],
            clip=clip,
            fuse=fuse,
            names=names,
            # conditions that learn must learn from one optimizer each
            vetoes=conditions if len(optimizers) == 1 else copy.deepcopy(conditions),
        )
        for name, optimizer in optimizers.items()
    ]


def schedules_for(
    schedule: Schedule | Mapping[str, Schedule | None] | None, optimizers: Mapping[str, Optimizer]
) -> dict[str, Schedule | None]:
    """Optimizer name to its schedule.

    A single torch scheduler belongs to the optimizer that it was made for; a single token schedule
    is for all.

    Args:
        schedule: As for `Engine`.
        optimizers: By name.
    """
    if isinstance(schedule, LRScheduler) and len(optimizers) > 1:
        owners = [name for name, opt in optimizers.items() if opt is schedule.optimizer]
        schedule = dict.fromkeys(owners, schedule) if owners else schedule
    found = for_each("schedule", schedule, optimizers)
    for name, each in found.items():
        if each is not None:
            check_schedule(each, optimizers[name])
    return found


def _loss_scales(
    setting: ScaleSetting | Mapping[str, ScaleSetting],
    optimizers: Mapping[str, Optimizer],
    policy: Policy,
) -> dict[str, LossScale]:
    """Shared if it is one setting, each one's own if it is a mapping."""
    if not isinstance(setting, Mapping):
        return dict.fromkeys(optimizers, as_loss_scale(setting, policy.format, policy.init_scale))
    for name in setting:
        check_name("loss_scale", name, optimizers)
    return {
        name: as_loss_scale(setting.get(name, "auto"), policy.format, policy.init_scale)
        for name in optimizers
    }


def _names(models: Mapping[str, nn.Module]) -> dict[int, str]:
    """``id(parameter)`` to dotted name, with the model's name before it where there are several."""
    names: dict[int, str] = {}
    for model_name, model in inner_models(models).items():
        prefix = f"{model_name}." if len(models) > 1 else ""
        for key, name in parameter_names(list(model.named_parameters())).items():
            names.setdefault(key, prefix + name)
    return names
