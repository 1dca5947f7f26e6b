"""Runs a program of the kinds on stock torch, on the CPU, at several loss scales.

The oracle needs no rule: for powers of two without overflow the update does not depend on the loss
scale, and training with AMP ends where training without it ends, up to the rounding of FP16.
A program that depends on the scale, that raises, or that never moves is wrong.
"""

from __future__ import annotations

import argparse
import inspect
import math
import os
import sys
import tempfile
import types
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.optim import optimizer as optimizers_of_torch

import halfstep as hs

ENTRIES = ("main", "train", "Trainer")
TOLERANCE = 4 * torch.finfo(torch.float16).eps  # a few roundings of FP16 values near 1
NUM_BATCHES = 8
FEW, MANY = 2.0**4, 2.0**10

# What makes a program for an accelerator one for the CPU.
_FOR_CPU = (
    ('"cuda"', '"cpu"'),
    ('GradScaler("cpu"', 'GradScaler("cpu", init_scale=INIT_SCALE'),
    (".cuda()", ""),
    (".is_cuda", ".is_cpu"),
)
_ENGINE = 'precision="fp16"'


class Settings(dict[str, Any]):
    """Settings that are read as attributes, as entries and with ``get``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def uses_amp(self) -> bool:
        return bool(self["amp"])


class Net(nn.Module):
    """A model of two layers, whose parts optimizers can share out."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor, *_: Any) -> Tensor:
        return self.head(torch.tanh(self.body(x)))

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = self.body(x)
        return code, torch.zeros_like(code)

    def sampling(self, mean: Tensor, spread: Tensor) -> Tensor:
        return mean + 0 * spread


class _Inferer:
    """Calls the first model that it gets, under whatever name."""

    def __call__(self, inputs: Tensor, *models: Any, **named: Any) -> Any:
        model, *_ = (m for m in (*models, *named.values()) if isinstance(m, nn.Module))
        return model(inputs)


@dataclass
class Trial:
    """What one run did.

    Attributes:
        weights: Parameters of all optimizers that stepped, in the order of their first step.
        moved: Whether any of them is not where it was.
        error: What was raised.
        names: The program's variables at its end.
    """

    weights: list[Tensor] = field(default_factory=list)
    moved: bool = False
    error: Exception | None = None
    names: dict[str, Any] = field(default_factory=dict)


def settings(on: bool) -> Settings:
    mode = "fp16" if on else "fp32"
    shared: dict[str, Any] = {"clip": 0.5, "accum": 2, "epochs": 2, "lr": 0.1, "resume": ""}
    if on:
        shared["with_amp"] = True  # there only where AMP is on
    return Settings(
        shared, amp=on, train={"amp": on}, use_amp=on, fp16=on, mode=mode, precision=mode, kind=mode
    )


def batches(poisoned: bool) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    made = [
        (torch.randn(8, 4, generator=generator), torch.randn(8, 1, generator=generator))
        for _ in range(NUM_BATCHES)
    ]
    if poisoned:
        made[2] = (made[2][0] * math.inf, made[2][1])
        made[5] = (made[5][0] * 40.0, made[5][1])
    return made


def pool(text: str, on: bool, scale: float) -> dict[str, Any]:
    """Objects for the parameters of a program's entry and for ``from project import ...``."""
    torch.manual_seed(5)
    model = Net()
    if on:
        model.amp = True
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model.body, model.head)]
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=True)
    return {
        "engine": _engine(model, optimizer, on, scale) if "engine: hs" in text else None,
        "model": model,
        "build": Net,
        "loader": batches("isfinite" in text or "> 50" in text),
        "optimizer": optimizer,
        "optimizers": parts,
        "named_optimizers": dict(zip(("body", "head"), parts, strict=True)),
        "optimizer_body": parts[0],
        "optimizer_head": parts[1],
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1000),
        "scaler": scaler,
        "scaler_or_none": scaler if on else None,
        "criterion": nn.MSELoss(),
        "cfg": settings(on),
        "args": argparse.Namespace(**settings(on)),
        "mode": settings(on).mode,
        "device": "cpu" if on else "xpu",
        "use_amp": on,
        "path": "last.pt",
        "writer": mock.MagicMock(),
        "OutputEMA": mock.MagicMock,
        "Inferer": _Inferer,
        "loss_of_both": lambda model, other, x, y: (model(x).float() - y).square().mean(),
        "save": lambda *_: None,
        "log": lambda *_: None,
    }


def _engine(model: nn.Module, optimizer: torch.optim.Optimizer, on: bool, scale: float) -> Any:
    if on:
        return hs.Engine(model, optimizer, precision="fp16", loss_scale=scale)
    return hs.Engine(model, optimizer, precision="fp32")


def run(text: str, on: bool = True, scale: float = FEW, folder: Path | None = None) -> Trial:
    """Execute a program; files behind the first are modules that it can import."""
    with_engine = 'precision="fp16", loss_scale=INIT_SCALE' if on else 'precision="fp32"'
    text = text.replace(_ENGINE, with_engine)
    trial, names = Trial(), pool(text, on, scale)
    *others, (_, main) = files_of(text)
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(mock.patch.object(torch.cuda, "is_available", return_value=on))
        stack.enter_context(mock.patch.dict(os.environ, {"USE_AMP": str(int(on))}))
        stack.enter_context(_modules("project", names))
        if "OutOfMemory" in text:
            stack.enter_context(_memory_runs_out_once())
        if folder:
            stack.enter_context(_inside(folder))
        stepped = stack.enter_context(_stepped())
        try:
            for name, other in others:
                module = name.removesuffix(".py").replace("/", ".")
                stack.enter_context(_modules(module, _execute(other, name, scale)))
            trial.names = _execute(main, "main.py", scale)
            _enter(trial.names, names)
        except Exception as error:
            trial.error = error
    trial.weights = [p.detach().clone() for p, _ in stepped.values()]
    trial.moved = any(not torch.equal(p, before) for p, before in stepped.values())
    return trial


