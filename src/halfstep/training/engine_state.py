"""What an engine itself knows, as a state that goes into a checkpoint, and back."""

from __future__ import annotations

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
    return {
        "format": format_name,
        "counters": dataclasses.asdict(update.counters),
        "nominal": backward.nominal,
        "loss_scales": [scale.state_dict() for scale in scales],
        "optimizers": {lane.name: lane.state_dict() for lane in update.lanes},
        **followers.state_dict(),
    }


def check_engine_state(state: dict[str, Any], update: Update, followers: Followers) -> None:
    """Refuse a state that is not of an engine built the same way, before anything is changed."""
    if set(state) != _KEYS:
        raise BadValueError(
            f"expected the state of an Engine with the keys {sorted(_KEYS)}, got"
            f" {sorted(map(str, state))}."
        )
    names, saved = [lane.name for lane in update.lanes], list(state["optimizers"])
    models, averaged = list(followers.emas), list(state["emas"])
    if (names, models) != (saved, averaged):
        raise BadValueError(
            f"the state is of the optimizers {saved} and models {averaged}, this engine has"
            f" {names} and {models}; build it with the same names."
        )
    scales = len(loss_scales(update.lanes))
    if len(state["loss_scales"]) != scales:
        raise BadValueError(
            f"the state has {len(state['loss_scales'])} loss scales, this engine has {scales};"
            " share them, or not, as the run that wrote it did."
        )
    followers.check_state(state)


def load_engine_state(
    state: dict[str, Any], update: Update, backward: ScaledBackward, followers: Followers
) -> None:
    """Restore a checked state.

    Args:
        state: From `engine_state`.
        update, backward, followers: As there.
    """
    for scale, saved in zip(loss_scales(update.lanes), state["loss_scales"], strict=True):
        scale.load_state_dict(saved)
    update.counters = Counters(**state["counters"])
    backward.nominal = state["nominal"]
    for lane in update.lanes:
        lane.load_state_dict(state["optimizers"][lane.name])
    followers.load_state_dict(state)


def loss_scales(lanes: Sequence[Lane]) -> list[LossScale]:
    """Every loss scale once, in the order of the optimizers."""
    return list({id(lane.loss_scale): lane.loss_scale for lane in lanes}.values())
