"""Weights are cast once per window in train_step, and with the same result."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import halfstep as hs
from snapshots import differences, snapshot

LAYERS, MICRO_BATCHES = 12, 4


class CountWeightCasts(TorchDispatchMode):
    """Counts casts of matrices to BF16 that have the weights' shape."""

    def __init__(self, shapes: set[torch.Size]) -> None:
        super().__init__()
        self.shapes, self.count = shapes, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten._to_copy.default:
            low = (kwargs or {}).get("dtype") is torch.bfloat16
            self.count += low and args[0].shape in self.shapes
        return func(*args, **(kwargs or {}))


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(16, 16) for _ in range(LAYERS)))


def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x).square().mean()
    return loss


def casts(by_hand: bool) -> tuple[int, list[Any]]:
    model = mlp()
    engine = hs.Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), precision="bf16")
    window = hs.Window(torch.ones(4, 16) * (i + 1) for i in range(MICRO_BATCHES))
    with CountWeightCasts({torch.Size([16, 16]), torch.Size([16])}) as counter:
        if by_hand:
            for x in window:
                with engine.autocast():
                    loss = loss_fn(model, x)
                engine.backward(loss)
            engine.step()
        else:
            engine.train_step(window, loss_fn)
    return counter.count, snapshot(model)


def test_train_step_casts_each_weight_once_per_window() -> None:
    # oracle: one weight and one bias per layer
    assert casts(by_hand=False)[0] == 2 * LAYERS


def test_loop_by_hand_casts_each_weight_per_micro_batch() -> None:
    assert casts(by_hand=True)[0] == 2 * LAYERS * MICRO_BATCHES


def test_kept_casts_do_not_change_a_bit() -> None:
    assert differences(casts(by_hand=True)[1], casts(by_hand=False)[1]) == []


def test_train_steps_see_the_updated_weights() -> None:
    model = mlp()
    engine = hs.Engine(model, torch.optim.SGD(model.parameters(), lr=0.05), precision="bf16")
    losses = [engine.train_step([torch.ones(4, 16)], loss_fn).loss for _ in range(20)]
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")
def test_compiled_model_does_not_keep_casts() -> None:
    from halfstep.training.window.weight_casts import _owns_its_weights

    model = mlp()
    assert _owns_its_weights(model)
    assert not _owns_its_weights(torch.compile(model))  # type: ignore[arg-type]
    model.compile()
    assert not _owns_its_weights(model)
