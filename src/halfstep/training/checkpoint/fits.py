"""Whether the model and the optimizer of a checkpoint are those of an engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from halfstep.records import BadValueError
from halfstep.training.model_entries import by_plain_name


def check_same_names(kind: str, saved: Iterable[str], here: Iterable[str]) -> None:
    """Refuse models or optimizers of other names than those of the engine."""
    if set(saved) != set(here):
        raise BadValueError(
            f"the checkpoint holds the {kind}s {_listed(saved)}, this engine has"
            f" {_listed(here)}; build it with the names of the run that wrote it (a single"
            f" {kind} is called {kind!r})."
        )


def optimizer_facts(optimizer: Optimizer, models: Mapping[str, nn.Module]) -> dict[str, Any]:
    """What the ``state_dict`` of an optimizer does not say about it.

    Args:
        optimizer: Any.
        models: By name; they name its parameters.

    Returns:
        Its class, and the name and shape of each parameter, group by group.
    """
    names = {
        id(p): f"{model_name}.{name}"
        for model_name, model in models.items()
        for name, p in _plainly_named(dict(model.named_parameters()))
    }
    inner = getattr(optimizer, "optimizer", None)  # in a wrapper such as Accelerate's
    kind = type(inner if isinstance(inner, Optimizer) else optimizer)
    return {
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "parameters": [
            [[names.get(id(p), ""), list(p.shape)] for p in group["params"]]
            for group in optimizer.param_groups
        ],
    }


def optimizer_problem(
    saved: Mapping[str, Any],
    facts: Mapping[str, Any] | None,
    optimizer: Optimizer,
    models: Mapping[str, nn.Module],
) -> str | None:
    """Why the saved state is not this optimizer's, or ``None``.

    Args:
        saved: Its ``state_dict``.
        facts: From `optimizer_facts`; ``None`` in a checkpoint of an earlier version.
        optimizer: The one here.
        models: By name.
    """
    mine = optimizer_facts(optimizer, models)
    if facts is not None and not _is_same_class(facts["class"], mine["class"]):
        was_class, now_class = facts["class"], mine["class"]
        if _last(was_class) != _last(now_class):
            was_class, now_class = _last(was_class), _last(now_class)
        return f"is of {was_class}, this engine has {now_class}"
    was = [len(group["params"]) for group in saved["param_groups"]]
    now = [len(group["params"]) for group in optimizer.param_groups]
    if was != now:
        return f"has groups of {was} parameters, this engine's has groups of {now}"
    if facts is not None:
        return _parameter_problem(facts["parameters"], mine["parameters"])
    return _defaults_problem(saved, optimizer)


def _parameter_problem(saved: list[Any], present: list[Any]) -> str | None:
    for there, here in zip(saved, present, strict=True):
        for (was, old_shape), (now, shape) in zip(there, here, strict=True):
            if was != now and was and now:
                return f"has {was!r} where this engine's has {now!r}: the order is another"
            if old_shape != shape:
                was_shape, now_shape = tuple(old_shape), tuple(shape)
                return (
                    f"is for {now or 'a parameter'} of shape {was_shape}, here it has {now_shape}"
                )
    return None


def _defaults_problem(saved: Mapping[str, Any], optimizer: Optimizer) -> str | None:
    """Told by the hyperparameters, where the class was not saved."""
    name = type(optimizer).__name__
    flags = {"foreach", "fused", "capturable", "differentiable", "maximize"}
    for group in saved["param_groups"]:
        known = optimizer.defaults.keys() - flags - {"decoupled_weight_decay"}
        if missing := known - group.keys():
            return f"lacks {_listed(missing)}, so that it is of another class than {name}"
        decoupled = optimizer.defaults.get("decoupled_weight_decay")
        if group.get("decoupled_weight_decay", decoupled) != decoupled:
            return f"has decoupled_weight_decay={not decoupled}, {name} here the opposite"
    return None


def _plainly_named(entries: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(plain, entries[name]) for plain, name in by_plain_name(entries).items()]


def _is_same_class(saved: str, present: str) -> bool:
    """By name, because a script that was renamed is another module; torch's own are torch's."""
    was_torch, is_torch = (name.startswith("torch.") for name in (saved, present))
    return _last(saved) == _last(present) and was_torch == is_torch


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(map(repr, names))
    return ", ".join(ordered[:3]) + (", ..." if len(ordered) > 3 else "")
