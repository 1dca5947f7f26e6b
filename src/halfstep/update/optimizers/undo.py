"""`Undo`: putting an optimizer back after a ``step()`` that raised halfway.

``optimizer.step()`` moves one group after the other and makes its state on the way. Where it runs
out of memory in between, some weights have moved, some state is half made, and every retry dies
of it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from halfstep.update.ranks.shards import local_of


class Undo:
    """What an optimizer was before a step.

    Args:
        optimizer: About to step.
        params: The parameters that have a gradient.
        keeps_copies: Whether `restore` can put values back. Without copies it can only take away
            state that the step has made, and tell that something has moved.
    """

    def __init__(
        self, optimizer: Optimizer, params: Sequence[Tensor], *, keeps_copies: bool
    ) -> None:
        self._optimizer = optimizer
        self._state = {key: dict(state) for key, state in optimizer.state.items()}
        self._groups = [_without_params(group) for group in optimizer.param_groups]
        self._numbers = {
            name: value
            for name, value in vars(optimizer).items()
            if type(value) in (bool, int, float)
        }
        held = [value for state in self._state.values() for value in state.values()]
        held += [value for group in self._groups for value in group.values()]
        tensors = [*params, *(value for value in held if isinstance(value, Tensor))]
        tensors = list(map(local_of, tensors))
        self._versions = [(tensor, tensor._version) for tensor in tensors]
        self._copies: list[Tensor] | None = None
        self._others: dict[Any, dict[str, Any]] = {}
        if keeps_copies:
            self._copies = [tensor.detach().clone() for tensor in tensors]
            self._others = {
                key: {n: copy.deepcopy(v) for n, v in state.items() if not isinstance(v, Tensor)}
                for key, state in self._state.items()
            }

    @torch.no_grad()
    def restore(self) -> bool:
        """Put the optimizer back to where it was.

        Returns:
            Whether it is: False if weights or state have moved and there is no copy of them.
        """
        moved = [tensor for tensor, version in self._versions if tensor._version != version]
        state = self._optimizer.state
        for key in [key for key in state if key not in self._state]:
            del state[key]
        for key, before in self._state.items():
            state[key].clear()
            state[key].update(before)
            state[key].update(self._others.get(key, {}))
        for group, values in zip(self._optimizer.param_groups, self._groups, strict=True):
            for name in [name for name in group if name != "params" and name not in values]:
                del group[name]
            group.update(values)
        vars(self._optimizer).update(self._numbers)
        if self._copies is None:
            # torch's fused kernels count no versions of the tensors that they write
            return not moved and not any(group.get("fused") for group in self._groups)
        for (tensor, _), value in zip(self._versions, self._copies, strict=True):
            tensor.detach().copy_(value)
        return True


def _without_params(group: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, Tensor) else copy.copy(value)
        for name, value in group.items()
        if name != "params"
    }
