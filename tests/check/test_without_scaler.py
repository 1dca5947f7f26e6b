"""HS202: FP16 that is only on where nothing is trained, and scaling by hand."""

from __future__ import annotations

import pytest
from pattern_head import HEAD

from halfstep.check.linter import check_text
from halfstep.rules import registry

RULES = registry.select(["HS202"])
FUNCTION = """
def run(x, y, train, phase):
    with torch.set_grad_enabled(train), torch.autocast("cuda", enabled=FLAG):
        loss = criterion(model(x), y)
BACKWARD
    return loss
"""
TRAINED = """\
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
LEFT = TRAINED.replace("        ", "    ")
# The flag of autocast, and what stands behind it.
OFF = {
    "not train": ("not train", "    if train:\n" + TRAINED),
    "train is False": ("train is False", "    if train is True:\n" + TRAINED),
    "a phase": ('phase == "eval"', '    if phase == "train":\n' + TRAINED),
    "no phase": ('phase != "train"', '    if phase == "train" and y is not None:\n' + TRAINED),
    "left before": ("not train", "    if not train:\n        return loss\n" + LEFT),
    "other branch": ("not train", "    if not train:\n        log(loss)\n    else:\n" + TRAINED),
    "attribute": ("not model.training", "    if model.training:\n" + TRAINED),
}
ON = {
    "train": ("train", "    if train:\n" + TRAINED),
    "another setting": ("not train", "    if phase:\n" + TRAINED),
    "the same branch": ('phase == "train"', '    if phase == "train":\n' + TRAINED),
    "no branch": ("not train", LEFT),
    "one of two": ("not train", "    if train or phase:\n" + TRAINED),
}


def function(flag: str, rest: str) -> str:
    return HEAD + FUNCTION.replace("FLAG", flag).replace("BACKWARD\n", rest)


LOOP = """
BEFORE
for x, y in loader:
    with torch.autocast("cuda"):
        loss = criterion(model(x), y)
    LOSS.backward()
    for p in model.parameters():
        EDIT
    optimizer.step()
    optimizer.zero_grad()
"""
BY_HAND = {
    "a name": ("S = 1024.0", "(loss * S)", "p.grad.div_(S)"),
    "a number": ("pass", "(1024 * loss)", "p.grad /= 1024.0"),
    "a factor": ("S = 2.0**12", "(loss * S)", "p.grad.mul_(1.0 / S)"),
    "a method": ("S, grads = 512, []", "loss.mul(S)", "torch._foreach_div_(grads, S)"),
    "an attribute": ("from conf import c", "(loss * c.scale)", "p.grad = p.grad / c.scale"),
}
NOT_BY_HAND = {
    "a weight": ("w = 0.5", "(loss * w)", "p.grad.div_(2.0)"),
    "a mean over micro-batches": ("n = 4", "(loss / n)", "p.grad.clamp_(-1, 1)"),
    "no factor": ("S = 1024.0", "loss", "p.grad.div_(S)"),
}


def loop(before: str, loss: str, edit: str) -> str:
    return HEAD + LOOP.replace("BEFORE", before).replace("LOSS", loss).replace("EDIT", edit)


SILENT = {k: function(*v) for k, v in OFF.items()} | {k: loop(*v) for k, v in BY_HAND.items()}
FOUND = {k: function(*v) for k, v in ON.items()} | {k: loop(*v) for k, v in NOT_BY_HAND.items()}


@pytest.mark.parametrize("name", SILENT)
def test_training_without_fp16_or_scaled_by_hand_gives_no_finding(name: str) -> None:
    assert check_text("train.py", SILENT[name], RULES) == []


@pytest.mark.parametrize("name", FOUND)
def test_unscaled_fp16_beside_other_conditions_and_factors_is_found(name: str) -> None:
    assert [f.code for f in check_text("train.py", FOUND[name], RULES)] == ["HS202"]
