"""Two and four processes compute what one computes in float64 on all rows."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
import truth_cases as cases
from torch import Tensor
from world import Results, run_cases

from snapshots import differences

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="this torch was built without torch.distributed"
)
EPS = torch.finfo(torch.float32).eps

ALL = [
    (world, wrapper, way)
    for wrapper, (_, worlds, _) in cases.WRAPPERS.items()
    for world in worlds
    for way in cases.WAYS
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Results]:
    return {
        world: run_cases("truth_cases", world, tmp_path_factory.mktemp(f"world{world}"))
        for world in (2, 4)
    }


class Truth:
    """One process in float64 with torch alone: all rows of a window at once."""

    def __init__(self, way_name: str, shards: int) -> None:
        way = cases.WAYS[way_name]
        self.model = cases.Net().double()
        self.way = way
        groups = cases.parts(self.model) if way.is_two else (list(self.model.parameters()),)
        self.optimizers = [way.optimizer(group) for group in groups]
        self.base_rates = [o.param_groups[0]["lr"] for o in self.optimizers]
        self.norms: list[float] = []
        self.losses: list[float] = []
        self.divisors: list[float] = []
        self.moved: list[bool] = []
        self.averages: list[Tensor] = []
        self.consumed = 0.0
        schedule = cases.rates(shards)
        for step in range(cases.STEPS):
            if way.schedules:
                for optimizer, rate in zip(self.optimizers, self.base_rates, strict=True):
                    optimizer.param_groups[0]["lr"] = rate * schedule.factor(self.consumed)
            self._step(step, shards)

    def _step(self, step: int, shards: int) -> None:
        rows = [batch for own in cases.batches(step, shards) for batch in own]
        x = torch.cat([batch.x for batch in rows]).double()
        mask = torch.cat([batch.mask for batch in rows]).double()
        errors = (self.model(x).squeeze(1) - x.sum(1)).square()
        loss = (errors * mask).sum() / mask.sum()
        self.model.zero_grad()
        loss.backward()
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = math.sqrt(sum(float(grad.square().sum()) for grad in grads))
        self.norms.append(norm)
        self.losses.append(float(loss.detach()))
        self.divisors.append(float(mask.sum()))
        self.moved.append("veto" not in self.way.settings or self.losses[-1] <= 8.0)
        if not self.moved[-1]:
            return
        limited = "max_norm" in self.way.settings
        if limited:
            coefficient = min(1.0, cases.MAX_NORM / (norm + 1e-6))
            for grad in grads:
                grad.mul_(coefficient)
        for optimizer in self.optimizers:
            optimizer.step()
        self.consumed += float(mask.sum())
        weights = [p.detach().clone() for p in self.model.parameters()]
        if not self.averages:
            self.averages = weights
        for average, weight in zip(self.averages, weights, strict=True):
            average.lerp_(weight, 1 - cases.DECAY)


@cache
def truth_of(way: str, shards: int) -> Truth:
    return Truth(way, shards)


def _of(found: dict[int, Results], world: int, wrapper: str, way: str) -> tuple[list[Any], Truth]:
    copies = cases.WRAPPERS[wrapper][2]
    return found[world][f"{wrapper}: {way}"], truth_of(way, world // copies)


@pytest.mark.parametrize(("world", "wrapper", "way"), ALL)
def test_parameters_are_those_of_one_process_in_float64(
    found: dict[int, Results], world: int, wrapper: str, way: str
) -> None:
    results, truth = _of(found, world, wrapper, way)
    for result in results:
        for name, right in truth.model.named_parameters():
            assert float((result["parameters"][name] - right.detach()).abs().max()) <= 1e-6, name


@pytest.mark.parametrize(("world", "wrapper", "way"), ALL)
def test_norm_loss_and_divisor_are_of_all_rows(
    found: dict[int, Results], world: int, wrapper: str, way: str
) -> None:
    results, truth = _of(found, world, wrapper, way)
    for result in results:
        assert result["divisors"] == truth.divisors
        assert result["consumed"] == truth.consumed
        assert result["losses"] == pytest.approx(truth.losses, rel=32 * EPS)
        if not cases.WAYS[way].is_two:  # each optimizer has its own there
            for ours, right in zip(result["norms"], truth.norms, strict=True):
                assert abs(ours - right) / right <= 8 * EPS


@pytest.mark.parametrize(("world", "wrapper", "way"), ALL)
def test_ranks_are_bit_equal(found: dict[int, Results], world: int, wrapper: str, way: str) -> None:
    results, _ = _of(found, world, wrapper, way)
    for result in results[1:]:
        assert differences(results[0], result) == []


@pytest.mark.parametrize(
    ("world", "wrapper"), [(w, name) for name, (_, ws, _) in cases.WRAPPERS.items() for w in ws]
)
def test_average_is_that_of_one_process(
    found: dict[int, Results], world: int, wrapper: str
) -> None:
    results, truth = _of(found, world, wrapper, "sgd, clip, average")
    for result in results:
        for average, right in zip(result["average"], truth.averages, strict=True):
            assert float((average - right).abs().max()) <= 1e-6


@pytest.mark.parametrize(
    ("world", "wrapper"), [(w, name) for name, (_, ws, _) in cases.WRAPPERS.items() for w in ws]
)
def test_veto_on_the_loss_of_all_holds_all(
    found: dict[int, Results], world: int, wrapper: str
) -> None:
    results, truth = _of(found, world, wrapper, "adamw, veto")
    assert {True, False} == set(truth.moved)
    for result in results:
        assert [reason is None for reason in result["reasons"]] == truth.moved
