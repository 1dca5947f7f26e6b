"""`resume-check`: a whole checkpoint is bit-equal, and each missing part shows where it bites."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs
from halfstep.tools.resume import PARTS, verify_resume


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(160, 8, generator=generator), torch.randn(160, 1, generator=generator)
    return list(zip(x.split(32), (30 * y).split(32), strict=True))


def recipe() -> hs.Recipe:
    """Targets so large that FP16 has to search for its scale, and everything else to forget."""
    return hs.Recipe(
        name="search",
        model=lambda: nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 1)
        ),
        loss_fn=lambda model, batch: F.mse_loss(model(batch[0]).float(), batch[1]),
        batches=batches,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.05),
        schedule=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        ema=0.9,
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_whole_checkpoint_resumes_bit_for_bit(precision: str) -> None:
    check = verify_resume(recipe(), at=6, steps=6, precision=precision)
    assert check.comparison.is_equal, str(check.comparison)
    assert check.comparison.num_compared == 6
    assert [step.step for step in check.resumed] == list(range(7, 13))
    if precision == "fp16":
        assert check.straight[0].loss_scale < 2.0**16  # the search was over before the fork


# oracle: what each part holds. Without the scale the search starts again, and so on
@pytest.mark.parametrize(
    ("part", "field"),
    [
        ("scaler", "loss_scale"),
        ("schedule", "lr"),
        ("optimizer", "checksum"),
        ("rng", "grad_norm"),
        ("data", "data"),
        ("average", "checksum"),
        ("buffers", "checksum"),
    ],
)
def test_missing_part_is_the_first_difference(part: str, field: str) -> None:
    check = verify_resume(recipe(), at=6, steps=6, precision="fp16", without=[part])
    assert check.comparison.step == 7
    assert next(iter(check.comparison.differences)) == field
    assert not check.comparison.is_equal


def calm() -> hs.Recipe:
    """No step skips in FP16, and 16-bit rounding hides little: what is forgotten shows late."""
    return hs.Recipe(
        name="calm",
        model=lambda: nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.0), nn.Linear(4, 1)),
        loss_fn=lambda model, batch: F.mse_loss(model(batch[0]).float(), batch[1] / 1000),
        batches=batches,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1e-3),
    )


def test_forgotten_growth_counter_is_found_though_no_step_differs() -> None:
    check = verify_resume(calm(), at=6, steps=5, precision="fp16", without=["scaler"])
    assert check.comparison.is_equal
    assert not check.is_equal
    entry = "engine.loss_scales[0]._growth_tracker"
    assert str(check.state) == f"{entry} is 11 straight and 5 resumed"
    assert check.to_dict()["state"] == {"entry": entry, "straight": "11", "resumed": "5"}
    assert check.to_dict()["is_equal"] is False


@pytest.mark.parametrize("part", PARTS)
def test_every_missing_part_is_found_in_the_state_too(part: str) -> None:
    check = verify_resume(recipe(), at=6, steps=6, precision="fp16", without=[part])
    assert check.state is not None


def test_equal_runs_have_no_difference_in_their_state() -> None:
    check = verify_resume(recipe(), at=6, steps=6, precision="fp16")
    assert check.state is None
    assert check.is_equal


def test_parts_are_those_that_the_tests_know() -> None:
    assert PARTS == ("scaler", "schedule", "optimizer", "rng", "data", "average", "buffers")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"at": 0}, "at must be a whole number of at least 1"),
        ({"steps": 0}, "steps must be a whole number of at least 1"),
        ({"without": ["everything"]}, "without must be of scaler, schedule, optimizer, rng"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        verify_resume(recipe(), precision="fp32", **settings)
