"""Accelerate keeps its settings in the process and adds a warning filter: undo both."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def fresh_accelerate() -> Iterator[None]:
    """No settings of an `Accelerator` before the block, and none of it afterwards."""
    from accelerate.state import AcceleratorState, GradientState

    with warnings.catch_warnings():
        try:
            AcceleratorState._reset_state(reset_partial_state=True)
            GradientState._reset_state()
            yield
        finally:
            AcceleratorState._reset_state(reset_partial_state=True)
            GradientState._reset_state()
