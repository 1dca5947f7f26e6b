"""The first entry at which two states differ, with both values."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from halfstep.tools.state_difference import first_difference

NAN = float("nan")


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, (2.0, "x")]},
        {"nan": NAN, "tensor": torch.tensor([NAN, 1.0])},
        torch.eye(2).to_sparse(),
        [],
        None,
    ],
    ids=repr,
)
def test_equal_states_have_none(value: Any) -> None:
    assert first_difference(value, value) is None


@pytest.mark.parametrize(
    ("left", "right", "text"),
    [
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, "a.b[1] is 2 straight and 3 resumed"),
        ({"a": 1}, {}, "a is there straight and missing resumed"),
        ({}, {"a b": 1}, "['a b'] is missing straight and there resumed"),
        ({3: 1}, {3: 1.0}, "[3] is 1 straight and 1.0 resumed"),
        ({"a": [1]}, {"a": [1, 2]}, "a is 1 long straight and 2 long resumed"),
        (
            {"t": torch.tensor([1.0, 2.0, 3.0])},
            {"t": torch.tensor([1.0, 2.5, 4.0])},
            "t is 2.0 at 1 (2 of 3 values differ) straight and 2.5 resumed",
        ),
        (
            {"t": torch.zeros(2)},
            {"t": torch.zeros(3)},
            "t is torch.float32 of shape (2,) straight and torch.float32 of shape (3,) resumed",
        ),
        ({"t": torch.tensor(0.0)}, {"t": torch.tensor(-0.0)}, "t is 0.0 straight and -0.0 resumed"),
        (
            {"t": torch.eye(2).to_sparse()},
            {"t": 2 * torch.eye(2).to_sparse()},
            "t is 1.0 at 0 (2 of 4 values differ) straight and 2.0 resumed",
        ),
    ],
)
def test_first_difference_is_named_with_both_values(left: Any, right: Any, text: str) -> None:
    found = first_difference(left, right)
    assert str(found) == text
    assert found is not None
    assert set(found.to_dict()) == {"entry", "straight", "resumed"}
