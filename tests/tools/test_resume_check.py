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
        ("data", "batch"),
        ("average", "checksum"),
        ("buffers", "checksum"),
    ],
)
def test_missing_part_is_the_first_difference(part: str, field: str) -> None:
    check = verify_resume(recipe(), at=6, steps=6, precision="fp16", without=[part])
    assert check.comparison.step == 7
    assert next(iter(check.comparison.differences)) == field
    assert not check.comparison.is_equal


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
