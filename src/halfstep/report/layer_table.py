"""The doctor's passes side by side, layer by layer: where each format fails."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from halfstep.numerics import format_named
from halfstep.records import LayerRecord, PassRecord
from halfstep.report.axes import log2_axis, step_axis
from halfstep.report.buckets import Point
from halfstep.report.charts import Chart, Series, chart, values_of
from halfstep.report.run_facts import write_scale

_AROUND = 2  # rows to show on both sides of an interesting one
_NEAR_THE_BOTTOM = 2.0**12  # times the smallest value, a chart shows that one too

Key = tuple[str, int]  # module, how often it came before in the phase


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One module in one phase.

    Attributes:
        module: Its path.
        kind: Class name.
        phase: ``"forward"`` or ``"backward"``.
        cells: One per pass; ``None`` where the pass did not come there.
        first_in: Names of the passes in which nothing before was inf or NaN, and this is.
    """

    module: str
    kind: str
    phase: str
    cells: list[LayerRecord | None]
    first_in: tuple[str, ...]


def layer_rows(passes: Sequence[PassRecord]) -> list[LayerRow]:
    """Every module of the passes, forward then backward, as the passes met them."""
    return [*_rows_of(passes, "forward"), *_rows_of(passes, "backward")]


def interesting(rows: Sequence[LayerRow]) -> list[LayerRow]:
    """Those around a first failure, and the largest forward and backward one."""
    centres = {n for n, row in enumerate(rows) if row.first_in}
    for phase in ("forward", "backward"):
        sizes = [
            (cell.largest, n)
            for n, row in enumerate(rows)
            if row.phase == phase and (cell := row.cells[0]) is not None and cell.is_finite
        ]
        centres |= {n for _, n in sorted(sizes)[-1:]}
    near = {n + d for n in centres for d in range(-_AROUND, _AROUND + 1)}
    return [row for n, row in enumerate(rows) if n in near]


def headroom_chart(passes: Sequence[PassRecord]) -> Chart | None:
    """Largest magnitudes in FP32 along the network, against what FP16 can hold."""
    fp32 = next((one for one in passes if one.format == "fp32" and one.layers), None)
    if fp32 is None:
        return None
    low = [one for one in passes if one.format == "fp16"]
    scale = max((one.loss_scale for one in low), default=1.0)
    places = {key: number for number, key in enumerate(_keyed(fp32, "forward"), 1)}
    series = [Series("forward: result", 1, _points(fp32, "forward", places, 1.0))]
    if backward := _points(fp32, "backward", places, scale):
        name = f"backward: gradient at scale {write_scale(scale)}"
        series.append(Series(name, 2, backward))
    fp16 = format_named("fp16")
    values = [value for value in values_of(series) if value > 0]
    levels = [(fp16.largest, f"FP16 ends at {fp16.largest:,.0f}")]
    if any(value < _NEAR_THE_BOTTOM * fp16.smallest_subnormal for value in values):
        levels.append((fp16.smallest_subnormal, "FP16's smallest value"))
    broken = [
        key for one in low for key, layer in _keyed(one, "forward").items() if not layer.is_finite
    ]
    return chart(
        "Largest magnitude of each layer, in FP32",
        _summary(series[0].points, fp16.largest),
        series,
        step_axis(1, len(places)),
        log2_axis([*values, *(level for level, _ in levels)]),
        skips=[places[key] for key in broken if key in places][:1],
        levels=levels,
        x_name="layer",
    )


def _rows_of(passes: Sequence[PassRecord], phase: str) -> Iterator[LayerRow]:
    tables = [_keyed(one, phase) for one in passes]
    first_bad = [_first_bad(one, phase) for one in passes]
    for key in dict.fromkeys(key for table in tables for key in table):
        cells = [table.get(key) for table in tables]
        kind = next(cell.kind for cell in cells if cell is not None)
        first_in = [one.name for one, bad in zip(passes, first_bad, strict=True) if bad == key]
        yield LayerRow(key[0], kind, phase, cells, tuple(first_in))


def _keyed(one: PassRecord, phase: str) -> dict[Key, LayerRecord]:
    seen: Counter[str] = Counter()
    found: dict[Key, LayerRecord] = {}
    for layer in one.layers:
        if layer.phase == phase:
            found[layer.module, seen[layer.module]] = layer
            seen[layer.module] += 1
    return found


def _first_bad(one: PassRecord, phase: str) -> Key | None:
    """The layer that breaks a pass first, if it does so in this phase."""
    if phase == "backward" and _first_bad(one, "forward") is not None:
        return None
    layers = _keyed(one, phase).items()
    return next((key for key, layer in layers if not layer.is_finite), None)


def _points(one: PassRecord, phase: str, places: Mapping[Key, int], factor: float) -> list[Point]:
    layers = _keyed(one, phase).items()
    return sorted((places[key], one.largest * factor) for key, one in layers if key in places)


def _summary(points: Sequence[Point], limit: float) -> str:
    finite = [value for _, value in points if math.isfinite(value)]
    if not any(finite):
        return "nothing finite"
    bits = math.log2(limit / max(finite))
    if bits < 0:
        return f"the largest result is {-bits:.1f} bits beyond FP16"
    return f"the largest result has {bits:.1f} bits of headroom in FP16"
