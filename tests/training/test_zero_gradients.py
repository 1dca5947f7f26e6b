"""The share of gradient values that are exactly zero, against gradients known by hand."""

from __future__ import annotations

import torch
from small_recipes import Batch, nan_from, small
from torch import nn

import halfstep as hs
from halfstep.training.run.zero_gradients import ZeroGradients


def rows_of_zeros(model: nn.Module, batch: Batch) -> hs.LossSum:
    """Of the four columns of the weight, those whose input is 0 get no gradient."""
    mask = torch.tensor([1.0, 0.0, 0.0, 0.0])
    return hs.LossSum(model(batch.x.abs() * mask).sum(), len(batch.x))


def linear() -> nn.Module:
    return nn.Linear(4, 1)  # 4 weights and a bias


def test_share_counts_every_gradient_value_of_the_window() -> None:
    recipe = small(model=linear, loss_fn=rows_of_zeros)
    run = hs.fit(recipe, precision="fp32", steps=3, zero_gradients=True)
    assert [step.zero_gradient_fraction for step in run.steps] == [3 / 5] * 3


def test_share_of_a_window_is_that_of_the_summed_gradients() -> None:
    def other_column(model: nn.Module, batch: Batch) -> torch.Tensor:
        column = 0 if len(batch.x) == 4 else 1  # the sizes of the batches are 4, 5, 6
        return model(torch.eye(4)[column : column + 1]).sum()

    recipe = small(model=linear, loss_fn=other_column)
    run = hs.fit(recipe, precision="fp32", steps=1, accumulate=2, zero_gradients=True)
    assert run.steps[0].zero_gradient_fraction == 2 / 5


def test_values_that_underflow_in_fp16_count_as_zero() -> None:
    def tiny(model: nn.Module, batch: Batch) -> torch.Tensor:
        return (model(batch.x).float() * 1e-12).mean()  # 1e-12 * 2^16 is half of FP16's smallest

    shares = []
    for precision in ("fp32", "fp16"):
        recipe = small(model=linear, loss_fn=tiny)
        run = hs.fit(recipe, precision=precision, steps=1, zero_gradients=True)
        shares.append(run.steps[0].zero_gradient_fraction)
    assert shares == [0.0, 1.0]


def test_skipped_step_has_no_share() -> None:
    recipe = small(batches=nan_from(1))
    run = hs.fit(recipe, precision="bf16", steps=3, diagnose="on_skip", zero_gradients=True)
    assert [step.zero_gradient_fraction is None for step in run.steps] == [False, True, True]


def test_counting_changes_nothing_else_and_leaves_no_hook() -> None:
    models = []

    def kept() -> nn.Module:
        models.append(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)))
        return models[-1]

    with_it, without = (
        hs.fit(small(model=kept), precision="fp16", steps=5, checksums=True, zero_gradients=asked)
        for asked in (True, False)
    )
    assert [step.checksum for step in with_it.steps] == [step.checksum for step in without.steps]
    assert all(step.zero_gradient_fraction is None for step in without.steps)
    assert not any(parameter._post_accumulate_grad_hooks for parameter in models[0].parameters())


def test_sparse_gradient_counts_the_values_it_holds() -> None:
    table = nn.Embedding(10, 2, sparse=True)
    zeros = ZeroGradients([table])
    (table(torch.tensor([3, 3, 7])) * torch.tensor([1.0, 0.0])).sum().backward()
    share = zeros.take()
    assert share is not None
    assert share.wait() == [0.5]  # of two rows the second column
    assert zeros.take() is None  # the window is forgotten
