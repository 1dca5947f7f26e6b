"""Learning-rate schedules that move on committed updates only."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from halfstep.records import BadTypeError, BadValueError


class TokenSchedule:
    """A learning rate as a function of consumed tokens (or whatever the divisors count).

    The rate of a group is its initial rate times ``factor(consumed)``, where `consumed` counts
    committed updates only: a skipped window moves nothing, and neither the batch size nor
    accumulation changes the curve.

    Args:
        factor: Maps consumed tokens (0 before the first update) to a factor of at least 0.

    Example:
        >>> import halfstep as hs
        >>> halved_after_a_million = hs.TokenSchedule(lambda consumed: 0.5 ** (consumed // 1e6))
    """

    def __init__(self, factor: Callable[[float], float]) -> None:
        if not callable(factor):
            raise BadTypeError(
                f"a TokenSchedule needs a function of consumed tokens, got {type(factor).__name__}."
            )
        self.factor = factor

    def apply(self, optimizer: Optimizer, consumed: float) -> None:
        """Set the rate of every group for `consumed` tokens."""
        factor = self.factor(consumed)
        if not (isinstance(factor, (int, float)) and math.isfinite(factor) and factor >= 0):
            raise BadValueError(
                f"a TokenSchedule's factor must be finite and not negative, got {factor!r} at"
                f" {consumed:g} consumed."
            )
        for group in optimizer.param_groups:
            rate = group.setdefault("initial_lr", _plain(group["lr"])) * factor
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate


def warmup_cosine(
    total: float, warmup: float = 0.0, *, start: float = 0.01, end: float = 0.1
) -> TokenSchedule:
    """Linear warm-up, then half a cosine, by consumed tokens.

    ::

        consumed < warmup:  start + (1 - start) * consumed / warmup
        else:               end + (1 - end) * (1 + cos(pi * t)) / 2,
                            t = (consumed - warmup) / (total - warmup), at most 1

    Args:
        total: Tokens at which the rate reaches `end`; it stays there.
        warmup: Tokens of linear warm-up, less than `total`.
        start: Factor at 0 tokens; not 0, so that the first update does something.
        end: Final factor.

    Raises:
        BadValueError: ``0 <= warmup < total`` does not hold, or a factor is not in [0, 1].

    Source: Loshchilov and Hutter 2017, SGDR, equation 5, with a warm-up before it.

    Example:
        >>> import halfstep as hs
        >>> schedule = hs.warmup_cosine(total=1e9, warmup=1e7)
        >>> schedule.factor(0), schedule.factor(1e7), round(schedule.factor(1e9), 6)
        (0.01, 1.0, 0.1)
    """
    for name, value in (("total", total), ("warmup", warmup), ("start", start), ("end", end)):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise BadTypeError(f"{name} must be a number, got {type(value).__name__}.")
    if not (math.isfinite(total) and 0 <= warmup < total):
        raise BadValueError(
            f"warmup_cosine needs 0 <= warmup < total, got warmup={warmup:g}, total={total:g}."
        )
    for name, value in (("start", start), ("end", end)):
        if not 0 <= value <= 1:
            raise BadValueError(f"{name} must be a factor between 0 and 1, got {value}.")

    def factor(consumed: float) -> float:
        if consumed < warmup:
            return start + (1 - start) * consumed / warmup
        progress = min(1.0, (consumed - warmup) / (total - warmup))
        return end + (1 - end) * (1 + math.cos(math.pi * progress)) / 2

    return TokenSchedule(factor)


Schedule = TokenSchedule | LRScheduler


def check_schedule(schedule: object, optimizer: Optimizer) -> None:
    """Refuse what cannot be stepped once per committed update."""
    if isinstance(schedule, ReduceLROnPlateau):
        raise BadTypeError(
            "schedule got a ReduceLROnPlateau, whose step() needs a metric; keep it in your own"
            " loop and call scheduler.step(validation_loss) after each validation."
        )
    if not isinstance(schedule, (TokenSchedule, LRScheduler)):
        raise BadTypeError(
            "schedule must be a halfstep token schedule or a torch LRScheduler, got"
            f" {type(schedule).__name__}."
        )
    if isinstance(schedule, LRScheduler) and schedule.optimizer is not optimizer:
        raise BadValueError(
            "the schedule belongs to another optimizer than the one given to the engine; it would"
            " move a rate that nobody uses."
        )


def advance(schedule: Schedule | None, optimizer: Optimizer, consumed: float) -> None:
    """Move the schedule by one committed update."""
    if isinstance(schedule, TokenSchedule):
        schedule.apply(optimizer, consumed)
    elif schedule is not None:
        schedule.step()


class ScheduleWatch:
    """Whether anybody but the engine steps a torch schedule.

    Args:
        schedule: Chained ones count in their parts.
    """

    _FEW = 8  # steps that a stray line makes in a window; a loaded state may lie anywhere

    def __init__(self, schedule: LRScheduler) -> None:
        self._parts: list[Any] = [schedule, *getattr(schedule, "_schedulers", ())]
        self._was_ahead = False
        self.remember()

    def remember(self) -> None:
        """Take the present position for the engine's own."""
        self._positions = self._now()

    def look(self) -> None:
        """Keep in mind that it went on by itself, before the engine steps it."""
        now = self._now()
        if now != self._positions:
            steps = [b - a for a, b in zip(self._positions, now, strict=True)]
            self._was_ahead |= any(0 < step <= self._FEW for step in steps)

    def take(self) -> bool:
        """Whether it went on by itself since the last call."""
        self.look()
        was_ahead, self._was_ahead = self._was_ahead, False
        if was_ahead:
            self.remember()
        return was_ahead

    def _now(self) -> list[int]:
        return [getattr(part, "last_epoch", 0) for part in self._parts]


def schedule_state(schedule: Schedule | None) -> dict[str, Any] | None:
    """Its kind, state and settings; a token schedule has no state beyond the clock."""
    if schedule is None:
        return None
    kind = type(schedule).__name__
    if not isinstance(schedule, LRScheduler):
        return {"kind": kind, "state": {}}
    settings = schedule_settings(schedule)
    return {"kind": kind, "state": schedule.state_dict(), "settings": settings}


def schedule_settings(schedule: Any) -> dict[str, Any]:
    """What a torch schedule and its parts were made with, as far as they keep it.

    Args:
        schedule: Arguments of its constructor that are attributes too: `gamma`, `T_max`.
    """
    names = inspect.signature(type(schedule)).parameters.keys() - {"optimizer", "last_epoch"}
    state = schedule.state_dict()
    found = {name: state[name] for name in sorted(names) if name in state}
    for number, part in enumerate(getattr(schedule, "_schedulers", ())):
        inner = schedule_settings(part).items()
        found |= {f"schedulers[{number}].{name}": value for name, value in inner}
    return found


def _plain(rate: float | Tensor) -> float:
    return float(rate)
