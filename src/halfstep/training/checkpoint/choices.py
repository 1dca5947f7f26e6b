"""What a recipe chooses, and what of it a resumed run does not use.

Optimizers, torch's schedules and loss scales carry their settings in their state, so that a
checkpoint silently brings back those of the run that wrote it.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer

from halfstep.training.engine.engine import Engine
from halfstep.update import LossScale

logger = logging.getLogger("halfstep")

_NO_CHOICE = {"fused", "foreach", "capturable", "differentiable", "initial_lr", "params", "lr"}
_MOVED_TOO = {"momentum", "betas"}  # by a schedule that cycles the momentum


class Choices:
    """The settings of a fresh engine, noted before a checkpoint is loaded into it.

    Args:
        engine: As the recipe builds it.
    """

    def __init__(self, engine: Engine) -> None:
        self._groups = {name: _groups_of(each) for name, each in engine.optimizers.items()}
        self._scales = {name: _scale_settings(each) for name, each in engine.loss_scales.items()}
        self._schedules: Mapping[str, Any] = engine.state_dict()["schedules"]

    def warn_of_unused(self, content: Mapping[str, Any], engine: Engine) -> None:
        """Log each choice that the loaded checkpoint overrides, with both values.

        Args:
            content: Of the checkpoint.
            engine: It was loaded into this one.
        """
        for name, groups in self._groups.items():
            loaded = _groups_of(engine.optimizers[name])
            for number, (mine, saved) in enumerate(zip(groups, loaded, strict=True)):
                _compare(mine, saved, f" of group {number}" if len(groups) > 1 else "")
        for name, schedule in self._schedules.items():
            if schedule is None:
                continue
            if "settings" in schedule:
                saved = content["engine"]["schedules"][name]
                _compare(schedule["settings"], saved.get("settings", {}))
            else:
                _compare_rates(content["optimizer"][name], engine.optimizers[name])
        for index, name in enumerate(self._scales):
            if self._scales[name] not in list(self._scales.values())[:index]:  # shared: once
                _compare(self._scales[name], _scale_settings(engine.loss_scales[name]))


def _groups_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """What is chosen for each group, the rate before any schedule."""
    found = []
    for group in optimizer.param_groups:
        moving = _MOVED_TOO if "max_momentum" in group else set()
        rate = _plain(group.get("initial_lr", group["lr"]))
        names = sorted(group.keys() - _NO_CHOICE - moving)
        found.append({"lr": rate, **{name: _plain(group[name]) for name in names}})
    return found


def _scale_settings(scale: LossScale) -> dict[str, Any]:
    """Arguments of its constructor that its state holds."""
    state, names = scale.state_dict(), inspect.signature(type(scale)).parameters
    return {f"loss_scale.{name}": state[name] for name in names if name in state}


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _compare(mine: Mapping[str, Any], saved: Mapping[str, Any], where: str = "") -> None:
    for name, value in sorted(mine.items()):
        if name in saved and value != saved[name]:
            logger.warning(
                "the run goes on with %s=%s%s of its checkpoint; the recipe's %s is not used."
                " Start afresh to train with it",
                name,
                saved[name],
                where,
                value,
            )


def _compare_rates(saved: Mapping[str, Any], optimizer: Optimizer) -> None:
    """A token schedule is a function, and the recipe's is used from here on."""
    for there, group in zip(saved["param_groups"], optimizer.param_groups, strict=True):
        was, now = _plain(there["lr"]), _plain(group["lr"])
        if was != now:
            logger.warning(
                "the recipe's schedule is another one than in the run that wrote the checkpoint:"
                " the run goes on at the rate %s, not %s",
                now,
                was,
            )
            return
