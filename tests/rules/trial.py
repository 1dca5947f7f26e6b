"""Runs a program on stock torch beside its erased reference and says what it does wrong."""

from __future__ import annotations

import math
import sys
import types
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import erased
import torch
from erased import Erased, Vector
from programs import Op, Program, flat

NUM_WINDOWS = 4
START: Vector = (1.0, 0.5)
INIT_SCALE = 1024.0


@dataclass(frozen=True)
class Environment:
    """What a program runs in.

    Attributes:
        fault: Window and slot of a micro-batch that is non-finite at any scale.
        fault_call: Window and number of a loss in it that is non-finite at any scale.
        fault_window: Window whose losses are all non-finite.
        limit: Scale above which every gradient is non-finite.
        growth_interval: Of the scaler.
        max_norm: Of every clip.
    """

    fault: tuple[int, int] | None = None
    fault_call: tuple[int, int] | None = None
    fault_window: int | None = None
    limit: float = math.inf
    growth_interval: int = 1000
    max_norm: float = 0.25


ENVIRONMENTS = (
    Environment(),
    Environment(growth_interval=1),
    Environment(fault=(2, 0)),
    Environment(fault=(0, 0), growth_interval=1, max_norm=1e9),
    Environment(limit=768.0, growth_interval=1),
    Environment(limit=768.0, max_norm=1e9),
    *(Environment(fault_call=(2, call)) for call in range(6)),
)


class _Faulty(torch.autograd.Function):
    """The identity; its backward is where faults of data and of range are born."""

    @staticmethod
    def forward(ctx: Any, loss: Any, faulty: bool, limit: float, log: list[bool]) -> Any:
        ctx.faulty, ctx.limit, ctx.log = faulty, limit, log
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        finite = not ctx.faulty and bool(gradient.abs() <= ctx.limit)
        ctx.log.append(finite)
        return (gradient if finite else gradient * math.inf), None, None, None


def batch_of(window: int) -> list[Vector]:
    """Inputs of the micro-batches of a window, in powers of two."""
    return [(2.0 ** -(window % 2), 0.5), (0.5, 2.0 ** -(window % 3))]


@dataclass
class Run:
    """What a program did.

    Attributes:
        snapshots: State after each window.
        finite: Which backwards of a window were finite.
        error: What it raised.
        gave_up: Whether it left a window early; the reference finds out.
    """

    snapshots: list[dict[str, Any]] = field(default_factory=list)
    finite: list[list[bool]] = field(default_factory=list)
    error: Exception | None = None
    gave_up: bool = False


