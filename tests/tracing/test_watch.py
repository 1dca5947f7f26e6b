"""The first layer whose activation is not finite, without a copy."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from torch import Tensor, nn

import halfstep as hs


def model_with_log() -> nn.Module:
    class Log(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.log(x)

    return nn.Sequential(nn.Linear(4, 4), Log(), nn.Linear(4, 2))


def test_first_bad_layer_has_name_dtype_shape_magnitude_and_share() -> None:
    model = model_with_log()
    linear = model[0]
    assert isinstance(linear, nn.Linear)
    nn.init.eye_(linear.weight)
    nn.init.zeros_(linear.bias)
    with hs.watch(model) as watch:
        model(torch.tensor([[1.0, 2.0, 3.0, -1.0]]))
    bad = watch.first_bad
    assert bad is not None
    assert (bad.module, bad.kind, bad.phase) == ("Sequential.1", "Log", "forward")
    assert (bad.dtype, bad.shape, bad.finite_fraction) == ("float32", (1, 4), 0.75)
    assert math.isnan(bad.largest)
    assert str(bad).endswith("largest magnitude nan, 75.0% of the values are finite")
    assert [layer.module for layer in watch] == [
        "Sequential.0", "Sequential.1", "Sequential.2", "Sequential",
    ]  # fmt: skip
    assert watch.layers[0].largest == 3.0


def test_first_bad_layer_of_all_forwards_stays_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = model_with_log()
    with caplog.at_level(logging.WARNING, logger="halfstep"), hs.watch(model) as watch:
        for _ in range(3):
            model(torch.full((1, 4), math.nan))
    assert watch.first_bad is not None
    assert watch.first_bad.module == "Sequential.0"
    messages = [r.getMessage() for r in caplog.records]
    assert len(messages) == 1
    assert messages[0].startswith("first activation that is not finite: Sequential.0 (Linear,")


def test_every_looks_at_each_nth_forward() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with hs.watch(model, every=3) as watch:
        for number in range(7):
            model(torch.full((1, 4), math.nan if number in (1, 2, 4) else 1.0))
        assert watch.first_bad is None
        model(torch.ones(1, 4))
        model(torch.ones(1, 4))
        model(torch.full((1, 4), math.nan))  # the tenth
    assert watch.first_bad is not None


def test_remove_takes_every_hook_off() -> None:
    model = model_with_log()
    watch = hs.watch(model)
    watch.remove()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    model(torch.full((1, 4), math.nan))
    assert watch.first_bad is None


def test_gradients_are_the_same_to_the_bit() -> None:
    def run(watched: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        watch = hs.watch(model) if watched else None
        model(torch.randn(3, 4)).sum().backward()
        if watch is not None:
            watch.remove()
        return [p.grad for p in model.parameters() if p.grad is not None]

    assert all(torch.equal(a, b) for a, b in zip(run(True), run(False), strict=True))


@pytest.mark.parametrize("every", [0, -1, True, 1.5])
def test_every_must_be_a_whole_number(every: object) -> None:
    with pytest.raises(hs.BadValueError, match="every must be a whole number of at least 1"):
        hs.watch(nn.Linear(1, 1), every=every)  # type: ignore[arg-type]
