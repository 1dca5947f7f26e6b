"""A checkpoint holds everything, is written whole or not at all, and is refused in a sentence."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs
from optimizers import CASES, make_optimizer
from snapshots import differences, snapshot


def build(case: tuple[str, str], precision: str) -> hs.Engine:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 1)
    )
    optimizer = make_optimizer(case, model.parameters())
    schedule = hs.TokenSchedule(lambda consumed: 1 / (1 + consumed / 100))
    scale = hs.DynamicLossScale(2.0**12, growth_interval=3) if precision == "fp16" else None
    return hs.Engine(
        model,
        optimizer,
        precision=precision,
        loss_scale=scale,
        schedule=schedule,
        ema=0.9,
        max_norm=1.0,
    )


def window(number: int) -> hs.Window[Tensor]:
    """Two micro-batches of noise from the global generator; NaN in every fourth window."""
    factor = float("nan") if number % 4 == 2 else 1.0
    return hs.Window([torch.randn(5, 8) * factor, torch.randn(9, 8) + random.random()])


def loss_fn(model: nn.Module, x: Tensor) -> hs.LossSum:
    total = F.mse_loss(model(x).float(), x.sum(1, keepdim=True), reduction="sum")
    return hs.LossSum(total, len(x))


def run(engine: hs.Engine, start: int, stop: int) -> list[Any]:
    return [engine.train_step(window(n), loss_fn).record for n in range(start, stop)]


def everything(engine: hs.Engine) -> list[Any]:
    return snapshot(engine.model, engine.optimizer, engine)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_resumed_run_is_the_straight_run_bit_for_bit(
    case: tuple[str, str], precision: str, tmp_path: Path
) -> None:
    # saved after a skip (window 2) and with half a growth interval behind it
    random.seed(0)
    straight = build(case, precision)
    run(straight, 0, 4)
    hs.save_checkpoint(tmp_path / "run.pt", straight, extra={"next": 4})
    wanted = run(straight, 4, 9)
    resumed = build(case, precision)
    random.seed(99)
    torch.manual_seed(99)
    extra = hs.load_checkpoint(tmp_path / "run.pt", resumed)
    assert extra == {"next": 4}
    found = run(resumed, extra["next"], 9)
    assert [str(record.to_dict()) for record in found] == [str(r.to_dict()) for r in wanted]
    assert differences(everything(straight), everything(resumed)) == []


def test_save_leaves_no_temporary_file_and_removes_stale_ones(tmp_path: Path) -> None:
    engine = build(("adamw", "default"), "fp32")
    (tmp_path / "run.pt.tmp-1").write_bytes(b"half a checkpoint")
    hs.save_checkpoint(tmp_path / "run.pt", engine)
    hs.save_checkpoint(tmp_path / "run.pt", engine)
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]


def test_save_that_fails_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    engine = build(("adamw", "default"), "fp32")
    hs.save_checkpoint(tmp_path / "run.pt", engine, extra={"a": 1})
    before = (tmp_path / "run.pt").read_bytes()
    with pytest.raises(TypeError, match=r"extra\['a'\] is of the type function, which cannot be"):
        hs.save_checkpoint(tmp_path / "run.pt", engine, extra={"a": lambda: None})
    assert (tmp_path / "run.pt").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_save_inside_a_window_or_to_nowhere_is_an_error(tmp_path: Path) -> None:
    engine = build(("adamw", "default"), "fp32")
    with pytest.raises(ValueError, match=r"cannot write .*run.pt.*No such file"):
        hs.save_checkpoint(tmp_path / "missing" / "run.pt", engine)
    engine.backward(loss_fn(engine.model, torch.ones(4, 8)))
    with pytest.raises(RuntimeError, match="inside an open window"):
        hs.save_checkpoint(tmp_path / "run.pt", engine)


def test_save_syncs_the_whole_file_then_renames_then_syncs_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, int]] = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(handle: int) -> None:
        state = os.fstat(handle)
        is_folder = stat.S_ISDIR(state.st_mode)
        calls.append(("sync folder", 0) if is_folder else ("sync file", state.st_size))
        fsync(handle)

    def record_replace(source: Path, target: Path) -> None:
        calls.append(("rename", os.stat(source).st_size))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    hs.save_checkpoint(tmp_path / "run.pt", build(("adamw", "default"), "fp32"))
    size = (tmp_path / "run.pt").stat().st_size
    assert calls == [("sync file", size), ("rename", size), ("sync folder", 0)]


@pytest.mark.parametrize("call", ["open", "fsync"])
def test_save_where_folders_cannot_be_opened_or_synced_is_whole(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Windows opens no folder, some network file systems sync none
    real = getattr(os, call)

    def refuse_folders(what: Any, *args: Any, **options: Any) -> Any:
        if os.path.isdir(what):  # a path or a descriptor
            raise OSError("not for folders")
        return real(what, *args, **options)

    engine = build(("adamw", "default"), "fp32")
    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse_folders)
        hs.save_checkpoint(tmp_path / "run.pt", engine, extra={"number": 1})
    assert hs.load_checkpoint(tmp_path / "run.pt", engine) == {"number": 1}


def test_twenty_saves_leave_no_descriptor_open(tmp_path: Path) -> None:
    def lowest_free() -> int:
        descriptor = os.dup(0)
        os.close(descriptor)
        return descriptor

    engine = build(("sgd", "default"), "fp32")
    before = lowest_free()
    for _ in range(20):
        hs.save_checkpoint(tmp_path / "run.pt", engine)
    assert lowest_free() == before


class TwoDevices:
    """The functions of `torch.cuda` that a checkpoint asks, over two generators on the CPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.generators = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(self.generators))
        monkeypatch.setattr(torch.cuda, "get_rng_state_all", self.states)
        monkeypatch.setattr(torch.cuda, "set_rng_state_all", self.set_states)

    def states(self) -> list[Tensor]:
        return [generator.get_state() for generator in self.generators]

    def set_states(self, states: list[Tensor]) -> None:
        for generator, state in zip(self.generators, states, strict=True):
            generator.set_state(state)

    def draw(self) -> list[list[float]]:
        return [torch.rand(3, generator=each).tolist() for each in self.generators]


