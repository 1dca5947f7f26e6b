"""What `save_checkpoint` accepts loads; the rest is refused at the save, naming the entry."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import pathlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import halfstep as hs


def engine() -> hs.Engine:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    return hs.Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), precision="fp32")


class Colour(enum.IntEnum):
    RED = 1


class Point(collections.namedtuple("Point", "x y")):  # what a user has
    pass


@dataclasses.dataclass
class Settings:
    lr: float = 0.1


REFUSED: dict[str, tuple[Any, str]] = {
    "numpy float": (np.float64(1.5), "value.item()"),
    "numpy integer": (np.int64(3), "value.item()"),
    "numpy bool": (np.bool_(True), "value.item()"),
    "array": (np.arange(3), "torch.from_numpy(value)"),
    "namespace": (argparse.Namespace(a=1), "vars(value)"),
    "path": (pathlib.Path("x"), "str(value)"),
    "time": (datetime.datetime(2026, 1, 1), "value.isoformat()"),
    "duration": (datetime.timedelta(1), "value.total_seconds()"),
    "enum": (Colour.RED, "value.value"),
    "named tuple": (Point(1, 2), "tuple(value)"),
    "dataclass": (Settings(), "dataclasses.asdict(value)"),
    "frozen set": (frozenset({1}), "set(value)"),
    "default dict": (collections.defaultdict(int), "dict(value)"),
    "deque": (collections.deque([1]), "list(value)"),
    "decimal": (decimal.Decimal(1), "str(value)"),
    "range": (range(3), "numbers, strings, lists, dicts and tensors"),
    "function": (lambda: None, "numbers, strings, lists, dicts and tensors"),
    "module": (nn.Linear(1, 1), "value.state_dict()"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_extra_that_would_not_load_is_refused_at_save(name: str, tmp_path: Path) -> None:
    value, remedy = REFUSED[name]
    hs.save_checkpoint(tmp_path / "run.pt", engine(), extra={"before": 1})
    with pytest.raises(TypeError) as caught:
        hs.save_checkpoint(tmp_path / "run.pt", engine(), extra={"deep": [{"it": value}]})
    assert "extra['deep'][0]['it'] is of the type" in str(caught.value)
    assert f"save {remedy} instead" in str(caught.value)
    assert hs.load_checkpoint(tmp_path / "run.pt", engine()) == {"before": 1}
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        10**30,
        float("inf"),
        1j,
        "text",
        b"bytes",
        (1, [2, {"three": (4,)}]),
        {1, 2},
        {5: "number as a key"},
        collections.OrderedDict(a=1),
        collections.Counter("ab"),
        torch.float16,
        torch.Size([2, 3]),
        torch.device("cpu"),
    ],
    ids=repr,
)
def test_extra_that_is_accepted_comes_back_equal(value: Any, tmp_path: Path) -> None:
    hs.save_checkpoint(tmp_path / "run.pt", engine(), extra={"it": value})
    found = hs.load_checkpoint(tmp_path / "run.pt", engine())
    assert found == {"it": value}
    assert type(found["it"]) is type(value)


def test_tensors_in_extra_come_back_bit_for_bit(tmp_path: Path) -> None:
    values = {"half": torch.randn(3).half(), "sparse": torch.eye(3).to_sparse()}
    hs.save_checkpoint(tmp_path / "run.pt", engine(), extra=values)
    found = hs.load_checkpoint(tmp_path / "run.pt", engine())
    assert torch.equal(found["half"], values["half"])
    assert torch.equal(found["sparse"].to_dense(), torch.eye(3))


def test_key_that_would_not_load_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"the key np.int64\(3\) of extra is of the type numpy"):
        hs.save_checkpoint(tmp_path / "run.pt", engine(), extra={np.int64(3): 1})  # type: ignore[dict-item]


def test_extra_that_holds_itself_is_refused(tmp_path: Path) -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(ValueError, match=r"extra\['ring'\]\[0\] holds itself"):
        hs.save_checkpoint(tmp_path / "run.pt", engine(), extra={"ring": ring})


def test_extra_that_is_no_dict_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="extra must be a dict by name, got list"):
        hs.save_checkpoint(tmp_path / "run.pt", engine(), extra=[1])  # type: ignore[arg-type]


def test_optimizer_setting_that_would_not_load_is_named(tmp_path: Path) -> None:
    made = engine()
    made.optimizer.param_groups[0]["lr"] = np.float64(0.1)
    with pytest.raises(TypeError, match=r"optimizer\['optimizer'\]\['param_groups'\]\[0\]\['lr'\]"):
        hs.save_checkpoint(tmp_path / "run.pt", made)


def test_class_that_the_user_has_declared_safe_is_accepted(tmp_path: Path) -> None:
    with torch.serialization.safe_globals([Settings]):
        hs.save_checkpoint(tmp_path / "run.pt", engine(), extra={"settings": Settings(0.3)})
        assert hs.load_checkpoint(tmp_path / "run.pt", engine()) == {"settings": Settings(0.3)}
    with pytest.raises(ValueError, match="objects that only running code from it could make"):
        hs.load_checkpoint(tmp_path / "run.pt", engine())