@contextmanager
def _cleared_by_steps() -> Iterator[None]:
    """Every step of an optimizer drops the gradients that it used."""

    def clear(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = None

    handle = optimizers_of_torch.register_optimizer_step_post_hook(clear)
    try:
        yield
    finally:
        handle.remove()


def uses_gradients_twice(text: str, folder: Path | None) -> bool:
    """Whether a program ends elsewhere if each step clears; no, if it looks at them afterwards.

    The loss scale is 1: what a step has unscaled counts in the next window as much as it did.
    """
    left = run(text, True, 1.0, folder)
    with _cleared_by_steps():
        right = run(text, True, 1.0, folder)
    return right.error is None and not _alike(left.weights, right.weights)


def clears_too_early(text: str, folder: Path | None) -> bool:
    """Whether a program ends elsewhere if nothing but a step clears."""
    left = run(text, folder=folder)
    with (
        _cleared_by_steps(),
        mock.patch.object(torch.optim.Optimizer, "zero_grad"),
        mock.patch.object(nn.Module, "zero_grad"),
    ):
        return not _alike(left.weights, run(text, folder=folder).weights)


def clip_is_idle(text: str, folder: Path | None) -> bool:
    """Whether a program ends alike with its clips and without."""
    with ExitStack() as stack:
        left = run(text, folder=folder)
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            stack.enter_context(mock.patch.object(nn.utils, name))
        return _alike(left.weights, run(text, folder=folder).weights)


def files_of(text: str) -> list[tuple[str, str]]:
    """Names and texts of the files of a program; ``# file: name`` begins one, main.py is last."""
    if not text.startswith("# file: "):
        return [("main.py", text)]
    parts = text.split("# file: ")[1:]
    pairs = [part.split("\n", 1) for part in parts]
    return sorted(((name, body) for name, body in pairs), key=lambda pair: pair[0] == "main.py")


def _execute(text: str, path: str, scale: float) -> dict[str, Any]:
    for old, new in _FOR_CPU:
        text = text.replace(old, new)
    names: dict[str, Any] = {"__name__": Path(path).stem, "INIT_SCALE": scale}
    exec(compile(text, path, "exec"), names)
    return names


def _enter(names: dict[str, Any], given: dict[str, Any]) -> None:
    """Call what the program defines for others: its entry, with objects by parameter name."""
    entry = next((names[name] for name in ENTRIES if name in names), None)
    if inspect.isclass(entry):
        trainer = _call(entry, given)
        names["trainer"] = trainer
        entry = trainer.fit
    if entry is not None:
        names["result"] = _call(entry, given)


def _call(function: Any, given: dict[str, Any]) -> Any:
    asked = inspect.signature(function).parameters.values()
    left_out = inspect.Parameter.empty
    return function(**{p.name: given[p.name] for p in asked if p.default is left_out})


@contextmanager
def _modules(name: str, names: dict[str, Any]) -> Iterator[None]:
    module = types.ModuleType(name)
    vars(module).update(names)
    package = name.rpartition(".")[0]
    made = {name: module, **({package: types.ModuleType(package)} if package else {})}
    sys.modules.update(made)
    try:  # not by `mock.patch.dict`, which would forget what is imported meanwhile
        yield
    finally:
        for each in made:
            del sys.modules[each]


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Work in an empty folder of its own, so that no run finds the files of another."""
    before = Path.cwd()
    os.chdir(tempfile.mkdtemp(dir=folder))
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _stepped() -> Iterator[dict[int, tuple[Tensor, Tensor]]]:
    """Parameters of every optimizer that steps, with their values before its first step."""
    seen: dict[int, tuple[Tensor, Tensor]] = {}

    def look(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                seen.setdefault(id(p), (p, p.detach().clone()))

    handle = optimizers_of_torch.register_optimizer_step_pre_hook(look)
    try:
        yield seen
    finally:
        handle.remove()


@contextmanager
def _memory_runs_out_once() -> Iterator[None]:
    real, calls = nn.utils.clip_grad_norm_, iter(range(10**6))

    def clip(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == 1:
            raise torch.OutOfMemoryError("out of memory")
        return real(*args, **kwargs)

    with mock.patch.object(nn.utils, "clip_grad_norm_", clip):
        yield


def faults(text: str, folder: Path | None = None) -> list[str]:
    """What is wrong with a program that may write in `folder`, as running it shows."""
    few, many, off = (
        run(text, on, scale, folder) for on, scale in ((True, FEW), (True, MANY), (False, FEW))
    )
    found = [f"raises {trial.error!r}" for trial in (few, many, off) if trial.error]
    if found:
        return found
    if not few.moved or not off.moved:
        found.append("never moves")
    if not _alike(few.weights, many.weights):
        found.append("depends on the loss scale")
    if not _alike(few.weights, off.weights):
        found.append("differs from training without AMP")
    fresh = run(
        text.replace('autocast("cuda"', 'autocast("cuda", cache_enabled=False'), folder=folder
    )
    if "cache_enabled" not in text and not _alike(few.weights, fresh.weights):
        found.append("depends on the cache of autocast")
    if uses_gradients_twice(text, folder):
        found.append("uses gradients twice")
    return found


def _alike(left: list[Tensor], right: list[Tensor]) -> bool:
    if [w.shape for w in left] != [w.shape for w in right]:
        return False
    pairs = zip(left, right, strict=True)
    return all(torch.allclose(a.float(), b.float(), TOLERANCE, TOLERANCE) for a, b in pairs)
