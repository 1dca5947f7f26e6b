"""`Processes`: the ranks that an engine trains with.

DistributedDataParallel and fully_shard exchange gradients; `halfstep.update.step.exchange`
exchanges what the update is decided by. Here is what surrounds that: who they are, when gradients
are exchanged, and that one that fails does not leave the others waiting.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor, nn

from halfstep.records import (
    BadValueError,
    CallOrderError,
    HalfstepError,
    NonFiniteGradientError,
    ScaleCollapse,
)
from halfstep.training.processes.gradient_sync import GradientSync, with_last
from halfstep.training.processes.kinds_of_loss import KindsOfLoss
from halfstep.update import OptimizerSlot, Update
from halfstep.update.ranks.find import find_ranks, is_ddp
from halfstep.update.ranks.ranks import SquareSum
from halfstep.update.ranks.shards import has_dtensors

T = TypeVar("T")
Together = contextlib.AbstractContextManager[None]

# raised from numbers that all ranks have exchanged, by all of them
_SHARED = (NonFiniteGradientError, ScaleCollapse)


class Processes:
    """Who trains together; inert in a process of its own.

    The wrappers are looked for when the engine is built, and once more before the first forward,
    for a process group or a wrapper that was made in between.

    Args:
        models: By name.
        update: Of the engine; it is told the ranks.
        device: Of the parameters.
        group: As ``process_group=`` of `Engine`.
        square_sum: As ``norm=`` of `Engine`.
        per_window: Whether gradients are exchanged once per window.
        replays: Whether skipped windows are run again.

    Raises:
        BadValueError: See `find_ranks`.
    """

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        update: Update,
        device: Any,
        *,
        group: Any = None,
        square_sum: SquareSum | None = None,
        per_window: bool = True,
        replays: bool = False,
    ) -> None:
        self._models = models
        self._update = update
        self._device = device
        self._group = group
        self._square_sum = square_sum
        self._per_window = per_window
        self._replays = replays
        self._kinds = KindsOfLoss()
        self._has_begun = False
        self._ended_by: str | None = None
        self._look()

    @property
    def are_several(self) -> bool:
        """Whether there is anybody to train with."""
        return self._update.ranks.are_several

    def begin(self) -> None:
        """Look again, until the first step, for a group or a wrapper that was made in between."""
        if not self._has_begun:
            if not self.are_several:
                self._look()
            self._has_begun = self._update.counters.attempts > 0 or self.are_several

    def all_together(self) -> Together:
        """Around what all ranks do: an error on this one is told to the others and ends its run.

        Raises:
            PeerFailed: Another rank has failed, in its own words, or is gone.
            CallOrderError: This rank has failed before.
        """
        self.begin()
        return self._guard() if self.are_several else contextlib.nullcontext()

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        if self._ended_by is not None:
            raise CallOrderError(
                f"this engine has failed before ({self._ended_by}), and the other processes were"
                " told so: they have stopped. Let the error end the process, and start all of them"
                " again from the last checkpoint."
            )
        peers = self._update.ranks.peers
        try:
            yield
        except _SHARED:
            raise
        except BaseException as error:
            self._ended_by = f"{type(error).__name__}: {error}"
            if isinstance(error, RuntimeError) and not isinstance(error, HalfstepError):
                peers.explain(error)
            peers.tell(error)
            raise

    def agree_on_nominal(
        self, slots: Sequence[OptimizerSlot], is_sum: bool, nominal: float
    ) -> float:
        """By what the sums of the run are divided in backward; see `KindsOfLoss.agree`.

        Args:
            slots: The optimizers that learn from the loss.
            is_sum: Whether it is a `LossSum`.
            nominal: What this process would take.

        Syncs: yes among several ranks, in the first window of these optimizers.
        """
        if not self.are_several:
            return nominal
        names = [slot.name for slot in slots]
        return self._kinds.agree(self._update.ranks, names, is_sum, nominal)

    def micro_batches(self, window: Iterable[T]) -> Iterator[tuple[T, bool]]:
        """Each micro-batch, and whether it is the last: looked ahead for only among several ranks.

        Args:
            window: Any iterable.
        """
        if self.are_several:
            yield from with_last(window)
        else:
            for batch in window:
                yield batch, True

    def micro_batch(self, is_last: bool) -> Together:
        """Around forward and backward of a micro-batch.

        Args:
            is_last: Whether gradients are exchanged.
        """
        self.begin()
        return self._sync.micro_batch(is_last) if self.are_several else contextlib.nullcontext()

    def before_step(self) -> None:
        """Refuse a step of gradients that were not exchanged."""
        self._sync.refuse_open()

    def window_was_dropped(self) -> None:
        """Forget gradients that wait for their exchange."""
        self._sync.drop_open()

    def refuse_part_of_a_wrapper(self, slots: Sequence[OptimizerSlot]) -> None:
        """Refuse a backward for some of the optimizers over one wrapper.

        Args:
            slots: Those that learn.

        Raises:
            CallOrderError: DistributedDataParallel would wait for the gradients of the others.
        """
        if not self.are_several or len(slots) == len(self._update.slots):
            return
        chosen = {id(p) for slot in slots for p in slot.parameters()}
        others = {id(p) for slot in self._update.slots for p in slot.parameters()} - chosen
        for module in self._modules():
            if not is_ddp(module):
                continue
            held = {id(p) for p in module.parameters()}
            if held & chosen and held & others:
                names = ", ".join(repr(slot.name) for slot in slots)
                raise CallOrderError(
                    f"backward for {names} alone: the wrapper DistributedDataParallel holds other"
                    " trainable parameters too, and exchanges gradients only when all of its"
                    " parameters get one. Wrap a model for each optimizer, or call backward for"
                    " all optimizers."
                )

    def _look(self) -> None:
        self._update.ranks = find_ranks(
            self._modules(),
            list(self._trainable()),
            self._device,
            group=self._group,
            square_sum=self._square_sum,
        )
        if self.are_several and self._replays and has_dtensors(p for _, p in self._trainable()):
            raise BadValueError(
                "diagnose='on_skip' runs a window again on each process by itself, which a process"
                " that holds a part of the weights cannot; use diagnose='raise', which names the"
                " parameter, or replay the batch in one process."
            )
        self._sync = GradientSync(
            self._models.values() if self.are_several else (), self._per_window
        )

    def _modules(self) -> list[nn.Module]:
        return [module for model in self._models.values() for module in model.modules()]

    def _trainable(self) -> Iterator[tuple[str, Tensor]]:
        for model_name, model in self._models.items():
            for name, parameter in model.named_parameters():
                if parameter.requires_grad:
                    yield (f"{model_name}.{name}" if len(self._models) > 1 else name), parameter
