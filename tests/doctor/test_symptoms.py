"""The seven symptoms, each found where it is and clear where it is not."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch
from plantable_models import FAMILIES, healthy
from planted_faults import planted
from torch import nn

import halfstep as hs
from halfstep.records import Symptom
from halfstep.tools.doctor.checks.symptoms import CHECKS, is_custom

NAMES = {
    "clipped-gradients", "schedule-ahead", "activations-overflow", "frozen-parameters",
    "custom-op", "no-speed-up", "resume",
}  # fmt: skip


def checked(recipe: hs.Recipe, name: str, **settings: Any) -> Symptom:
    found = hs.diagnose(recipe, symptoms=[name], **settings)
    return next(s for s in found.symptoms if s.name == name)


def fault(name: str) -> hs.Recipe:
    return next(f.recipe for f in planted(share=1) if f.name.startswith(f"{name}-mlp"))


MLP = healthy(FAMILIES[0])


def test_there_are_seven_and_those_with_runs_of_their_own_wait_to_be_asked() -> None:
    assert set(CHECKS) == NAMES
    found = {s.name: s.found for s in hs.diagnose(MLP).symptoms}
    assert set(found) == NAMES
    unasked = {"schedule-ahead", "no-speed-up", "resume", "clipped-gradients"}
    assert {name for name, verdict in found.items() if verdict is None} == unasked


@pytest.mark.parametrize(("max_norm", "is_found"), [(1.0, False), (1e-6, True)])
def test_clipped_gradients(max_norm: float, is_found: bool) -> None:
    symptom = checked(MLP, "clipped-gradients", max_norm=max_norm)
    assert symptom.found is is_found
    assert "clipping before unscaling would multiply by" in symptom.evidence


class _MovesAlways(torch.optim.lr_scheduler.LRScheduler):
    """Tied to the optimizer's step by nobody: moves in every forward."""

    def get_lr(self) -> list[float]:
        return [0.1 / (1 + self.last_epoch)]


def test_schedule_that_waits_is_clear_and_one_that_does_not_is_found() -> None:
    def build(moves: bool) -> hs.Recipe:
        schedulers: list[_MovesAlways] = []

        def loss_fn(model: nn.Module, batch: Any) -> torch.Tensor:
            if moves and schedulers:
                schedulers[-1].optimizer.param_groups[0]["lr"] *= 0.9
            return MLP.loss_fn(model, batch) * 3e4  # type: ignore[operator]

        def schedule(optimizer: torch.optim.Optimizer) -> _MovesAlways:
            schedulers.append(_MovesAlways(optimizer))
            return schedulers[-1]

        return dataclasses.replace(MLP, loss_fn=loss_fn, schedule=schedule)

    waits = checked(build(moves=False), "schedule-ahead")
    assert waits.found is False
    assert "of 12 steps were skipped; the rate waited for each" in waits.evidence
    assert not waits.evidence.startswith("0 ")
    ahead = checked(build(moves=True), "schedule-ahead")
    assert ahead.found
    assert "the rate moved after steps [1" in ahead.evidence


def test_activations_overflow() -> None:
    large = checked(fault("squares_too_large"), "activations-overflow")
    assert large.found
    assert "beyond 65504: aten.mul in Net.blocks.0.extra" in large.evidence
    fine = checked(MLP, "activations-overflow")
    assert fine.found is False
    assert "bits below 65504" in fine.evidence


def test_frozen_parameters_by_underflow_and_by_endless_skips() -> None:
    assert checked(MLP, "frozen-parameters").found is False
    gone = checked(fault("gradient_vanishes"), "frozen-parameters")
    assert gone.found
    assert "gradient underflows to 0 in FP16: blocks.0.fc.weight" in gone.evidence
    endless = checked(fault("squares_too_large"), "frozen-parameters")
    assert "FP16 skips every update" in endless.evidence


def test_custom_op() -> None:
    assert checked(MLP, "custom-op").evidence == "all ops are torch's own"
    guilty = checked(fault("gradient_divides_by_zero"), "custom-op")
    assert guilty.found
    assert "(_DividesByZeroBackward) in Net.blocks" in guilty.evidence
    innocent = checked(fault("gradient_vanishes"), "custom-op")
    assert "_ScaleGradientBackward" in innocent.evidence


@pytest.mark.parametrize(
    ("op", "node", "custom"),
    [
        ("aten.mul", "", False),
        ("aten.mul", "MulBackward0", False),
        ("aten.mul", "MyFunctionBackward", True),
        ("mylib.fused", "", True),
        ("aten.add", "AccumulateGrad", False),
    ],
)
def test_custom_op_is_told_by_namespace_and_node(op: str, node: str, custom: bool) -> None:
    assert is_custom(op, node) is custom


def test_no_speed_up_says_times_and_hardware() -> None:
    symptom = checked(MLP, "no-speed-up")
    assert symptom.found is not None
    assert symptom.evidence.startswith("forward and backward: fp32 ")
    assert "fp16 " in symptom.evidence


def test_resume_that_differs_is_found() -> None:
    assert checked(MLP, "resume").found is False
    state = {"calls": 0}

    def loss_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        state["calls"] += 1  # what no checkpoint holds
        return MLP.loss_fn(model, batch) * (1 + state["calls"])  # type: ignore[operator]

    symptom = checked(dataclasses.replace(MLP, loss_fn=loss_fn), "resume")
    assert symptom.found
    assert "differs first" in symptom.evidence


def test_profile_holds_a_step_of_every_format(tmp_path: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    path = tmp_path / "traces" / "step.json"
    hs.diagnose(
        hs.Recipe(
            name="profiled",
            model=lambda: model,
            loss_fn=lambda m, x: m(x).float().square().mean(),
            batches=lambda: [torch.ones(4, 8)],
            optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
        ),
        profile=path,
    )
    names = [event.get("name") for event in json.loads(path.read_text())["traceEvents"]]
    assert {"halfstep fp32", "halfstep bf16", "halfstep fp16"} <= set(names)
    assert "aten::_to_copy" in names
