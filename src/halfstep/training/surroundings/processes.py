"""What an engine allows where several processes train together, and what it refuses.

DistributedDataParallel exchanges gradients during backward. After it every process holds the same
gradients, so the finite check, clipping, the loss scale and the update agree as long as they depend
on nothing else. Divisors, losses and token clocks are those of one process; what would let them
into the update is refused. A new setting that does belongs into `_refuse_settings`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from halfstep.records import BadTypeError, BadValueError, CallOrderError
from halfstep.training.followers.schedule import Schedule, TokenSchedule
from halfstep.training.window.loss import LossSum
from halfstep.update import OptimizerSlot
from halfstep.update.decision.veto import Condition, NormSpike, checked_conditions, name_of
from halfstep.update.optimizers.sharded import is_sharded, num_processes, sharded_error

logger = logging.getLogger("halfstep")


class Processes:
    """Refuses what several processes would compute differently; inert in a single one.

    The wrappers are looked for when the engine is built, and once more before the first backward,
    for a process group or a wrapper that was made in between.

    Args:
        models, optimizers: By name.
        schedules: Optimizer name to schedule or ``None``.
        veto, diagnose: As for `Engine`.

    Raises:
        BadValueError: See the messages.
    """

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        optimizers: Mapping[str, Optimizer],
        *,
        schedules: Mapping[str, Schedule | None],
        veto: Condition | Sequence[Condition],
        diagnose: str,
    ) -> None:
        self._models = models
        self._optimizers = optimizers
        self._schedules = schedules
        self._conditions = checked_conditions(veto)
        self._diagnose = diagnose
        self._exchanged: list[set[int]] = []  # by wrapper: ids of the parameters that it exchanges
        self._has_begun = False
        self._has_warned = False
        self._look()

    def before_backward(self, loss: Tensor | LossSum, slots: Sequence[OptimizerSlot]) -> None:
        """Refuse a micro-batch whose update would differ between the processes.

        Args:
            loss: As for `Engine.backward`.
            slots: Of the optimizers whose parameters get gradients.

        Raises:
            BadTypeError: A `LossSum` under DistributedDataParallel.
            BadValueError: What `Processes` refuses.
            CallOrderError: A part of the parameters of one wrapper.

        Syncs: no.
        """
        if not self._has_begun:
            self._look()
            self._has_begun = True
        if not self._exchanged:
            return
        if isinstance(loss, LossSum):
            raise BadTypeError(
                "a LossSum is divided by the divisor of its own process, and the divisors of the"
                f" {num_processes()} processes are not exchanged: each would apply another update."
                " Under DistributedDataParallel return the mean loss of micro-batches that are"
                " equally large on all processes."
            )
        if len(slots) < len(self._optimizers):
            self._refuse_part_of_a_wrapper([slot.name for slot in slots])

    def _look(self) -> None:
        if num_processes() == 1:
            return
        for name, parameter in self._trainable():
            if is_sharded(parameter):
                raise sharded_error(repr(name))
        self._exchanged = [
            _exchanged_by(module)
            for model in self._models.values()
            for module in model.modules()
            if _averages_gradients(module)
        ]
        if self._exchanged:
            self._refuse_parameters_outside()
            self._refuse_settings()
        elif not self._has_warned:
            self._has_warned = True
            logger.warning(
                "this is one of %d processes and no model of the engine is in a"
                " DistributedDataParallel wrapper: no gradients are exchanged, unless you do that"
                " in engine.gradients(). If a model is wrapped, give the wrapper to the engine",
                num_processes(),
            )

    def _refuse_parameters_outside(self) -> None:
        exchanged = set[int]().union(*self._exchanged)
        outside = [name for name, p in self._trainable() if id(p) not in exchanged]
        if outside:
            raise BadValueError(
                f"{len(outside)} trainable parameters (first: {outside[0]!r}) get no gradients from"
                " other processes, because no DistributedDataParallel wrapper holds them; the"
                f" {num_processes()} processes would drift apart. Wrap the whole model, or freeze"
                " them with requires_grad_(False)."
            )

    def _refuse_settings(self) -> None:
        for condition in self._conditions:
            if type(condition) is not NormSpike:
                raise BadValueError(
                    f"the veto {name_of(condition)!r} may look at the loss, which is that of one"
                    f" process: {num_processes()} processes under DistributedDataParallel could"
                    " decide differently. Use hs.veto.norm_spike, whose gradient norm they share."
                )
        if self._diagnose == "on_skip":
            raise BadValueError(
                "diagnose='on_skip' would run the wrapped model again, and a process with a good"
                " batch would blame an op that only received another's inf. Under"
                " DistributedDataParallel use diagnose='raise', which names the parameter."
            )
        if any(isinstance(each, TokenSchedule) for each in self._schedules.values()):
            raise BadValueError(
                "a token schedule counts the tokens of one process: under DistributedDataParallel"
                f" the learning rates of the {num_processes()} processes would differ. Use a torch"
                " LRScheduler, which moves once per committed update."
            )

    def _refuse_part_of_a_wrapper(self, names: Sequence[str]) -> None:
        groups = [group for name in names for group in self._optimizers[name].param_groups]
        chosen = {id(p) for group in groups for p in group["params"]}
        trainable = {id(p) for _, p in self._trainable()}
        for exchanged in self._exchanged:
            wrapped = exchanged & trainable
            if wrapped & chosen and wrapped - chosen:
                raise CallOrderError(
                    f"backward for {', '.join(map(repr, names))} alone: the wrapper"
                    " DistributedDataParallel holds other trainable parameters too, and exchanges"
                    " gradients only when all of its parameters get one. Wrap a model for each"
                    " optimizer, or call backward for all optimizers."
                )

    def _trainable(self) -> Iterator[tuple[str, nn.Parameter]]:
        for model_name, model in self._models.items():
            for name, parameter in model.named_parameters():
                if parameter.requires_grad:
                    yield (f"{model_name}.{name}" if len(self._models) > 1 else name), parameter


def check_one_process() -> None:
    """Refuse a run of `fit` in one of several processes.

    Raises:
        BadValueError: The process group, or else ``WORLD_SIZE`` (which torchrun sets), says that
            there are several: each would make the same run and write to the same files.
    """
    started = num_processes()
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        setting = os.environ.get("WORLD_SIZE", "1")
        started = int(setting) if setting.isdecimal() else 1
    if started > 1:
        raise BadValueError(
            f"fit and `halfstep train` run in one process, and this is one of {started}"
            " (torchrun, WORLD_SIZE): each would make the same whole run and write to the same"
            " files. Start it without torchrun, or train by hs.Engine under"
            " DistributedDataParallel in a loop of your own."
        )


def _averages_gradients(module: nn.Module) -> bool:
    return any(each.__name__ == "DistributedDataParallel" for each in type(module).__mro__)


def _exchanged_by(wrapper: nn.Module) -> set[int]:
    """Ids of the parameters of a wrapper, without those that it was told to ignore."""
    ignored = getattr(wrapper, "parameters_to_ignore", ())
    inner = getattr(wrapper, "module", wrapper)
    return {id(p) for name, p in inner.named_parameters() if name not in ignored}