class Harness:
    """The module ``faults`` that every program imports from."""

    def __init__(self, program: Program, environment: Environment) -> None:
        self.run = Run()
        self._program = program
        self._environment = environment
        self._namespace: dict[str, Any] = {}
        self._log: list[bool] = []
        self._calls = (-1, -1)
        self._clocks: dict[str, tuple[int, ...]] = {}

    def module(self) -> types.ModuleType:
        module = types.ModuleType("faults")
        names = {
            "loss_fn": self._loss,
            "batches": self._batches(),
            "start": self._start,
            "number": lambda batch: batch[0][1][0],
            "MAX_NORM": self._environment.max_norm,
            "GROWTH_INTERVAL": self._environment.growth_interval,
            "INIT_SCALE": INIT_SCALE,
            "USE_AMP": True,
        }
        vars(module).update(names)
        return module

    def _loss(self, output: Any, tag: tuple[int, int]) -> Any:
        loss = 0.5 * output.square().sum()
        window, call = self._calls
        self._calls = (tag[0], call + 1 if window == tag[0] else 0)
        environment = self._environment
        faulty = (
            tag == environment.fault
            or self._calls == environment.fault_call
            or tag[0] == environment.fault_window
        )
        return _Faulty.apply(loss, faulty, self._environment.limit, self._log)

    def _batches(self) -> Iterator[list[tuple[Any, tuple[int, int]]]]:
        for window in range(NUM_WINDOWS):
            rows = enumerate(batch_of(window))
            yield [(torch.tensor(x, dtype=torch.float64), (window, k)) for k, x in rows]
            self._snapshot()

    def _start(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        for optimizer in self._program.optimizers():
            weight = namespace[f"model_{optimizer[-1]}"].weight
            weight.data.copy_(torch.tensor([START]))
            namespace[optimizer].register_step_pre_hook(self._see_clock)
            average = namespace.get(f"average_{optimizer[-1]}")
            if average is not None:
                average.module.weight.data.copy_(weight.data)

    def _see_clock(self, optimizer: Any, *arguments: Any) -> None:
        (name,) = (o for o in self._program.optimizers() if self._namespace[o] is optimizer)
        schedule = self._namespace.get(f"schedule_{name[-1]}")
        used = any(p.grad is not None for g in optimizer.param_groups for p in g["params"])
        if used and schedule:
            self._clocks[name] = (*self._clocks.get(name, ()), schedule.last_epoch)

    def _snapshot(self) -> None:
        self.run.finite.append(self._log[:])
        self._log.clear()
        space = self._namespace
        state = {o: self._state_of(o[-1], space) for o in self._program.optimizers()}
        scalers = dict.fromkeys(s for _, s in self._program.scalers)
        for scaler in (space[name] for name in scalers):
            state.setdefault("scales", []).append(
                (scaler.get_scale(), scaler._get_growth_tracker())
            )
        self.run.snapshots.append(state)

    def _state_of(self, letter: str, space: dict[str, Any]) -> dict[str, Any]:
        weight = space[f"model_{letter}"].weight
        buffer = space[f"opt_{letter}"].state.get(weight, {}).get("momentum_buffer")
        schedule, average = space.get(f"schedule_{letter}"), space.get(f"average_{letter}")
        return {
            "weights": tuple(weight.data.flatten().tolist()),
            "momentum": None if buffer is None else tuple(buffer.flatten().tolist()),
            "clock": schedule.last_epoch if schedule else 0,
            "clocks": self._clocks.get(f"opt_{letter}", ()) if schedule else None,
            "average": tuple(average.module.weight.flatten().tolist()) if average else START,
        }


def run(program: Program, environment: Environment, text: str | None = None) -> Run:
    """Execute a program, with stock torch."""
    harness = Harness(program, environment)
    sys.modules["faults"] = harness.module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exec(compile(text or flat(program), "<script>", "exec"), {"__name__": "__main__"})
        except Exception as error:
            harness.run.error = error
    return harness.run


def reference(program: Program, environment: Environment, found: Run) -> list[dict[str, Any]]:
    """Snapshots of the erased program, given which backwards of the real one were finite."""
    parts = {o: Erased(START, average=(START, 0)) for o in program.optimizers()}
    norm, snapshots = 0.0, []
    for window, finite in enumerate(found.finite):
        left = iter(finite)
        for i, op in enumerate(program.body):
            if op[0] == "late backward" and window < 1:
                continue
            if op[0].startswith("clip"):
                clipped = [parts[o] for o in parts if o in op[1:] or op[0] == "clip both"]
                norm = erased.clip(clipped, environment.max_norm)
            elif op[0] == "give up":
                if not math.isfinite(norm):
                    parts[op[-1]].zero()
                    found.gave_up = True
                    break
            else:
                x, is_finite = _batch(op, window, left)
                erased.run(parts, op, x, is_finite, _step_comes(program, i))
        snapshots.append({o: _state_of(part) for o, part in parts.items()})
    return snapshots


def _batch(op: Op, window: int, finite: Iterator[bool]) -> tuple[Vector, bool]:
    if not op[0].endswith("backward"):
        return (), True
    return batch_of(window)[int(op[2])], next(finite, True)


def _state_of(part: Erased) -> dict[str, Any]:
    names = ("weights", "momentum", "clock", "clocks")
    return {**{name: getattr(part, name) for name in names}, "average": part.average[0]}


def _step_comes(program: Program, position: int) -> bool:
    """Whether the next step of the same optimizer comes before its gradients are cleared."""
    optimizer = program.body[position][-1]
    following = (*program.body[position + 1 :], *program.body[: position + 1])
    mine = (op[0] for op in following if op[-1] == optimizer)
    return next((k for k in mine if k.startswith(("zero", "step", "direct"))), "zero") != "zero"
