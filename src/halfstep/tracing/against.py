"""One pass against another of the same batch, result by result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from halfstep.numerics import FORMATS, Format
from halfstep.records import OpRecord
from halfstep.tracing.lineage import Lineage

_CAST = "aten._to_copy"


@dataclass(frozen=True)
class Difference:
    """One result against the reference.

    Attributes:
        relative_error: ``||low - reference|| / ||reference||`` over the values that are finite in
            the reference; inf where the low one is not finite there.
        lost_fraction: Share of the values that are not 0 in the reference and 0 here.
        underflow_fraction: The same, of values too small for the result's format alone.
        reference_largest: Largest finite magnitude in the reference.
        reference_is_finite: Whether all of it is finite.
    """

    relative_error: float
    lost_fraction: float
    underflow_fraction: float
    reference_largest: float
    reference_is_finite: bool


class Against:
    """A low-precision pass beside the pass in FP32.

    Results are matched by phase, module, autograd node, op and how often it ran there. A cast has
    no partner; its reference is that of its input.

    Args:
        low, low_ops: The pass, with samples.
        reference, reference_ops: The FP32 pass, with samples.
        loss_scale: Of the low pass; the values that carry it are divided by it.

    Attributes:
        differences: Index of a result of the low pass to its difference, where there is a partner.
        partner: Index of a result of the low pass to that of its reference.
    """

    def __init__(
        self,
        low: Lineage,
        low_ops: Sequence[OpRecord],
        reference: Lineage,
        reference_ops: Sequence[OpRecord],
        loss_scale: float = 1.0,
    ) -> None:
        self._low = low
        self._scale = loss_scale
        self._reference = reference
        self.partner: dict[int, int] = {}
        self.differences: dict[int, Difference] = {}
        by_place = {_place(op): op.index for op in reference_ops if op.op != _CAST}
        references: dict[int, Tensor] = {}
        for op in low_ops:
            found = self._reference_of(op, by_place, reference, references)
            if found is not None and found.shape == low.samples[op.index].shape:
                references[op.index] = found
                self.differences[op.index] = self._difference(op, found)

    def parents(self, position: int) -> list[int]:
        """The results that an op's inputs are.

        Args:
            position: Index of a result of the op.
        """
        origins = self._low.origins.get(self._low.seen[position].first, ())
        return [o.position for o in origins if o.position is not None]

    def reference(self, position: int) -> Tensor | None:
        """The reference's sample of a result, where it has a partner.

        Args:
            position: Index of a result.
        """
        partner = self.partner.get(position)
        return None if partner is None else self._reference.samples[partner]

    def _reference_of(
        self,
        op: OpRecord,
        by_place: dict[tuple[object, ...], int],
        reference: Lineage,
        references: dict[int, Tensor],
    ) -> Tensor | None:
        if op.op == _CAST:
            parents = self.parents(op.index)
            if parents and op.index not in self._low.cast_whole:
                return None
            if parents:
                if parents[0] in self.partner:
                    self.partner[op.index] = self.partner[parents[0]]
                return references.get(parents[0])
            return self._low.cast_from.get(op.index)
        partner = by_place.get(_place(op))
        if partner is None:
            return None
        self.partner[op.index] = partner
        return reference.samples[partner]

    def _difference(self, op: OpRecord, reference: Tensor) -> Difference:
        low = self._low.samples[op.index].double()
        if op.index in self._low.scaled:
            low = low / self._scale
        reference = reference.double()
        known = torch.isfinite(reference)
        low, reference_known = low[known], reference[known]
        gap, size = (low - reference_known).norm().item(), reference_known.norm().item()
        error = (gap / size if size else 0.0) if math.isfinite(gap) else math.inf
        lost = (low == 0) & (reference_known != 0)
        nonzero = max(1, int((reference_known != 0).sum()))
        return Difference(
            relative_error=error,
            lost_fraction=float(lost.sum()) / nonzero,
            underflow_fraction=self._underflow(op, reference_known[lost]) / nonzero,
            reference_largest=reference_known.abs().max().item() if len(low) else 0.0,
            reference_is_finite=len(low) == known.numel(),
        )

    def _underflow(self, op: OpRecord, lost: Tensor) -> int:
        format = format_of(op.dtype)
        scale = self._scale if op.index in self._low.scaled else 1.0
        if format is None:
            return 0
        return int((lost.abs() * scale <= format.smallest_subnormal / 2).sum())


def format_of(dtype: str) -> Format | None:
    """The format with a dtype's name, as ``float16``.

    Args:
        dtype: As in `OpRecord`.
    """
    return next((row for row in FORMATS.values() if str(row.dtype) == f"torch.{dtype}"), None)


def _place(op: OpRecord) -> tuple[object, ...]:
    return (op.phase, op.module, op.gradient_of, op.op, op.output, op.occurrence, op.shape)
