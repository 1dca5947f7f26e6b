"""Policies in `Engine` and `fit`: a GPU's failure, reproduced on a CPU and fixed by a file."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import halfstep as hs
from halfstep.recipes.lm import build as lm


class Regression(nn.Module):
    """Its norm squares activations of a thousand, which FP16 cannot hold."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(8, 16)
        self.energy = Energy()
        self.head = nn.Linear(17, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.encoder(x)) * 1000
        energy = self.energy(hidden)
        result: Tensor = self.head(torch.cat([hidden / energy, energy.log() / 10], -1))
        return result


class Energy(nn.Module):
    """A norm written by hand: the mean of squares, no op of which is on CUDA's FP32 list."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * x).mean(-1, keepdim=True).sqrt() + 1e-3


def regression() -> hs.Recipe:
    made = torch.Generator().manual_seed(1)
    data = [torch.randn(16, 8, generator=made) for _ in range(4)]

    def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
        return F.mse_loss(model(x).float(), x.sum(-1, keepdim=True).sign())

    return hs.Recipe(
        name="regression",
        model=Regression,
        loss_fn=loss_fn,
        batches=lambda: data,
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
    )


CUDA = hs.Policy("fp16", base="cuda", init_scale=1024.0)


def test_overflow_of_cudas_policy_is_reproduced_on_a_cpu_and_fixed_by_one_island(
    tmp_path: Path,
) -> None:
    broken = hs.fit(regression(), precision=CUDA, steps=8, device="cpu", diagnose="on_skip")
    assert broken.num_skipped == 8
    diagnosis = broken.steps[0].diagnosis
    assert diagnosis is not None
    assert diagnosis.module == "Regression.energy"
    path = tmp_path / "precision.toml"
    CUDA.save(path)
    path.write_text(path.read_text() + '\n[modules]\n"energy" = "fp32"  # overflows in FP16\n')

    fixed = hs.fit(regression(), precision=path, steps=120, device="cpu")
    assert (fixed.num_skipped, fixed.status) == (0, "finished")
    assert fixed.steps[-1].loss < 0.5 * fixed.steps[0].loss
    assert fixed.settings["policy"] == "fp16, CUDA's op list, islands energy"
    # and not by an FP32 run in disguise: the same run in FP32 has other losses, near these
    fp32 = hs.fit(regression(), precision="fp32", steps=120, device="cpu")
    assert fixed.steps[0].loss == pytest.approx(fp32.steps[0].loss, rel=0.02)
    assert fixed.steps[0].loss != fp32.steps[0].loss


def engine(precision: Any, **rest: Any) -> hs.Engine:
    torch.manual_seed(0)
    model = Regression()
    return hs.Engine(model, torch.optim.Adam(model.parameters()), precision=precision, **rest)


def test_init_scale_of_the_policy_is_the_first_scale(caplog: pytest.LogCaptureFixture) -> None:
    assert engine(CUDA).loss_scale.value == 1024.0
    assert engine(hs.Policy("fp16")).loss_scale.value == 2.0**16
    assert engine(hs.Policy("fp16", init_scale=0.25)).loss_scale.value == 0.25
    assert isinstance(engine(hs.Policy("bf16", init_scale=8.0)).loss_scale, hs.NoLossScale)
    with caplog.at_level(logging.INFO, "halfstep"):
        assert engine(CUDA, loss_scale=hs.DynamicLossScale(init_scale=8.0)).loss_scale.value == 8.0
    assert "loss_scale was given; the policy's init_scale 1024 is not used" in caplog.messages


def test_log_says_whose_policy_it_is(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "halfstep"):
        engine(hs.Policy("fp16", base="cuda", ops={"gelu": "fp32"}, reason="tuned"))
    assert "precision: fp16, CUDA's op list, gelu in fp32 (tuned)" in caplog.messages


def test_stock_loop_after_an_engine_trains_as_if_it_had_never_been() -> None:
    def stock(model: nn.Module) -> list[Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            with torch.autocast("cpu", torch.float16):
                loss = model(torch.ones(2, 8)).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach().clone() for p in model.parameters()]

    def fresh() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1), nn.Linear(8, 8), nn.GELU())

    expected, model = stock(fresh()), fresh()
    policy = hs.Policy("fp16", "cuda", {"gelu": "fp32"}, {"2": "fp32"})
    used = hs.Engine(model, torch.optim.Adam(model.parameters(), lr=0.0), precision=policy)
    assert used.train_step([torch.ones(2, 8)], lambda m, x: m(x).float().mean()).updated
    found = stock(model)
    assert all(map(torch.equal, found, expected))
    assert all(p.isfinite().all() for p in found)


def test_run_that_falls_back_keeps_its_islands() -> None:
    used = engine(
        hs.Policy("fp16", "cuda", modules={"head": "fp32"}),
        on_collapse="bf16",
        loss_scale=hs.DynamicLossScale(max_consecutive_skips=2),
    )
    bad = torch.full((2, 8), float("nan"))
    while used.policy.format == "fp16":
        used.train_step([bad], lambda m, x: m(x).float().mean())
    assert used.policy == hs.Policy("bf16", "cuda", modules={"head": "fp32"})


def test_resume_with_another_policy_is_refused(tmp_path: Path) -> None:
    folder = hs.CheckpointFolder(tmp_path, every=2)
    hs.fit(regression(), precision=hs.Policy("bf16"), steps=2, device="cpu", checkpoints=folder)
    with pytest.raises(hs.BadValueError, match="with policy None, this run has bf16, CUD"):
        hs.fit(
            regression(),
            precision=hs.Policy("bf16", base="cuda"),
            steps=4,
            device="cpu",
            resume=tmp_path,
        )


class Count(TorchDispatchMode):
    """Names of all ops below autocast, with the dtypes of what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.ops[f"{func} {getattr(result, 'dtype', None)}"] += 1
        return result


def lm_ops(context: Any) -> Counter[str]:
    recipe = lm()
    torch.manual_seed(0)
    model = recipe.model()
    batch = next(iter(recipe.batches()))
    with Count() as counter:
        with context:
            loss = recipe.loss_fn(model, batch)
        assert isinstance(loss, hs.LossSum)
        loss.total.backward()
    return counter.ops


@pytest.mark.parametrize("format", ["fp16", "bf16"])
def test_empty_policy_runs_the_same_ops_as_stock_autocast(format: str) -> None:
    stock = lm_ops(torch.autocast("cpu", hs.Policy(format).row.dtype))
    assert sum(stock.values()) > 100
    assert lm_ops(hs.Policy(format).autocast("cpu")) == stock
    with CUDA.autocast("cpu"):
        pass  # and after kernels of ours are there
    assert lm_ops(hs.Policy(format).autocast("cpu")) == stock
    assert lm_ops(torch.autocast("cpu", hs.Policy(format).row.dtype)) == stock


def test_policy_changes_only_the_ops_that_it_names() -> None:
    stock = lm_ops(torch.autocast("cpu", torch.float16))
    found = lm_ops(hs.Policy("fp16", ops={"gelu": "fp32"}).autocast("cpu"))
    changed = {name.partition(" ")[0] for name in (found - stock) + (stock - found)}
    assert changed == {"aten._to_copy.default", "aten.gelu.default", "aten.gelu_backward.default"}
