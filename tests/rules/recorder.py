"""Runs a script on stock torch and records its events, as a guard would see them.

Nothing here knows a rule. Every event is recorded before the call it stands for, so that a call
which raises is recorded too.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

from halfstep.rules import events as e
from halfstep.rules.events import Event, Place

PATH = "<script>"


class Recorder:
    """Records the events of one script; see `run`."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.namespace: dict[str, Any] = {"__name__": "__main__"}
        self._nested = 0
        self._asked = False  # whether anything is finite, since the last backward
        self._kept: list[Any] = []  # an id is a name only while its object lives
        self._optimizers: list[torch.optim.Optimizer] = []
        self._scaled: dict[Any, torch.amp.GradScaler] = {}

    def run(self, text: str) -> Exception | None:
        """Execute `text`; returns what it raised."""
        code = compile(text, PATH, "exec")
        with contextlib.ExitStack() as stack:
            for owner, name, record in self._points():
                stack.enter_context(mock.patch.object(owner, name, self._wrap(owner, name, record)))
            try:
                exec(code, self.namespace)
            except Exception as error:
                return error
        return None

    def name(self, thing: Any) -> str:
        """Variable that holds `thing`, or a name of its own."""
        for name, value in self.namespace.items():
            if value is thing:
                return name
        return f"{type(thing).__name__}@{id(thing):x}"

    def emit(self, kind: str, **fields: Any) -> None:
        """Record an event at the line of the script that runs now."""
        self.events.append(Event(kind, _place(sys._getframe()), **fields))

    def _wrap(self, owner: Any, name: str, record: Callable[..., Any]) -> Callable[..., Any]:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self._nested:  # torch calls its own methods; a script calls them from outside
                return original(*args, **kwargs)
            # `model.parameters()` can be read once: by us or by the script
            args = tuple([*a] if isinstance(a, types.GeneratorType) else a for a in args)
            after = record(*args, **kwargs)
            self._nested += 1
            try:
                result = original(*args, **kwargs)
            finally:
                self._nested -= 1
            if callable(after):
                after(result)
            return result

        return wrapper

    def _points(self) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        scaler, optimizer = torch.amp.GradScaler, torch.optim.Optimizer
        yield scaler, "__init__", self._scaler
        yield scaler, "scale", self._scale
        yield scaler, "unscale_", self._of(e.UNSCALE)
        yield scaler, "step", self._scaler_step
        yield scaler, "update", self._update
        yield scaler, "get_scale", lambda s: self.emit(e.READ_SCALE, scaler=self.name(s))
        yield scaler, "load_state_dict", lambda s, _: self.emit(e.LOAD, scaler=self.name(s))
        yield torch.autocast, "__enter__", self._enter
        yield torch.autocast, "__exit__", lambda *_: self.emit(e.AUTOCAST_EXIT)
        yield torch, "isfinite", self._isfinite
        yield torch, "clear_autocast_cache", lambda: self.emit(e.CACHE_CLEARED)
        yield torch.nn.Module, "__call__", self._forward
        yield torch.nn.Module, "half", functools.partial(self._cast, dtype="float16")
        yield torch.nn.functional, "mse_loss", self._loss
        yield torch.nn.functional, "cross_entropy", self._loss
        yield torch.Tensor, "nan_to_num_", self._edit
        yield torch, "save", self._save
        yield torch.Tensor, "backward", self._backward
        yield torch.nn.utils, "clip_grad_norm_", self._clip("norm")
        yield torch.nn.utils, "clip_grad_value_", self._clip("value")
        for stock in (torch.optim.SGD, torch.optim.AdamW):
            yield stock, "__init__", self._optimizer
            yield stock, "step", self._step
        yield optimizer, "zero_grad", self._zero_grad
        yield torch.optim.lr_scheduler.LRScheduler, "step", self._schedule
        yield torch.optim.swa_utils.AveragedModel, "update_parameters", self._ema

    def _scaler(self, scaler: Any, *args: Any, **kwargs: Any) -> None:
        self._kept.append(scaler)
        self.emit(e.SCALER, scaler=self.name(scaler))

    def _optimizer(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        self._optimizers.append(optimizer)
        self.emit(e.OPTIMIZER, optimizers=(self.name(optimizer),))

    def _scale(self, scaler: Any, loss: Any) -> Callable[[Any], None]:
        self.emit(e.SCALE, scaler=self.name(scaler))

        def mark(result: Any) -> None:
            self._scaled[result.grad_fn] = scaler

        return mark

    def _isfinite(self, value: Any) -> None:
        self._asked = True

    def _guarded(self) -> dict[str, Any]:
        return {"guarded": True} if self._asked else {}

    def _enter(self, context: Any) -> None:
        facts = {"enabled": context._enabled, "cache_enabled": context._cache_enabled}
        self.emit(e.AUTOCAST_ENTER, facts={**facts, "device": context.device})

    def _forward(self, module: Any, *args: Any, **kwargs: Any) -> None:
        self.emit(e.FORWARD, optimizers=self._owners({id(p) for p in module.parameters()}))

    def _cast(self, module: Any, dtype: str) -> None:
        owners = self._owners({id(p) for p in module.parameters()})
        self.emit(e.CAST, optimizers=owners, facts={"dtype": dtype, "live": bool(owners)})

    def _loss(self, input: Any, target: Any, **kwargs: Any) -> None:
        ignored = kwargs.get("ignore_index", -100)
        count = int((target != ignored).sum()) if not target.is_floating_point() else target.numel()
        self.emit(e.LOSS, facts={"reduction": kwargs.get("reduction", "mean"), "count": count})

    def _edit(self, tensor: Any) -> None:
        grads = {id(p) for p in self._parameters() if p.grad is tensor}
        if grads:
            self.emit(e.EDIT, optimizers=self._owners(grads), facts={"how": "nan"})

    def _parameters(self) -> Iterator[torch.Tensor]:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]

    def _save(self, content: Any, *args: Any, **kwargs: Any) -> None:
        self.emit(e.SAVE, facts={"holds": sorted(set(_kinds(content)))})

    def _backward(self, loss: Any, *args: Any, **kwargs: Any) -> None:
        nodes = _graph(loss.grad_fn)
        reached = {id(n.variable) for n in nodes if hasattr(n, "variable")}
        scaler = next((self._scaled[n] for n in nodes if n in self._scaled), None)
        name = self.name(scaler) if scaler is not None else None
        self._asked = False
        self.emit(e.BACKWARD, scaler=name, optimizers=self._owners(reached))

    def _owners(self, parameters: set[int]) -> tuple[str, ...]:
        return tuple(
            self.name(optimizer)
            for optimizer in self._optimizers
            if any(id(p) in parameters for g in optimizer.param_groups for p in g["params"])
        )

    def _of(self, kind: str) -> Callable[..., None]:
        def record(scaler: Any, optimizer: Any) -> None:
            self.emit(kind, scaler=self.name(scaler), optimizers=(self.name(optimizer),))

        return record

    def _scaler_step(self, scaler: Any, optimizer: Any, *args: Any) -> Callable[[Any], None]:
        name = self.name(optimizer)
        facts = {**self._guarded(), **({"closure": True} if args else {})}
        self.emit(e.STEP, scaler=self.name(scaler), optimizers=(name,), facts=facts)

        def outcome(_: Any) -> None:
            found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values()
            skipped = any(float(value) for value in found)
            self.emit(e.OUTCOME, optimizers=(name,), facts={"skipped": skipped})

        return outcome

    def _update(self, scaler: Any, new_scale: Any = None) -> None:
        facts = {"new_scale": True} if new_scale is not None else {}
        self.emit(e.UPDATE, scaler=self.name(scaler), facts=facts)

    def _clip(self, how: str) -> Callable[..., None]:
        def record(parameters: Any, limit: float, *args: Any, **kwargs: Any) -> None:
            listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            owners = self._owners({id(p) for p in listed})
            self.emit(e.CLIP, optimizers=owners, facts={"how": how, "max_norm": limit})

        return record

    def _step(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        self.emit(e.STEP, optimizers=(self.name(optimizer),), facts=self._guarded())

    def _zero_grad(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        self.emit(e.ZERO_GRAD, optimizers=(self.name(optimizer),))

    def _schedule(self, schedule: Any, *args: Any) -> None:
        owner = (self.name(schedule.optimizer),)
        self.emit(e.SCHEDULE, model=self.name(schedule), optimizers=owner)

    def _ema(self, average: Any, model: Any) -> None:
        owners = self._owners({id(p) for p in model.parameters()})
        self.emit(e.EMA, model=self.name(average), optimizers=owners)


def _kinds(content: Any) -> Iterator[str]:
    """Kinds of state in what is saved, told by the keys that torch gives them."""
    if isinstance(content, dict):
        if {"param_groups", "state"} <= content.keys():
            yield "optimizer"
        elif {"growth_factor", "scale"} <= content.keys():
            yield "scaler"
        else:
            for value in content.values():
                yield from _kinds(value)


def _graph(root: Any) -> list[Any]:
    """All nodes of the autograd graph that ends in `root`."""
    seen: dict[Any, None] = {}
    queue = [root]
    while queue:
        node = queue.pop()
        if node is not None and node not in seen:
            seen[node] = None
            queue.extend(following for following, _ in node.next_functions)
    return list(seen)


def _place(frame: types.FrameType | None) -> Place:
    """Range of text of the script's call that is being executed."""
    while frame is not None and frame.f_code.co_filename != PATH:
        frame = frame.f_back
    if frame is None:
        return Place(PATH, 1, 1, 1, 1)
    positions = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    line, end_line, column, end_column = (number or 0 for number in positions)
    return Place(PATH, line, column + 1, end_line, end_column + 1)


def record(text: str) -> tuple[list[Event], Exception | None]:
    """Events of the script `text`, and what it raised."""
    recorder = Recorder()
    error = recorder.run(text)
    return _with_final_names(recorder), error


def _with_final_names(recorder: Recorder) -> list[Event]:
    """Constructors run before their result has a variable: put in the name it got later."""
    things = [*recorder._kept, *recorder._optimizers]
    names = {f"{type(t).__name__}@{id(t):x}": recorder.name(t) for t in things}
    return [
        event._replace(
            scaler=names.get(event.scaler or "", event.scaler),
            optimizers=tuple(names.get(o, o) for o in event.optimizers),
        )
        for event in recorder.events
    ]
