"""No NaN is not yet equal: errors against FP32, and short runs against the noise of seeds."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from plantable_models import FAMILIES, healthy
from torch import Tensor, nn

import halfstep as hs
from halfstep.records import Equality, TrainingCurve
from halfstep.tools.doctor.runs.training import training_causes

MLP = healthy(FAMILIES[0])


def test_errors_of_a_pass_are_those_of_two_plain_backward_passes() -> None:
    # oracle: torch's own autocast beside FP32, by hand
    found = hs.diagnose(MLP, policy="device")
    assert found.equality is not None
    bf16 = next(p for p in found.equality.passes if p.name == "bf16")

    def gradients(enabled: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = MLP.model()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = MLP.loss_fn(model, next(iter(MLP.batches())))
        loss.backward()  # type: ignore[union-attr]
        return [p.grad.double().flatten() for p in model.parameters() if p.grad is not None]

    low, reference = torch.cat(gradients(True)), torch.cat(gradients(False))
    assert bf16.relative_error == pytest.approx(float((low - reference).norm() / reference.norm()))
    assert bf16.cosine == pytest.approx(float(torch.cosine_similarity(low, reference, dim=0)))
    assert math.fsum(row.share for row in bf16.gradients) == pytest.approx(1)


def test_runs_are_compared_with_a_tolerance_from_two_seeds() -> None:
    found = hs.diagnose(MLP, steps=20)
    equality = found.equality
    assert equality is not None
    names = [curve.name for curve in equality.curves]
    assert names == ["fp32", "fp32, other seed", "bf16", "fp16"]
    assert all(len(curve.losses) == 20 for curve in equality.curves)
    a, b = equality.curves[0].losses[10:], equality.curves[1].losses[10:]
    expected = sum(abs(x - y) for x, y in zip(a, b, strict=True)) / 10
    assert equality.tolerance == pytest.approx(expected)
    assert equality.is_equal("bf16")
    assert equality.is_equal("fp16")
    assert found.is_healthy
    # oracle: the same run by fit
    run = hs.fit(MLP, precision="fp32", steps=20)
    assert equality.curves[0].losses == tuple(step.loss for step in run.steps)


def test_format_that_trains_differently_is_a_cause() -> None:
    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        logits = model(batch[0])
        drift = 3.0 if logits.dtype is torch.bfloat16 else 0.0
        return torch.nn.functional.cross_entropy(logits.float(), batch[1]) + drift

    found = hs.diagnose(dataclasses.replace(MLP, loss_fn=loss_fn), steps=6)
    assert "training_differs" in [c.kind for c in found.causes if c.passes == ("bf16",)]


def test_run_that_ended_early_is_not_equal() -> None:
    fine = TrainingCurve("fp32", (1.0, 1.0), 0, "finished")
    equality = Equality((), (fine,), 0.1, {"fp16": math.inf, "bf16": 0.05})
    assert [cause.passes for cause in training_causes(equality)] == [("fp16",)]
