"""The parts of a checkpoint: which of them fit an engine, and loading those that were asked for.

torch's own ``load_state_dict`` copies what fits before it complains about the rest; here everything
is compared before anything is changed.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from halfstep.records import BadTypeError, BadValueError, CallOrderError
from halfstep.training.checkpoint.fits import check_same_names, optimizer_problem
from halfstep.training.engine.engine import Engine
from halfstep.training.engine.state import ENGINE_PARTS
from halfstep.training.model_entries import ModelEntries, match_entries
from halfstep.training.rng import rng_state, set_rng_state
from halfstep.update.ranks.find import reshard
from halfstep.update.ranks.shards import has_dtensors, local_of, sharded_as

PARTS = ("model", "optimizer", *ENGINE_PARTS, "rng")
NOT_ASKED_FOR = "it was not asked for"
_RATES = ("lr", "initial_lr", "max_lr", "min_lr")  # of a group; they belong to the schedule


@dataclass
class LoadReport:
    """What a load has restored, and what it left as it was.

    Attributes:
        loaded: Names of the parts that were restored, in part or whole.
        left_out: What was not: a part, or an entry such as ``"model: 0.weight"``, and why.
        notes: What was changed on the way: other names, other dtypes, an average that restarts.
    """

    loaded: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"loaded: {', '.join(self.loaded)}"]
        lines += [f"left out: {name} ({why})" for name, why in self.left_out.items()]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"loaded": self.loaded, "left_out": self.left_out, "notes": self.notes}


def chosen_parts(parts: str | Collection[str] | None, without: str | Collection[str]) -> list[str]:
    """The parts that a caller asks for, in the order in which they are loaded.

    Args:
        parts: Names of `PARTS`; ``None`` for all.
        without: Names of those to leave out.

    Raises:
        BadTypeError: Not names.
        BadValueError: An unknown name, or nothing is left.
    """
    wanted = set(_names("parts", PARTS if parts is None else parts))
    wanted -= set(_names("without", without))
    if not wanted:
        raise BadValueError("no part of the checkpoint is left to load; see `parts` and `without`.")
    return [part for part in PARTS if part in wanted]


def _names(setting: str, value: object) -> list[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, Collection) or isinstance(names, (Mapping, bytes)):
        raise BadTypeError(f"{setting} must be names of parts, got {type(value).__name__}.")
    for name in names:
        if name not in PARTS:
            raise BadValueError(
                f"a checkpoint has the parts {', '.join(PARTS)}, got {name!r} in {setting}."
            )
    return list(names)


class Load:
    """One load: planned and checked when it is made, carried out by `run`.

    Args:
        content: From `read_checkpoint`.
        engine: What it is loaded into.
        wanted: From `chosen_parts`.
        strict: Whether a part that does not fit is an error; else it is left out and reported.

    Raises:
        BadValueError: Something does not fit; one sentence, and nothing is changed.
    """

    def __init__(
        self, content: Mapping[str, Any], engine: Engine, wanted: list[str], *, strict: bool
    ) -> None:
        self.report = LoadReport(left_out=dict.fromkeys(_absent(wanted), NOT_ASKED_FOR))
        self._content = content
        self._engine = engine
        self._strict = strict
        self._models: dict[str, ModelEntries] = {}
        self._parts = [part for part in wanted if self._fits(part)]
        if not self._parts:
            asked = {n: why for n, why in self.report.left_out.items() if why != NOT_ASKED_FOR}
            reasons = "; ".join(f"{name}: {why}" for name, why in asked.items())
            raise BadValueError(f"nothing that was asked for does ({reasons}).")

    def run(self) -> LoadReport:
        """Load every part that fits, or none where one raises."""
        self._engine.abort()
        reshard(self._engine.models.values())
        with _all_or_nothing(self._engine):
            if "model" in self._parts:
                self._load_models()
            if "optimizer" in self._parts:
                self._load_optimizers()
            elif "schedule" in self._parts:
                self._load_rates()
            engine_parts = [part for part in self._parts if part in ENGINE_PARTS]
            if engine_parts:
                self._engine.load_state_dict(self._content["engine"], parts=engine_parts)
            if "model" in self._parts and "average" not in self._parts:
                self._restart_averages()
            if "rng" in self._parts:
                self._load_generators()
        self.report.loaded = self._parts
        return self.report

    def _load_generators(self) -> None:
        if self._content["rng"] is not None:
            set_rng_state(self._content["rng"])
        else:  # of other processes than these
            self.report.notes.append(f"the generators stay as they are: {self._content['no_rng']}")

    def _fits(self, part: str) -> bool:
        try:
            if part == "model":
                self._plan_models()
            elif part == "optimizer":
                self._check_optimizers()
            elif part in ENGINE_PARTS:
                self._engine.check_state_dict(self._content["engine"], parts=[part])
        except BadValueError as error:
            if self._strict:
                raise BadValueError(f"{error} {_way_out(part)}") from None
            self.report.left_out[part] = str(error).rstrip(".")
            return False
        return True

    def _plan_models(self) -> None:
        engine, saved = self._engine, self._content["model"]
        check_same_names("model", saved, engine.models)
        for name, model in engine.models.items():
            found = match_entries(saved[name], model.state_dict())
            prefix = f"{name}." if len(engine.models) > 1 else ""
            if self._strict and found.problems:
                entry, problem = next(iter(found.problems.items()))
                raise BadValueError(
                    f"the checkpoint is of another model: {prefix}{entry} {problem}."
                )
            if not found.values:
                raise BadValueError("no entry of the checkpoint's model fits this model.")
            self._models[name] = found
            for entry, problem in found.problems.items():
                self.report.left_out[f"model: {prefix}{entry}"] = problem
            self.report.notes += found.notes

    def _check_optimizers(self) -> None:
        engine, saved = self._engine, self._content["optimizer"]
        check_same_names("optimizer", saved, engine.optimizers)
        about = self._content.get("optimizer_facts", {})
        for name, optimizer in engine.optimizers.items():
            problem = optimizer_problem(saved[name], about.get(name), optimizer, engine.models)
            if problem is not None:
                which = f" {name!r}" if len(engine.optimizers) > 1 else ""
                raise BadValueError(f"the state of the optimizer{which} {problem}.")

    def _load_models(self) -> None:
        for name, model in self._engine.models.items():
            found = self._models[name]
            model.load_state_dict(found.values, strict=not found.problems)

    def _load_optimizers(self) -> None:
        for name, optimizer in self._engine.optimizers.items():
            groups = optimizer.param_groups
            kept = [{k: copy.copy(g[k]) for k in _RATES if k in g} for g in groups]
            optimizer.load_state_dict(_placed(self._content["optimizer"][name], optimizer))
            if "schedule" not in self._parts:
                for group, rates in zip(optimizer.param_groups, kept, strict=True):
                    for rate in _RATES:
                        group.pop(rate, None)
                    group.update(rates)

    def _load_rates(self) -> None:
        for name, optimizer in self._engine.optimizers.items():
            saved = self._content["optimizer"].get(name, {}).get("param_groups", [])
            if len(saved) == len(optimizer.param_groups):
                for group, there in zip(optimizer.param_groups, saved, strict=True):
                    group.update({k: copy.copy(there[k]) for k in _RATES if k in there})

    def _restart_averages(self) -> None:
        for name, average in self._engine.emas.items():
            if average is None:
                continue
            average.module.load_state_dict(self._engine.models[name].state_dict())
            average.n_averaged.zero_()
            self.report.notes.append("the average of the weights starts again from those loaded")


def _placed(state: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """The state of an optimizer, each tensor sharded as its parameter is here."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not has_dtensors(parameters):
        return dict(state)
    return {
        **state,
        "state": {
            index: {
                key: sharded_as(parameters[index], value)
                if isinstance(value, Tensor) and value.shape == parameters[index].shape
                else value
                for key, value in entry.items()
            }
            for index, entry in state["state"].items()
        },
    }


