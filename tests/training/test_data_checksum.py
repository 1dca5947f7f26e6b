"""Batches are known by their content."""

from __future__ import annotations

import dataclasses
from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import halfstep as hs
from halfstep.records.comparison import compare_steps
from halfstep.training.run.data.checksum import data_checksum


@dataclasses.dataclass
class Rows:
    x: Any
    name: str = "a"


PAIRS: dict[str, tuple[Any, Any]] = {
    "values": (torch.zeros(3), torch.tensor([0.0, 0.0, 1.0])),
    "dtype": (torch.zeros(3), torch.zeros(3, dtype=torch.float64)),
    "shape": (torch.zeros(2, 3), torch.zeros(3, 2)),
    "list": ([torch.zeros(1), 3], [torch.zeros(1), 4]),
    "text": ({"x": "a"}, {"x": "b"}),
    "dataclass": (Rows(torch.zeros(2)), Rows(torch.ones(2))),
    "mapping of its own": (UserDict(x=torch.zeros(2)), UserDict(x=torch.ones(2))),
    "array": (np.zeros(3), np.ones(3)),
    "large": (torch.arange(10**6), torch.arange(10**6).flip(0)),
    "strided": (torch.arange(12).reshape(3, 4).t(), torch.arange(12).reshape(3, 4).t() + 1),
    "complex": (torch.zeros(2, dtype=torch.complex64), torch.ones(2, dtype=torch.complex64)),
    "empty": (torch.zeros(0), torch.zeros(0, 3)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_checksum_tells_contents_apart(name: str) -> None:
    left, right = PAIRS[name]
    assert data_checksum(left) == data_checksum(left)
    assert data_checksum(left) != data_checksum(right)


def test_checksum_looks_at_4096_values_of_a_tensor_at_most() -> None:
    many = torch.zeros(4096 * 10)
    touched = many.clone()
    touched[5] = 1.0  # between two of those that are looked at
    assert data_checksum(many) == data_checksum(touched)
    touched[10] = 1.0
    assert data_checksum(many) != data_checksum(touched)


def test_dense_tensor_in_another_order_of_memory_is_not_copied_whole() -> None:
    images = torch.randn(2, 3, 64, 64).to(memory_format=torch.channels_last)
    with torch.profiler.profile(profile_memory=True) as profile:
        data_checksum(images)
    taken = sum(max(0, event.self_cpu_memory_usage) for event in profile.key_averages())
    assert taken <= 4096 * 4


def test_records_of_two_runs_differ_by_their_data_first() -> None:
    def run(offset: float) -> hs.RunRecord:
        recipe = hs.Recipe(
            name="mine",
            model=lambda: nn.Linear(4, 1),
            loss_fn=lambda model, batch: model(batch).square().mean(),
            batches=lambda: [torch.ones(2, 4), torch.full((2, 4), offset)],
            optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        )
        return hs.fit(recipe, precision="fp32", steps=4, accumulate=2)

    left, right = run(2.0), run(3.0)
    assert left.steps[0].data == left.steps[1].data  # the same two batches again
    assert compare_steps(left.steps, run(2.0).steps).is_equal
    found = compare_steps(left.steps, right.steps)
    assert found.step == 1
    assert next(iter(found.differences)) == "data"
    assert "differs first, by other data" in str(found)
