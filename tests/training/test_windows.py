"""`micro_batches`, and what `train_step` takes for a window."""

from __future__ import annotations

import copy
import pickle
from collections import UserDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

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


@pytest.mark.parametrize("make", [hs.Window, iter], ids=["window", "iterator"])
def test_window_of_batches_is_one_update(make: Any) -> None:
    trained = engine()
    assert trained.train_step(make([torch.ones(1, 2)] * 3), loss_fn).updated
    assert trained.num_updates == 1


def test_window_without_batches_is_refused() -> None:
    with pytest.raises(ValueError, match="empty window; there is nothing to update"):
        engine().train_step([], loss_fn)


# --- what could as well be one batch ---


class Inputs(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass
class Tokens:
    ids: Tensor


@dataclass
class Targets:
    ids: Tensor


IMAGES, LABELS, MASK = torch.ones(4, 3, 8, 8), torch.zeros(4, dtype=torch.long), torch.ones(4, 8)
BOX = {"boxes": torch.ones(1, 4), "labels": torch.zeros(1, dtype=torch.long)}

ONE_BATCH: dict[str, list[Any]] = {
    "images and labels": [IMAGES, LABELS],
    "two views": [IMAGES, IMAGES],
    "ids, labels, lengths": [LABELS, LABELS, LABELS],
    "views in a list, labels": [[IMAGES, IMAGES], LABELS],
    "tensor and mapping": [IMAGES, {"mask": MASK}],
    "mapping and tensor": [{"mask": MASK}, IMAGES],
    "detection": [[IMAGES[0], IMAGES[1]], [BOX, BOX]],
    "detection, zipped": list(zip((IMAGES[0], BOX), (IMAGES[1], BOX), strict=True)),
    "images and labels, zipped": list(
        zip((IMAGES[0], LABELS[0]), (IMAGES[1], LABELS[1]), strict=True)
    ),
    "texts": ["a sentence", "another one"],
    "texts and labels": [["a sentence", "another one"], LABELS],
    "numpy": [np.ones((4, 8)), np.zeros(4)],
    "inputs and targets by name": [{"image": IMAGES}, {"boxes": MASK}],
    "inputs and targets of classes": [Tokens(LABELS), Targets(LABELS)],
    "parameters": [nn.Parameter(MASK), nn.Parameter(MASK)],
}

SEVERAL: dict[str, list[Any]] = {
    "tuples": [(IMAGES, LABELS), (IMAGES[:2], LABELS[:2])],
    "lists, as DataLoader makes them": [[IMAGES, LABELS], [IMAGES[:2], LABELS[:2]]],
    "mappings": [{"ids": LABELS, "mask": MASK}, {"ids": LABELS}],
    "user mappings": [UserDict(ids=LABELS), UserDict(ids=LABELS)],
    "dataclasses": [Tokens(LABELS), Tokens(LABELS)],
    "named tuples": [Inputs(IMAGES, LABELS), Inputs(IMAGES, LABELS)],
    "detection of several sizes": [([IMAGES[0]], [BOX]), ([IMAGES[0]] * 3, [BOX] * 3)],
    "detection without objects": [([IMAGES[0]], [{}]), ([IMAGES[0]], [BOX])],
    "a mask that is missing": [(IMAGES, None), (IMAGES, MASK)],
    "one-tuples of tensors": [(LABELS,), (LABELS,)],
    "numbers of batches": [0, 1, 2],
    "numbers of two kinds": [1.0, 2],
}


def seen_by(window: Any) -> list[Any]:
    trained, seen = engine(), []

    def noted(model: nn.Module, batch: Any) -> Tensor:
        seen.append(batch)
        return loss_fn(model, torch.ones(1, 2))

    assert trained.train_step(window, noted).updated
    return seen


@pytest.mark.parametrize("batch", ONE_BATCH.values(), ids=ONE_BATCH)
def test_list_that_could_be_one_batch_is_refused_before_loss_fn_is_called(batch: list[Any]) -> None:
    text = (
        rf"^train_step got a list of {len(batch)} \(\w+, \w+.*\), which looks like the parts of one"
        r" batch .* write train_step\(\[batch\], loss_fn\) for one batch,"
        r" hs.micro_batches\(loader, per_update=n\) .*, or hs.Window\(batches\)"
    )
    trained = engine()
    with pytest.raises(TypeError, match=text):
        trained.train_step(batch, lambda model, batch: pytest.fail("loss_fn was called"))
    assert trained.num_updates + trained.num_skipped == 0


@pytest.mark.parametrize("batch", [*ONE_BATCH.values(), *SEVERAL.values()], ids=lambda _: "")
def test_list_around_any_batch_is_a_window_of_one(batch: list[Any]) -> None:
    (seen,) = seen_by([batch])
    assert seen is batch


@pytest.mark.parametrize("batches", SEVERAL.values(), ids=SEVERAL)
def test_list_of_batches_of_one_kind_is_a_window(batches: list[Any]) -> None:
    assert [id(batch) for batch in seen_by(batches)] == [id(batch) for batch in batches]


@pytest.mark.parametrize("batches", ONE_BATCH.values(), ids=ONE_BATCH)
def test_marked_window_takes_elements_of_any_kind(batches: list[Any]) -> None:
    for window in (hs.Window(batches), next(hs.micro_batches(batches, len(batches)))):
        assert [id(batch) for batch in seen_by(window)] == [id(batch) for batch in batches]


def test_generator_is_taken_as_a_window() -> None:
    assert len(seen_by(x for x in (IMAGES, LABELS))) == 2


class Endless:
    def __iter__(self) -> Iterator[Tensor]:
        return iter([MASK])


@pytest.mark.parametrize(
    ("loader", "kind"),
    [
        (DataLoader([MASK]), "DataLoader"),  # type: ignore[arg-type]
        (iter(DataLoader([MASK])), "_SingleProcessDataLoaderIter"),  # type: ignore[arg-type]
        (TensorDataset(MASK), "TensorDataset"),
        (Endless(), "Endless"),
        (deque([MASK]), "deque"),
        (UserDict(x=MASK), "UserDict"),
        (Inputs(IMAGES, LABELS), "Inputs"),
        (Tokens(LABELS), "Tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_loader_given_as_a_window_is_refused(loader: Any, kind: str) -> None:
    text = rf"got {kind}; .*write \[batch\], .* hs.micro_batches\(loader, per_update=n\)"
    with pytest.raises(TypeError, match=text):
        engine().train_step(loader, loss_fn)


@pytest.mark.parametrize(
    "window",
    [
        hs.micro_batches([MASK, MASK], 2),
        [hs.Window([MASK])],
        hs.Window([hs.Window([MASK])]),
    ],
    ids=["all windows", "wrapped", "marked twice"],
)
def test_windows_given_as_one_window_are_refused(window: Any) -> None:
    trained = engine()
    with pytest.raises(TypeError, match=r"a window inside of a window; .* train_step\(window, los"):
        trained.train_step(window, loss_fn)
    assert trained.num_updates + trained.num_skipped == 0


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda w: pickle.loads(pickle.dumps(w))])
def test_copy_of_a_window_is_one(copied: Any) -> None:
    window = copied(hs.Window([1, 2]))
    assert (type(window), window) == (hs.Window, [1, 2])
