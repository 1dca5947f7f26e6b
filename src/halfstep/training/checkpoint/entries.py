"""The tensors of a checkpoint by name, apart from the rest, and put together again.

A name says the model or optimizer, the parameter and what it is of it, whatever wrappers and
however many ranks there were: ``optimizer/optimizer/model.0.weight/exp_avg``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from halfstep.records import BadValueError
from halfstep.training.checkpoint.tensor_folder import TensorFolder
from halfstep.training.engine.engine import Engine
from halfstep.training.model_entries import by_plain_name
from halfstep.update.ranks.shards import is_dtensor, like, local_of

Content = dict[str, Any]
Visit = Callable[[str, str, Any], Any]  # name, name of what it is laid out as, value

_IN_THE_FOLDER = "halfstep: a tensor of the folder"  # in the place of each


def split(content: Content) -> tuple[dict[str, Tensor], Content]:
    """Tensors of models, optimizers and averages by name, and the rest of a checkpoint.

    Args:
        content: As `save_checkpoint` makes it.
    """
    tensors: dict[str, Tensor] = {}

    def take(name: str, layout: str, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        tensors[name] = value.detach()
        return _IN_THE_FOLDER

    rest = _each(content, take)
    return tensors, rest


def joined(rest: Content, folder: TensorFolder, engine: Engine | None, group: Any) -> Content:
    """The inverse of `split`, with tensors that are laid out as those of the engine.

    Args:
        rest: From `split`.
        folder: The tensors.
        engine: What they are for; ``None`` for whole tensors on the CPU.
        group: Of the ranks that call this together.

    Raises:
        BadValueError: A tensor is missing.
    """
    layouts = {} if engine is None else _layouts(engine)
    targets: dict[str, Tensor] = {}

    def give(name: str, layout: str, value: Any) -> Any:
        if not isinstance(value, str) or value != _IN_THE_FOLDER:
            return value
        if name not in folder.shapes:
            raise BadValueError(f"the checkpoint lacks the tensor {name!r}; it is not whole.")
        targets[name] = _empty(folder.shapes[name], folder.dtypes[name], layouts.get(layout))
        return targets[name]

    content = _each(rest, give)
    folder.read_into(targets, group)
    return content


def _each(content: Content, visit: Visit) -> Content:
    """A checkpoint with every value of models, optimizers and averages replaced."""
    averages = content["engine"]["emas"]
    return {
        **content,
        "model": {
            name: _each_entry(f"model/{name}", f"model/{name}", state, visit)
            for name, state in content["model"].items()
        },
        "optimizer": {
            name: _each_state(name, state, content["optimizer_facts"][name], visit)
            for name, state in content["optimizer"].items()
        },
        "engine": {
            **content["engine"],
            "emas": {
                name: state and _each_entry(f"average/{name}", f"model/{name}", state, visit)
                for name, state in averages.items()
            },
        },
    }


def _each_entry(prefix: str, layout: str, state: Mapping[str, Any], visit: Visit) -> Content:
    return {
        plain: visit(f"{prefix}/{plain}", f"{layout}/{plain}", state[name])
        for plain, name in by_plain_name(state).items()
    }


def _each_state(name: str, state: Content, facts: Mapping[str, Any], visit: Visit) -> Content:
    parameters = [parameter for group in facts["parameters"] for parameter, _ in group]
    return {
        **state,
        "state": {
            index: {
                key: visit(
                    f"optimizer/{name}/{parameters[index]}/{key}",
                    f"parameter/{parameters[index]}",
                    value,
                )
                for key, value in entry.items()
            }
            for index, entry in state["state"].items()
        },
    }


def _layouts(engine: Engine) -> dict[str, Tensor]:
    """Names of tensors to those here that are laid out as they should be."""
    found: dict[str, Tensor] = {}
    for name, model in engine.models.items():
        state = model.state_dict()
        for plain, key in by_plain_name(state).items():
            if isinstance(state[key], Tensor):
                found[f"model/{name}/{plain}"] = state[key]
        parameters = dict(model.named_parameters())
        for plain, key in by_plain_name(parameters).items():
            found[f"parameter/{name}.{plain}"] = parameters[key]
    return found


def _empty(shape: tuple[int, ...], dtype: torch.dtype, layout: Tensor | None) -> Tensor:
    if layout is None or not is_dtensor(layout) or tuple(layout.shape) != shape:
        return torch.empty(shape, dtype=dtype)
    part = local_of(layout.detach())
    return like(layout, torch.empty_like(part, dtype=dtype))
