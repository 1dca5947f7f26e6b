"""`veto=`: conditions that hold an update although its gradients are finite."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_deferred import DeviceLane
from torch import Tensor
from torch.nn import Parameter

import halfstep as hs
from halfstep.update import OptimizerSlot, Update, Window
from snapshots import differences, snapshot
from updates import run_update

ROADS = [OptimizerSlot, DeviceLane]


def make(road: type[OptimizerSlot], *vetoes: Any) -> tuple[Parameter, Update]:
    p = Parameter(torch.zeros(4))
    scale = hs.DynamicLossScale(2.0**4, growth_interval=1000)
    optimizer = torch.optim.AdamW([p], lr=0.1, fused=True)
    return p, Update([road("optimizer", optimizer, scale, vetoes=vetoes)])


def step(p: Parameter, update: Update, norm: float, loss: float = 1.0) -> hs.StepOutcome:
    """One window whose true gradient norm is `norm`."""
    scale = float(update.slots[0].loss_scale.value)
    p.grad = torch.full((4,), scale * norm / 2)
    window = Window()
    window.add(torch.tensor(loss), None, {})
    return run_update(update, window)


def large_norm(facts: hs.veto.Facts) -> Tensor:
    return facts.grad_norm > 10


def large_loss(facts: hs.veto.Facts) -> Tensor:
    return facts.loss > 100


@pytest.mark.parametrize("road", ROADS)
def test_condition_holds_the_update_and_gives_its_reason(road: type[OptimizerSlot]) -> None:
    p, update = make(road, large_norm, large_loss)
    for norm, loss, reason in [
        (1.0, 1.0, None),
        (20.0, 1.0, "veto: large_norm"),
        (1.0, 200.0, "veto: large_loss"),
        (20.0, 200.0, "veto: large_norm"),
        (math.inf, 200.0, "non_finite"),
        (2.0, 2.0, None),
    ]:
        assert step(p, update, norm, loss).reason == reason


@pytest.mark.parametrize("road", ROADS)
def test_held_update_moves_nothing_not_even_the_loss_scale(road: type[OptimizerSlot]) -> None:
    p, update = make(road, large_norm)
    step(p, update, 1.0)
    step(p, update, 1.0)
    slot = update.slots[0]
    before = copy.deepcopy((snapshot(slot.optimizer), slot.loss_scale.state_dict(), p.detach()))
    assert step(p, update, 20.0).skipped
    after = (snapshot(slot.optimizer), slot.loss_scale.state_dict(), p.detach())
    assert differences(list(before), list(after)) == []


@pytest.mark.parametrize("road", ROADS)
def test_norm_spike_holds_what_is_far_above_the_mean(road: type[OptimizerSlot]) -> None:
    # oracle: the mean of the committed norms is 1, so 6 is the limit
    p, update = make(road, hs.veto.norm_spike(6, warmup=3))
    assert step(p, update, 1.0).updated
    assert [step(p, update, norm).updated for norm in (1.0, 1.0, 5.9, 1.0)] == [True] * 4
    # mean of 1, 1, 1, 5.9, 1
    limit = 6 * (9.9 / 5)
    assert step(p, update, limit * 1.01).reason == "veto: norm_spike"
    assert step(p, update, limit * 0.99).updated


@pytest.mark.parametrize("road", ROADS)
def test_norm_spike_does_not_hold_during_its_warmup(road: type[OptimizerSlot]) -> None:
    p, update = make(road, hs.veto.norm_spike(2, warmup=3))
    assert [step(p, update, norm).updated for norm in (1.0, 50.0, 1000.0)] == [True] * 3


@pytest.mark.parametrize("road", ROADS)
def test_norm_spike_takes_a_lasting_rise_for_the_new_level(road: type[OptimizerSlot]) -> None:
    p, update = make(road, hs.veto.norm_spike(3, warmup=2, patience=4))
    for _ in range(4):
        step(p, update, 1.0)
    assert [step(p, update, 10.0).updated for _ in range(8)] == [False] * 4 + [True] * 4


def test_norm_spike_learns_nothing_from_overflows() -> None:
    p, update = make(OptimizerSlot, hs.veto.norm_spike(3, warmup=2))
    for norm in (1.0, 1.0, 1.0):
        step(p, update, norm)
    condition = update.slots[0].vetoes[0]
    before = condition.state_dict()
    assert step(p, update, math.inf).reason == "non_finite"
    assert condition.state_dict() == before


def test_state_of_a_condition_travels_with_the_engine() -> None:
    def engine() -> hs.Engine:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        return hs.Engine(model, optimizer, precision="fp32", veto=hs.veto.norm_spike(3, warmup=2))

    def loss_fn(model: Any, x: Tensor) -> Tensor:
        return model(x).sum()

    first, second = engine(), engine()
    for _ in range(3):
        first.train_step([torch.ones(1, 4)], loss_fn)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    outcomes = [e.train_step([torch.full((1, 4), 9.0)], loss_fn) for e in (first, second)]
    assert [outcome.reason for outcome in outcomes] == ["veto: norm_spike"] * 2


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"factor": 1}, "factor must be > 1"),
        ({"decay": 1.0}, "decay must be between 0 and 1"),
        ({"warmup": 0}, "warmup must be a whole number of at least 1"),
        ({"patience": 1.5}, "patience must be a whole number of at least 1"),
    ],
)
def test_norm_spike_with_numbers_that_cannot_be_is_refused(
    settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        hs.veto.norm_spike(**settings)


def test_what_is_no_condition_is_refused() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for bad in ("norm_spike", 6, [6]):
        with pytest.raises(TypeError, match="veto must be"):
            hs.Engine(model, optimizer, precision="fp32", veto=bad)  # type: ignore[arg-type]
    p, update = make(OptimizerSlot, lambda facts: 3)
    with pytest.raises(TypeError, match="must return a bool or a 0-d tensor"):
        step(p, update, 1.0)


@pytest.mark.parametrize("road", ROADS)
def test_condition_of_a_window_of_sums_sees_its_mean_loss(road: type[OptimizerSlot]) -> None:
    # the sums of a window are its loss, its divisor and its metrics
    seen: list[float] = []

    def large_mean(facts: hs.veto.Facts) -> Tensor:
        seen.append(float(facts.loss))
        return facts.loss > 100

    p, update = make(road, large_mean)
    outcomes = []
    for total in (6.0, 6.0, 1200.0):
        p.grad = torch.ones(4)
        window = Window()
        window.add(torch.tensor(total), 3.0, {"correct": torch.tensor(1.5)})
        outcomes.append(run_update(update, window))
    assert seen == [2.0, 2.0, 400.0]
    assert [outcome.reason for outcome in outcomes] == [None, None, "veto: large_mean"]
    assert [outcome.loss for outcome in outcomes] == seen
    assert [outcome.metrics for outcome in outcomes] == [{"correct": 0.5}] * 3


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("answers", [(True, True), (False, True), (True, False), (False, False)])
def test_only_the_first_condition_that_holds_learns_that_it_did(
    road: type[OptimizerSlot], answers: tuple[bool, bool]
) -> None:
    told: list[tuple[str, bool, bool]] = []

    class Learns:
        def __init__(self, name: str) -> None:
            self.__name__ = name
            self.answer = False

        def __call__(self, facts: hs.veto.Facts) -> bool:
            return self.answer

        def observe(self, facts: hs.veto.Facts, held: Tensor, updated: Tensor) -> None:
            told.append((self.__name__, bool(held), bool(updated)))

    p, update = make(road)
    conditions = [Learns("first"), Learns("second")]
    update.slots[0].vetoes = list(conditions)
    assert step(p, update, 1.0).updated  # makes the state, without which the host decides
    told.clear()
    for condition, answer in zip(conditions, answers, strict=True):
        condition.answer = answer
    step(p, update, 1.0).updated  # noqa: B018
    updated = not any(answers)
    first, second = answers[0], answers[1] and not answers[0]
    assert told == [("first", first, updated), ("second", second, updated)]


class PlainSpike:
    """Oracle: the running mean of the docstring, on floats of Python."""

    def __init__(self, factor: float, decay: float, warmup: int, patience: int) -> None:
        self.settings = factor, decay, warmup, patience
        self.mean, self.updates, self.in_a_row = 0.0, 0, 0

    def holds(self, norm: float) -> bool:
        factor, _, warmup, patience = self.settings
        above = norm > factor * self.mean
        return above and self.updates >= warmup and self.in_a_row < patience

    def observe(self, norm: float, held: bool, updated: bool) -> None:
        _, decay, _, patience = self.settings
        if not updated:
            self.in_a_row += held
            return
        weight = max(1 / (self.updates + 1), 1 - decay)
        self.mean = norm if self.in_a_row >= patience else self.mixed(norm, weight)
        self.updates, self.in_a_row = self.updates + 1, 0

    def mixed(self, norm: float, weight: float) -> float:
        if weight < 0.5:
            return self.mean + weight * (norm - self.mean)
        return norm - (norm - self.mean) * (1 - weight)


@given(
    norms=st.lists(st.floats(0.0, 1e6) | st.sampled_from([math.inf, math.nan, 5.0]), max_size=40),
    decay=st.floats(0.01, 0.99),
    warmup=st.integers(1, 4),
    patience=st.integers(1, 3),
)
def test_norm_spike_in_three_operations_equals_the_plain_rule(
    norms: list[float], decay: float, warmup: int, patience: int
) -> None:
    spike = hs.veto.norm_spike(2.0, decay=decay, warmup=warmup, patience=patience)
    plain = PlainSpike(2.0, decay, warmup, patience)
    for norm in norms:
        facts = hs.veto.Facts(*(torch.tensor(x).double() for x in (norm, 1.0, 1.0)), "optimizer")
        held = spike(facts)
        assert bool(held) == plain.holds(float(facts.grad_norm))
        updated = torch.tensor(math.isfinite(norm)) & ~held
        own = held & math.isfinite(norm)
        spike.observe(facts, own, updated)
        plain.observe(float(facts.grad_norm), bool(own), bool(updated))
        state = spike.state_dict()
        assert (state["updates"], state["in_a_row"]) == (plain.updates, plain.in_a_row)
        assert state["mean"] == pytest.approx(plain.mean, rel=4 * torch.finfo(torch.float64).eps)
