"""Any order of calls on two ranks gives what one process in float64 computes."""

from __future__ import annotations

import pytest
import torch
from world import Results, run_cases

pytestmark = [
    pytest.mark.skipif(
        not torch.distributed.is_available(), reason="this torch has no torch.distributed"
    ),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_cases("machine_cases", 2, tmp_path_factory.mktemp("machine"))


@pytest.mark.parametrize("model", ["ddp", "fsdp"])
def test_any_order_of_calls_equals_one_process(found: Results, model: str) -> None:
    for result in found["any_order_of_calls"]:
        assert result[model] == "nothing was raised"
