"""`lost_updates=True`: the share of weights that an update did not move."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import halfstep as hs


def engine(dtype: torch.dtype, lr: float, **settings: Any) -> hs.Engine:
    model = nn.Linear(8, 1, bias=False, dtype=dtype)
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return hs.Engine(model, optimizer, precision="fp32", lost_updates=True, **settings)


def loss_fn(model: Any, batch: Tensor) -> Tensor:
    return model(batch.to(model.weight.dtype)).float().sum()


@pytest.mark.parametrize("fuse", ["auto", False])
def test_lost_updates_are_those_below_half_a_spacing(fuse: Any) -> None:
    # closed form: gradient 1, so the update is lr. Below 1 the spacing of BF16 is 2^-8: 1 - 2^-10
    # rounds back to 1; 1 - 2^-7 does not
    batch = torch.ones(1, 8)
    for lr, share in ((2.0**-10, 1.0), (2.0**-7, 0.0)):
        outcome = engine(torch.bfloat16, lr, fuse=fuse).train_step([batch], loss_fn)
        assert outcome.lost_updates == {"weight": share}
    outcome = engine(torch.float32, 2.0**-10, fuse=fuse).train_step([batch], loss_fn)
    assert outcome.lost_updates == {"weight": 0.0}


def test_weights_without_a_gradient_are_not_lost() -> None:
    batch = torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    outcome = engine(torch.float32, 0.5).train_step([batch], loss_fn)
    assert outcome.lost_updates == {"weight": 0.0}


def test_skip_has_no_lost_updates() -> None:
    outcome = engine(torch.float32, 0.5).train_step([torch.full((1, 8), math.nan)], loss_fn)
    assert outcome.skipped
    assert outcome.lost_updates is None


def test_record_with_lost_updates_survives_json() -> None:
    record = engine(torch.float32, 0.5).train_step([torch.ones(1, 8)], loss_fn).record
    assert hs.StepRecord.from_dict(record.to_dict()) == record


def test_parameter_whose_gradient_is_zero_everywhere_has_lost_nothing() -> None:
    made = engine(torch.float32, 0.5)
    outcome = made.train_step([torch.zeros(2, 8)], loss_fn)
    assert outcome.lost_updates == {"weight": 0.0}
