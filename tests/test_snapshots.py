"""The oracle of "nothing moved" is tested itself."""

import math

import torch

from snapshots import differences, snapshot


def test_differences_of_equal_states_are_none() -> None:
    model = torch.nn.Linear(3, 2)
    assert differences(snapshot(model), snapshot(model)) == []


def test_differences_of_one_changed_bit_names_the_place() -> None:
    model = torch.nn.Linear(3, 2)
    before = snapshot(model)
    with torch.no_grad():
        model.bias[1] = torch.nextafter(model.bias[1], torch.tensor(math.inf))
    assert differences(before, snapshot(model)) == ["/0/bias"]


def test_differences_tell_signed_zeros_apart() -> None:
    assert differences(torch.tensor(0.0), torch.tensor(-0.0)) == [""]


def test_differences_of_nan_and_the_same_nan_are_none() -> None:
    nan = torch.tensor([math.nan])
    assert differences(nan, nan.clone()) == []


def test_differences_of_missing_state_names_the_key() -> None:
    assert differences({"a": 1}, {}) == [" keys ['a']"]
