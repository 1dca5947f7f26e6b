"""Scripts that make folders importable, by themselves or through a file beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfstep.check.linter import check_paths
from halfstep.rules import registry

RULES = registry.select(["HS101"])
LOOP = """\
import torch
from torch import nn


def one_epoch(model, loader, optimizer, scaler):
    for x in loader:
        scaler.scale(model(x).square().mean()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
SCRIPT = """\
from core.loop import one_epoch
from torch import nn
import torch

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
one_epoch(model, [torch.randn(8, 4)] * 4, optimizer, torch.amp.GradScaler())
"""
HELPER = {
    "joined": (
        "import os.path as osp\nimport sys\n\n"
        'sys.path.insert(0, osp.join(osp.dirname(__file__), "..", "lib"))\n'
    ),
    "through a function": (
        "import os\nimport sys\n\n\ndef add(path):\n    if path not in sys.path:\n"
        "        sys.path.insert(0, path)\n\n\n"
        'add(os.path.join(os.path.dirname(__file__), "..", "lib"))\n'
    ),
    "written": 'import sys\n\nsys.path.append("../lib")\n',
}


def lines(folder: Path, script: str) -> list[tuple[str, int]]:
    (folder / "lib" / "core").mkdir(parents=True)
    (folder / "lib" / "core" / "loop.py").write_text(LOOP)
    (folder / "tools" / "train.py").write_text(script)
    found = check_paths([str(folder / "tools" / "train.py")], RULES).findings
    return [(Path(f.path).name, f.line) for f in found]


@pytest.mark.parametrize("name", HELPER)
def test_folder_that_a_file_beside_the_script_adds_is_searched(name: str, tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "_paths.py").write_text(HELPER[name])
    assert lines(tmp_path, f"import _paths\n{SCRIPT}") == [("loop.py", 8)]


@pytest.mark.parametrize("name", HELPER)
def test_folder_that_the_script_adds_itself_is_searched(name: str, tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    assert lines(tmp_path, HELPER[name] + SCRIPT) == [("loop.py", 8)]


def test_folder_that_nothing_adds_is_not_searched(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    assert lines(tmp_path, SCRIPT) == []
