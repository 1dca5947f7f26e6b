"""`Shards`: the parameters and buffers of a model that is sharded by `fully_shard`.

torch refuses to copy such a model, and a copy could not be called: its forward gathers the weights
of the original. An average needs its tensors only.
"""

from __future__ import annotations

from typing import Any, NoReturn

from torch import Tensor, nn

from halfstep.records import CallOrderError


class Shards(nn.Module):
    """Copies of a module's parameters and buffers, under their names, that compute nothing.

    Args:
        module: Anything whose parameters may be sharded; of each part this rank's is copied.
    """

    def __init__(self, module: nn.Module, _copies: dict[int, Any] | None = None) -> None:
        super().__init__()
        copies = {} if _copies is None else _copies
        for name, p in module._parameters.items():
            self.register_parameter(name, None if p is None else _copy_of(p, copies))
        for name, buffer in module._buffers.items():
            is_kept = name not in module._non_persistent_buffers_set
            copy = None if buffer is None else buffer.detach().clone()
            self.register_buffer(name, copy, persistent=is_kept)
        for name, child in module._modules.items():
            if child is None:
                self.register_module(name, None)
                continue
            if id(child) not in copies:
                copies[id(child)] = Shards(child, copies)
            self.register_module(name, copies[id(child)])

    def forward(self, *arguments: object, **keywords: object) -> NoReturn:
        """Refused.

        Raises:
            CallOrderError: Always.
        """
        raise CallOrderError(
            "the average of a sharded model holds weights and cannot be called; use"
            " `with engine.averaged():`, inside of which the model itself has the averaged weights."
        )


def _copy_of(p: Tensor, copies: dict[int, Any]) -> nn.Parameter:
    if id(p) not in copies:
        copies[id(p)] = nn.Parameter(p.detach().clone(), requires_grad=p.requires_grad)
    found: nn.Parameter = copies[id(p)]
    return found
