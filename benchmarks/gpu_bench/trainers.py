"""Ways to make a whole training step: the stock loop, Engine, the drop-in, Accelerate.

Each has a model and an optimizer of its own, with the same first weights. `step` makes one update
out of a window of micro-batches and waits for nothing; `read` asks for its loss, which waits.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import halfstep as hs
from benchmarks.gpu_bench.workloads import MAX_NORM, Batch, Workload

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
DECAY = 0.999
# Low enough that no step is skipped: a stock fused SGD whose first step is trains on a momentum
# that nobody has written, and a skip is not what is timed.
INIT_SCALE = 2.0**10


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    loss: Tensor = model(*batch)
    return loss


class Trainer:
    """A model with its optimizer, and one way to make a step.

    Args:
        workload: What is trained.
        format_name: ``"bf16"`` or ``"fp16"``.
        device: Where.
        is_compiled: Whether the model is compiled.
        is_fused: Whether the optimizer is; else it is torch's foreach one.
    """

    name: ClassVar[str]

    def __init__(
        self,
        workload: Workload,
        format_name: str,
        device: torch.device,
        *,
        is_compiled: bool = False,
        is_fused: bool = True,
    ) -> None:
        self.format_name = format_name
        self.device = device
        self.is_compiled = is_compiled
        self.plain_model = workload.on(device)
        self.params = list(self.plain_model.parameters())
        kernel = {"fused": True} if is_fused else {"foreach": True}
        self.optimizer: Any = workload.optimizer(self.plain_model, **kernel)
        self.model = self._set_up(self.plain_model)
        self._losses: list[Tensor] = []

    def _set_up(self, model: nn.Module) -> Any:
        return torch.compile(model) if self.is_compiled else model

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        return torch.autocast("cuda", dtype=DTYPES[self.format_name])

    def backward(self, loss: Tensor) -> None:
        """Add to the gradients, in the scale that `update` expects."""
        raise NotImplementedError

    def update(self) -> None:
        """Clip, step, and set the gradients to ``None``."""
        raise NotImplementedError

    def step(self, window: Sequence[Batch]) -> None:
        """One update out of a window of micro-batches."""
        self._losses = []
        for batch in window:
            with self.autocast():
                loss = loss_of(self.model, batch)
            self._losses.append(loss.detach())
            self.backward(loss if len(window) == 1 else loss / len(window))
        self.update()

    def read(self) -> float:
        """Loss of the last step; the host waits for it."""
        return float(torch.stack(self._losses).mean())

    def loss_scale(self) -> float | None:
        """The loss scale of the next step, if there is one; the host waits for it."""
        return None


class Bare(Trainer):
    """The optimizer alone: what no update can be cheaper than."""

    name = "bare"

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


class Stock(Trainer):
    """autocast; GradScaler where FP16 needs it; clipping; the fused optimizer."""

    name = "stock"
    scaler_type: ClassVar[type[torch.amp.GradScaler]] = torch.amp.GradScaler

    def _set_up(self, model: nn.Module) -> Any:
        self.scaler: Any = None
        if self.format_name == "fp16":
            self.scaler = self.scaler_type("cuda", init_scale=INIT_SCALE)
        return super()._set_up(model)

    def backward(self, loss: Tensor) -> None:
        scaled: Any = loss if self.scaler is None else self.scaler.scale(loss)
        scaled.backward()

    def update(self) -> None:
        if self.scaler is None:
            nn.utils.clip_grad_norm_(self.params, MAX_NORM)
            self.optimizer.step()
        else:
            self._clip()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def loss_scale(self) -> float | None:
        return None if self.scaler is None else float(self.scaler.get_scale())

    def _clip(self) -> None:
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.params, MAX_NORM)


class StockWithAverage(Stock):
    """The stock loop, and torch's average of the weights after each step."""

    name = "stock, average"

    def _set_up(self, model: nn.Module) -> Any:
        average = get_ema_multi_avg_fn(DECAY)  # type: ignore[no-untyped-call]
        self.average = AveragedModel(model, self.device, multi_avg_fn=average)
        return super()._set_up(model)

    def update(self) -> None:
        super().update()
        self.average.update_parameters(self.plain_model)


