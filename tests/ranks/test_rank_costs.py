"""What is sent per update, by count and bytes; and the road on which no host waits."""

from __future__ import annotations

import math
import re
from typing import Any

import cost_cases as cases
import pytest
import torch
from world import Results, run_cases

from snapshots import differences

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="this torch was built without torch.distributed"
)
EPS = torch.finfo(torch.float32).eps
BOTH = pytest.mark.parametrize("model", ["ddp", "fsdp"])
BLOCKS = 2  # that are sharded one by one


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_cases("cost_cases", 2, tmp_path_factory.mktemp("costs"))


@BOTH
def test_one_collective_of_64_bytes_and_8_per_metric(found: Results, model: str) -> None:
    for result in found["collectives"]:
        assert result[model]["sums"]["sizes"] == [64]
        assert result[model]["metric"]["sizes"] == [72]


def test_gradients_are_exchanged_once_per_window_under_ddp(found: Results) -> None:
    for result in found["collectives"]:
        assert result["ddp"]["sums"]["counts"] == {"reduce": 2}  # one bucket and the exchange
        assert result["ddp"]["stock"]["counts"] == {"reduce": cases.MICRO_BATCHES}


def test_gradients_are_exchanged_once_per_window_under_fsdp(found: Results) -> None:
    for result in found["collectives"]:
        ours, stock = (result["fsdp"][name]["counts"] for name in ("sums", "stock"))
        assert ours["scatter"] == BLOCKS
        assert stock["scatter"] == BLOCKS * cases.MICRO_BATCHES
        assert ours["gather"] <= stock["gather"]
        assert ours["reduce"] == 1
        assert stock["reduce"] == 2


@pytest.mark.parametrize("way", ["plain", "followers"])
@BOTH
def test_undecided_steps_equal_decided_ones(found: Results, model: str, way: str) -> None:
    for result in found["deferred_road"]:
        host, device = (result[f"{model}, {way}"][road] for road in ("host", "device"))
        assert host["undecided"] == 0
        assert device["undecided"] == 5  # not the first one, which makes the optimizer's state
        assert host["reasons"] == device["reasons"] == [None] * 3 + ["non_finite"] + [None] * 2
        for name in ("scales", "consumed"):
            assert host[name] == device[name]
        for name in ("norms", "losses"):
            assert _finite(host[name]) == pytest.approx(_finite(device[name]), rel=8 * EPS)
        for ours, theirs in zip(host["weights"], device["weights"], strict=True):
            assert torch.allclose(ours, theirs, rtol=16 * EPS, atol=16 * EPS)


@pytest.mark.parametrize("way", ["plain", "followers"])
@BOTH
def test_undecided_ranks_are_bit_equal(found: Results, model: str, way: str) -> None:
    left, right = (result[f"{model}, {way}"]["device"] for result in found["deferred_road"])
    assert differences(left, right) == []


@BOTH
def test_disagreement_is_raised_when_the_step_is_looked_at(found: Results, model: str) -> None:
    for result in found["deferred_disagreement"]:
        assert re.search("BadValueError: the ranks do not agree on this step", result[model])


def _finite(values: list[Any]) -> list[float]:
    return [value for value in values if math.isfinite(value)]
