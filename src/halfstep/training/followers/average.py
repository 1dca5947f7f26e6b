"""Averaged weights: `AveragedModel.update_parameters` without a wait, in a few operations.

torch's method asks the device whether this is the first update and copies the count of updates to
it, and its exponential average takes four operations for each buffer of integers. Here the host
knows the count, and buffers of one dtype are averaged side by side. The values are torch's, bit for
bit.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn
from torch.utils._foreach_utils import _get_foreach_kernels_supported_devices

from halfstep.update.ranks.shards import local_of


class EmaUpdate:
    """An exponential moving average of many tensors, for ``AveragedModel(multi_avg_fn=...)``.

    Args:
        decay: Between 0 and 1.
    """

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._of_floats = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]

    def __call__(
        self, averages: Sequence[Tensor], values: Sequence[Tensor], num_averaged: Tensor | int
    ) -> None:
        """Move the averages towards the values.

        Args:
            averages: Of one device and dtype; written.
            values: Likewise.
            num_averaged: Updates so far; not used.
        """
        if averages[0].is_floating_point() or averages[0].is_complex():
            self._of_floats(averages, values, num_averaged)
            return
        # multiplication of integers by a fraction makes floats, for which no list operation exists
        old, new = (torch.cat([x.reshape(-1) for x in each]) for each in (averages, values))
        moved = (old * self._decay + new * (1 - self._decay)).to(old.dtype)
        parts = torch.split(moved, [average.numel() for average in averages])
        shaped = [part.view(a.shape) for part, a in zip(parts, averages, strict=True)]
        torch._foreach_copy_(list(averages), shaped)


_SWA = get_swa_multi_avg_fn.__qualname__
_EMA = get_ema_multi_avg_fn.__qualname__


class AverageUpdate:
    """Moves one `AveragedModel` with its model.

    Args:
        average: Of `model`.
        model: What is averaged.
    """

    def __init__(self, average: AveragedModel, model: nn.Module) -> None:
        self._average = average
        self._model = model
        self._known: tuple[Tensor, int, int] | None = None
        self._copies: list[Tensor] = []
        self._copied_at = -1

    @torch.no_grad()
    def remember_buffers(self, attempt: int) -> None:
        """Copy the model's buffers, because the average will move later than the next forward.

        Args:
            attempt: Number of the step that is about to be launched.

        Syncs: no.
        """
        buffers = list(self._model.buffers())
        if not _are_alike(self._copies, buffers):
            self._copies = [torch.empty_like(buffer) for buffer in buffers]
        _copy(self._copies, buffers)
        self._copied_at = attempt

    @torch.no_grad()
    def __call__(self, attempt: int) -> None:
        """One update, to the weights as they are and the buffers as they were at the step.

        Args:
            attempt: Number of the step that is committed.

        Syncs: no, for averages by torch's functions; once where the count of updates was written
        on a device by somebody else.
        """
        average = self._average
        buffers = list(self._model.buffers())
        if attempt == self._copied_at and _are_alike(self._copies, buffers):
            buffers = self._copies
        if not _is_stock(average):
            with _in_place(self._model, buffers):
                average.update_parameters(self._model)
            return
        count = self._count()
        averages, values = self._pairs(buffers)
        if count == 0:
            _copy(averages, values)
        else:
            self._move(averages, values, count)
        if not average.use_buffers:
            _copy(list(average.module.buffers()), buffers)
        average.n_averaged += 1
        self._known = average.n_averaged, average.n_averaged._version, count + 1

    @contextlib.contextmanager
    @torch.no_grad()
    def in_the_model(self) -> Iterator[None]:
        """Inside, the model holds the average; afterwards its own weights again, bit for bit."""
        averages, values = self._pairs(list(self._model.buffers()))
        own = [value.clone() for value in values]
        _copy(values, averages)
        try:
            yield
        finally:
            _copy(values, own)

    def _count(self) -> int:
        number = self._average.n_averaged
        if self._known is not None:
            tensor, version, count = self._known
            if tensor is number and version == number._version:
                return count
        return int(number)

    def _pairs(self, buffers: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        average, model = self._average, self._model
        if average.use_buffers:
            own: Iterable[Tensor] = chain(average.module.parameters(), average.module.buffers())
            theirs: Iterable[Tensor] = chain(model.parameters(), buffers)
        else:
            own, theirs = average.parameters(), model.parameters()
        pairs = list(zip(own, theirs, strict=False))
        averages = [local_of(a.detach()) for a, _ in pairs]
        return averages, [
            local_of(v.detach()).to(a.device) for a, (_, v) in zip(averages, pairs, strict=True)
        ]

    def _move(self, averages: list[Tensor], values: list[Tensor], count: int) -> None:
        function = self._average.multi_avg_fn or get_swa_multi_avg_fn()  # type: ignore[no-untyped-call]
        is_torchs = isinstance(function, EmaUpdate) or _name_of(function).startswith((_EMA, _SWA))
        for own, theirs in _by_kind(averages, values):
            # torch's functions take a number from the host; a user's may want it on the device
            number = torch.full((), count, device="cpu" if is_torchs else own[0].device)
            function(own, theirs, number)


_STOCK_UPDATE = AveragedModel.update_parameters


def _is_stock(average: AveragedModel) -> bool:
    """Whether torch would move this average many tensors at a time, by its own method."""
    if type(average).update_parameters is not _STOCK_UPDATE:
        return False
    if "update_parameters" in vars(average):
        return False
    if average.multi_avg_fn is not None:
        return True
    devices = _get_foreach_kernels_supported_devices()
    return average.avg_fn is None and all(p.device.type in devices for p in average.parameters())


@contextlib.contextmanager
def _in_place(model: nn.Module, buffers: Sequence[Tensor]) -> Iterator[None]:
    """Let the model have these buffers meanwhile, for a method that reads them there."""
    present = list(model.buffers())
    if not any(map(operator.is_not, present, buffers)):
        yield
        return
    newer = [buffer.clone() for buffer in present]
    _copy(present, buffers)
    try:
        yield
    finally:
        _copy(present, newer)


def _are_alike(copies: Sequence[Tensor], buffers: Sequence[Tensor]) -> bool:
    return [(c.shape, c.dtype, c.device) for c in copies] == [
        (b.shape, b.dtype, b.device) for b in buffers
    ]


def _name_of(function: object) -> str:
    inner = getattr(function, "__wrapped__", function)
    return str(getattr(inner, "__qualname__", ""))


def _copy(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    moved = [s.detach().to(t.device) for t, s in zip(targets, sources, strict=True)]
    for own, theirs in _by_kind([t.detach() for t in targets], moved):
        torch._foreach_copy_(own, theirs)


def _by_kind(
    averages: Sequence[Tensor], values: Sequence[Tensor]
) -> list[tuple[list[Tensor], list[Tensor]]]:
    """The tensors of one device and pair of dtypes together."""
    kinds: dict[object, tuple[list[Tensor], list[Tensor]]] = {}
    for average, value in zip(averages, values, strict=True):
        kind = (average.device, average.dtype, value.dtype)
        own, theirs = kinds.setdefault(kind, ([], []))
        own.append(average)
        theirs.append(value)
    return list(kinds.values())
