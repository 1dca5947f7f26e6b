"""Entries of a saved model found in another one, whatever wrappers stood around the two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.nn.parameter import is_lazy

from halfstep.update.ranks.shards import sharded_as

_COMPILED, _WRAPPED = "_orig_mod.", "module."  # torch.compile's prefix, DDP's and AveragedModel's


@dataclass
class ModelEntries:
    """Entries of a saved model, under the names that they have here.

    Attributes:
        values: What can be loaded.
        problems: Entry to what is wrong with it.
        notes: What was changed to make them fit.
    """

    values: dict[str, Any] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def match_entries(saved: Mapping[str, Any], present: Mapping[str, Any]) -> ModelEntries:
    """Find each entry of a model in a checkpoint, with or without the prefixes of wrappers.

    Args:
        saved: A ``state_dict``.
        present: The ``state_dict`` of the model here.
    """
    there, here = by_plain_name(saved), by_plain_name(present)
    found, casts = ModelEntries(), dict[tuple[str, str], int]()
    for plain, name in here.items():
        if plain not in there:
            found.problems[name] = "is not in the checkpoint"
            continue
        value, mine = saved[there[plain]], present[name]
        if isinstance(mine, Tensor) and isinstance(value, Tensor) and not is_lazy(mine):
            if value.shape != mine.shape:
                found.problems[name] = (
                    f"has the shape {tuple(value.shape)} there and {tuple(mine.shape)} here"
                )
                continue
            if value.dtype != mine.dtype:
                pair = str(value.dtype)[6:], str(mine.dtype)[6:]
                casts[pair] = casts.get(pair, 0) + 1
            value = sharded_as(mine, value)
        found.values[name] = value
    for plain, name in there.items():
        if plain not in here:
            found.problems[name] = "is in the checkpoint and not in the model"
    for prefix in (_COMPILED, _WRAPPED):
        if any(prefix in name for name in saved) != any(prefix in name for name in present):
            found.notes.append(f"entries were matched without the prefix {prefix!r}")
    for (was, now), count in casts.items():
        found.notes.append(f"{count} entries were cast from {was} to {now}")
    return found


def by_plain_name(entries: Mapping[str, Any]) -> dict[str, str]:
    """Name without the prefixes of wrappers to the name as it is.

    Args:
        entries: A ``state_dict``, or parameters by name.
    """
    plain = {name.replace(_COMPILED, ""): name for name in entries}
    while plain and all(name.startswith(_WRAPPED) for name in plain):
        plain = {plain_name.removeprefix(_WRAPPED): name for plain_name, name in plain.items()}
    return plain if len(plain) == len(entries) else {name: name for name in entries}
