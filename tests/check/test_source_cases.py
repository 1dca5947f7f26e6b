"""Mistakes from public trackers, read from source; what they do to training is tested elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from source_cases import CASES, HEAD, STEP
from source_cases_right import FINE

from halfstep.check.linter import check_paths, check_text
from halfstep.rules import registry

RULES = registry.select(["HS1", "HS201"])


def expected(text: str, path: str = "train.py") -> set[tuple[str, str, int]]:
    lines = enumerate(text.splitlines(), 1)
    found = ((re.search(r"# <- (HS\d+)$", line), number) for number, line in lines)
    return {(path, mark.group(1), number) for mark, number in found if mark}


@pytest.mark.parametrize("case", CASES)
def test_case_is_found_at_its_lines(case: str) -> None:
    found = check_text("train.py", CASES[case], RULES)
    strong = {(f.path, f.code, f.line) for f in found if f.severity != "note"}
    assert strong == expected(CASES[case])


@pytest.mark.parametrize("case", FINE)
def test_case_done_right_gives_no_finding(case: str) -> None:
    found = check_text("train.py", FINE[case], RULES)
    assert [str(f) for f in found if f.severity != "note"] == []


SCHEDULED = HEAD.replace("torch.amp.GradScaler(", "GradScaler(").replace(
    "import torch\n", "import torch\nfrom halfstep import GradScaler\n", 1
).replace("scaler = ", "schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)\nscaler = ") + (
    "for x, y in loader:\n    scaler.scale(loss_of(x, y)).backward()\n" + STEP
)


@pytest.mark.parametrize(
    ("guard", "codes"),
    [
        ("if scaler.last_outcome.updated:", []),
        ("if not scaler.last_outcome.skipped:", []),
        ("outcome = scaler.last_outcome\n    if outcome.updated:", []),
        ("if True:", ["HS109"]),
    ],
)
def test_schedule_behind_the_outcome_of_our_own_scaler_is_right(
    guard: str, codes: list[str]
) -> None:
    text = SCHEDULED + f"    {guard}\n        schedule.step()\n"
    assert [f.code for f in check_text("train.py", text, RULES)] == codes


VALIDATE = """\
import torch


def run(loader, model, half=True):
    if half:
        model.half()  # <- HS124
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            model(x.half())
    model.float()
"""
AVERAGE = """\
import copy


class ModelEMA:
    def __init__(self, model):
        self.ema = copy.deepcopy(model).eval()

    def update(self, model):
        for a, b in zip(self.ema.parameters(), model.parameters()):
            a.data.lerp_(b.data, 0.01)
"""
TRAIN = HEAD + (
    "import val\nfrom average import ModelEMA\n\nema = ModelEMA(model)\nfor epoch in range(9):\n"
    "    for x, y in loader:\n        scaler.scale(loss_of(x, y)).backward()\n"
    "        scaler.step(optimizer)\n        scaler.update()\n        optimizer.zero_grad()\n"
    "        ema.update(model)\n    val.run(valid_loader, model=ema.ema)\n"
)


@pytest.mark.parametrize("of", ["ema.ema", "model"])
def test_evaluation_in_another_file_that_halves_live_weights_is_found_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"val.py": VALIDATE, "average.py": AVERAGE, "train.py": TRAIN}.items():
        (tmp_path / name).write_text(text.replace("model=ema.ema", f"model={of}"))
    found = check_paths(["train.py"], RULES).findings
    strong = {(f.path, f.code, f.line) for f in found if f.severity != "note"}
    assert strong == expected(VALIDATE, "val.py")


def test_evaluation_in_another_file_of_a_frozen_model_gives_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    teacher = TRAIN.replace("ema = ", "teacher = build()\nema = ").replace("ema.ema", "teacher")
    for name, text in {"val.py": VALIDATE, "average.py": AVERAGE, "train.py": teacher}.items():
        (tmp_path / name).write_text(text)
    found = check_paths(["train.py"], RULES).findings
    assert [str(f) for f in found if f.severity != "note"] == []
