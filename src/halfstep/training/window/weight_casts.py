"""Keeping the casts of the weights over the micro-batches of one window."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

import torch
from torch import Tensor, nn

from halfstep.records import CallOrderError

_version_of = operator.attrgetter("_version")


class WeightCasts:
    """Lets forwards under autocast reuse the low-precision weights of a window.

    autocast drops its casts when the outermost context exits. A disabled one around the whole
    window keeps them: a 12-layer MLP with four micro-batches casts 24 weights instead of 96, and
    backward still runs outside autocast.

    autocast does not see that a weight has changed. Before each micro-batch, and at each call of a
    model or of one of its children, the weights' version counters are compared, and the casts are
    dropped where one has moved: noise that `loss_fn` adds, a swap of teacher and student, an
    adversarial step. What is written through ``parameter.data`` moves no counter: once a window has
    touched it, nothing is kept.

    It costs 2 bytes per parameter of peak memory, since the casts outlive backward. Off for
    windows of one micro-batch, which gain nothing, and for compiled and FSDP2-sharded models,
    whose parameters are not the tensors that are cast.

    Args:
        device_type: Of the models.
        models: Their parameters are cast.
    """

    def __init__(self, device_type: str, models: Iterable[nn.Module]) -> None:
        self._device_type = device_type
        self._models = list(models)
        self._are_kept = True

    def kept(self, window: Iterable[object]) -> contextlib.AbstractContextManager[_Kept | None]:
        """The context around the micro-batches of a window; it ends before the weights move.

        Args:
            window: The micro-batches.
        """
        single = isinstance(window, Sized) and len(window) == 1
        if single or not self._are_kept or not all(map(_owns_its_weights, self._models)):
            return contextlib.nullcontext(None)
        return self._keep()

    @contextlib.contextmanager
    def _keep(self) -> Iterator[_Kept]:
        kept = _Kept(self._models)
        try:
            with torch.autocast(self._device_type, enabled=False):
                yield kept
        except _Stale as stale:
            self._are_kept = False
            raise CallOrderError(str(stale)) from None
        finally:
            kept.end()


_DATA: Any = torch.Tensor.data
_keeping: list[_Kept] = []


def _seen_data(parameter: Tensor) -> Tensor:
    for kept in _keeping:
        kept.sees_data()
    data: Tensor = _DATA.__get__(parameter)
    return data


def _seen_new_data(parameter: Tensor, value: Tensor) -> None:
    for kept in _keeping:
        kept.sees_data()
    _DATA.__set__(parameter, value)


class _Stale(Exception):  # noqa: N818
    """A forward may have used casts of weights that had changed."""


class _Kept:
    """The casts of one window, and the weights that they were made of."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._weights: list[Tensor] = [p for model in models for p in model.parameters()]
        self._versions = self._now()
        self._touches_data = False
        self._depth = 0
        self._was_called = False
        self._is_first = True
        roots = {id(model): model for model in models}
        children = {id(child): child for model in models for child in model.children()}
        # The first call from outside is enough: weights do not change inside a forward.
        self._handles = [
            handle
            for module in {**children, **roots}.values()
            for handle in (
                module.register_forward_pre_hook(self._enter),
                module.register_forward_hook(self._leave, always_call=True),
            )
        ]
        _keeping.append(self)
        nn.Parameter.data = property(_seen_data, _seen_new_data)  # type: ignore[assignment]

    def micro_batch_begins(self) -> None:
        """Drop casts of weights that changed since the last look."""
        self._depth, self._was_called = 0, False
        self._look()

    def micro_batch_ends(self) -> None:
        """Refuse a micro-batch whose forward this class did not see.

        Raises:
            CallOrderError: Through the context, see `WeightCasts.kept`.
        """
        first, self._is_first = self._is_first, False
        if self._was_called or first:
            return
        if self._versions == self._now() and not self._touches_data:
            return
        raise _Stale(
            "loss_fn changed weights in place and ran no forward of the model or of one of its"
            " children, so that autocast may have used the weights of an earlier micro-batch."
            " Nothing has moved; from now on this engine casts the weights anew for each"
            " micro-batch, so that the same call works."
        )

    def sees_data(self) -> None:
        """Somebody reads or sets ``parameter.data``, and may write through it at any time."""
        self._touches_data = True

    def end(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        _keeping.remove(self)
        if not _keeping:
            del nn.Parameter.data

    def _now(self) -> list[int]:
        return list(map(_version_of, self._weights))

    def _look(self) -> None:
        now = self._now()
        if now != self._versions or self._touches_data:
            self._versions = now
            torch.clear_autocast_cache()

    def _enter(self, module: nn.Module, arguments: Any) -> None:
        if self._depth == 0:
            self._was_called = True
            self._look()
        self._depth += 1

    def _leave(self, module: nn.Module, arguments: Any, output: Any) -> None:
        self._depth = max(0, self._depth - 1)


def _owns_its_weights(model: nn.Module) -> bool:
    kinds = {base.__name__ for module in model.modules() for base in type(module).__mro__}
    compiled = any(getattr(module, "_compiled_call_impl", None) for module in model.modules())
    return not compiled and not kinds & {"OptimizedModule", "FSDPModule"}
