"""Weights that change inside a window are seen by the next forward, as in a stock loop."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
LossFn = Callable[[nn.Module, int], Tensor]


def make() -> tuple[nn.Sequential, hs.Engine]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, hs.Engine(model, optimizer, precision="bf16")


def stock_losses(loss_fn: LossFn, numbers: list[int]) -> list[float]:
    """Oracle: torch.autocast around each forward, gradients added up."""
    model, _ = make()
    losses = []
    for number in numbers:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_fn(model, number)
        loss.backward()
        losses.append(loss.item())
    return losses


def engine_losses(loss_fn: LossFn, numbers: list[int]) -> list[float]:
    engine = make()[1]
    losses = []

    def noted(m: nn.Module, number: int) -> Tensor:
        loss = loss_fn(m, number)
        losses.append(loss.item())
        return loss

    engine.train_step(numbers, noted)
    return losses


def changed(model: nn.Module, number: int) -> list[tuple[Tensor, Tensor]]:
    """Other weights, by the number of the micro-batch; returns what they were."""
    before = [(p, p.detach().clone()) for p in model.parameters()]
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1 + number / 4)
    return before


def put_back(before: list[tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for p, old in before:
            p.copy_(old)


def noise(model: nn.Module, number: int) -> Tensor:
    before = changed(model, number)
    loss = model(X).float().square().mean()
    put_back(before)
    return loss


def only_in_the_third(model: nn.Module, number: int) -> Tensor:
    return noise(model, number) if number == 3 else model(X).float().square().mean()


def reference_first(model: nn.Module, number: int) -> Tensor:
    """The forward of a reference by the same modules, without gradient, then the student's."""
    before = changed(model, number)
    with torch.no_grad():
        target = model(X).float()
    put_back(before)
    torch.clear_autocast_cache()  # documented: a swap inside one loss_fn
    return F.mse_loss(model(X).float(), target)


def by_a_child(model: Any, number: int) -> Tensor:
    before = changed(model, number)
    hidden = model[0](X)
    loss: Tensor = model[2](torch.tanh(hidden)).float().square().mean()
    put_back(before)
    return loss


def through_data(model: nn.Module, number: int) -> Tensor:
    """``parameter.data`` moves no version counter."""
    before = [p.data.clone() for p in model.parameters()]
    for p in model.parameters():
        p.data.mul_(1 + number / 4)
    loss = model(X).float().square().mean()
    for p, old in zip(model.parameters(), before, strict=True):
        p.data.copy_(old)
    return loss


def data_replaced(model: nn.Module, number: int) -> Tensor:
    before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    nn.utils.vector_to_parameters(before * (1 + number / 4), model.parameters())
    loss = model(X).float().square().mean()
    nn.utils.vector_to_parameters(before, model.parameters())
    return loss


LOSSES = [noise, only_in_the_third, reference_first, by_a_child, through_data, data_replaced]


@pytest.mark.parametrize("loss_fn", LOSSES)
@pytest.mark.parametrize("numbers", [[1], [0, 1, 2], [1, 2, 3, 3]], ids=str)
def test_each_micro_batch_sees_its_own_weights(loss_fn: LossFn, numbers: list[int]) -> None:
    assert engine_losses(loss_fn, numbers) == stock_losses(loss_fn, numbers)


def test_change_between_two_micro_batches_by_the_loader_is_seen() -> None:
    model, engine = make()
    losses = []

    def batches() -> Iterator[int]:
        for number in range(3):
            changed(model, number)
            yield number

    def loss_fn(m: nn.Module, number: int) -> Tensor:
        loss: Tensor = m(X).float().square().mean()
        losses.append(loss.item())
        return loss

    engine.train_step(batches(), loss_fn)
    oracle, _ = make()
    expected = []
    for number in range(3):
        changed(oracle, number)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected.append(oracle(X).float().square().mean().item())
    assert losses == expected


def test_view_of_the_data_that_is_written_later_in_the_window_is_seen() -> None:
    engine = make()[1]
    losses: list[float] = []
    views: list[Tensor] = []

    def loss_fn(m: nn.Module, number: int) -> Tensor:
        if number == 0:
            views.extend(p.data for p in m.parameters())
        for view in views if number == 2 else []:
            view.mul_(2)
        loss: Tensor = m(X).float().square().mean()
        losses.append(loss.item())
        return loss

    engine.train_step([0, 1, 2], loss_fn)
    oracle, _ = make()
    for p in oracle.parameters():
        p.data.mul_(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        doubled = oracle(X).float().square().mean().item()
    assert losses[0] == losses[1]
    assert losses[2] == doubled


def test_change_that_no_forward_of_a_module_follows_is_refused_and_works_the_next_time() -> None:
    # torch.nn.functional on the parameters themselves: the casts could be an earlier micro-batch's
    def functional(model: Any, number: int) -> Tensor:
        before = changed(model, number)
        loss: Tensor = F.linear(X, model[0].weight, model[0].bias).float().square().mean()
        put_back(before)
        return loss

    model, engine = make()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(hs.CallOrderError, match="ran no forward of the model"):
        engine.train_step([1, 2], functional)
    assert all(torch.equal(before[n], v) for n, v in model.state_dict().items())
    losses = []

    def noted(m: nn.Module, number: int) -> Tensor:
        loss = functional(m, number)
        losses.append(loss.item())
        return loss

    assert engine.train_step([1, 2], noted).updated
    assert losses == stock_losses(functional, [1, 2])


def test_models_carry_no_hook_after_the_window_and_after_an_error() -> None:
    model, engine = make()

    def fails(m: nn.Module, number: int) -> Tensor:
        if number == 2:
            raise ValueError("in the second")
        return noise(m, number)

    engine.train_step([1, 1], noise)
    with pytest.raises(ValueError, match="in the second"):
        engine.train_step([1, 2], fails)
    assert "data" not in vars(nn.Parameter)
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