def _absent(wanted: Collection[str]) -> list[str]:
    return [part for part in PARTS if part not in wanted]


def _way_out(part: str) -> str:
    text = f"load_checkpoint(..., without={part!r}) leaves it as it is"
    if part == "model":
        text += ", and strict=False takes the entries that fit"
    return f"{text}."


@contextlib.contextmanager
def _all_or_nothing(engine: Engine) -> Iterator[None]:
    """Put models, optimizers, engine and generators back where anything inside raises."""
    try:
        state, generators = copy.deepcopy(engine.state_dict()), rng_state()
    except CallOrderError:  # a part of the weights has moved: nothing is worth keeping
        yield
        return
    models = [_host_copies(model) for model in engine.models.values()]
    optimizers = [copy.deepcopy(opt.state_dict()) for opt in engine.optimizers.values()]
    try:
        yield
    except BaseException:
        for model, saved in zip(engine.models.values(), models, strict=True):
            _put_back(model, saved)
        for optimizer, old in zip(engine.optimizers.values(), optimizers, strict=True):
            optimizer.load_state_dict(old)
        engine.load_state_dict(state)
        set_rng_state(generators)
        raise


def _host_copies(model: nn.Module) -> list[Tensor]:
    return [local_of(each.detach()).to("cpu", copy=True) for each in _tensors(model)]


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _put_back(model: nn.Module, saved: list[Tensor]) -> None:
    with torch.no_grad():
        for each, before in zip(_tensors(model), saved, strict=True):
            local_of(each).copy_(before)
