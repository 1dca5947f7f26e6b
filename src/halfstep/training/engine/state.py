"""What an engine itself knows, as a state that goes into a checkpoint, and back."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

from halfstep.records import BadValueError
from halfstep.training.followers.followers import Followers
from halfstep.training.window.backward import ScaledBackward
from halfstep.update import Counters, LossScale, OptimizerSlot, Update

_KEYS = {"counters", "emas", "format", "loss_scales", "nominal", "optimizers", "schedules"}


def engine_state(
    format_name: str, update: Update, backward: ScaledBackward, followers: Followers
) -> dict[str, Any]:
    """Plain data and tensors; the previous step must be settled.

    Args:
        format_name: Of the run.
        update: Counters, loss scales and conditions.
        backward: The nominal divisor.
        followers: Schedules and averages.
    """
    scales = loss_scales(update.slots)
    index = {id(scale): number for number, scale in enumerate(scales)}
    return {
        "format": format_name,
        "counters": dataclasses.asdict(update.counters),
        "nominal": backward.nominal,
        "loss_scales": [scale.state_dict() for scale in scales],
        "optimizers": {
            slot.name: {**slot.state_dict(), "loss_scale": index[id(slot.loss_scale)]}
            for slot in update.slots
        },
        **followers.state_dict(),
    }


def check_engine_state(
    state: dict[str, Any], update: Update, followers: Followers, falls_back: bool
) -> None:
    """Refuse a state that is not of an engine built the same way, before anything is changed.

    Args:
        state: From `engine_state`.
        update, followers: Of this engine.
        falls_back: Whether the engine gives up its loss scales first, as the run that wrote it did.
    """
    if set(state) != _KEYS:
        raise BadValueError(
            f"expected the state of an Engine with the keys {sorted(_KEYS)}, got"
            f" {sorted(map(str, state))}."
        )
    names, saved = sorted(slot.name for slot in update.slots), sorted(state["optimizers"])
    models, averaged = sorted(followers.emas), sorted(state["emas"])
    if (names, models) != (saved, averaged):
        raise BadValueError(
            f"the state is of the optimizers {saved} and models {averaged}, this engine has"
            f" {names} and {models}; build it with the same names."
        )
    if not falls_back:
        _check_loss_scales(state, update.slots)
    followers.check_state(state)


def load_engine_state(
    state: dict[str, Any], update: Update, backward: ScaledBackward, followers: Followers
) -> None:
    """Restore a checked state.

    Args:
        state: From `engine_state`.
        update, backward, followers: As there.
    """
    for slot in {id(slot.loss_scale): slot for slot in update.slots}.values():
        slot.loss_scale.load_state_dict(state["loss_scales"][_scale_index(state, slot)])
    update.counters = Counters(**state["counters"])
    backward.nominal = state["nominal"]
    for slot in update.slots:
        slot.load_state_dict(state["optimizers"][slot.name])
    followers.load_state_dict(state)


def loss_scales(slots: Sequence[OptimizerSlot]) -> list[LossScale]:
    """Every loss scale once, in the order of the optimizers."""
    return list({id(slot.loss_scale): slot.loss_scale for slot in slots}.values())


def _scale_index(state: dict[str, Any], slot: OptimizerSlot) -> int:
    index: int = state["optimizers"][slot.name]["loss_scale"]
    return index


def _check_loss_scales(state: dict[str, Any], slots: Sequence[OptimizerSlot]) -> None:
    num_scales = len(loss_scales(slots))
    pairs = {(id(slot.loss_scale), _scale_index(state, slot)) for slot in slots}
    if not len(pairs) == num_scales == len(state["loss_scales"]):
        raise BadValueError(
            f"the state has {len(state['loss_scales'])} loss scales, this engine has {num_scales},"
            " or other optimizers share one; share them as the run that wrote it did."
        )
    for slot in slots:  # tried on a copy
        copy.deepcopy(slot.loss_scale).load_state_dict(
            state["loss_scales"][_scale_index(state, slot)]
        )
