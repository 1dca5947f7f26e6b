"""Run records as a training could leave them, made without one."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping
from typing import Any

from halfstep.records import RunRecord, StepRecord, WindowDiagnosis

HOSTILE = "</script><script>alert(1)</script>"
FOREIGN = "größe.слой.层"


def diagnosis(module: str = "blocks.0.mlp", **changes: Any) -> WindowDiagnosis:
    """An overflow in a forward op."""
    fields: dict[str, Any] = {
        "verdict": "scale_searching",
        "op": "aten.mm",
        "module": module,
        "phase": "backward",
        "dtype": "float16",
        "shape": (64, 64),
        "largest_input": 4096.0,
        "finite_fraction": 0.98,
        "scale": 65536.0,
        "finite_at_scale": 16384.0,
        "buffers_restored": True,
    }
    return WindowDiagnosis(**{**fields, **changes})


def made_step(number: int, **changes: Any) -> StepRecord:
    """A committed update with a loss that falls, plus noise."""
    noise = random.Random(number).uniform(-0.1, 0.1)
    fields: dict[str, Any] = {
        "step": number,
        "updated": True,
        "reason": None,
        "loss": 1.0 + 4.0 * math.exp(-number / 80) + noise,
        "divisor": 1024.0,
        "metrics": {},
        "grad_norm": 0.5 + abs(noise) * 8,
        "clip_coef": min(1.0, 1.0 / (0.5 + abs(noise) * 8)),
        "loss_scale": 65536.0,
        "next_loss_scale": 65536.0,
        "lr": [3e-4],
        "consumed": 1024.0 * number,
        "batch": number - 1,
    }
    return StepRecord(**{**fields, **changes})


def made_skip(number: int, scale: float = 65536.0, **changes: Any) -> StepRecord:
    """A skipped step that halves the scale."""
    fields = {
        "updated": False,
        "reason": "non_finite",
        "grad_norm": math.inf,
        "clip_coef": 1.0,
        "loss_scale": scale,
        "next_loss_scale": scale / 2,
    }
    return made_step(number, **{**fields, **changes})


def made_run(
    count: int = 0,
    skips: Collection[int] | Mapping[int, WindowDiagnosis] = (),
    **changes: Any,
) -> RunRecord:
    """A finished run whose scale halves at each skip and doubles 100 steps after the last.

    Args:
        count: Attempts.
        skips: Which of them moved nothing, with a diagnosis or without.
        changes: Fields of the record; ``each`` is a mapping of fields of every step.
    """
    each = changes.pop("each", {})
    scale, quiet, made = 65536.0, 0, []
    for number in range(1, count + 1):
        if number in skips:
            found = skips[number] if isinstance(skips, Mapping) else None
            made.append(made_skip(number, scale, diagnosis=found))
            scale, quiet = scale / 2, 0
            continue
        quiet += 1
        grown = min(scale * 2, 2.0**24) if quiet % 100 == 0 else scale
        made.append(made_step(number, **{"loss_scale": scale, "next_loss_scale": grown, **each}))
        scale = grown
    fields: dict[str, Any] = {
        "recipe": "lm",
        "format": "fp16",
        "reason": "asked for",
        "device": "cpu",
        "torch": "2.13.0",
        "started": "2026-11-30T00:00:00+00:00",
        "unit": "tokens",
        "settings": {"steps": count, "accumulate": 1, "max_norm": 1.0, "seed": 0},
        "steps": made,
        "validation": {"val_loss": 1.5},
        "initial_validation": {"val_loss": 5.0},
        "duration_s": 12.5,
        "status": "finished",
    }
    return RunRecord(**{**fields, **changes})
