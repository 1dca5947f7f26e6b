"""The windows of a run, made of a recipe's batches, on the device."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from halfstep.records import RecipeError
from halfstep.training.rng import rng_state, set_rng_state
from halfstep.training.run.data.batches import END, Batches
from halfstep.training.run.data.checksum import data_checksum
from halfstep.training.run.recipe import Recipe
from halfstep.training.window.micro_batches import Window


class Windows:
    """The windows of a run: `accumulate` batches each, on the device.

    A window may begin with the last batches of a pass and end with the first of the next.

    Args:
        batches: Where they come from.
        accumulate: Micro-batches per window.
        device: Where they go.
        position: Windows drawn before, from which the number of a batch follows.

    Attributes:
        checksum: Of the content of the last window; see `data_checksum`.
    """

    def __init__(
        self, batches: Batches, accumulate: int, device: torch.device, position: int = 0
    ) -> None:
        self.batches = batches
        self.position = position
        self.checksum = ""
        self._accumulate = accumulate
        self._device = device

    def next(self) -> Window[Any]:
        """The next window."""
        window, checksums = Window[Any](), []
        for _ in range(self._accumulate):
            window.append(to_device(self.batches.next(), self._device))
            checksums.append(self.batches.checksum)
        self.position += 1
        self.checksum = checksums[0] if self._accumulate == 1 else data_checksum(checksums)
        return window


def open_windows(
    recipe: Recipe,
    *,
    seed: int,
    accumulate: int,
    device: torch.device,
    saved: dict[str, Any] | None,
) -> Windows:
    """The windows of a run from where it is.

    Args:
        recipe: Whose batches.
        seed, accumulate, device: As for `fit`.
        saved: The `extra` of the checkpoint that the run goes on from; ``None`` at its start.
    """
    position, state = (saved["position"], saved.get("data")) if saved is not None else (0, None)
    as_before = state is None and position > 0  # saved before checkpoints held the data's state
    here = rng_state() if as_before else None
    batches = Batches(recipe, seed, as_before=as_before)
    if state is not None:
        batches.restore(state)
    elif here is not None:
        batches.skip(position * accumulate)
        set_rng_state(here)
    return Windows(batches, accumulate, device, position)


def one_batch(recipe: Recipe, index: int, seed: int) -> Any:
    """The batch that a run of this seed draws as its number `index`, on the host.

    Args:
        recipe: Whose batches.
        index: Counted from 0, within the first pass.
        seed: Of the run.

    Raises:
        RecipeError: The first pass is shorter.
    """
    batches = Batches(recipe, seed)
    batch = END
    try:
        for _ in range(index + 1):
            if (batch := batches.next_of_pass()) is END:
                raise RecipeError(
                    f"batches() of recipe {recipe.name!r} has no batch number {index}, counted from"
                    " 0."
                )
    finally:
        batches.close()
    return batch


def to_device(batch: Any, device: torch.device) -> Any:
    """`batch` with every tensor in it (tuples, lists, dicts, named tuples) on `device`."""

    def move(leaf: Any) -> Any:
        return leaf.to(device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf

    return pytree.tree_map(move, batch)
