"""Saves in the background: of one moment, one at a time, and their errors are not lost."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import halfstep as hs
from halfstep.training.checkpoint import file
from snapshots import differences


def engine(seed: int = 0) -> hs.Engine:
    torch.manual_seed(seed)
    model = nn.Linear(3, 2)
    return hs.Engine(model, torch.optim.AdamW(model.parameters()), precision="fp32", ema=0.5)


def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x).square().mean()
    return loss


def train(run: hs.Engine, steps: int = 1) -> None:
    for _ in range(steps):
        run.train_step([torch.ones(2, 3)], loss_fn)


def test_checkpoint_is_of_the_moment_of_the_call(tmp_path: Path) -> None:
    run = engine()
    train(run)
    hs.save_checkpoint(tmp_path / "now.pt", run)
    pending = hs.save_checkpoint(tmp_path / "later.pt", run, wait=False)
    train(run, steps=5)
    assert pending is not None
    pending.wait()
    assert pending.is_done
    found = [file.read_checkpoint(tmp_path / name) for name in ("now.pt", "later.pt")]
    assert differences(*found) == []


def test_saves_are_made_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, busy, most = engine(), [0], list[int]()
    may_go_on = threading.Event()
    original = file.write_whole

    def counted(target: Path, write: object) -> None:
        busy[0] += 1
        most.append(busy[0])
        may_go_on.wait(10)
        original(target, write)  # type: ignore[arg-type]
        busy[0] -= 1

    monkeypatch.setattr(file, "write_whole", counted)
    hs.save_checkpoint(tmp_path / "a.pt", run, wait=False)
    threading.Timer(0.2, may_go_on.set).start()
    second = hs.save_checkpoint(tmp_path / "b.pt", run, wait=False)
    assert (tmp_path / "a.pt").exists()
    assert second is not None
    second.wait()
    assert most == [1, 1]


def test_error_is_raised_by_wait(tmp_path: Path) -> None:
    pending = hs.save_checkpoint(tmp_path / "missing" / "a.pt", engine(), wait=False)
    assert pending is not None
    with pytest.raises(hs.BadValueError, match=r"cannot write .*No such file"):
        pending.wait()


def test_error_that_nobody_waited_for_is_raised_by_the_next_save(tmp_path: Path) -> None:
    run = engine()
    hs.save_checkpoint(tmp_path / "missing" / "a.pt", run, wait=False)
    with pytest.raises(hs.BadValueError, match=r"cannot write .*No such file"):
        hs.save_checkpoint(tmp_path / "b.pt", run)
    hs.save_checkpoint(tmp_path / "b.pt", run)
    assert (tmp_path / "b.pt").exists()


def test_process_that_ends_finishes_its_save(tmp_path: Path) -> None:
    code = (
        "import sys, torch, halfstep as hs\n"
        "model = torch.nn.Linear(300, 300)\n"
        "engine = hs.Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), precision='fp32')\n"
        "hs.save_checkpoint(sys.argv[1], engine, extra={'a': 1}, wait=False)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "run.pt")], check=True)
    assert file.read_checkpoint(tmp_path / "run.pt")["extra"] == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]
