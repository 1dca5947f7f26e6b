"""The random numbers that a run's data is made of, apart from those of the model."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

_APART = 0x0DA7A  # so that a shuffled order and the first weights come from different numbers


class DataStream:
    """A state of torch's CPU generator, Python's and NumPy's global one that only the data uses.

    A DataLoader takes its order from torch's global generator, and many a dataset draws from
    Python's or NumPy's. Dropout draws from the same ones in between, so that the order could not
    be found again without training again. Inside `active` the global generators are the data's
    own; outside they are where they were (but for the second normal number of a pair, which NumPy
    keeps in reserve and drops here).

    Args:
        seed: The run's; runs of one seed see the same data.
    """

    def __init__(self, seed: int) -> None:
        self._seed = (seed + _APART) % 2**63
        self._torch = torch.Generator().manual_seed(self._seed).get_state()
        self._python = random.Random(self._seed).getstate()
        self._numpy: Any = None  # a bit generator, made where NumPy is there

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Let the global generators be the data's; not for use inside itself."""
        outer_torch, outer_python = torch.get_rng_state(), random.getstate()
        numpy = _numpy_random()
        outer_numpy = numpy.get_bit_generator() if numpy is not None else None
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        if numpy is not None:
            numpy.set_bit_generator(self._bits(numpy))
        try:
            yield
        finally:
            self._torch, self._python = torch.get_rng_state(), random.getstate()
            torch.set_rng_state(outer_torch)
            random.setstate(outer_python)
            if numpy is not None:
                self._numpy = numpy.get_bit_generator()
                numpy.set_bit_generator(outer_numpy)

    def state(self) -> dict[str, Any]:
        """Plain data and tensors, loadable with ``weights_only=True``."""
        found: dict[str, Any] = {"torch": self._torch.clone(), "python": self._python}
        if (numpy := _numpy_random()) is not None:
            found["numpy"] = plain(self._bits(numpy).state)
        return found

    def set_state(self, state: dict[str, Any]) -> None:
        """Go to where `state` was taken."""
        version, keys, gauss = state["python"]
        self._torch, self._python = state["torch"].clone(), (version, tuple(keys), gauss)
        if "numpy" in state and (numpy := _numpy_random()) is not None:
            self._bits(numpy).state = state["numpy"]

    def _bits(self, numpy: Any) -> Any:
        if self._numpy is None:
            self._numpy = numpy.MT19937(self._seed)  # the kind that numpy.random.seed accepts
        return self._numpy


def plain(value: Any) -> Any:
    """The state of a NumPy generator with lists for its arrays; NumPy takes both."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


def _numpy_random() -> Any:
    """`numpy.random` where it was imported and can exchange its global generator (1.24)."""
    numpy = sys.modules.get("numpy")
    found = getattr(numpy, "random", None)
    return found if hasattr(found, "set_bit_generator") else None
