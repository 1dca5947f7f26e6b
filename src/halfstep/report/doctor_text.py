"""A diagnosis for the terminal: the verdict first, then its evidence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from halfstep.records import (
    Cause,
    Diagnosis,
    DiagnosisCost,
    DtypeRow,
    Equality,
    GradientRange,
    Symptom,
)
from halfstep.records.step import format_number

_PASS_TITLES = {"fp32": "FP32", "bf16": "BF16", "fp16": "FP16", "fp16 scaled": "FP16 scaled"}
_MAX_LAYERS = 40


def diagnosis_text(found: Diagnosis) -> Iterator[RenderableType]:
    """Everything, in the order in which one reads it.

    Args:
        found: What the doctor found.
    """
    colour = "green" if found.is_healthy else "red"
    yield Text(found.headline, style=f"bold {colour}")
    yield Text(
        f"{found.recipe} on {found.device}, torch {found.torch}; {_whose(found)}", style="dim"
    )
    for number, cause in enumerate(found.causes, 1):
        yield from _cause(number, cause)
    yield passes_table(found)
    if found.gradient_range is not None:
        yield scales_table(found.gradient_range)
    if found.equality is not None and found.equality.passes:
        yield equality_table(found)
        yield from _trained(found.equality)
    yield symptoms_table(found.symptoms)
    if found.cost is not None:
        yield Text(cost_text(found.cost), style="dim")


def cost_text(cost: DiagnosisCost) -> str:
    """Time and memory that a diagnosis took, its bound, and what it left out.

    Args:
        cost: Of the diagnosis.
    """
    steps = f" ({cost.seconds / cost.step_seconds:.0f} FP32 steps)" if cost.step_seconds else ""
    text = (
        f"took {cost.seconds:.3g} s{steps} of at most {cost.max_seconds:g} s, and"
        f" {cost.notes_bytes / 2**20:.3g} MiB for notes"
    )
    left_out = ", ".join(cost.left_out)
    return f"{text}; not looked at for want of time: {left_out}" if left_out else text


def passes_table(found: Diagnosis) -> Table:
    """One row per run of the batch.

    Args:
        found: The diagnosis.
    """
    table = Table(title="one batch, four runs", box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("run", "loss", "gradient norm", "scale", "zero gradients"):
        table.add_column(name, justify="left" if name == "run" else "right")
    table.add_column("first bad op")
    for row in found.passes:
        bad = row.first_bad.place if row.first_bad is not None else "none"
        table.add_row(
            _PASS_TITLES[row.name],
            format_number(row.loss),
            format_number(row.grad_norm),
            f"{row.loss_scale:g}",
            f"{row.zero_gradient_fraction:.1%}",
            Text(bad, style="red" if row.first_bad is not None else ""),
        )
    return table


def layers_table(found: Diagnosis) -> Table:
    """Largest magnitude of each module's result in each run; what is not finite is red.

    Args:
        found: The diagnosis.
    """
    table = Table(title="largest magnitude", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("module")
    table.add_column("phase")
    for row in found.passes:
        table.add_column(_PASS_TITLES[row.name], justify="right")
    cells: dict[tuple[str, str], dict[str, float]] = {}
    for row in found.passes:
        for layer in row.layers:
            cells.setdefault((layer.module, layer.phase), {}).setdefault(row.name, layer.largest)
    for (module, phase), values in list(cells.items())[:_MAX_LAYERS]:
        table.add_row(module, phase, *(_magnitude(values.get(p.name)) for p in found.passes))
    return table


def scales_table(found: GradientRange) -> Table:
    """Which loss scales are safe in which format.

    Args:
        found: The gradients' range.
    """
    table = Table(title="loss scales that are safe", box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("format", "lowest", "highest", "suggested", "underflow at 1", "at suggested"):
        table.add_column(name, justify="left" if name == "format" else "right")
    for window in found.windows:
        at = None if window.suggested is None else round(math.log2(window.suggested))
        table.add_row(
            window.format.upper(),
            _power(window.lowest),
            _power(window.highest),
            Text("none", style="red") if window.is_empty else _power(window.suggested),
            _share(window.underflow.get(0)),
            _share(window.underflow.get(at) if at is not None else None),
        )
    return table


def equality_table(found: Diagnosis) -> Table:
    """How far each format is from FP32.

    Args:
        found: The diagnosis.
    """
    assert found.equality is not None
    table = Table(title="against FP32", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("run")
    for name in ("output error", "loss error", "gradient cosine", "gradient error"):
        table.add_column(name, justify="right")
    for row in found.equality.passes:
        numbers = (row.output_error, row.loss_error, row.cosine, row.relative_error)
        table.add_row(_PASS_TITLES[row.name], *(f"{n:.4g}" for n in numbers))
    return table


def symptoms_table(symptoms: Sequence[Symptom]) -> Table:
    """One row per named check.

    Args:
        symptoms: Of the diagnosis.
    """
    table = Table(title="symptoms", box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("", "name", "evidence"):
        table.add_column(name)
    marks = {True: Text("found", style="red"), False: Text("clear"), None: Text("-")}
    for symptom in symptoms:
        text = f"{symptom.evidence}. {symptom.remedy}" if symptom.remedy else symptom.evidence
        table.add_row(marks[symptom.found], symptom.name, text)
    return table


def dtypes_table(rows: Sequence[DtypeRow]) -> Table:
    """The dtype of everything on its way through a step, one column per run.

    Args:
        rows: Of the diagnosis.
    """
    table = Table(title="dtypes", box=box.SIMPLE_HEAD, title_justify="left")
    names = list(dict.fromkeys(name for row in rows for name in row.dtypes))
    for name in ("stage", "what", "shape"):
        table.add_column(name)
    for name in names:
        table.add_column(_PASS_TITLES[name])
    stage = ""
    for row in rows:
        if row.stage != stage and stage:
            table.add_section()
        shape = "x".join(map(str, row.shape)) or "scalar"
        cells = [row.dtypes.get(name, "-") for name in names]
        table.add_row(row.stage if row.stage != stage else "", row.name, shape, *cells)
        stage = row.stage
    return table


def _cause(number: int, cause: Cause) -> Iterator[RenderableType]:
    style = "bold" if cause.severity == "error" else "dim"
    place = f" in {cause.place}" if cause.place else ""
    runs = ", ".join(_PASS_TITLES[name] for name in cause.passes)
    yield Text(f"\n{number}. {cause.kind.replace('_', ' ')}{place} [{runs}]", style=style)
    for text in (cause.explanation, cause.evidence, f"What to do: {cause.remedy}"):
        if text:
            yield Padding(Text(text), (0, 0, 0, 3))


def _trained(equality: Equality) -> Iterator[RenderableType]:
    for name, gap in equality.differences.items():
        verdict = "within" if equality.is_equal(name) else "beyond"
        steps = len(equality.curves[0].losses)
        yield Text(
            f"{name.upper()}, {steps} steps: mean loss difference {gap:.3g}, {verdict} the noise"
            f" between seeds ({equality.tolerance:.3g})"
        )


def _whose(found: Diagnosis) -> str:
    base, *exceptions = found.policy.split(", ")
    if base == "cuda" and found.device != "cuda":
        whose = f"CUDA's op lists, on a {found.device.upper()}"
    else:
        whose = f"torch's own op lists for {found.device}"
    return f"{whose}; {', '.join(exceptions)}" if exceptions else whose


def _magnitude(value: float | None) -> Text:
    if value is None:
        return Text("-")
    return Text(f"{value:.4g}", style="" if math.isfinite(value) else "red")


def _power(value: float | None) -> str:
    return "none" if value is None else f"2^{round(math.log2(value))}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
