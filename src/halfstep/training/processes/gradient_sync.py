"""`GradientSync`: the exchange of gradients, once per window instead of once per micro-batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from torch import nn

from halfstep.records import CallOrderError
from halfstep.update.ranks.find import fsdp_parts, is_ddp, is_fsdp

T = TypeVar("T")


class GradientSync:
    """Keeps the wrappers of an engine's models from exchanging gradients before the last backward.

    What a micro-batch adds stays on its rank until then: DistributedDataParallel keeps it where the
    gradients are, fully_shard as whole gradients beside them, which takes memory.

    Args:
        models: The engine's; wrappers may be anywhere inside.
        per_window: Whether to do so at all.
    """

    def __init__(self, models: Iterable[nn.Module], per_window: bool) -> None:
        modules = [module for model in models for module in model.modules()]
        # torch asserts against no_sync in a static graph
        self._ddp = [m for m in modules if is_ddp(m) and not getattr(m, "static_graph", False)]
        self._parts = [part for m in modules if is_fsdp(m) for part in fsdp_parts(m)]
        self._per_window = per_window

    @contextlib.contextmanager
    def micro_batch(self, is_last: bool) -> Iterator[None]:
        """Around forward and backward: what counts is where the forward of DDP runs.

        Args:
            is_last: Whether the window ends with it, so that gradients are exchanged.
        """
        if is_last or not self._per_window:
            yield
            return
        before = [(part, part.reduce_grads, part.all_reduce_grads) for part in self._parts]
        with contextlib.ExitStack() as stack:
            for module in self._ddp:
                stack.enter_context(module.no_sync())  # type: ignore[operator]
            try:
                self._set((part, False, False) for part in self._parts)
                yield
            finally:
                self._set(before)

    def refuse_open(self) -> None:
        """Refuse a step while gradients of the window are still waiting for their exchange.

        Raises:
            CallOrderError: The last backward of the window ran without it.
        """
        for parameter in self._parameters():
            if any(getattr(where, name, None) is not None for where, name in _waiting(parameter)):
                raise CallOrderError(
                    "the last backward of this window did not exchange its gradients, which"
                    " fully_shard still holds: end the window with"
                    " `with engine.micro_batch(is_last=True):` (or"
                    " set_requires_gradient_sync(True)) around its last forward and backward."
                )

    def drop_open(self) -> None:
        """Forget gradients that are waiting for their exchange: their window was aborted."""
        for parameter in self._parameters():
            for where, name in _waiting(parameter):
                if where is not None:
                    setattr(where, name, None)

    def _parameters(self) -> Iterator[Any]:
        return (parameter for part in self._parts for parameter in part.fsdp_params)

    @staticmethod
    def _set(settings: Iterable[tuple[Any, bool, bool]]) -> None:
        for part, reduces, all_reduces in settings:
            part.reduce_grads, part.all_reduce_grads = reduces, all_reduces


def _waiting(parameter: Any) -> tuple[tuple[Any, str], ...]:
    """Where fully_shard keeps whole gradients until their exchange."""
    whole = getattr(parameter, "_unsharded_param", None)
    return (parameter, "unsharded_accumulated_grad"), (whole, "grad")


def with_last(things: Iterable[T]) -> Iterator[tuple[T, bool]]:
    """Each thing, and whether it is the last one; looks one ahead."""
    iterator = iter(things)
    nothing: Any = object()
    thing = next(iterator, nothing)
    while thing is not nothing:
        following = next(iterator, nothing)
        yield thing, following is nothing
        thing = following
