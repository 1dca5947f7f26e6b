"""`Engine`: mixed-precision training steps in the only right order."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from halfstep.precision import PolicyContext, PrecisionSetting, as_policy
from halfstep.records import BadTypeError, BadValueError, CallOrderError, ScaleCollapse
from halfstep.records.keywords import explains_keywords
from halfstep.training import other_names
from halfstep.training.engine.describe import NO_COPY, Rates, describe, rates_of
from halfstep.training.engine.lost_updates import LostUpdates
from halfstep.training.engine.names import (
    Names,
    as_named,
    check_word,
    for_each,
    named_slots,
    of_which,
    open_slots,
    slots_to_step,
    the_only,
)
from halfstep.training.engine.replay import Replay
from halfstep.training.engine.settings import (
    Limit,
    ScaleSetting,
    build_slots,
    schedules_for,
)
from halfstep.training.engine.state import (
    ENGINE_PARTS,
    check_engine_state,
    engine_state,
    load_engine_state,
    settle_before_states,
)
from halfstep.training.followers.followers import Followers, as_averaged
from halfstep.training.followers.schedule import Schedule
from halfstep.training.processes.processes import Processes
from halfstep.training.surroundings.left_over_lines import Surroundings
from halfstep.training.surroundings.setup_checks import check_models, check_optimizers
from halfstep.training.window.backward import ScaledBackward
from halfstep.training.window.loss import LossSum
from halfstep.training.window.micro_batches import checked_window
from halfstep.training.window.weight_casts import WeightCasts
from halfstep.update import (
    Counters,
    Joint,
    LossScale,
    NoLossScale,
    OptimizerSlot,
    StepOutcome,
    Update,
)
from halfstep.update.decision.clipping import Clip
from halfstep.update.decision.veto import Condition
from halfstep.update.ranks.find import inner_models
from halfstep.update.ranks.ranks import Ranks, SquareSum
from halfstep.update.readback import check_float64

logger = logging.getLogger("halfstep")

Batch = TypeVar("Batch")
LossFn = Callable[[Any, Batch], Tensor | LossSum]


class Engine:
    """Mixed-precision training of one model by one optimizer, or of several by name.

    With `train_step` for new loops, or by hand in loops that exist::

        with engine.autocast():
            loss = loss_fn(model, batch)
        engine.backward(loss)                  # any number of times: the window
        outcome = engine.step()                # sets the gradients to None

    Nothing moves on a skip: parameters, optimizer state, schedule, token clock, counters.

    With mappings by name (a GAN), each optimizer has a window of its own::

        engine.backward(loss, optimizers="generator")
        outcome = engine.step("generator")

    Args:
        model: FP32 parameters on their device; trainable FP16 parameters are refused. Or several
            models by name.
        optimizer: Any torch optimizer over parameters of the models whose step needs no closure;
            or several by name, of one model or of several.
        precision: ``"auto"`` (asks the hardware and logs why), ``"fp32"``, ``"bf16"``,
            ``"fp16"``, a `Policy`, or the path of a ``precision.toml``.
        max_norm: Clip the gradients of the whole window to this 2-norm, in FP32 terms: the scale
            does not change its meaning. torch's formula, with its 1e-6. With several optimizers a
            limit for each, a mapping, or `Joint` for one norm over those that step together.
        clip: Instead, a callable that gets the list of parameters with their true gradients and
            changes them in place. A finite check follows it.
        loss_scale: ``"auto"`` (dynamic for fp16, none otherwise), a number, ``None``, or a loss
            scale object, shared by all optimizers; or a mapping, for scales of their own.
        schedule: A `TokenSchedule` (needs `LossSum` losses) or a torch `LRScheduler`, stepped
            once per committed update; or a mapping. Epoch schedulers stay in your loop.
        ema: A decay such as 0.999, or a `torch.optim.swa_utils.AveragedModel` of the model; it is
            updated once per committed update and is `engine.ema`. Or a mapping by model.
        overflow: Where several optimizers step together and one has to hold: ``"together"``, all
            hold; ``"independent"``, the others move.
        buffers: ``"keep"``, or ``"rollback"`` to put module buffers (BatchNorm's statistics) back
            after a skip and after `abort`; they are copied at the start of each window.
        fuse: ``"auto"`` switches a stock Adam, AdamW, SGD or Adagrad that left `fused` and
            `foreach` open and has no state yet to its fused kernel; ``False`` leaves it alone.
        veto: A condition on the device that holds an update although its gradients are finite
            (``hs.veto.norm_spike(6)``), or several: callables that get `hs.veto.Facts` and return
            a 0-d tensor. The loss scale takes no note of such a skip.
        on_collapse: What follows ``max_consecutive_skips`` skips of an FP16 run in a row:
            ``"raise"`` `ScaleCollapse`, or go on as a whole in ``"bf16"`` or ``"fp32"`` without a
            loss scale, which is logged as an error and is in the outcome.
        diagnose: ``"never"``; ``"raise"`` to stop at the first window with a non-finite gradient,
            naming the parameter; ``"on_skip"`` to run a skipped window of `train_step` again under
            a tracer and put the first bad op into the outcome (`loss_fn` is called again, its side
            effects happen twice; the host waits for every step).

        lost_updates: Find, for every update, the share of each parameter that had a gradient and
            did not move by a bit (`outcome.lost_updates`): low-precision weights, a tiny learning
            rate. Costs a copy of the weights per update; for some steps of a run, not for all.
        process_group: Who trains together, where wrappers do not say it: a group if gradients are
            averaged by hand in `gradients`, ``False`` if this process trains a model of its own.
        norm: Called with this process's gradients for the square sum of those that it owns, where
            parameters are spread in a way that torch's tensors do not say (pipeline parallelism).
        gradient_sync: ``"window"``: several processes exchange gradients once per window;
            ``"micro_batch"``: at every backward, which takes less memory under ``fully_shard``.

    Attributes:
        models: By name; a single one is called ``"model"``.
        optimizers: By name; a single one is called ``"optimizer"``.

    Raises:
        BadTypeError, BadValueError: One sentence per mistake, see the messages.

    Example:
        >>> import torch, halfstep as hs
        >>> model = torch.nn.Linear(4, 1)
        >>> engine = hs.Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), precision="fp32")
        >>> outcome = engine.train_step([torch.ones(2, 4)], lambda model, x: model(x).mean())
        >>> outcome.updated, outcome.reason
        (True, None)
    """

    @explains_keywords("Engine", other_names.ENGINE)
    def __init__(
        self,
        model: nn.Module | Mapping[str, nn.Module],
        optimizer: Optimizer | Mapping[str, Optimizer],
        *,
        precision: PrecisionSetting = "auto",
        max_norm: Limit | Mapping[str, float | None] = None,
        clip: Clip | None = None,
        loss_scale: ScaleSetting | Mapping[str, ScaleSetting] = "auto",
        schedule: Schedule | Mapping[str, Schedule | None] | None = None,
        ema: AveragedModel | float | Mapping[str, AveragedModel | float | None] | None = None,
        overflow: str = "together",
        buffers: str = "keep",
        fuse: str | bool = "auto",
        veto: Condition | Sequence[Condition] = (),
        on_collapse: str = "raise",
        diagnose: str = "never",
        lost_updates: bool = False,
        process_group: Any = None,
        norm: SquareSum | None = None,
        gradient_sync: str = "window",
    ) -> None:
        self.models = MappingProxyType(as_named("model", model))
        self.optimizers = MappingProxyType(as_named("optimizer", optimizer))
        self.device = check_models(self.models)
        check_float64(self.device)
        check_optimizers(self.optimizers, self.models)
        check_word("diagnose", diagnose, ("never", "raise", "on_skip"))
        check_word("on_collapse", on_collapse, ("raise", "bf16", "fp32"))
        check_word("overflow", overflow, ("together", "independent"))
        check_word("buffers", buffers, ("keep", "rollback"))
        check_word("gradient_sync", gradient_sync, ("window", "micro_batch"))
        self.policy = as_policy(precision, self.device, inner_models(self.models))
        schedules = schedules_for(schedule, self.optimizers)
        averages = for_each("ema", ema, self.models)
        slots = build_slots(
            self.models,
            self.optimizers,
            policy=self.policy,
            max_norm=max_norm,
            clip=clip,
            loss_scale=loss_scale,
            fuse=fuse,
            veto=veto,
        )
        inner = inner_models(self.models)
        emas = {name: as_averaged(averages[name], each) for name, each in inner.items()}
        self._followers = Followers(self.models, slots, schedules, emas, buffers == "rollback")
        self._update = Update(
            slots,
            joint=max_norm if isinstance(max_norm, Joint) else None,
            overflow=overflow,
            stop_at_non_finite=diagnose == "raise",
            on_commit=self._followers.committed,
            on_skip=self._followers.held,
        )
        self._processes = Processes(
            self.models,
            self._update,
            self.device,
            group=process_group,
            square_sum=norm,
            per_window=gradient_sync == "window",
            replays=diagnose == "on_skip",
        )
        self._backward = ScaledBackward(
            slots, self._around_backward, self._processes.agree_on_nominal
        )
        self._surroundings = Surroundings(self.models, slots, self.device)
        self._casts = WeightCasts(self.device.type, self.models.values())
        settle_before_states(self._update)
        self._argument = model  # what loss_fn gets
        self._on_collapse = on_collapse
        self._replays = diagnose == "on_skip"
        self._finds_lost_updates = lost_updates

    @property
    def model(self) -> nn.Module:
        """The model, where there is one; else see `models`."""
        return the_only("model", "models", self.models.values(), self.models)

    def as_given(self, models: Mapping[str, nn.Module]) -> Any:
        """Models in the form in which the engine was given its own: the mapping, or the only one.

        Args:
            models: By the names of `models`; averages for example.
        """
        is_mapping = isinstance(self._argument, Mapping)
        return dict(models) if is_mapping else next(iter(models.values()))

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer, where there is one; else see `optimizers`."""
        return the_only("optimizer", "optimizers", self.optimizers.values(), self.optimizers)

    @property
    def loss_scale(self) -> LossScale:
        """The loss scale object; ``engine.loss_scale.value`` is the current factor."""
        scales = self.loss_scales
        return the_only("loss_scale", "loss_scales", scales.values(), scales)

    @property
    def loss_scales(self) -> dict[str, LossScale]:
        """Optimizer name to its loss scale; the same object where they share one."""
        return {slot.name: slot.loss_scale for slot in self._update.slots}

    @property
    def ema(self) -> AveragedModel | None:
        """The averaged weights after the previous step, ``None`` without.

        Syncs: waits for that step.
        """
        return the_only("ema", "emas", self.emas.values(), self.emas)

    @property
    def emas(self) -> dict[str, AveragedModel | None]:
        """Model name to its averaged weights.

        Syncs: waits for the previous step, which is in the average then.
        """
        self._update.settle()
        return dict(self._followers.emas)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, the models hold their averaged weights and buffers; afterwards their own again.

        For an evaluation where the average itself cannot be called, under ``fully_shard``, or where
        the memory of `ema`'s activations is better spent once. Takes a copy of the weights.

        Raises:
            CallOrderError: Inside an open window, or without any average.

        Syncs: waits for the previous step.
        """
        if slots := open_slots(self._update.slots, None):
            raise CallOrderError(
                f"averaged() inside an open window{of_which(slots, self._update.slots)}: its"
                " gradients are of the weights as they are; call it after step()."
            )
        if not any(average is not None for average in self.emas.values()):
            raise CallOrderError("averaged() of an engine without an average; build it with ema=.")
        with self._followers.averaged():
            yield

    @property
    def lr(self) -> Rates | dict[str, Rates]:
        """Learning rate of the next update: a float, or a list with several parameter groups.

        With several optimizers a mapping by name. (`outcome.lr` is that of an update that was
        made, and always a float.)

        Syncs: waits for the previous step, after which the schedule moves; and for a learning rate
        that is a tensor on an accelerator.
        """
        self._update.settle()
        rates = {name: rates_of(optimizer) for name, optimizer in self.optimizers.items()}
        return rates if len(rates) > 1 else next(iter(rates.values()))

    @property
    def ranks(self) -> Ranks:
        """Who trains together: ``size``, ``rank``; found again at each call that trains."""
        self._processes.begin()
        return self._update.ranks

    def all_together(self) -> contextlib.AbstractContextManager[None]:
        """Around anything else that all ranks do, such as an evaluation with collectives.

        An error inside reaches the other ranks with its own text and ends the run of all, instead
        of leaving them waiting.
        """
        return self._processes.all_together()

    @property
    def num_updates(self) -> int:
        """Steps that moved parameters."""
        return self._settled_counters().num_updates

    @property
    def num_skipped(self) -> int:
        """Steps that moved nothing."""
        return self._settled_counters().num_skipped

    @property
    def consumed(self) -> float:
        """The token clock: sum of the divisors of all committed updates."""
        return self._settled_counters().consumed

    @property
    def counters(self) -> dict[str, Counters]:
        """Optimizer name to its own attempts, updates and consumed tokens."""
        self._update.settle()
        return {slot.name: slot.counters for slot in self._update.slots}

    def settle(self) -> None:
        """Commit the previous step, schedule and average included, if nobody has looked at it yet.

        Only a fused optimizer on an accelerator leaves a step open. `save_checkpoint`, `state_dict`
        of engine and optimizer, `ema` and every attribute that counts do it by themselves.

        Syncs: waits for that step.
        """
        self._update.settle()

    def _settled_counters(self) -> Counters:
        self._update.settle()
        return self._update.counters

    def __repr__(self) -> str:
        return describe(
            self.models, self.optimizers, self.policy, self.loss_scales, self._update.counters
        )

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        raise BadTypeError(NO_COPY)

    def autocast(self) -> PolicyContext:
        """The context for forward and loss; backward and step never belong inside."""
        if torch.is_grad_enabled():
            self._followers.window_opens()
        return self.policy.autocast(self.device.type)

    def backward(
        self,
        loss: Tensor | LossSum,
        optimizers: Names = None,
        *,
        retain_graph: bool = False,
    ) -> None:
        """Add one micro-batch to the window: scaled backward, outside autocast.

        Args:
            loss: A real scalar (a mean; every micro-batch of the window weighs the same) or a
                `LossSum`. A window never mixes the two.
            optimizers: Names of those whose parameters get gradients; ``None`` for all.
            retain_graph: As in `torch.Tensor.backward`.

        Raises:
            BadTypeError: Anything else, a tuple above all.
            CallOrderError: After `gradients` in the same window, when kinds of losses are mixed,
                or when gradients lie around that were made without the engine.

        Syncs: no; the first `LossSum` of a run reads its divisor once.
        """
        with self._processes.all_together():
            self._add_to_window(loss, named_slots(self._update.slots, optimizers), retain_graph)

    def _add_to_window(
        self, loss: Tensor | LossSum, slots: Sequence[OptimizerSlot], retain_graph: bool
    ) -> None:
        self._processes.refuse_part_of_a_wrapper(slots)
        needs_divisor = self._followers.counts_tokens(slots)
        self._update.refuse_torn()
        self._followers.refuse_moved_schedules(slots)
        self._surroundings.before_backward(slots, loss)
        try:
            self._backward(slots, loss, needs_divisor=needs_divisor, retain_graph=retain_graph)
        except BaseException:
            self._surroundings.windows_close()
            raise
        self._surroundings.after_backward(slots)

    def scale(self, outputs: Tensor, optimizers: Names = None) -> Tensor:
        """Multiply by the loss scale, for a backward or an `torch.autograd.grad` of your own.

        Gradients that reach parameters by ``engine.scale(loss).backward()`` are a window of their
        own: they add up as they come, are averaged over nothing, and `step` divides them by the
        scale. An inner gradient is divided by ``engine.loss_scale.value``. See the docs for
        gradient caching and penalties.

        Args:
            outputs: A loss, or a real floating tensor of any shape, with its graph.
            optimizers: Names of those whose parameters get gradients; ``None`` for all.

        Returns:
            float32 (float64 for float64), same shape.

        Raises:
            BadTypeError: Anything else.

        Syncs: no.

        Example:
            >>> import torch, halfstep as hs
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> engine = hs.Engine(model, optimizer, precision="fp32", loss_scale=8.0)
            >>> engine.scale(model(torch.ones(2, 4)).mean()).backward()
            >>> engine.step().updated
            True
        """
        self._processes.begin()
        scaled = self._backward.scale(named_slots(self._update.slots, optimizers), outputs)
        self._surroundings.own_window_opens()
        return scaled

    def micro_batch(self, is_last: bool) -> contextlib.AbstractContextManager[None]:
        """Around forward and backward of one micro-batch, in a loop by hand with windows of many.

        Several processes exchange their gradients in the last one only, instead of in each; in a
        process of its own it changes nothing. `train_step` does it by itself.

        Args:
            is_last: Whether `step` follows.

        Syncs: no.

        Example:
            >>> import torch, halfstep as hs
            >>> model = torch.nn.Linear(4, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> engine = hs.Engine(model, optimizer, precision="fp32")
            >>> for number in range(2):
            ...     with engine.micro_batch(is_last=number == 1):
            ...         with engine.autocast():
            ...             loss = model(torch.ones(2, 4)).mean()
            ...         engine.backward(loss)
            >>> engine.step().updated
            True
        """
        return self._processes.micro_batch(is_last)

    def step(self, optimizers: Names = None) -> StepOutcome:
        """Close the window: one update or none, and the gradients are ``None``.

        Args:
            optimizers: Names of those to step; ``None`` for all with an open window, together.

        Raises:
            CallOrderError: Without a `backward` since the last step.
            NonFiniteGradientError: With ``diagnose="raise"``.
            ScaleCollapse: After too many skips in a row.

        Syncs: with fused optimizers on an accelerator the host waits for the *previous* step
        only; any other optimizer costs one wait.
        """
        with self._processes.all_together():
            return self._step(optimizers)

    def _step(self, optimizers: Names) -> StepOutcome:
        if self._backward.has_own:
            self._backward.count_own(named_slots(self._update.slots, optimizers))
        slots = slots_to_step(self._update.slots, optimizers)
        try:
            self._processes.before_step()
            self._surroundings.before_step(slots)
        except BaseException:
            self.abort([slot.name for slot in slots])
            raise
        updates_before = self._settled_counters().num_updates
        try:
            lost = LostUpdates(slots, self._update.ranks) if self._finds_lost_updates else None
            outcome = self._update.run(slots)
            if lost is not None:
                outcome.attach_lost_updates(*lost.compare())
            return outcome
        except ScaleCollapse as collapse:
            if collapse.record is None or not self._may_fall_back():
                raise
            self._fall_back()
            logger.error("%s The run goes on in %s.", collapse, self._on_collapse)
            record = replace(collapse.record, fallback=self._on_collapse)
            return StepOutcome(lambda: record)
        except BaseException:
            self._update.settle()
            if self._update.counters.num_updates == updates_before:
                self._followers.nothing_moved()
            raise
        finally:
            self._followers.window_closes()
            self._surroundings.windows_close()

    def train_step(
        self,
        window: Iterable[Batch],
        loss_fn: LossFn[Batch],
        optimizers: Names = None,
    ) -> StepOutcome:
        """Forward and backward of every micro-batch under autocast, then one step.

        Args:
            window: The micro-batches of one update: a window of `micro_batches`, a list, or an
                iterator. A list that could as well be one batch (of tensors, of texts, of elements
                of different kinds) is refused: write ``[batch]`` for a window of one, or
                ``hs.Window(batches)``.
            loss_fn: Called as ``loss_fn(model, batch)`` inside autocast; the model is what the
                engine was given, the mapping if there are several.
            optimizers: Names of those that learn from it; ``None`` for all, together.

        Returns:
            The outcome of the step.

        Raises:
            BadTypeError: The window could as well be one batch, or is a loader.
            What `backward` and `step` raise. After an exception, the user's too, the window is
            dropped and either everything of the step has happened or nothing has; windows of other
            optimizers stay open.
        """
        batches = checked_window(window)
        slots = named_slots(self._update.slots, optimizers)
        names = [slot.name for slot in slots]
        if any(slot.window.num_micro_batches for slot in slots):
            raise CallOrderError(
                "train_step inside an open window: call step() or abort() after your own"
                " backward() first."
            )
        self._followers.window_closes()  # a forward of the user's own may have opened one
        self._followers.window_opens()
        replay = None
        if self._replays:
            batches = list(batches)
            replay = self._prepare_replay(batches, loss_fn, slots)
        try:
            with self._processes.all_together():
                self._run_window(batches, loss_fn, names)
            if not slots[0].window.num_micro_batches:
                raise BadValueError("train_step got an empty window; there is nothing to update.")
            nominal = slots[0].window.nominal
            try:
                outcome = self.step(names)
            except ScaleCollapse as collapse:
                if replay is not None:
                    raise replay.explain(collapse, nominal) from None
                raise
            if replay is not None and outcome.reason == "non_finite":
                outcome.attach(replay.diagnose(outcome.loss_scale, nominal))
            return outcome
        except BaseException:
            self.abort(names)
            raise

    def _run_window(
        self, batches: Iterable[Batch], loss_fn: LossFn[Batch], names: Sequence[str]
    ) -> None:
        with self._casts.kept(batches) as casts:
            for batch, is_last in self._processes.micro_batches(batches):
                with self._processes.micro_batch(is_last):
                    if casts is not None:
                        casts.micro_batch_begins()
                    with self.autocast():
                        loss = loss_fn(self._argument, batch)
                    if casts is not None:
                        casts.micro_batch_ends()
                    self.backward(loss, names)
                    del loss

    def _prepare_replay(
        self, batches: list[Any], loss_fn: LossFn[Any], slots: Sequence[OptimizerSlot]
    ) -> Replay:
        inner = inner_models(self.models)
        return Replay.of(
            models=list(inner.values()),
            argument=self.as_given(inner),
            ranks=self._update.ranks,
            policy=self.policy,
            device_type=self.device.type,
            parameters=[p for slot in slots for p in slot.parameters()],
            loss_fn=loss_fn,
            batches=batches,
            min_scale=getattr(self.loss_scale, "min_scale", None),
        )

    @contextlib.contextmanager
    def gradients(self, optimizers: Names = None) -> Iterator[Mapping[str, Tensor]]:
        """The true gradients of the window, once, before the step.

        Inside, ``.grad`` holds what FP32 training would have: unscaled, divided by the window's
        divisor, not clipped. Change them in place (noise, own clipping); the finite check comes
        after you.

        Args:
            optimizers: Names of those whose gradients; ``None`` for all with an open window.

        Yields:
            Parameter name to gradient, for the parameters that have one; with several models the
            model's name stands before it (``"generator.0.weight"``).

        Raises:
            CallOrderError: Without a backward, or a second time in a window.

        Syncs: no.
        """
        if self._backward.has_own:
            self._backward.count_own(named_slots(self._update.slots, optimizers))
        slots = open_slots(self._update.slots, optimizers)
        if not slots or not all(slot.window.num_micro_batches for slot in slots):
            raise CallOrderError("gradients() without backward(): this window has none yet.")
        if any(slot.window.true_gradients for slot in slots):
            raise CallOrderError(
                "gradients() was already used in this window; the gradients are true since then."
            )
        with self._processes.all_together():
            self._processes.before_step()
            self._surroundings.before_step(slots)
            for slot in slots:
                slot.unscale_(self._update.ranks)
        found = {name: grad for slot in slots for name, grad in slot.gradients().items()}
        yield MappingProxyType(found)

    def abort(self, optimizers: Names = None) -> None:
        """Drop an open window: its gradients become ``None`` and nothing has happened.

        For retries after an out-of-memory error. Without an open window it does nothing.

        Args:
            optimizers: Names of those whose windows; ``None`` for all.
        """
        self._update.abort(named_slots(self._update.slots, optimizers))
        self._processes.window_was_dropped()
        self._followers.nothing_moved()
        self._followers.window_closes()
        self._surroundings.windows_close()

    def state_dict(self) -> dict[str, Any]:
        """What the engine itself knows: scale, counters, clock, schedule, averaged weights.

        Model and optimizer have their own ``state_dict``.

        Raises:
            CallOrderError: Inside an open window, whose gradients no checkpoint holds; after a step
                that moved a part of the weights.

        Syncs: yes.
        """
        if slots := open_slots(self._update.slots, None):
            raise CallOrderError(
                f"state_dict() inside an open window{of_which(slots, self._update.slots)} would"
                " lose its gradients; save after step()."
            )
        self._update.refuse_torn()
        self._update.settle()
        return engine_state(self.policy.format, self._update, self._backward, self._followers)

    def load_state_dict(
        self, state: dict[str, Any], *, parts: Collection[str] = ENGINE_PARTS
    ) -> None:
        """Restore what `state_dict` returned; an open window is dropped.

        Args:
            state: From an engine built the same way, as far as the parts go.
            parts: Of ``"schedule"``, ``"loss_scale"``, ``"average"`` and ``"counters"``.

        Raises:
            BadValueError: The state is not an engine's, or was made with other optimizers,
                another kind of schedule or loss scale. Nothing is changed then.
        """
        self.check_state_dict(state, parts=parts)
        if self._has_fallen_back(state) and "loss_scale" in parts:
            self._fall_back()
        self._update.settle()
        self.abort()
        self._update.weights_were_loaded()
        load_engine_state(state, self._update, self._backward, self._followers, parts)

    def check_state_dict(
        self, state: dict[str, Any], *, parts: Collection[str] = ENGINE_PARTS
    ) -> None:
        """Refuse a state that `load_state_dict` could not load; changes nothing.

        Args:
            state: As for `load_state_dict`.
            parts: As there.

        Raises:
            BadValueError: As there.
        """
        falls_back = self._has_fallen_back(state)
        check_engine_state(state, self._update, self._followers, falls_back, parts)

    def _around_backward(self) -> contextlib.AbstractContextManager[object]:
        """Outside autocast, and checkpoints recompute under the policy."""
        context = self.policy.recompute(self.device.type)
        return contextlib.nullcontext() if context.changes_nothing() else context

    def _may_fall_back(self) -> bool:
        return self.policy.format == "fp16" and self._on_collapse != "raise"

    def _has_fallen_back(self, state: dict[str, Any]) -> bool:
        """Whether the run that wrote a state had, so that this one must follow."""
        return state.get("format") == self._on_collapse and self._may_fall_back()

    def _fall_back(self) -> None:
        reason = "fell back after the loss scale collapsed in fp16"
        self.policy = replace(self.policy, format=self._on_collapse, reason=reason)
        none = NoLossScale()
        for slot in self._update.slots:
            slot.use(none)
