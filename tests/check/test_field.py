"""What public training code taught: shapes that look like a mistake and are none, in own words."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfstep.check.linter import check_paths
from halfstep.rules import registry

SETUP = registry.load("HS101").bad.split("for x, y in batches:\n")[0]
LOOP = """\
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
SAVE = """\
def save(path, model, optimizer, **others):
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    for name, other in others.items():
        content[name] = other.state_dict()
    torch.save(content, path)


"""
VALIDATE = """\
def validate(model, batches, half={default}):
    device = next(model.parameters()).device
    half &= device.type != "cpu"
    model.half() if half else model.float()
    return [model(x.half() if half else x) for x, _ in batches]
"""


def codes(folder: Path, **files: str) -> list[str]:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return [finding.code for finding in check_paths([str(folder)], registry.select()).findings]


def test_scaler_saved_under_a_name_of_its_own_is_saved(tmp_path: Path) -> None:
    end = 'save("a.pt", model, optimizer, scaler=scaler)\n'
    assert codes(tmp_path, train=SETUP + SAVE + LOOP + end) == []


def test_scaler_not_saved_by_such_a_helper_is_a_finding(tmp_path: Path) -> None:
    helper = SAVE.replace("    for name, other in others.items():\n", "").replace(
        "        content[name] = other.state_dict()\n", ""
    )
    end = 'save("a.pt", model, optimizer)\n'
    assert codes(tmp_path, train=SETUP + helper + LOOP + end) == ["HS117"]


@pytest.mark.parametrize(
    ("default", "argument", "expected"),
    [("False", "", []), ("True", "", ["HS124"]), ("True", ", half=False", [])],
    ids=["never", "by default", "switched off"],
)
def test_evaluation_that_is_never_in_half_precision_is_silent(
    tmp_path: Path, default: str, argument: str, expected: list[str]
) -> None:
    val = VALIDATE.format(default=default) + "\n\nscaler = None  # not here\n"
    train = (
        SETUP + "from val import validate\n\n" + LOOP + f"    validate(model, batches{argument})\n"
    )
    assert codes(tmp_path, train=train, val=val) == expected


def test_batch_that_is_cast_is_no_model(tmp_path: Path) -> None:
    text = """\
import torch


def train(model, optimizer, loaders, dtype=torch.float16):
    for first, second in zip(*loaders):
        x = first[0].to("cuda", dtype=torch.float16, non_blocking=True)
        ids = first[1][0].to("cuda", dtype=dtype)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x=x, ids=ids, labels=ids.clone())[0]
        (loss * 0.5).backward()
        y = second[0].to("cuda", dtype=torch.float16)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x=y, ids=ids, labels=ids.clone())[0]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
"""
    assert codes(tmp_path, train=text) == []


def test_two_models_of_the_same_settings_share_nothing(tmp_path: Path) -> None:
    text = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.layer = nn.Linear(settings.width, 1)

    def forward(self, x):
        return self.layer(x)


def train(settings, fp16, batches):
    model = Net(settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", enabled=fp16)
    for x in batches:
        with torch.autocast("cuda", dtype=torch.float16, enabled=fp16):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


settings = make_settings()
for fp16 in (False, True):
    train(settings, fp16, [torch.randn(2, 4)])
"""
    assert codes(tmp_path, train=text) == []


def test_condition_asked_twice_of_the_same_number_has_one_answer(tmp_path: Path) -> None:
    text = """\
import torch


def train(model, optimizer, batches, accumulate, start, warm, scaler):
    schedule = None
    if start == 0 and warm:
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, ramp)
    for i, x in enumerate(batches):
        step = i + start * len(batches)
        if step % accumulate == 0:
            size = step
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        if step % accumulate == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        if step % accumulate == 0 and schedule is not None:
            schedule.step()


model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for epoch in range(9):
    train(model, optimizer, get_batches(), 4, get_start(), True, scaler)
"""
    assert codes(tmp_path, train=text) == ["HS109"]
