"""State that goes wrong over steps: 16-bit counters that stop, buffers that drift from FP32's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from halfstep.records import Cause, RunRecord, StepRecord
from halfstep.tools.doctor.causes.given import made
from halfstep.tracing.op_trace import dtype_name

_HALVES = (torch.float16, torch.bfloat16)
_MOVES = 8  # changes that a counter or an average makes before it stops
_STILL = 0.1  # of the steps, at their end, without a change
_DRIFT = 2.0  # times the distance between two seeds
_STEPS_OF_EPS = 16


class StateWatch:
    """Notes a run's 16-bit buffers and weights after each step, and all buffers at its end.

    Attributes:
        changes: Name to the steps after which the value was another one than before.
        last: Name to the last value, of 16-bit state as of other floating-point buffers.
        num_steps: Steps that were noted.
    """

    def __init__(self) -> None:
        self.changes: dict[str, list[int]] = {}
        self.last: dict[str, Tensor] = {}
        self.num_steps = 0
        self._model: Any = None
        self._sums: dict[str, tuple[Tensor, Tensor]] = {}

    def watched(self, factory: Callable[[], Any]) -> Callable[[], Any]:
        """A model factory whose model is followed from then on.

        Args:
            factory: Makes the model, or several by name.
        """

        def make() -> Any:
            self._model = factory()
            self._sums = {name: _checksum(value) for name, value in self._halves()}
            return self._model

        return make

    def note(self, run: RunRecord, step: StepRecord) -> None:
        """Look at the state after a step; for `fit`.

        Args:
            run, step: As `fit` gives them.
        """
        self.num_steps += 1
        for name, value in self._halves():
            seen = _checksum(value)
            if not all(map(torch.equal, seen, self._sums[name])):
                self.changes.setdefault(name, []).append(self.num_steps)
            self._sums[name] = seen

    def finish(self) -> None:
        """Keep the last values, and let the model go."""
        self.last = {
            name: value.detach().float().clone()
            for name, value in _named(self._model)
            if not isinstance(value, nn.Parameter) or value.dtype in _HALVES
        }
        self._model = None

    def stopped(self) -> Iterator[tuple[str, int]]:
        """16-bit state that moved in most steps and then no more, with the last step it did."""
        for name, steps in self.changes.items():
            still = self.num_steps - steps[-1]
            is_moving = len(steps) >= _MOVES and len(steps) > steps[-1] / 2
            if is_moving and still >= max(_MOVES, _STILL * self.num_steps):
                yield name, steps[-1]

    def dtype_of(self, name: str) -> str:
        """As ``bfloat16``.

        Args:
            name: Of a buffer or weight in 16 bits.
        """
        return self._dtypes.get(name, "16 bits")

    @property
    def _dtypes(self) -> dict[str, str]:
        return {name: dtype_name(kept[0].dtype) for name, kept in self._sums.items()}

    def _halves(self) -> Iterator[tuple[str, Tensor]]:
        for name, value in _named(self._model):
            if value.dtype in _HALVES:
                yield name, value


def state_causes(
    watches: Mapping[str, StateWatch], other_seed: StateWatch | None, eps: Mapping[str, float]
) -> list[Cause]:
    """What the runs say about state.

    Args:
        watches: Name of a run to what was noted, FP32's first.
        other_seed: The same for FP32 with another seed.
        eps: Spacing at 1 of each run's format.
    """
    causes: dict[str, Cause] = {}
    for run, watch in watches.items():
        for name, step in watch.stopped():
            if name in causes:
                before = causes[name]
                causes[name] = _stops(watch, name, step, (*before.passes, run))
            else:
                causes[name] = _stops(watch, name, step, (run,))
    found = list(causes.values())
    fp32 = watches.get("fp32")
    if fp32 is not None and other_seed is not None:
        for run, watch in watches.items():
            if run != "fp32":
                found += _drifts(run, watch, fp32, other_seed, eps[run])
    return found


def _stops(watch: StateWatch, name: str, step: int, passes: tuple[str, ...]) -> Cause:
    value = watch.last[name].reshape(-1)
    shown = f"{float(value[0]):g}" if value.numel() == 1 else f"norm {float(value.norm()):.4g}"
    return made(
        "state_stops",
        "rounding",
        passes,
        is_precision=True,
        subject=name,
        evidence=f"changed in most steps up to about step {step} of {watch.num_steps}, and in none"
        f" after it; its last value is {shown}",
        explanation=f"{name} is {watch.dtype_of(name)}: what a step adds is smaller than half the"
        " spacing at its value, so that it stops (a counter at 256 in BF16, at 2048 in FP16).",
        remedy=f"Keep {name} in FP32, or in an integer where it counts.",
    )


def _drifts(
    run: str, watch: StateWatch, fp32: StateWatch, other: StateWatch, eps: float
) -> Iterator[Cause]:
    for name, wanted in fp32.last.items():
        if name not in watch.last or name not in other.last or not bool(wanted.isfinite().all()):
            continue
        error = _distance(watch.last[name], wanted)
        noise = _distance(other.last[name], wanted)
        if not error <= max(_DRIFT * noise, _STEPS_OF_EPS * eps):
            yield made(
                "state_drifts",
                "rounding",
                (run,),
                is_precision=True,
                subject=name,
                evidence=f"relative difference {error:.3g} to FP32 after {watch.num_steps} steps,"
                f" {noise:.3g} between two FP32 seeds",
                explanation=f"The buffer {name} moves away from what it is in FP32, further than"
                " another seed takes it.",
                remedy=f"Keep the module that writes {name} in FP32.",
            )
            return  # one is enough: buffers of later layers follow


def _distance(value: Tensor, wanted: Tensor) -> float:
    size = float(wanted.norm())
    return float((value - wanted).norm()) / size if size else 0.0


def _named(model: Any) -> Iterator[tuple[str, Tensor]]:
    models = model.items() if isinstance(model, Mapping) else [("", model)]
    for prefix, each in models:
        start = f"{prefix}." if prefix else ""
        for name, value in (*each.named_buffers(), *each.named_parameters()):
            if value.is_floating_point():
                yield start + name, value


def _checksum(value: Tensor) -> tuple[Tensor, Tensor]:
    """Two values that change with the tensor: nothing of its size is kept."""
    flat = value.detach().reshape(-1)
    if flat.numel() <= 1:
        return flat.clone(), flat.clone()
    bits = flat.view(torch.int16).long()
    place = torch.arange(1, len(bits) + 1, device=bits.device)
    return flat[:1].clone(), (bits * place).sum()
