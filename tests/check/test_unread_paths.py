"""Programs with more paths than are followed: what was not seen is no mistake."""

from __future__ import annotations

import pytest

from halfstep.check.linter import check_text
from halfstep.rules import registry

RULES = registry.select(["HS126"])
NUM_SETTINGS = 12  # as many decisions as are turned before the question about the gradients
FILLER = "        total = total + 1\n" * 2500  # the paths of a program are followed up to a length

HEAD = """\
import torch
from torch import nn


def train(model, loader, optimizer, cfg):
    scaler = torch.amp.GradScaler("cuda")
    total = 0
    for x, y in loader:
"""
STEP = """\
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""
END = """\
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
SETTINGS = "".join(
    f'        if cfg["{number}"]:\n            optimizer.zero_grad()\n'
    for number in range(NUM_SETTINGS)
)
SKIP = '        if norm.isnan() or norm > cfg["limit"]:\n            optimizer.zero_grad()\n'


def lines(text: str) -> list[int]:
    return [f.line for f in check_text("train.py", text, RULES)]


@pytest.mark.parametrize("filler", ["", FILLER], ids=["short", "long"])
def test_clear_under_a_question_about_gradients_is_a_skip_though_one_answer_is_not_read(
    filler: str,
) -> None:
    assert lines(HEAD + SETTINGS + filler + STEP + SKIP + END) == []


@pytest.mark.parametrize("filler", ["", FILLER], ids=["short", "long"])
def test_clear_under_no_question_is_an_error_in_a_program_of_any_length(filler: str) -> None:
    text = HEAD + SETTINGS + filler + STEP + "        optimizer.zero_grad()\n"
    assert lines(text + END) == [text.count("\n")]
