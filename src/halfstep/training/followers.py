"""What follows an update: the schedule and the average on a commit, the buffers on a skip.

A new thing that must move with the weights, and stand still with them, goes here.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from halfstep.records import BadValueError, CallOrderError
from halfstep.training.buffers import BufferRollback
from halfstep.training.ema import as_averaged
from halfstep.training.schedule import (
    Schedule,
    TokenSchedule,
    advance,
    check_schedule,
    schedule_state,
)


class Followers:
    """Schedule, averaged weights and buffer rollback of one engine.

    Args:
        model: Whose weights are averaged and whose buffers come back.
        optimizer: Whose rates the schedule sets.
        schedule, ema, buffers: As for `Engine`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        schedule: Schedule | None,
        ema: AveragedModel | float | None,
        buffers: str,
    ) -> None:
        if buffers not in ("keep", "rollback"):
            raise BadValueError(f"buffers must be 'keep' or 'rollback', got {buffers!r}.")
        if schedule is not None:
            check_schedule(schedule, optimizer)
        self.ema = as_averaged(ema, model)
        self._model = model
        self._optimizer = optimizer
        self._schedule = schedule
        self._buffers = BufferRollback(model) if buffers == "rollback" else None
        if isinstance(schedule, TokenSchedule):
            schedule.apply(optimizer, 0.0)

    @property
    def counts_tokens(self) -> bool:
        """Whether the schedule needs to know how many tokens a loss is made of."""
        return isinstance(self._schedule, TokenSchedule)

    def window_opens(self) -> None:
        """Copy what a skip must put back, once per window."""
        if self._buffers is not None and not self._buffers.is_open:
            self._buffers.remember()

    def window_closes(self) -> None:
        """Forget the copies: a later `nothing_moved` is about another window."""
        if self._buffers is not None:
            self._buffers.forget()

    def nothing_moved(self, found_inf: float | Tensor = 1.0) -> None:
        """Put back what the forward pass has moved.

        Args:
            found_inf: 0-d tensor where the kernel decides; 0 leaves everything.
        """
        if self._buffers is not None:
            self._buffers.restore(found_inf)

    def committed(self, num_updates: int, consumed: float) -> None:
        """Move with a committed update.

        Raises:
            CallOrderError: The user's schedule raised; the update was made all the same.
        """
        if self.ema is not None:
            self.ema.update_parameters(self._model)
        try:
            advance(self._schedule, self._optimizer, consumed)
        except Exception as error:
            raise CallOrderError(
                f"the schedule failed after update {num_updates} was made (weights and counters"
                f" have moved): {error}"
            ) from error

    def state_dict(self) -> dict[str, Any]:
        """State of the schedule and of the average."""
        return {
            "schedule": schedule_state(self._schedule),
            "ema": None if self.ema is None else self.ema.state_dict(),
        }

    def check_state(self, state: dict[str, Any]) -> None:
        """Refuse a state of other followers, before anything is changed."""
        present = schedule_state(self._schedule)
        saved_kind, kind = (s and s["kind"] for s in (state["schedule"], present))
        if saved_kind != kind:
            raise BadValueError(
                f"the state was saved with the schedule {saved_kind}, this engine has {kind};"
                " build the engine with the schedule of the run that wrote it."
            )
        if (state["ema"] is None) != (self.ema is None):
            was, now = ("without", "one") if state["ema"] is None else ("with", "none")
            raise BadValueError(
                f"the state was saved {was} an average of the weights, this engine has {now};"
                " build it with the same ema."
            )

    def load_state_dict(self, state: dict[str, Any], consumed: float) -> None:
        """Restore what `state_dict` returned, at a clock of `consumed`."""
        if isinstance(self._schedule, TokenSchedule):
            self._schedule.apply(self._optimizer, consumed)
        elif self._schedule is not None:
            self._schedule.load_state_dict(state["schedule"]["state"])
        if self.ema is not None:
            self.ema.load_state_dict(state["ema"])
