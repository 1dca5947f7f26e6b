"""HS109: a schedule under a test of the gradients, which tell whether the step was skipped."""

from __future__ import annotations

import pytest
from pattern_head import SCALER

from halfstep.check.linter import check_text
from halfstep.rules import registry

RULES = registry.select(["HS1"])
LOOP = """
import math
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
for x, y in loader:
    with torch.autocast("cuda"):
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    BEFORE
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if TEST:
        schedule.step()
"""
NORM = "norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
GUARDS = {
    "norm": (NORM, "torch.isfinite(norm)"),
    "method of the norm": (NORM, "norm.isfinite().item()"),
    "norm as a number": (NORM, "math.isfinite(float(norm))"),
    "not finite": (NORM, "not (torch.isnan(norm) or torch.isinf(norm))"),
    "kept answer": (NORM + "\n    fine = bool(torch.isfinite(norm))", "fine"),
    "what the scaler found": (
        "found = sum(v.item() for v in scaler._found_inf_per_device(optimizer).values())",
        "not found",
    ),
    "compared": (
        "found = max(v.item() for v in scaler._found_inf_per_device(optimizer).values())",
        "found == 0",
    ),
    "its state": (
        "before = scaler.state_dict()['scale']",
        "scaler.state_dict()['scale'] >= before",
    ),
}
NO_GUARDS = {
    "size of the norm": (NORM, "norm > 1"),
    "finite loss": (NORM, "torch.isfinite(loss)"),
    "another step": (NORM, "schedule.last_epoch < 100"),
}


def program(before: str, test: str) -> str:
    return SCALER + LOOP.replace("BEFORE", before).replace("TEST", test)


@pytest.mark.parametrize("name", GUARDS)
def test_schedule_under_a_test_of_the_gradients_gives_no_note(name: str) -> None:
    assert check_text("train.py", program(*GUARDS[name]), RULES) == []


@pytest.mark.parametrize("name", NO_GUARDS)
def test_schedule_under_another_test_gives_a_note(name: str) -> None:
    assert [f.code for f in check_text("train.py", program(*NO_GUARDS[name]), RULES)] == ["HS109"]
