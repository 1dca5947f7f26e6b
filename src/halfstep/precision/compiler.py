"""What `torch.compile` is told about our functions, without importing it (which takes a second)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)


# Came with the compiler's support for autocast that is switched by function calls.
TRACES_AUTOCAST_SWITCH = hasattr(torch.amp.autocast_mode, "_UnmanagedAutocast")


def not_compiled(*functions: Callable[..., Any], because: str | None = None) -> None:
    """Have the compiler run functions, and what they call, as they are.

    What `torch.compiler.disable` does by a wrapper, which would cost more than the functions.
    Where torch has no such switch, the compiler tries to trace them and says that it cannot.

    Args:
        functions: Marked in place.
        because: The reason that the compiler gives under ``fullgraph=True``.
    """
    for function in functions:
        function._torchdynamo_disable = True  # type: ignore[attr-defined]
        function._torchdynamo_disable_msg = because  # type: ignore[attr-defined]
        if hasattr(_frames, "set_code_exec_strategy"):
            skip = _frames._FrameAction.SKIP
            _frames.set_code_exec_strategy(
                function.__code__, _frames._FrameExecStrategy(skip, skip)
            )


def constant_when_compiled(function: Callable[..., Any]) -> None:
    """Have the compiler take the result of a function as a constant, without a guard.

    What `torch.compiler.assume_constant_result` does.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
