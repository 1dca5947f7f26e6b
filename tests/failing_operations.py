"""Errors inside any torch operation of a block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class FailAt(TorchDispatchMode):
    """Calls `fail` instead of, or before, the n-th operation; counts down in `left`."""

    def __init__(self, number: int, fail: Callable[[], object]) -> None:
        super().__init__()
        self.left = number
        self.fail = fail

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.left -= 1
        if self.left == 0:
            self.fail()
        return func(*args, **(kwargs or {}))


def out_of_memory() -> None:
    raise torch.OutOfMemoryError("out of memory (made by the test)")
