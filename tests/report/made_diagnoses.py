"""Diagnoses as the doctor could give them, made without one."""

from __future__ import annotations

import math
from typing import Any

from halfstep.records import (
    Cause,
    Diagnosis,
    DtypeRow,
    Equality,
    GradientError,
    GradientRange,
    GradientRow,
    LayerRecord,
    LostUpdates,
    OpRecord,
    PassError,
    PassRecord,
    ScaleWindow,
    Symptom,
    TrainingCurve,
)

FORMATS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp16 scaled": "float16"}


def modules(count: int = 6, last: str = "head") -> list[str]:
    """Paths of modules in a network."""
    return [f"Net.blocks.{n}.fc" for n in range(count - 1)] + [f"Net.{last}"]


def made_op(module: str, **changes: Any) -> OpRecord:
    """A matrix product that overflowed in FP16."""
    fields: dict[str, Any] = {
        "index": 7,
        "op": "aten.mm",
        "phase": "forward",
        "module": module,
        "output": 0,
        "occurrence": 3,
        "source": "model.py:42",
        "gradient_of": "",
        "inputs": ("float16", "float16"),
        "dtype": "float16",
        "shape": (32, 64),
        "largest": math.inf,
        "finite_fraction": 0.96,
        "largest_finite": 65500.0,
    }
    return OpRecord(**{**fields, **changes})


def made_layers(paths: list[str], name: str, breaks_at: int | None) -> tuple[LayerRecord, ...]:
    """Activations grow fourfold per layer, gradients shrink; NaN after the layer that breaks."""
    found = []
    for phase in ("forward", "backward"):
        for number, module in enumerate(paths):
            largest = (
                4.0 ** min(number + 1, 60) if phase == "forward" else 1e-3 / 4.0 ** min(number, 60)
            )
            is_bad = breaks_at is not None and (number >= breaks_at or phase == "backward")
            found.append(
                LayerRecord(
                    module=module,
                    kind="Linear",
                    phase=phase,
                    dtype=FORMATS[name],
                    shape=(32, 64),
                    largest=(math.inf if number == breaks_at else math.nan) if is_bad else largest,
                    finite_fraction=0.96 if is_bad else 1.0,
                )
            )
    return tuple(found)


def made_pass(name: str, paths: list[str], breaks_at: int | None = None) -> PassRecord:
    """One of the four runs."""
    is_bad = breaks_at is not None
    return PassRecord(
        name=name,
        format=name.split()[0],
        loss_scale=65536.0 if name.endswith("scaled") else 1.0,
        loss=math.nan if is_bad else 2.302,
        grad_norm=math.nan if is_bad else 0.71,
        zero_gradient_fraction=0.31 if name == "fp16" else 0.02,
        num_ops=214,
        first_bad=made_op(paths[breaks_at]) if breaks_at is not None else None,
        layers=made_layers(paths, name, breaks_at),
    )


def made_range(paths: list[str]) -> GradientRange:
    """Gradients around 2^-20, smaller in deeper layers."""
    rows = []
    for number, path in enumerate(paths):
        for kind, name in (
            ("parameter", path.removeprefix("Net.") + ".weight"),
            ("activation", path),
        ):
            top = -12 - min(number, 100) - (4 if kind == "activation" else 0)
            histogram = {top - n: 1000 >> abs(n - 6) for n in range(13)}
            rows.append(
                GradientRow(
                    name=name,
                    kind=kind,
                    is_none=False,
                    owner=path,
                    zero_fraction=0.1 * number / len(paths),
                    smallest=2.0 ** (top - 12),
                    largest=2.0**top * 1.5,
                    histogram=histogram,
                )
            )
    rows.append(
        GradientRow("unused.weight", "parameter", True, "", math.nan, math.nan, math.nan, {})
    )
    windows = []
    for name, lowest, highest in (
        ("fp16", 2.0**9, 2.0**28),
        ("bf16", 2.0**-24, 2.0**100),
        ("e4m3", None, 2.0**20),
        ("e5m2", 2.0**13, 2.0**28),
    ):
        windows.append(
            ScaleWindow(
                format=name,
                lowest=lowest,
                highest=highest,
                suggested=1.0 if name == "bf16" else 65536.0,
                tolerance=0.01,
                underflow={e: 0.0 if name == "bf16" else 0.5 ** max(0, e + 4) for e in range(25)},
                worst=paths[-1],
                worst_fraction=0.0004,
            )
        )
    return GradientRange(rows=tuple(rows), windows=tuple(windows))


