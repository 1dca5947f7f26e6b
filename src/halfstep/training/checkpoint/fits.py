"""Whether a checkpoint fits an engine, found out before anything is changed.

torch's own ``load_state_dict`` copies what fits before it complains about the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from halfstep.records import BadValueError
from halfstep.training.engine.engine import Engine


def check_fits(path: str | Path, content: Mapping[str, Any], engine: Engine) -> None:
    """Refuse a checkpoint of other models, optimizers or settings, one sentence each.

    Args:
        path: For the message.
        content: From `read_checkpoint`.
        engine: What it would be loaded into.
    """
    _check_names(path, "model", content["model"], engine.models)
    _check_names(path, "optimizer", content["optimizer"], engine.optimizers)
    problems = [
        *(_model_problem(content["model"][name], model) for name, model in engine.models.items()),
        *(
            _optimizer_problem(content["optimizer"][name], optimizer)
            for name, optimizer in engine.optimizers.items()
        ),
    ]
    for problem in filter(None, problems):
        raise BadValueError(
            f"the checkpoint {str(path)!r} is of another model or optimizer: {problem}."
        )
    engine.check_state_dict(content["engine"])


def _check_names(path: str | Path, kind: str, saved: Iterable[str], here: Iterable[str]) -> None:
    if set(saved) != set(here):
        raise BadValueError(
            f"the checkpoint {str(path)!r} holds the {kind}s {_listed(saved)}, this engine has"
            f" {_listed(here)}; build it with the names of the run that wrote it (a single"
            f" {kind} is called {kind!r})."
        )


def _model_problem(saved: Mapping[str, Any], model: nn.Module) -> str | None:
    present = model.state_dict()
    if missing := present.keys() - saved.keys():
        return f"it lacks {_listed(missing)}"
    if unknown := saved.keys() - present.keys():
        return f"it has {_listed(unknown)}, which the model does not"
    for name, value in present.items():
        if isinstance(value, Tensor) and value.shape != saved[name].shape:
            was, now = tuple(saved[name].shape), tuple(value.shape)
            return f"{name} has the shape {was} there and {now} here"
    return None


def _optimizer_problem(saved: Mapping[str, Any], optimizer: Optimizer) -> str | None:
    was = [len(group["params"]) for group in saved["param_groups"]]
    now = [len(group["params"]) for group in optimizer.param_groups]
    if was == now:
        return None
    return f"its optimizer has groups of {was} parameters, this one of {now}"


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(map(repr, names))
    return ", ".join(ordered[:3]) + (", ..." if len(ordered) > 3 else "")