def test_generators_of_all_devices_go_on_after_a_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build(("sgd", "default"), "fp32")
    devices = TwoDevices(monkeypatch)
    devices.draw()
    hs.save_checkpoint(tmp_path / "run.pt", engine)
    wanted = devices.draw()
    hs.load_checkpoint(tmp_path / "run.pt", engine)
    assert devices.draw() == wanted


def test_generators_of_another_number_of_devices_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build(("sgd", "default"), "fp32")
    devices = TwoDevices(monkeypatch)
    hs.save_checkpoint(tmp_path / "run.pt", engine)
    devices.generators.pop()
    devices.draw()
    before = devices.states()
    hs.load_checkpoint(tmp_path / "run.pt", engine)
    assert all(map(torch.equal, before, devices.states()))


def saved(tmp_path: Path) -> bytes:
    hs.save_checkpoint(tmp_path / "good.pt", build(("adamw", "default"), "fp32"))
    return (tmp_path / "good.pt").read_bytes()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_truncated_checkpoint_is_one_sentence_and_changes_nothing(
    share: float, tmp_path: Path
) -> None:
    content = saved(tmp_path)
    (tmp_path / "cut.pt").write_bytes(content[: int(len(content) * share)])
    engine = build(("adamw", "default"), "fp32")
    before = everything(engine)
    with pytest.raises(ValueError, match="is no whole checkpoint") as caught:
        hs.load_checkpoint(tmp_path / "cut.pt", engine)
    assert "\n" not in str(caught.value)
    assert differences(before, everything(engine)) == []


def test_foreign_missing_and_newer_checkpoints_are_refused(tmp_path: Path) -> None:
    engine = build(("adamw", "default"), "fp32")
    with pytest.raises(ValueError, match="no checkpoint"):
        hs.load_checkpoint(tmp_path / "none.pt", engine)
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(ValueError, match="is no whole checkpoint"):
        hs.load_checkpoint(tmp_path / "text.pt", engine)
    torch.save({"model": {}}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"not written by halfstep.save_checkpoint"):
        hs.load_checkpoint(tmp_path / "other.pt", engine)
    torch.save({"halfstep_checkpoint": 99}, tmp_path / "newer.pt")
    with pytest.raises(ValueError, match="version 99, this halfstep reads version 2"):
        hs.load_checkpoint(tmp_path / "newer.pt", engine)


def test_checkpoint_that_would_run_code_is_not_loaded(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"halfstep_checkpoint": 1, "model": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(ValueError, match="is no whole checkpoint"):
        hs.load_checkpoint(tmp_path / "evil.pt", build(("adamw", "default"), "fp32"))
    assert not (tmp_path / "ran").exists()


def test_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    model = nn.Linear(3, 1)
    engine = hs.Engine(model, torch.optim.AdamW(model.parameters()), precision="fp32")
    with pytest.raises(
        ValueError,
        match="is of another model: weight is not in",
    ):
        hs.load_checkpoint(tmp_path / "good.pt", engine)


# Forks 100 savers, one after the other, and kills each at a random moment of its saves.
KILLER = """
import os, random, signal, sys, time, torch, halfstep as hs

torch.set_num_threads(1)
path, moments = sys.argv[1], random.Random(0)


def make():
    model = torch.nn.Linear(300, 300)
    return hs.Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), precision="fp32")


def save(engine, number):
    with torch.no_grad():
        for p in engine.model.parameters():
            p.fill_(number)
    hs.save_checkpoint(path, engine, extra={"number": number})


engine, newest = make(), 0
start = time.perf_counter()
for _ in range(20):
    save(engine, 0)
one_save = (time.perf_counter() - start) / 20  # a busy machine is slow in everything
for _ in range(100):
    ready, begin = os.pipe()
    child = os.fork()
    if not child:
        number = newest
        os.write(begin, b"!")
        while True:
            number += 1
            save(engine, number)
    os.read(ready, 1)
    time.sleep(moments.uniform(0.0, 5 * one_save))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(ready), os.close(begin)
    fresh = make()
    number = hs.load_checkpoint(path, fresh)["number"]
    assert number >= newest, (number, newest)
    newest = number
    assert all(bool((p == number).all()) for p in fresh.model.parameters())
save(engine, newest + 1)
assert os.listdir(os.path.dirname(path)) == ["run.pt"], os.listdir(os.path.dirname(path))
print(newest)
"""


@pytest.mark.slow
def test_process_killed_a_hundred_times_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLER, str(tmp_path / "run.pt")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50  # saves went on between the kills