class DropIn(Stock):
    """The stock loop with halfstep's GradScaler in the place of torch's."""

    name = "drop-in"
    scaler_type = hs.GradScaler


class DropInWithClip(DropIn):
    """The drop-in, and its own clip."""

    name = "drop-in, its clip"

    def _clip(self) -> None:
        self.scaler.clip_grad_norm_(self.optimizer, MAX_NORM)


class Halfstep(Trainer):
    """`Engine.train_step`; `backward` and `update` are the engine's by hand."""

    name = "halfstep"
    settings: ClassVar[dict[str, Any]] = {}

    def _set_up(self, model: nn.Module) -> Any:
        made = super()._set_up(model)
        has_scale = self.format_name == "fp16"
        self.engine = hs.Engine(
            made,
            self.optimizer,
            precision=self.format_name,
            max_norm=MAX_NORM,
            loss_scale=hs.DynamicLossScale(INIT_SCALE) if has_scale else None,
            **self.settings,
        )
        self._outcome: hs.StepOutcome | None = None
        return made

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        return self.engine.autocast()

    def backward(self, loss: Tensor) -> None:
        self.engine.backward(loss)

    def update(self) -> None:
        self._outcome = self.engine.step()

    def step(self, window: Sequence[Batch]) -> None:
        self._outcome = self.engine.train_step(hs.Window(window), loss_of)

    def read(self) -> float:
        if self._outcome is None:
            raise RuntimeError("read() before the first step()")
        return self._outcome.loss

    def loss_scale(self) -> float | None:
        return float(self.engine.loss_scale.value) if self.format_name == "fp16" else None


class HalfstepWithAverage(Halfstep):
    """An average of weights and buffers."""

    name = "halfstep, ema"
    settings: ClassVar[dict[str, Any]] = {"ema": DECAY}


class HalfstepWithRollback(Halfstep):
    """BatchNorm's statistics go back after a skip."""

    name = "halfstep, rollback"
    settings: ClassVar[dict[str, Any]] = {"buffers": "rollback"}


class Accelerate(Trainer):
    """Accelerate's loop, as its documentation writes it."""

    name = "accelerate"

    def _set_up(self, model: nn.Module) -> Any:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState, GradientState
        from accelerate.utils import GradScalerKwargs

        # one format per process otherwise: the settings are kept in the classes
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        self.accelerator = Accelerator(
            mixed_precision=self.format_name,
            dynamo_backend="inductor" if self.is_compiled else "no",
            kwargs_handlers=[GradScalerKwargs(init_scale=INIT_SCALE)],
        )
        made, self.optimizer = self.accelerator.prepare(model, self.optimizer)
        return made

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()  # the prepared model brings its own

    def backward(self, loss: Tensor) -> None:
        self.accelerator.backward(loss)

    def update(self) -> None:
        self.accelerator.clip_grad_norm_(self.params, MAX_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self, window: Sequence[Batch]) -> None:
        self.accelerator.gradient_accumulation_steps = len(window)
        self._losses = []
        for batch in window:
            with self.accelerator.accumulate(self.model):
                loss = loss_of(self.model, batch)
                self._losses.append(loss.detach())
                self.backward(loss)
                if self.accelerator.sync_gradients:
                    self.update()

    def loss_scale(self) -> float | None:
        scaler = self.accelerator.scaler
        return None if scaler is None else float(scaler.get_scale())


def compiler_is_missing() -> str:
    """Why nothing is compiled; empty if it is."""
    from torch.utils._triton import has_triton

    if has_triton():
        return ""
    return "torch.compile needs Triton for a CUDA device, and there is none that fits"


@functools.cache
def compiler_fails(device: torch.device) -> str:
    """Why nothing can be compiled although Triton is there; empty if it can."""
    try:
        compiled = torch.compile(lambda x: x * 2 + 1)
        compiled(torch.ones(8, device=device))
    except Exception as error:  # of any layer of the compiler, a missing C compiler included
        lines = str(error).strip().splitlines() or [""]
        return f"torch.compile fails here: {type(error).__name__}: {lines[0]}"
    return ""