def made_equality(paths: list[str], steps: int = 50) -> Equality:
    """BF16 coarser than FP16; one run of each format."""
    errors = {"bf16": 3e-3, "fp16": 4e-4, "fp16 scaled": 4e-4}
    passes = []
    for name, error in errors.items():
        gradients = [
            GradientError(f"{path}.weight", 1 - error**2, error * (n + 1), 1 / len(paths))
            for n, path in enumerate(paths)
        ]
        passes.append(PassError(name, error, error / 3, 1 - error**2, error, tuple(gradients)))
    starts = {"fp32": 0.0, "fp32, other seed": 0.05, "bf16": 0.02, "fp16": 0.2}
    curves = [
        TrainingCurve(
            name=name,
            losses=tuple(2.3 * math.exp(-n / 30) + start for n in range(steps)),
            num_skipped=2 if name == "fp16" else 0,
            status="finished",
        )
        for name, start in starts.items()
    ]
    differences = {name: start for name, start in starts.items() if name != "fp32"}
    return Equality(tuple(passes), tuple(curves) if steps else (), 0.05, differences)


def made_cause(module: str, **changes: Any) -> Cause:
    """An overflow in a forward op."""
    fields: dict[str, Any] = {
        "kind": "overflow",
        "mechanism": "overflow",
        "passes": ("fp16", "fp16 scaled"),
        "is_precision": True,
        "severity": "error",
        "module": module,
        "op": made_op(module),
        "subject": "",
        "fp32_largest": 262144.0,
        "missing_bits": 2.0,
        "evidence": "In FP32 the result reaches 262144, FP16 ends at 65504: 2.0 bits are missing.",
        "explanation": "The product is finite in FP32 and too large for FP16.",
        "remedy": f"Keep {module} in FP32 with hs.fp32, or train in BF16.",
    }
    return Cause(**{**fields, **changes})


def made_diagnosis(count: int = 6, last: str = "head", **changes: Any) -> Diagnosis:
    """A network whose last layer overflows in FP16.

    Args:
        count: Number of modules.
        last: Name of the last one.
        changes: Fields of the diagnosis.
    """
    paths = modules(count, last)
    bad = len(paths) - 1
    fields: dict[str, Any] = {
        "recipe": "net",
        "device": "cpu",
        "torch": "2.13.0",
        "policy": "cuda",
        "health": "precision",
        "headline": f"FP16 overflows in {paths[bad]}: 2.0 bits are missing.",
        "causes": (
            made_cause(paths[bad]),
            made_cause("", kind="scale_searching", severity="note", op=None, subject="loss scale"),
        ),
        "passes": tuple(
            made_pass(name, paths, bad if name.startswith("fp16") else None) for name in FORMATS
        ),
        "gradient_range": made_range(paths),
        "lost_updates": tuple(
            LostUpdates(f"{path}.weight", "float32", 0.9, 0.01 * n, 0.1 - 0.01 * n, 1 / count)
            for n, path in enumerate(paths)
        ),
        "equality": made_equality(paths),
        "symptoms": (
            Symptom("clipped", "clipped gradients near 0", False, "norm 0.71", ""),
            Symptom("activations", "activations beyond FP16", True, "262144 in head", "Use BF16."),
            Symptom("slow", "no speed-up from AMP", None, "no GPU here", ""),
        ),
        "dtypes": (
            DtypeRow("input", "0", {"fp32": "float32", "fp16": "float32"}, (32, 64)),
            DtypeRow("layer", paths[0], {"fp32": "float32", "fp16": "float16"}, (32, 64)),
            DtypeRow("loss", "", {"fp32": "float32", "fp16": "float32"}, ()),
        ),
    }
    return Diagnosis(**{**fields, **changes})


def healthy(**changes: Any) -> Diagnosis:
    """A network that is fine in every format."""
    paths = modules()
    fields = {
        "health": "healthy",
        "headline": "Healthy: loss and gradients are finite in every format.",
        "causes": (),
        "passes": tuple(made_pass(name, paths) for name in FORMATS),
        "symptoms": (),
    }
    return made_diagnosis(**{**fields, **changes})
