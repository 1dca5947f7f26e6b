"""`watch`: which layer is the first whose activation is not finite, at the price of one read."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from torch import nn

from halfstep.records import BadValueError, LayerRecord
from halfstep.tracing.layers import LayerMagnitudes
from halfstep.tracing.module_paths import ModulePaths

logger = logging.getLogger("halfstep")


class Watch:
    """Hooks on every module of a model that look at each result's largest magnitude.

    A forward that is looked at is read when the next one begins, or when you ask, so that an
    accelerator is not waited for in the middle of a step. The first bad layer is logged once.

    Made by `watch`; use it as a context, or call `remove`.
    """

    def __init__(self, model: nn.Module, every: int) -> None:
        self._model = model
        self._every = every
        self._forwards = 0
        self._pending: LayerMagnitudes | None = None
        self._layers: list[LayerRecord] = []
        self._first_bad: LayerRecord | None = None
        self._paths = ModulePaths(model, self._note)
        self._begin = model.register_forward_pre_hook(self._forward_begins)
        self._paths.attach()

    @property
    def layers(self) -> list[LayerRecord]:
        """The results of the last forward that was looked at, in the order they were made.

        Syncs: yes, if they were not read yet.
        """
        self._settle()
        return self._layers

    @property
    def first_bad(self) -> LayerRecord | None:
        """The first layer, of all forwards so far, with a result that was not finite.

        Syncs: yes, if the last forward was not read yet.
        """
        self._settle()
        return self._first_bad

    def remove(self) -> None:
        """Take the hooks off; what was seen stays readable."""
        self._paths.detach()
        self._begin.remove()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()
        self._settle()

    def __iter__(self) -> Iterator[LayerRecord]:
        return iter(self.layers)

    def _forward_begins(self, module: nn.Module, args: Any) -> None:
        self._settle()
        if self._forwards % self._every == 0:
            self._pending = LayerMagnitudes(count=self._first_bad is not None)
        self._forwards += 1

    def _note(self, module: nn.Module, path: str, result: Any) -> None:
        if self._pending is not None:
            self._pending.note(module, path, result)

    def _settle(self) -> None:
        if self._pending is None or not len(self._pending):
            return
        self._layers = self._pending.read()
        self._pending = None
        bad = next((layer for layer in self._layers if not layer.is_finite), None)
        if bad is not None and self._first_bad is None:
            self._first_bad = bad
            logger.warning("first activation that is not finite: %s", bad)


def watch(model: nn.Module, every: int = 1) -> Watch:
    """Look at the largest magnitude of every module's result in each `every`-th forward.

    Args:
        model: The model to watch; its modules get hooks until `Watch.remove`.
        every: 1 looks at each forward.

    Returns:
        The watch: `first_bad` and `layers`, with layer name, dtype, shape, largest magnitude and
        share of finite values. (An accelerator counts that share after a first bad layer only.)

    Raises:
        BadValueError: `every` is below 1.

    Syncs: no; what was seen is read when the next forward begins.

    Example:
        >>> import torch, halfstep as hs
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> with hs.watch(model) as seen:
        ...     _ = model(torch.tensor([[1.0, float("inf")]]))
        >>> seen.first_bad.module, seen.first_bad.kind
        ('Sequential.0', 'Linear')
    """
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise BadValueError(f"every must be a whole number of at least 1, got {every!r}.")
    return Watch(model, every)
