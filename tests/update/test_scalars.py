"""The flat dict of numbers: what loggers plot and JSON lines hold."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import halfstep as hs

ALWAYS = [
    "step",
    "skipped",
    "loss",
    "grad_norm",
    "clip_coef",
    "loss_scale",
    "next_loss_scale",
    "consumed",
    "lr",
]
MORE = ["divisor", "lr/1", "metrics/rows"]


def two_groups(**settings: Any) -> hs.Engine:
    model = nn.Linear(1, 1, bias=True)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.fill_(0.0)
    groups = [{"params": [model.weight], "lr": 0.5}, {"params": [model.bias]}]
    optimizer = torch.optim.SGD(groups, lr=0.25)
    return hs.Engine(model, optimizer, **{"precision": "fp32", "loss_scale": 8.0, **settings})


def sum_loss(model: nn.Module, x: Tensor) -> hs.LossSum:
    return hs.LossSum(model(x).sum(), len(x), rows=torch.tensor(2.0))


def test_scalars_of_an_update_are_its_numbers_under_fixed_names() -> None:
    # y = x at x = 3, 3, 3, 3: mean loss 3, gradients 3 and 1, their norm sqrt(10)
    outcome = two_groups(max_norm=1.0).train_step([torch.full((4, 1), 3.0)], sum_loss)
    scalars = outcome.scalars
    assert scalars == {
        "step": 1,
        "skipped": 0,
        "loss": 3.0,
        "divisor": 4.0,
        "grad_norm": pytest.approx(math.sqrt(10)),
        "clip_coef": pytest.approx(1 / math.sqrt(10)),
        "loss_scale": 8.0,
        "next_loss_scale": 8.0,
        "consumed": 4.0,
        "lr": 0.5,
        "lr/1": 0.25,
        "metrics/rows": 0.5,
    }
    assert scalars == outcome.record.scalars == dict(outcome.record)
    assert {name: type(value) for name, value in scalars.items() if type(value) is not float} == {
        "step": int,
        "skipped": int,
    }


@pytest.mark.usefixtures("either_decides")
def test_scalars_of_a_skip_have_the_same_names_and_keep_inf() -> None:
    engine = two_groups()
    names = set(engine.train_step([torch.ones(4, 1)], sum_loss).scalars)
    scalars = engine.train_step([torch.full((4, 1), math.inf)], sum_loss).scalars
    assert set(scalars) == names == {*ALWAYS, *MORE}
    assert (scalars["skipped"], scalars["step"]) == (1, 2)
    assert not math.isfinite(scalars["grad_norm"])


def test_scalars_leave_out_what_is_unknown() -> None:
    outcome = two_groups().train_step([torch.ones(4, 1)], lambda m, x: m(x).mean())
    assert set(outcome.scalars) == {*ALWAYS, "lr/1"}


def test_scalars_are_json_and_back() -> None:
    engine = two_groups()
    outcome = engine.train_step([torch.ones(4, 1)], sum_loss)
    strict = json.dumps(outcome.scalars, allow_nan=False)
    assert json.loads(strict) == outcome.scalars
    assert json.loads(json.dumps(dict(outcome.record))) == outcome.scalars
    skipped = engine.train_step([torch.full((4, 1), math.inf)], sum_loss)
    assert '"grad_norm": "' in json.dumps(skipped.record.to_dict(), allow_nan=False)
    with pytest.raises(ValueError, match="JSON compliant"):
        json.dumps(skipped.scalars, allow_nan=False)


def test_scalars_of_several_optimizers_have_each_by_name() -> None:
    models = {"generator": nn.Linear(1, 1), "discriminator": nn.Linear(1, 1)}
    optimizers = {n: torch.optim.SGD(m.parameters(), lr=0.5) for n, m in models.items()}
    engine = hs.Engine(models, optimizers, precision="fp32", loss_scale=1.0)
    x = torch.full((2, 1), 3.0)

    def loss_fn(models: dict[str, nn.Module], x: Tensor) -> Tensor:
        loss: Tensor = models["generator"](x).mean() - models["discriminator"](x).mean()
        return loss

    scalars = engine.train_step([x], loss_fn).scalars
    assert set(scalars) == {
        *ALWAYS,
        "lr/1",
        *(f"{name}/{key}" for name in models for key in ALWAYS),
    }
    assert scalars["generator/grad_norm"] == pytest.approx(math.sqrt(10))
    assert scalars["grad_norm"] == pytest.approx(math.sqrt(20))


def test_scalars_have_the_lost_updates_of_each_parameter() -> None:
    outcome = two_groups(lost_updates=True).train_step([torch.ones(4, 1)], sum_loss)
    assert outcome.scalars["lost_updates/weight"] == 0.0


def test_scalars_of_a_run_have_its_own_numbers() -> None:
    recipe = hs.load_recipe("lm")
    run = hs.fit(recipe, precision="fp32", steps=1, zero_gradients=True)
    assert {"batch", "zero_gradient_fraction"} <= set(run.steps[0].scalars)


def test_tensorboard_reads_back_what_the_scalars_were(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    engine = two_groups(max_norm=1.0)
    windows = [torch.full((4, 1), value) for value in (1.0, 2.0, math.inf, 3.0)]
    outcomes = [engine.train_step([x], sum_loss) for x in windows]
    with SummaryWriter(tmp_path) as writer:
        for outcome in outcomes:
            for name, value in outcome.scalars.items():
                writer.add_scalar(name, value, outcome.step)
    read = EventAccumulator(str(tmp_path)).Reload()
    assert set(read.Tags()["scalars"]) == set(outcomes[0].scalars)
    for name in outcomes[0].scalars:
        events = read.Scalars(name)
        assert [event.step for event in events] == [1, 2, 3, 4]
        written = torch.tensor([o.scalars[name] for o in outcomes], dtype=torch.float32)
        found = torch.tensor([event.value for event in events], dtype=torch.float32)
        assert torch.equal(found.nan_to_num(7.0), written.nan_to_num(7.0))
