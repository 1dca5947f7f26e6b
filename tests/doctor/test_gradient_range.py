"""The window of safe scales, against float64 and against runs at those scales."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plantable_models import FAMILIES, healthy
from torch import Tensor, nn

import halfstep as hs
from halfstep.numerics import BF16, E4M3, E5M2, FP16, ExponentCounts, Format
from halfstep.records import GradientRow
from halfstep.tools.doctor.runs.gradient_range import lost_norm, scale_window


def row(values: Tensor, name: str = "layer") -> GradientRow:
    found = ExponentCounts.of(values).read()
    largest = float(values.abs().max())
    zeros = found.num_zero / values.numel()
    return GradientRow(name, "activation", False, name, zeros, 0.0, largest, found.histogram)


@pytest.mark.parametrize(
    ("format", "largest"), [(FP16, 65504.0), (E4M3, 448.0), (E5M2, 57344.0)], ids=str
)
def test_highest_scale_is_the_last_that_does_not_overflow(format: Format, largest: float) -> None:
    values = torch.tensor([0.013, -0.7])
    window = scale_window([row(values)], format)
    assert window.highest is not None
    assert 0.7 * window.highest <= largest < 0.7 * window.highest * 2
    assert format.round(values.double() * window.highest).isfinite().all()
    assert not format.round(values.double() * window.highest * 2).isfinite().all()


@given(st.integers(-50, 0), st.floats(1.01, 1.99))
@settings(max_examples=40)
def test_lowest_scale_keeps_equal_values_and_half_of_it_does_not(e: int, m: float) -> None:
    values = torch.full((8,), m * 2.0**e, dtype=torch.float32)
    window = scale_window([row(values)], FP16)
    assert window.lowest is not None
    # the values survive at the lowest scale and all become 0 at half of it
    assert bool((FP16.round(values.double() * window.lowest) != 0).all())
    assert bool((FP16.round(values.double() * window.lowest / 2) == 0).all())


def test_lost_norm_is_that_of_rounding_to_the_format() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.exp2(torch.rand(4000, generator=generator) * 30 - 34)
    for scale in (0, 4, 8):
        scaled = values.double() * 2.0**scale
        lost = scaled[FP16.round(scaled) == 0].norm() / scaled.norm()
        # the histogram knows each value to a factor of 2
        found = lost_norm(row(values), FP16, scale)
        assert found == pytest.approx(float(lost), rel=0.5, abs=1e-12)


def test_layers_too_far_apart_leave_no_safe_scale() -> None:
    rows = [row(torch.full((4,), 1e3), "large"), row(torch.full((4,), 1e-10), "small")]
    window = scale_window(rows, FP16)
    assert window.is_empty
    assert window.suggested is None
    assert window.worst == "small"
    assert not scale_window(rows, BF16).is_empty
    assert scale_window(rows, BF16).suggested == 1


def test_true_zeros_and_missing_gradients_are_not_underflow() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(4, 4)
            self.unused = nn.Linear(4, 4)
            self.dead = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x) + torch.relu(self.dead(x) - 100)

    recipe = hs.Recipe(
        name="zeros",
        model=Net,
        loss_fn=lambda m, x: m(x).float().square().mean(),
        batches=lambda: [torch.ones(3, 4)],
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    )
    found = hs.diagnose(recipe)
    assert found.gradient_range is not None
    rows = {r.name: r for r in found.gradient_range.rows if r.kind == "parameter"}
    assert rows["unused.weight"].is_none
    assert not rows["dead.weight"].is_none
    assert rows["dead.weight"].zero_fraction == 1.0
    assert rows["used.weight"].zero_fraction == 0.0
    assert math.isnan(rows["dead.weight"].smallest)
    assert found.is_healthy
    (symptom,) = [s for s in found.symptoms if s.name == "frozen-parameters"]
    assert symptom.found
    assert "no gradient at all: unused.weight, unused.bias" in symptom.evidence
    assert "gradient 0 in FP32 too: dead.weight, dead.bias" in symptom.evidence


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_engine_commits_at_the_highest_scale_and_skips_beyond(family: object) -> None:
    # oracle: the engine itself, at a static scale
    recipe = healthy(family)  # type: ignore[arg-type]
    found = hs.diagnose(recipe)
    assert found.gradient_range is not None
    highest = found.gradient_range.window("fp16").highest
    assert highest is not None
    outcomes = []
    for scale in (highest / 4, highest * 4):
        torch.manual_seed(0)
        model = recipe.model()
        engine = hs.Engine(model, recipe.optimizer(model), precision="fp16", loss_scale=scale)
        outcomes.append(engine.train_step(list(recipe.batches()), recipe.loss_fn).updated)
    assert outcomes == [True, False]
