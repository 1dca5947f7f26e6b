"""The tools on an accelerator, from end to end: runs, the doctor, resumed runs, policies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs
from emulated import emulated_device

Batch = tuple[Tensor, Tensor]


def recipe(*, sick: bool = False) -> hs.Recipe:
    def model() -> nn.Module:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
        return net.to("cuda")

    def loss_fn(net: nn.Module, batch: Batch) -> hs.LossSum:
        x, y = batch
        logits = net(x) * 1e6 if sick else net(x)
        return hs.LossSum(F.cross_entropy(logits, y, reduction="sum"), len(y))

    def batches() -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(1)
        for _ in range(12):
            x = torch.randn(6, 8, generator=generator)
            yield x.cuda(), torch.randint(0, 4, (6,), generator=generator).cuda()

    return hs.Recipe(
        "made", model, loss_fn, batches, lambda net: torch.optim.AdamW(net.parameters(), lr=1e-2)
    )


@pytest.mark.parametrize(
    "precision",
    ["fp32", "bf16", "fp16", hs.Policy("fp16", ops={"relu": "fp32"}, modules={"3": "fp32"})],
    ids=["fp32", "bf16", "fp16", "policy"],
)
def test_run_waits_for_its_data_and_once_for_the_first_step(precision: str | hs.Policy) -> None:
    # oracle: the recipe copies its batches and its model from ordinary memory, and says where
    with emulated_device() as counts:
        run = hs.fit(recipe(), precision=precision, steps=8)
        own = [wait for wait in counts.waits if not wait.place.startswith("test_tools.py:")]
        assert [wait.kind for wait in own] == ["tolist"]
    assert run.status == "finished"
    assert [step.updated for step in run.steps] == [True] * 8
    assert run.steps[-1].consumed == 8 * 6


def test_resumed_run_on_the_device_equals_the_straight_one() -> None:
    # dropout draws on the device, so that its random state has to be in the checkpoint
    with emulated_device():
        assert hs.verify_resume(recipe(), at=3, steps=6).is_equal


@pytest.mark.parametrize("sick", [False, True])
def test_doctor_tells_the_sick_from_the_healthy_on_the_device(sick: bool) -> None:
    # closed form: logits of order 1 times a million are beyond FP16's 65504
    with emulated_device():
        assert hs.diagnose(recipe(sick=sick)).is_healthy != sick
