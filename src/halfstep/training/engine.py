"""`Engine`: mixed-precision training steps in the only right order."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from halfstep.precision import Policy, as_policy
from halfstep.records import BadValueError, CallOrderError, ScaleCollapse
from halfstep.training.autocast_cache import cast_weights_once
from halfstep.training.buffers import BufferRollback
from halfstep.training.followers import Followers
from halfstep.training.loss import LossSum, check_loss
from halfstep.training.replay import Replay
from halfstep.training.rng import rng_state
from halfstep.training.schedule import Schedule
from halfstep.training.setup_checks import check_model, check_optimizer
from halfstep.training.window_checks import any_gradient, check_micro_batch
from halfstep.training.windows import checked_window
from halfstep.update import (
    Counters,
    LossScale,
    NoLossScale,
    StepOutcome,
    Update,
    Window,
    as_loss_scale,
)
from halfstep.update.gradients import parameter_names
from halfstep.update.loss_scale import promote
from halfstep.update.transaction import Clip

logger = logging.getLogger("halfstep")

Batch = TypeVar("Batch")
LossFn = Callable[[nn.Module, Batch], Tensor | LossSum]


class Engine:
    """Mixed-precision training of one model by one optimizer.

    With `train_step` for new loops, or by hand in loops that exist::

        with engine.autocast():
            loss = loss_fn(model, batch)
        engine.backward(loss)                  # any number of times: the window
        outcome = engine.step()                # sets the gradients to None

    Nothing moves on a skip: parameters, optimizer state, schedule, token clock, counters.

    Args:
        model: FP32 parameters on their device. Trainable FP16 parameters are refused.
        optimizer: Any torch optimizer over parameters of the model whose step needs no closure.
        precision: ``"auto"`` (asks the hardware and logs why), ``"fp32"``, ``"bf16"``,
            ``"fp16"``, or a `Policy`.
        max_norm: Clip the gradients of the whole window to this 2-norm, in FP32 terms: the scale
            does not change its meaning. torch's formula, with its 1e-6.
        clip: Instead, a callable that gets the list of parameters with their true gradients and
            changes them in place. A finite check follows it.
        loss_scale: ``"auto"`` (dynamic for fp16, none otherwise), a number, ``None``, or a loss
            scale object.
        schedule: A `TokenSchedule` (needs `LossSum` losses) or a torch `LRScheduler`, stepped
            once per committed update. Epoch schedulers stay in your loop.
        ema: A decay such as 0.999, or a `torch.optim.swa_utils.AveragedModel` of the model; it is
            updated once per committed update and is `engine.ema`.
        buffers: ``"keep"``, or ``"rollback"`` to put module buffers (BatchNorm's statistics) back
            after a skip and after `abort`; they are copied at the start of each window.
        fuse: ``"auto"`` switches a stock Adam, AdamW, SGD or Adagrad that left `fused` and
            `foreach` open and has no state yet to its fused kernel; ``False`` leaves it alone.
        on_collapse: What follows ``max_consecutive_skips`` skips of an FP16 run in a row:
            ``"raise"`` `ScaleCollapse`, or go on as a whole in ``"bf16"`` or ``"fp32"`` without a
            loss scale, which is logged as an error and is in the outcome.
        diagnose: ``"never"``; ``"raise"`` to stop at the first window with a non-finite gradient,
            naming the parameter; ``"on_skip"`` to run a skipped window of `train_step` again under
            a tracer and put the first bad op into the outcome (`loss_fn` is called again, its side
            effects happen twice; the host waits for every step).

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

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        precision: str | Policy = "auto",
        max_norm: float | None = None,
        clip: Clip | None = None,
        loss_scale: LossScale | float | str | None = "auto",
        schedule: Schedule | None = None,
        ema: AveragedModel | float | None = None,
        buffers: str = "keep",
        fuse: str | bool = "auto",
        on_collapse: str = "raise",
        diagnose: str = "never",
    ) -> None:
        device = check_model(model)
        check_optimizer(optimizer, model)
        if diagnose not in ("never", "raise", "on_skip"):
            raise BadValueError(
                f"diagnose must be 'never', 'raise' or 'on_skip', got {diagnose!r}."
            )
        if on_collapse not in ("raise", "bf16", "fp32"):
            raise BadValueError(
                f"on_collapse must be 'raise', 'bf16' or 'fp32', got {on_collapse!r}."
            )
        self.model = model
        self.optimizer = optimizer
        self.device = device
        self.policy = as_policy(precision, device)
        if precision == "auto":
            logger.info("precision: %s (%s)", self.policy.format, self.policy.reason)
        self._followers = Followers(model, optimizer, schedule, ema, buffers)
        self._names = parameter_names(list(model.named_parameters()))
        self._update = Update(
            optimizer,
            as_loss_scale(loss_scale, self.policy.format),
            max_norm=max_norm,
            clip=clip,
            fuse=fuse,
            names=self._names,
            stop_at_non_finite=diagnose == "raise",
            on_commit=self._followers.committed,
            on_skip=self._followers.nothing_moved,
        )
        self._on_collapse = on_collapse
        self._replays = diagnose == "on_skip"
        self._window = Window()
        self._has_warned_of_fp16_loss = False

    @property
    def loss_scale(self) -> LossScale:
        """The loss scale object; ``engine.loss_scale.value`` is the current factor."""
        return self._update.loss_scale

    @property
    def ema(self) -> AveragedModel | None:
        """The averaged weights, ``None`` without."""
        return self._followers.ema

    @property
    def num_updates(self) -> int:
        """Steps that moved the parameters."""
        return self._settled_counters().num_updates

    @property
    def num_skipped(self) -> int:
        """Steps that moved nothing."""
        counters = self._settled_counters()
        return counters.attempts - counters.num_updates

    @property
    def consumed(self) -> float:
        """The token clock: sum of the divisors of all committed updates."""
        return self._settled_counters().consumed

    def autocast(self) -> torch.autocast:
        """The context for forward and loss; backward and step never belong inside."""
        if torch.is_grad_enabled():
            self._followers.window_opens()
        return self.policy.autocast(self.device.type)

    def backward(self, loss: Tensor | LossSum, *, retain_graph: bool = False) -> None:
        """Add one micro-batch to the window: scaled backward, outside autocast.

        Args:
            loss: A real scalar (a mean; every micro-batch of the window weighs the same) or a
                `LossSum`. A window never mixes the two.
            retain_graph: As in `torch.Tensor.backward`.

        Raises:
            BadTypeError: Anything else, a tuple above all.
            CallOrderError: After `gradients` in the same window, when kinds of losses are mixed,
                or when gradients lie around that were made without the engine.

        Syncs: no; the first `LossSum` of a run reads its divisor once.
        """
        window = self._window
        total = loss.total if isinstance(loss, LossSum) else loss
        check_loss(total)
        divisor = loss.divisor if isinstance(loss, LossSum) else None
        parameters = self._update.parameters()
        check_micro_batch(window, divisor, parameters, self._followers.counts_tokens)
        self._warn_of_fp16_loss(total)
        if divisor is not None and not window.num_micro_batches:
            window.nominal = self._update.counters.nominal_for(divisor)
        scalar = promote(total).reshape(())
        with torch.autocast(self.device.type, enabled=False):
            normalised = scalar if divisor is None else scalar / window.nominal
            torch.autograd.backward(self.loss_scale.scale(normalised), retain_graph=retain_graph)
        metrics = loss.metrics if isinstance(loss, LossSum) else {}
        window.add(scalar.double() if divisor is not None else scalar, divisor, metrics)
        window.has_gradients = any_gradient(parameters)

    def step(self) -> StepOutcome:
        """Close the window: one update or none, and the gradients are ``None``.

        Raises:
            CallOrderError: Without a `backward` since the last step.
            NonFiniteGradientError: With ``diagnose="raise"``.
            ScaleCollapse: After too many skips in a row.

        Syncs: with fused optimizers on an accelerator the host waits for the *previous* step
        only; any other optimizer costs one wait.
        """
        if not self._window.num_micro_batches:
            raise CallOrderError(
                "step() without backward(): this window has no gradients. Each step needs at least"
                " one engine.backward(loss) since the last one."
            )
        window, self._window = self._window, Window()
        updates_before = self._settled_counters().num_updates
        try:
            return self._update.run(window)
        except ScaleCollapse as collapse:
            if collapse.record is None or not self._may_fall_back():
                raise
            self._fall_back()
            logger.error("%s The run goes on in %s.", collapse, self._on_collapse)
            record = replace(collapse.record, fallback=self._on_collapse)
            return StepOutcome(lambda: record)
        except BaseException:
            if self._update.counters.num_updates == updates_before:
                self._followers.nothing_moved()
            raise
        finally:
            self._followers.window_closes()

    def train_step(self, window: Iterable[Batch], loss_fn: LossFn[Batch]) -> StepOutcome:
        """Forward and backward of every micro-batch under autocast, then one step.

        Args:
            window: A list or an iterator of micro-batches; see `micro_batches`.
            loss_fn: Called as ``loss_fn(model, batch)`` inside autocast.

        Returns:
            The outcome of the step.

        Raises:
            What `backward` and `step` raise. After an exception, the user's too, the window is
            dropped and nothing has moved.
        """
        batches = checked_window(window)
        if self._window.num_micro_batches:
            raise CallOrderError(
                "train_step inside an open window: call step() or abort() after your own"
                " backward() first."
            )
        self._followers.window_closes()  # a forward of the user's own may have opened one
        self._followers.window_opens()
        replay = None
        if self._replays:
            batches = list(batches)
            replay = self._prepare_replay(batches, loss_fn)
        try:
            with cast_weights_once(self.device.type, self.model, batches):
                for batch in batches:
                    with self.autocast():
                        loss = loss_fn(self.model, batch)  # type: ignore[arg-type]
                    self.backward(loss)
                    del loss
            if not self._window.num_micro_batches:
                raise BadValueError("train_step got an empty window; there is nothing to update.")
            nominal = self._window.nominal
            try:
                outcome = self.step()
            except ScaleCollapse as collapse:
                if replay is not None:
                    raise replay.explain(collapse, nominal) from None
                raise
            if replay is not None and outcome.reason == "non_finite":
                outcome.attach(replay.diagnose(outcome.loss_scale, nominal))
            return outcome
        except BaseException:
            self.abort()
            raise

    def _prepare_replay(self, batches: list[Any], loss_fn: LossFn[Any]) -> Replay:
        buffers = BufferRollback(self.model)
        buffers.remember()
        return Replay(
            model=self.model,
            policy=self.policy,
            device_type=self.device.type,
            parameters=self._update.parameters(),
            loss_fn=loss_fn,
            batches=batches,
            rng=rng_state(),
            buffers=buffers,
        )

    @contextlib.contextmanager
    def gradients(self) -> Iterator[Mapping[str, Tensor]]:
        """The true gradients of the window, once, before the step.

        Inside, ``.grad`` holds what FP32 training would have: unscaled, divided by the window's
        divisor, not clipped. Change them in place (noise, own clipping); the finite check comes
        after you.

        Yields:
            Parameter name to gradient, for the parameters that have one.

        Raises:
            CallOrderError: Without a backward, or a second time in a window.

        Syncs: no.
        """
        window = self._window
        if not window.num_micro_batches:
            raise CallOrderError("gradients() without backward(): this window has none yet.")
        if window.true_gradients:
            raise CallOrderError(
                "gradients() was already used in this window; the gradients are true since then."
            )
        self._update.unscale_(window)
        names = self._names
        found = {names[id(p)]: p.grad for p in self._update.parameters() if p.grad is not None}
        yield MappingProxyType(found)

    def abort(self) -> None:
        """Drop an open window: its gradients become ``None`` and nothing has happened.

        For retries after an out-of-memory error. Without an open window it does nothing.
        """
        self._followers.nothing_moved()
        self._drop_window()

    def state_dict(self) -> dict[str, Any]:
        """What the engine itself knows: scale, counters, clock, schedule, averaged weights.

        Model and optimizer have their own ``state_dict``.

        Raises:
            CallOrderError: Inside an open window, whose gradients no checkpoint holds.

        Syncs: yes.
        """
        if self._window.num_micro_batches:
            raise CallOrderError(
                "state_dict() inside an open window would lose its gradients; save after step()."
            )
        counters = self._settled_counters()  # before the scale is read: it counts skips too
        return {
            "format": self.policy.format,
            "loss_scale": self.loss_scale.state_dict(),
            "counters": vars(counters).copy(),
            **self._followers.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; an open window is dropped.

        Raises:
            BadValueError: The state is not an engine's, or was made with another kind of
                schedule. Nothing is changed then.
        """
        expected = {"format", "loss_scale", "counters", "schedule", "ema"}
        if set(state) != expected:
            raise BadValueError(
                f"expected the state of an Engine with the keys {sorted(expected)}, got"
                f" {sorted(map(str, state))}."
            )
        self._followers.check_state(state)
        if state["format"] == self._on_collapse and self._may_fall_back():
            self._fall_back()  # the run that wrote it had
        self._drop_window()
        self._update.settle()
        self.loss_scale.load_state_dict(state["loss_scale"])
        vars(self._update.counters).update(state["counters"])
        self._followers.load_state_dict(state, self._update.counters.consumed)

    def _warn_of_fp16_loss(self, loss: Tensor) -> None:
        if loss.dtype is torch.float16 and not self._has_warned_of_fp16_loss:
            self._has_warned_of_fp16_loss = True
            logger.warning(
                "the loss is FP16: its own gradient is the loss scale, which overflows at 65536."
                " Compute the loss in FP32, from logits.float() (said once)"
            )

    def _settled_counters(self) -> Counters:
        self._update.settle()
        return self._update.counters

    def _may_fall_back(self) -> bool:
        return self.policy.format == "fp16" and self._on_collapse != "raise"

    def _fall_back(self) -> None:
        self.policy = Policy(self._on_collapse, "fell back after the loss scale collapsed in fp16")
        self._update.loss_scale = NoLossScale()

    def _drop_window(self) -> None:
        self._window = Window()
        self._update.clear_gradients()
        self._followers.window_closes()
