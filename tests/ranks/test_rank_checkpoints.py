"""What any number of ranks has saved, any number loads again, bit for bit."""

from __future__ import annotations

from pathlib import Path

import checkpoint_cases as cases
import pytest
import torch
from world import Results, run_cases

from snapshots import differences

pytestmark = [
    pytest.mark.skipif(
        not torch.distributed.is_available(), reason="this torch has no torch.distributed"
    ),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> dict[int, Results]:
    return _run("save", tmp_path_factory, folder)


@pytest.fixture(scope="module")
def loaded(
    tmp_path_factory: pytest.TempPathFactory, folder: Path, saved: dict[int, Results]
) -> dict[int, Results]:
    return _run("load", tmp_path_factory, folder)


def _run(what: str, tmp_path_factory: pytest.TempPathFactory, folder: Path) -> dict[int, Results]:
    variables = {"HALFSTEP_TEST_FOLDER": str(folder)}
    return {
        world: run_cases(
            "checkpoint_cases", world, tmp_path_factory.mktemp(what), only=what, **variables
        )
        for world in cases.SAVED
    }


@pytest.mark.parametrize(("world", "how", "optimizer", "source"), cases.LOADS)
def test_everything_is_loaded_bit_for_bit(
    saved: dict[int, Results],
    loaded: dict[int, Results],
    world: int,
    how: str,
    optimizer: str,
    source: tuple[int, str],
) -> None:
    right = saved[source[0]][f"save {source[0]} {source[1]}, {optimizer}"][0]
    results = loaded[world][f"load {source[0]} {source[1]} as {world} {how}, {optimizer}"]
    for result in results:
        assert differences(right, result["found"]) == []
        assert result["extra"] == {"epoch": 3}
        assert result["updated"]
        kept = any("the generators stay as they are" in note for note in result["notes"])
        assert kept == (world != source[0])


@pytest.mark.parametrize(("world", "how", "optimizer", "source"), cases.LOADS)
def test_run_goes_on_alike(
    loaded: dict[int, Results], world: int, how: str, optimizer: str, source: tuple[int, str]
) -> None:
    # the same rows everywhere: a run that goes on elsewhere computes the same, but for rounding
    one = loaded[1][f"load {source[0]} {source[1]} as 1 one, {optimizer}"][0]
    for result in loaded[world][f"load {source[0]} {source[1]} as {world} {how}, {optimizer}"]:
        assert result["norm"] == pytest.approx(one["norm"], rel=1e-6)
        for ours, theirs in zip(result["weights"], one["weights"], strict=True):
            assert torch.allclose(ours, theirs, atol=1e-6)
