"""What an engine itself knows, as a state that goes into a checkpoint, and back."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

from halfstep.records import BadValueError
from halfstep.training.followers import Followers
from halfstep.training.scaled_backward import ScaledBackward
from halfstep.update import Counters, Lane, LossScale, Update

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
    scales = loss_scales(update.lanes)
    index = {id(scale): number for number, scale in enumerate(scales)}
    return {
        "format": format_name,
        "counters": dataclasses.asdict(update.counters),
        "nominal": backward.nominal,
        "loss_scales": [scale.state_dict() for scale in scales],
        "optimizers": {
            lane.name: {**lane.state_dict(), "loss_scale": index[id(lane.loss_scale)]}
            for lane in update.lanes
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
    names, saved = sorted(lane.name for lane in update.lanes), sorted(state["optimizers"])
    models, averaged = sorted(followers.emas), sorted(state["emas"])
    if (names, models) != (saved, averaged):
        raise BadValueError(
            f"the state is of the optimizers {saved} and models {averaged}, this engine has"
            f" {names} and {models}; build it with the same names."
        )
    if not falls_back:
        _check_loss_scales(state, update.lanes)
    followers.check_state(state)


def load_engine_state(
    state: dict[str, Any], update: Update, backward: ScaledBackward, followers: Followers
) -> None:
    """Restore a checked state.

    Args:
        state: From `engine_state`.
        update, backward, followers: As there.
    """
    for lane in {id(lane.loss_scale): lane for lane in update.lanes}.values():
        lane.loss_scale.load_state_dict(state["loss_scales"][_scale_index(state, lane)])
    update.counters = Counters(**state["counters"])
    backward.nominal = state["nominal"]
    for lane in update.lanes:
        lane.load_state_dict(state["optimizers"][lane.name])
    followers.load_state_dict(state)


def loss_scales(lanes: Sequence[Lane]) -> list[LossScale]:
    """Every loss scale once, in the order of the optimizers."""
    return list({id(lane.loss_scale): lane.loss_scale for lane in lanes}.values())


def _scale_index(state: dict[str, Any], lane: Lane) -> int:
    index: int = state["optimizers"][lane.name]["loss_scale"]
    return index


def _check_loss_scales(state: dict[str, Any], lanes: Sequence[Lane]) -> None:
    num_scales = len(loss_scales(lanes))
    pairs = {(id(lane.loss_scale), _scale_index(state, lane)) for lane in lanes}
    if not len(pairs) == num_scales == len(state["loss_scales"]):
        raise BadValueError(
            f"the state has {len(state['loss_scales'])} loss scales, this engine has {num_scales},"
            " or other optimizers share one; share them as the run that wrote it did."
        )
    for lane in lanes:  # tried on a copy
        copy.deepcopy(lane.loss_scale).load_state_dict(
            state["loss_scales"][_scale_index(state, lane)]
        )
