"""Private names of torch, and what is said where a newer torch has dropped one."""

from __future__ import annotations

from typing import Any

import torch

from halfstep.records import UnsupportedTorchError


def torch_internal(name: str) -> Any:
    """The attribute ``torch._C.<name>``, for which torch has no public one.

    Args:
        name: May have dots.

    Raises:
        UnsupportedTorchError: This torch has no such attribute.
    """
    found: Any = torch._C
    for part in name.split("."):
        if not hasattr(found, part):
            raise UnsupportedTorchError(
                f"torch {torch.__version__} has no torch._C.{name}, on which halfstep's precision"
                " policies stand; they were run on torch 2.10 to 2.14. Install one of these, or a"
                " newer halfstep."
            )
        found = getattr(found, part)
    return found
