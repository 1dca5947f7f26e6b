"""Counting zero gradients on a CUDA device: the same shares, and the host never waits."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from halfstep.training.run.zero_gradients import ZeroGradients

pytestmark = pytest.mark.gpu


def test_counting_waits_for_nothing_until_the_share_is_read() -> None:
    model = nn.Linear(4, 1, device="cuda")
    batch = torch.tensor([[1.0, 0.0, 0.0, 0.0]], device="cuda")
    model(batch).sum().backward()  # whatever is made once is made now
    model.zero_grad()
    zeros = ZeroGradients([model])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the mode a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        model(batch).sum().backward()
        share = zeros.take()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert share is not None
    assert share.wait() == [3 / 5]
