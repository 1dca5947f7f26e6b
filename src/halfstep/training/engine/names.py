"""Settings and calls by name: one thing, or one for each of several optimizers or models."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from torch.optim import Optimizer

from halfstep.precision.nearest import did_you_mean
from halfstep.records import BadTypeError, BadValueError, CallOrderError
from halfstep.update import OptimizerSlot

T = TypeVar("T")
Names = str | Sequence[str] | None


def as_named(setting: str, value: T | Mapping[str, T]) -> dict[str, T]:
    """Things by name: a mapping as it is, a single one under the name of its setting.

    Args:
        setting: ``"model"`` or ``"optimizer"``.
        value: One, or several by name.

    Raises:
        BadValueError: An empty mapping.
        BadTypeError: A name that is no string.
    """
    if not isinstance(value, Mapping):
        return {setting: value}
    if not value:
        raise BadValueError(f"{setting} got an empty mapping; give at least one.")
    for name in value:
        if not isinstance(name, str):
            raise BadTypeError(f"the names of a {setting} mapping must be strings, got {name!r}.")
    return dict(value)


def for_each(
    setting: str, value: Any, names: Collection[str], default: Any = None
) -> dict[str, Any]:
    """A setting for every name: the same for all, or what a mapping says.

    Args:
        setting: For the message.
        value: One for all, or a mapping that may leave names out.
        names: Of the optimizers, or of the models.
        default: For names that a mapping leaves out.

    Raises:
        BadValueError: The mapping has a name that is none of them.
    """
    if not isinstance(value, Mapping):
        return dict.fromkeys(names, value)
    for name in value:
        check_name(setting, name, names)
    return {name: value.get(name, default) for name in names}


def check_name(setting: str, name: object, names: Collection[str]) -> None:
    """Refuse a name that is not among `names`, with the nearest one."""
    if isinstance(name, str) and name in names:
        return
    if not isinstance(name, str):
        known = ", ".join(map(repr, names))
        raise BadTypeError(f"{setting} takes names ({known}), got {type(name).__name__}.")
    raise BadValueError(
        f"{setting} names {name!r}, this engine has {', '.join(map(repr, names))}"
        f"{did_you_mean(name, names)}"
    )


def the_only(what: str, plural: str, values: Iterable[T], names: Collection[str]) -> T:
    """The single value, where there is one.

    Raises:
        CallOrderError: There are several; the text says how to get at each.
    """
    found = list({id(value): value for value in values}.values())
    if len(found) == 1:
        return found[0]
    raise CallOrderError(
        f"this engine has several: engine.{what} is not one. Use engine.{plural}[name], with a"
        f" name of {', '.join(map(repr, names))}."
    )


def check_word(setting: str, value: object, words: Sequence[str]) -> None:
    """Refuse a value that is none of a setting's words."""
    if value not in words:
        known = ", ".join(repr(word) for word in words[:-1]) + f" or {words[-1]!r}"
        raise BadValueError(f"{setting} must be {known}, got {value!r}.")


def named_slots(slots: list[OptimizerSlot], names: Names) -> list[OptimizerSlot]:
    """The named ones, in the engine's order; ``None`` for all.

    Raises:
        BadValueError: An unknown name, or none at all.
        BadTypeError: No name but an object.
    """
    if names is None:
        return slots
    wanted = [names] if isinstance(names, (str, Optimizer)) else list(names)
    for name in wanted:
        check_name("optimizers", name, [slot.name for slot in slots])
    if not wanted:
        raise BadValueError("optimizers is empty; name at least one, or leave it out for all.")
    return [slot for slot in slots if slot.name in wanted]


def open_slots(slots: list[OptimizerSlot], names: Names) -> list[OptimizerSlot]:
    """The named ones; without names those with an open window."""
    if names is not None:
        return named_slots(slots, names)
    return [slot for slot in slots if slot.window.num_micro_batches]


def slots_to_step(slots: list[OptimizerSlot], names: Names) -> list[OptimizerSlot]:
    """The same, where each must have an open window.

    Raises:
        CallOrderError: One has not, or none has.
    """
    wanted = open_slots(slots, names)
    closed = [slot for slot in wanted if not slot.window.num_micro_batches]
    if closed or not wanted:
        which = of_which(closed, slots)
        if any(p.grad is not None for slot in closed or slots for p in slot.parameters()):
            raise CallOrderError(
                f"step() without backward(): there are gradients{which} that engine.backward() did"
                " not make. Write engine.backward(loss) instead of loss.backward() or"
                " scaler.scale(loss).backward()."
            )
        raise CallOrderError(
            f"step() without backward(): the window{which} has no gradients. Each step needs at"
            " least one engine.backward(loss) since the last one; an exception drops the window."
        )
    return wanted


def of_which(some: Sequence[OptimizerSlot], slots: Sequence[OptimizerSlot]) -> str:
    """Names for a message; nothing where there is only one optimizer."""
    if len(slots) == 1 or not some:
        return ""
    return f" of {', '.join(repr(slot.name) for slot in some)}"
