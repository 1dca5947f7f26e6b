"""`micro_batches`, and what `train_step` takes for a window."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import halfstep as hs


@pytest.mark.parametrize(
    ("count", "per_update", "drop_last", "expected"),
    [
        (4, 2, False, [[0, 1], [2, 3]]),
        (3, 2, False, [[0, 1], [2]]),
        (3, 2, True, [[0, 1]]),
        (4, 2, True, [[0, 1], [2, 3]]),
        (2, 1, False, [[0], [1]]),
        (2, 5, False, [[0, 1]]),
        (2, 5, True, []),
        (0, 2, False, []),
    ],
)
def test_batches_are_grouped(
    count: int, per_update: int, drop_last: bool, expected: list[list[int]]
) -> None:
    assert list(hs.micro_batches(range(count), per_update, drop_last=drop_last)) == expected


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers()), st.integers(1, 9))
def test_windows_joined_are_the_loader(loader: list[int], per_update: int) -> None:
    windows = list(hs.micro_batches(loader, per_update))
    assert [batch for window in windows for batch in window] == loader
    assert [len(window) for window in windows[:-1]] == [per_update] * (len(windows) - 1)


def test_window_takes_no_batch_in_advance() -> None:
    loader = iter(range(10))
    windows = hs.micro_batches(loader, 3)
    assert next(windows) == [0, 1, 2]
    assert next(loader) == 3


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2", None])
def test_size_that_is_no_positive_whole_number_is_refused_at_once(value: Any) -> None:
    with pytest.raises(ValueError, match="per_update must be a whole number of at least 1, got"):
        hs.micro_batches([], value)  # not first at the first window


def engine() -> hs.Engine:
    model = nn.Linear(2, 1)
    return hs.Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), precision="fp32")


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    loss: Tensor = model(batch).mean()
    return loss


@pytest.mark.parametrize(
    ("window", "kind"),
    [
        (torch.ones(3, 2), "Tensor"),
        ((torch.ones(1, 2), torch.ones(1, 2)), "tuple"),
        ({"x": torch.ones(1, 2)}, "dict"),
        ("batch", "str"),
        (3, "int"),
    ],
    ids=["tensor", "tuple", "dict", "str", "int"],
)
def test_window_that_could_be_one_batch_is_refused(window: Any, kind: str) -> None:
    text = rf"takes a list \(or an iterator\) of micro-batches, got {kind}; .*write \[batch\]"
    with pytest.raises(TypeError, match=text):
        engine().train_step(window, loss_fn)


@pytest.mark.parametrize("make", [list, iter], ids=["list", "iterator"])
def test_window_of_batches_is_one_update(make: Any) -> None:
    trained = engine()
    assert trained.train_step(make([torch.ones(1, 2)] * 3), loss_fn).updated
    assert trained.num_updates == 1


def test_window_without_batches_is_refused() -> None:
    with pytest.raises(ValueError, match="empty window; there is nothing to update"):
        engine().train_step([], loss_fn)
