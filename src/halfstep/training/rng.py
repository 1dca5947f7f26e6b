"""The state of every random number generator that a training loop is likely to use."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


def rng_state() -> dict[str, Any]:
    """States of torch (CPU and every CUDA device), Python, and NumPy if it was imported.

    Returns:
        Plain data and tensors, loadable with ``weights_only=True``.

    Syncs: yes, on CUDA.
    """
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    if (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, *rest = numpy.random.get_state()
        state["numpy"] = [kind, keys.tolist(), *rest]
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore what `rng_state` returned; generators that are not here now are left out.

    Args:
        state: From `rng_state`.
    """
    torch.set_rng_state(state["torch"].cpu())
    version, keys, gauss = state["python"]
    random.setstate((version, tuple(keys), gauss))
    if "cuda" in state and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all([device.cpu() for device in state["cuda"]])
    if "numpy" in state and (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.set_state(tuple(state["numpy"]))
