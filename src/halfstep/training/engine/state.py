"""What an engine itself knows, as a state that goes into a checkpoint, and back."""

from __future__ import annotations

import copy
import dataclasses
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch.optim import Optimizer

from halfstep.records import BadValueError
from halfstep.training.followers.followers import Followers
from halfstep.training.window.backward import ScaledBackward
from halfstep.update import Counters, LossScale, OptimizerSlot, Update

ENGINE_PARTS = ("schedule", "loss_scale", "average", "counters")
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
    state: dict[str, Any],
    update: Update,
    followers: Followers,
    falls_back: bool,
    parts: Collection[str],
) -> None:
    """Refuse a state that is not of an engine built the same way, before anything is changed.

    Args:
        state: From `engine_state`.
        update, followers: Of this engine.
        falls_back: Whether the engine gives up its loss scales first, as the run that wrote it did.
        parts: Those of `ENGINE_PARTS` that will be loaded.
    """
    if unknown := sorted(set(parts) - set(ENGINE_PARTS)):
        raise BadValueError(
            f"the state of an engine has the parts {', '.join(ENGINE_PARTS)}, got {unknown[0]!r}."
        )
    if not isinstance(state, Mapping) or set(state) != _KEYS:
        came = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise BadValueError(
            f"expected the state of an Engine with the keys {sorted(_KEYS)}, got {came}."
        )
    if set(parts) - {"average"}:
        _check_names("optimizers", state["optimizers"], [slot.name for slot in update.slots])
    if "average" in parts:
        _check_names("models", state["emas"], followers.emas)
        followers.check_averages(state)
    if "loss_scale" in parts and not falls_back:
        _check_loss_scales(state, update.slots)
    if "schedule" in parts:
        followers.check_schedules(state)
    if "counters" in parts:
        for slot in update.slots:
            slot.check_state(state["optimizers"][slot.name])


def _check_names(kind: str, saved: Collection[str], here: Collection[str]) -> None:
    if set(saved) != set(here):
        raise BadValueError(
            f"the state is of the {kind} {sorted(saved)}, this engine has {sorted(here)}; build it"
            " with the same names."
        )


def load_engine_state(
    state: dict[str, Any],
    update: Update,
    backward: ScaledBackward,
    followers: Followers,
    parts: Collection[str],
) -> None:
    """Restore a checked state.

    Args:
        state: From `engine_state`.
        update, backward, followers: As there.
        parts: As for `check_engine_state`.
    """
    if "loss_scale" in parts:
        for slot in {id(slot.loss_scale): slot for slot in update.slots}.values():
            slot.loss_scale.load_state_dict(state["loss_scales"][_scale_index(state, slot)])
    if "counters" in parts:
        update.counters = Counters(**state["counters"])
        backward.nominal = state["nominal"]
        for slot in update.slots:
            slot.load_state_dict(state["optimizers"][slot.name])
    if "schedule" in parts:
        followers.load_schedules(state)
    followers.set_rates_by_clock()
    if "average" in parts:
        followers.load_averages(state)


def settle_before_states(update: Update) -> None:
    """Commit the previous step whenever the state of an optimizer is read or replaced.

    Its learning rate is a part of that state, and moves with the commit.

    Args:
        update: Of the engine; the hooks that are registered do not keep it alive.
    """
    reference = weakref.ref(update)

    def settle(*arguments: object) -> None:
        if (living := reference()) is not None:
            living.settle()

    for slot in update.slots:
        optimizer: Any = slot.optimizer
        if not hasattr(optimizer, "_optimizer_state_dict_pre_hooks"):
            optimizer = getattr(optimizer, "optimizer", None)  # in a wrapper such as Accelerate's
        if isinstance(optimizer, Optimizer):
            optimizer.register_state_dict_pre_hook(settle)
            optimizer.register_load_state_dict_pre_hook(settle)


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
