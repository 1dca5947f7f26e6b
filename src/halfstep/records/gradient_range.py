"""Which loss scales would be safe, from the gradients that FP32 has."""

from __future__ import annotations

from dataclasses import dataclass

from halfstep.records.plain import PlainRecord


@dataclass(frozen=True, slots=True)
class GradientRow(PlainRecord):
    """Magnitudes of one gradient in FP32, unscaled.

    Attributes:
        name: Of the parameter, or path of the module in whose backward it is made.
        kind: ``"parameter"`` (as it lies in ``.grad``) or ``"activation"`` (every result of a
            backward op that a 16-bit run computes in 16 bits; overflow is born there).
        is_none: No gradient at all: ``.grad is None``. Neither zero nor underflow.
        owner: Path of the module it belongs to.
        zero_fraction: Share of true zeros: 0 in FP32 too (ReLU, unused embeddings, masks).
        smallest: Smallest magnitude that is not 0; NaN without one.
        largest: Largest finite magnitude.
        histogram: Exponent e to the number of values with ``2^e <= |value| < 2^(e+1)``.
    """

    name: str
    kind: str
    is_none: bool
    owner: str
    zero_fraction: float
    smallest: float
    largest: float
    histogram: dict[int, int]


@dataclass(frozen=True, slots=True)
class ScaleWindow(PlainRecord):
    """Loss scales at which the gradients fit into a format.

    Attributes:
        format: ``"fp16"``, ``"bf16"``, ``"e4m3"``, ``"e5m2"``.
        lowest: The smallest power of two at which underflow takes at most `tolerance` of the norm
            of every layer's gradients; ``None`` if none up to 2^64 does.
        highest: The largest power of two at which no activation gradient overflows; ``None`` if
            none down to 2^-64 does.
        suggested: Initial scale: a quarter of `highest` (two powers of two of headroom), at most
            2^16, at least `lowest`; 1 where the format needs no scale; ``None`` in an empty window.
        tolerance: Share of a layer's gradient norm that may underflow.
        underflow: Exponent of the scale to the share of all non-zero values that become 0 there.
        worst: The layer that loses the largest share of its norm to underflow, at `suggested` or,
            in an empty window, at `highest`; and that share.
        worst_fraction: See `worst`.
    """

    format: str
    lowest: float | None
    highest: float | None
    suggested: float | None
    tolerance: float
    underflow: dict[int, float]
    worst: str
    worst_fraction: float

    @property
    def is_empty(self) -> bool:
        """Whether no scale is safe: what is low enough for the top is too low for the bottom."""
        return self.lowest is None or self.highest is None or self.lowest > self.highest


@dataclass(frozen=True, slots=True)
class GradientRange(PlainRecord):
    """The gradients of one batch in FP32, and the scales at which each format holds them.

    Attributes:
        rows: Parameters and activations, in the model's order.
        windows: One per format.
    """

    rows: tuple[GradientRow, ...]
    windows: tuple[ScaleWindow, ...]

    def window(self, format: str) -> ScaleWindow:
        """The window of a format.

        Args:
            format: As ``"fp16"``.
        """
        return next(window for window in self.windows if window.format == format)


@dataclass(frozen=True, slots=True)
class LostUpdates(PlainRecord):
    """How much of one parameter an update left as it was, to the bit.

    Attributes:
        name: Of the parameter.
        dtype: Of the parameter, as ``bfloat16``.
        changed_fraction: Share of weights that moved.
        lost_fraction: Share with a gradient that is not 0 that did not move.
        no_gradient_fraction: Share whose gradient is 0 (1 where it is None): nothing to lose.
        gradient_share: Its part of the squared norm of all gradients: how much it matters. The
            bias before a BatchNorm has a gradient of rounding noise, which moves nothing.
    """

    name: str
    dtype: str
    changed_fraction: float
    lost_fraction: float
    no_gradient_fraction: float
    gradient_share: float

    @property
    def is_lost(self) -> bool:
        """Whether most of an update that matters is lost."""
        return self.lost_fraction > 0.5 and self.gradient_share > 1e-6
