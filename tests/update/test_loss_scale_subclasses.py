"""A loss scale of the user's own: one method to override, whoever decides."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import halfstep as hs


class Halving(hs.LossScale):
    """Halves at each overflow and counts them; overrides `adjust` alone."""

    def __init__(self) -> None:
        super().__init__(1024.0, 50)
        self.overflows = torch.zeros(())

    def adjust(self, found_inf: Tensor) -> None:
        self._scale.mul_(torch.where(found_inf > 0, 0.5, 1.0))
        self.overflows = self.overflows + found_inf


class SlowDynamic(hs.DynamicLossScale):
    def adjust(self, found_inf: Tensor) -> None:
        self._scale.mul_(torch.where(found_inf > 0, 0.25, 1.0))


FLAGS = [1.0, torch.tensor(1.0)]


@pytest.mark.parametrize("found_inf", FLAGS, ids=["number", "tensor"])
@pytest.mark.parametrize("counts", [1.0, torch.tensor(1.0), torch.tensor(True)])
def test_subclass_moves_once_per_window_that_counts(found_inf: Any, counts: Any) -> None:
    scale = Halving()
    scale.note_window(found_inf, counts)
    assert (float(scale.value), float(scale.overflows)) == (512.0, 1.0)


@pytest.mark.parametrize("counts", [0.0, torch.tensor(0.0), torch.tensor(False)])
def test_window_that_says_nothing_leaves_every_tensor_of_a_subclass(counts: Any) -> None:
    scale = Halving()
    scale.note_window(1.0)
    scale.note_window(torch.tensor(1.0), counts)
    assert (float(scale.value), float(scale.overflows)) == (512.0, 1.0)


def test_subclass_of_the_dynamic_scale_backs_off_once_per_overflow_under_the_engine() -> None:
    model = torch.nn.Linear(2, 1)
    scale = SlowDynamic(init_scale=1024.0)
    engine = hs.Engine(
        model, torch.optim.SGD(model.parameters(), lr=0.1), precision="fp16", loss_scale=scale
    )
    x = torch.full((1, 2), float("inf"))
    outcome = engine.train_step([x], lambda m, b: m(b).float().mean())
    assert (outcome.loss_scale, outcome.next_loss_scale) == (1024.0, 256.0)


def test_subclass_of_the_dynamic_scale_backs_off_once_in_a_second_update_of_the_drop_in() -> None:
    # torch's own loop with two optimizers that calls update() after each of them
    scaler = hs.GradScaler("cpu", init_scale=1024.0)
    scaler._dynamic = SlowDynamic(init_scale=1024.0)
    models = [torch.nn.Linear(2, 1) for _ in range(2)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
    loss = sum(m(torch.full((1, 2), float("inf"))).mean() for m in models)
    scaler.scale(loss).backward()
    scaler.step(optimizers[0])
    scaler.update()
    scaler.step(optimizers[1])
    with pytest.warns(UserWarning, match="stayed where it is"):
        scaler.update()
    assert scaler.get_scale() == 256.0


@pytest.mark.parametrize(
    ("saved", "here"),
    [
        (hs.StaticLossScale(64.0), hs.DynamicLossScale()),
        (hs.DynamicLossScale(64.0), hs.StaticLossScale(64.0)),
        (hs.DynamicLossScale(1.0), hs.NoLossScale()),
        (hs.StaticLossScale(1.0), hs.NoLossScale()),
        (Halving(), hs.StaticLossScale(1024.0)),
    ],
    ids=lambda scale: type(scale).__name__,
)
def test_state_of_another_kind_of_loss_scale_is_refused(
    saved: hs.LossScale, here: hs.LossScale
) -> None:
    before = here.state_dict()
    message = f"state is of a {type(saved).__name__}, this run uses a {type(here).__name__}"
    with pytest.raises(hs.BadValueError, match=message):
        here.load_state_dict(saved.state_dict())
    assert here.state_dict() == before


def test_states_from_before_they_carried_a_kind_load() -> None:
    old = {k: v for k, v in hs.DynamicLossScale(64.0).state_dict().items() if k != "kind"}
    scale = hs.DynamicLossScale()
    scale.load_state_dict(old)
    assert float(scale.value) == 64.0
