"""What follows an update: schedules and averages on a commit, buffers on a skip.

A new thing that must move with the weights, and stand still with them, goes here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from halfstep.records import BadTypeError, BadValueError, CallOrderError
from halfstep.training.call_site import call_of
from halfstep.training.followers.average import AverageUpdate, EmaUpdate
from halfstep.training.followers.buffers import BufferRollback
from halfstep.training.followers.schedule import (
    Schedule,
    ScheduleWatch,
    TokenSchedule,
    advance,
    schedule_state,
)
from halfstep.training.followers.shards import Shards
from halfstep.training.model_entries import ModelEntries, match_entries
from halfstep.update import OptimizerSlot
from halfstep.update.ranks.find import reshard
from halfstep.update.ranks.shards import has_dtensors
from halfstep.update.readback import Number


class Followers:
    """Schedules, averaged weights and buffer rollback of one engine.

    Args:
        models: By name.
        slots: Their optimizers.
        schedules: OptimizerSlot name to schedule or ``None``.
        emas: Model name to average or ``None``.
        rolls_back: Whether module buffers come back after a skip.
    """

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        slots: Sequence[OptimizerSlot],
        schedules: Mapping[str, Schedule | None],
        emas: Mapping[str, AveragedModel | None],
        rolls_back: bool,
    ) -> None:
        self.emas = dict(emas)
        self._models = models
        self._averages = {
            name: AverageUpdate(ema, models[name]) for name, ema in emas.items() if ema is not None
        }
        self._slots = list(slots)
        self._schedules = dict(schedules)
        self._slots_of = {name: _slots_of(model, slots) for name, model in models.items()}
        self._buffers: dict[str, BufferRollback] = {}
        if rolls_back:
            self._buffers = {name: BufferRollback(model) for name, model in models.items()}
        self._watches = {
            name: ScheduleWatch(each)
            for name, each in schedules.items()
            if isinstance(each, LRScheduler)
        }
        for slot in slots:
            schedule = self._schedules[slot.name]
            if isinstance(schedule, TokenSchedule):
                schedule.apply(slot.optimizer, 0.0)

    def counts_tokens(self, slots: Sequence[OptimizerSlot]) -> bool:
        """Whether a schedule needs to know how many tokens a loss is made of."""
        return any(isinstance(self._schedules[slot.name], TokenSchedule) for slot in slots)

    def window_opens(self) -> None:
        """Copy what a skip must put back, once per window."""
        for rollback in self._buffers.values():
            if not rollback.is_open:
                rollback.remember()

    def window_closes(self) -> None:
        """Forget the copies: a later `nothing_moved` is about another window."""
        for name, rollback in self._buffers.items():
            if not self._is_open(name):
                rollback.forget()

    def nothing_moved(self) -> None:
        """Put back what the forward pass has moved, except where a window is still open."""
        for name, rollback in self._buffers.items():
            if not self._is_open(name):
                rollback.restore()

    def held(self, held: Mapping[OptimizerSlot, Number]) -> None:
        """Put back the buffers of models of which no optimizer moved.

        Args:
            held: For each optimizer of the step 1 if it holds; a 0-d tensor where the kernel
                decides. A model without an optimizer in this step goes with the whole step.
        """
        for name, rollback in self._buffers.items():
            if self._is_open(name):
                continue
            own = [held[slot] for slot in self._slots_of[name] if slot in held]
            rollback.restore(_all_of(own or list(held.values())))
        for name, average in self._averages.items():
            movers = [slot for slot in self._slots_of[name] if slot in held]
            if movers and isinstance(held[movers[0]], Tensor):  # the commit comes late
                average.remember_buffers(movers[0].counters.attempts + 1)

    def committed(self, slots: Sequence[OptimizerSlot]) -> None:
        """Move with a committed update.

        Args:
            slots: Those that moved.

        Raises:
            CallOrderError: A schedule or an average of the user's raised; the update was made all
                the same, and everything else has followed it.
        """
        errors: list[BaseException] = []
        for name, average in self._averages.items():
            if movers := [slot for slot in self._slots_of[name] if slot in slots]:
                _carry_on(errors, self._average, average, movers[0])
        for slot in slots:
            if self._schedules[slot.name] is not None:
                _carry_on(errors, self._advance, slot)
        if errors:
            raise errors[0]

    def refuse_moved_schedules(self, slots: Sequence[OptimizerSlot]) -> None:
        """Refuse to go on where a line of the user's own steps a schedule as well.

        Raises:
            CallOrderError: A schedule went on since the engine stepped it last.
        """
        for slot in slots:
            watch = self._watches.get(slot.name)
            if watch is None or not watch.take() or not slot.counters.attempts:
                continue
            line = call_of(self._schedules[slot.name], "step")
            at = "" if line is None else f", {line}"
            raise CallOrderError(
                f"the schedule of the engine was stepped by the loop as well{at}: the rate moves"
                " twice per update. Delete that line; schedule=... is stepped once per committed"
                " update."
            )

    def _advance(self, slot: OptimizerSlot) -> None:
        watch = self._watches.get(slot.name)
        if watch is not None:
            watch.look()
        try:
            advance(self._schedules[slot.name], slot.optimizer, slot.counters.consumed)
        except Exception as error:
            raise CallOrderError(
                f"the schedule failed after update {slot.counters.num_updates} was made"
                f" (weights and counters have moved): {error}"
            ) from error
        finally:
            if watch is not None:
                watch.remember()

    def _average(self, average: AverageUpdate, slot: OptimizerSlot) -> None:
        try:
            average(slot.counters.attempts)
        except Exception as error:
            raise CallOrderError(
                f"the average of the weights failed after update {slot.counters.num_updates} was"
                f" made (weights, counters and schedule have moved): {error}"
            ) from error

    def state_dict(self) -> dict[str, Any]:
        """State of the schedules and of the averages, by name."""
        return {
            "schedules": {name: schedule_state(s) for name, s in self._schedules.items()},
            "emas": {n: None if ema is None else ema.state_dict() for n, ema in self.emas.items()},
        }

    def check_schedules(self, state: dict[str, Any]) -> None:
        """Refuse a state of other schedules, before anything is changed."""
        for name, schedule in self._schedules.items():
            saved, present = state["schedules"][name], schedule_state(schedule)
            saved_kind, kind = (s and s["kind"] for s in (saved, present))
            if saved_kind != kind:
                raise BadValueError(
                    f"the state was saved with the schedule {saved_kind}, this engine has {kind};"
                    " build the engine with the schedule of the run that wrote it."
                )

    def check_averages(self, state: dict[str, Any]) -> None:
        """Refuse a state of other averages, before anything is changed."""
        for name, ema in self.emas.items():
            if (state["emas"][name] is None) != (ema is None):
                was, now = ("with", "none") if ema is None else ("without", "one")
                raise BadValueError(
                    f"the state was saved {was} an average of the weights, this engine has {now};"
                    " build it with the same ema."
                )
            if ema is not None:
                for entry, problem in _match_average(state["emas"][name], ema).problems.items():
                    raise BadValueError(
                        f"the average was saved of another model: {entry} {problem}."
                    )

    def load_schedules(self, state: dict[str, Any]) -> None:
        """Restore the schedules of torch."""
        for name, schedule in self._schedules.items():
            if isinstance(schedule, LRScheduler):
                schedule.load_state_dict(state["schedules"][name]["state"])
                self._watches[name].remember()

    def set_rates_by_clock(self) -> None:
        """Set the rates of token schedules for the slots' present clocks."""
        for slot in self._slots:
            schedule = self._schedules[slot.name]
            if isinstance(schedule, TokenSchedule):
                schedule.apply(slot.optimizer, slot.counters.consumed)

    def load_averages(self, state: dict[str, Any]) -> None:
        """Restore the averages."""
        for name, ema in self.emas.items():
            if ema is not None:
                saved = state["emas"][name]
                ema.module.load_state_dict(_match_average(saved, ema).values)
                ema.n_averaged.copy_(saved["n_averaged"])

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, the models hold their averages; models without one stay as they are."""
        with contextlib.ExitStack() as stack:
            reshard(self._models.values())
            for average in self._averages.values():
                stack.enter_context(average.in_the_model())
            stack.callback(reshard, self._models.values())
            yield

    def _is_open(self, model: str) -> bool:
        return any(slot.window.num_micro_batches for slot in self._slots_of[model])


def as_averaged(ema: AveragedModel | float | None, model: nn.Module) -> AveragedModel | None:
    """The averaged model that a setting asks for.

    Args:
        ema: ``None``, a decay between 0 and 1 (makes an exponential moving average of parameters
            and buffers), or an `AveragedModel` of `model`, which is used as it is.
        model: What is averaged.

    Raises:
        BadValueError: A decay that is not between 0 and 1.
        BadTypeError: Something else.
    """
    if ema is None or isinstance(ema, AveragedModel):
        return ema
    if isinstance(ema, bool) or not isinstance(ema, (int, float)):
        raise BadTypeError(
            "ema must be a decay such as 0.999 or a torch.optim.swa_utils.AveragedModel, got"
            f" {type(ema).__name__}."
        )
    if not 0 < ema < 1:
        raise BadValueError(f"ema must be a decay between 0 and 1, got {ema}.")
    copied = Shards(model) if has_dtensors(model.parameters()) else model
    return AveragedModel(copied, multi_avg_fn=EmaUpdate(ema), use_buffers=True)


def _match_average(saved: Mapping[str, Any], ema: AveragedModel) -> ModelEntries:
    inner = {k.removeprefix("module."): v for k, v in saved.items() if k != "n_averaged"}
    return match_entries(inner, ema.module.state_dict())


def _slots_of(model: nn.Module, slots: Sequence[OptimizerSlot]) -> list[OptimizerSlot]:
    held = {id(p) for p in model.parameters()}
    return [slot for slot in slots if any(id(p) in held for p in slot.parameters())]


def _all_of(flags: Sequence[Number]) -> Number:
    if len(flags) == 1:
        return flags[0]
    if not any(isinstance(flag, Tensor) for flag in flags):
        return min(flags)
    return torch.stack([flag for flag in flags if isinstance(flag, Tensor)]).amin()


def _carry_on(errors: list[BaseException], call: Callable[..., None], *arguments: Any) -> None:
    """Call; an error is raised once everything else has followed the weights as well."""
    try:
        call(*arguments)
    except BaseException as error:
        errors.append(error)
