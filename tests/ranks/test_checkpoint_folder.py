"""The folder of a checkpoint of several ranks: whole or not at all, and nothing in it is run."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import agreement_cases as cases
import killed_save
import pytest
import torch
import torch.distributed as dist
from torch import nn

import halfstep as hs
from halfstep.training.checkpoint.file import read_checkpoint
from halfstep.training.checkpoint.several_ranks import save_folder
from halfstep.update.ranks.ranks import ONE
from snapshots import differences

pytestmark = pytest.mark.skipif(
    not dist.is_available(), reason="this torch was built without torch.distributed"
)


def engine(seed: int = 0) -> hs.Engine:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(cases.WIDTH, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    return cases.engine_of(model, torch.optim.SGD(model.parameters(), lr=0.1), ema=0.5)


def saved(path: Path, tmp_path: Path, number: int = 1) -> hs.Engine:
    """An engine, and its checkpoint as a folder, by one process."""
    source = engine()
    source.train_step([cases.rows(0, 4)], cases.mean_loss)
    hs.save_checkpoint(tmp_path / "file.pt", source, extra={"number": number})
    save_folder(path, read_checkpoint(tmp_path / "file.pt"), ONE)
    return source


def save_name(path: Path) -> str:
    name: str = json.loads((path / "checkpoint.json").read_text())["save"]
    return name


def test_folder_holds_what_the_file_holds(tmp_path: Path) -> None:
    source = saved(tmp_path / "run", tmp_path)
    assert (
        differences(read_checkpoint(tmp_path / "run"), read_checkpoint(tmp_path / "file.pt")) == []
    )
    other = engine(seed=1)
    assert hs.load_checkpoint(tmp_path / "run", other) == {"number": 1}
    assert differences(source.model.state_dict(), other.model.state_dict()) == []
    assert differences(source.state_dict(), other.state_dict()) == []


def test_second_save_replaces_the_first(tmp_path: Path) -> None:
    saved(tmp_path / "run", tmp_path, 1)
    saved(tmp_path / "run", tmp_path, 2)
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["checkpoint.json", save_name(tmp_path / "run")]
    assert hs.load_checkpoint(tmp_path / "run", engine()) == {"number": 2}


class Command:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch executed",)


def test_index_that_would_run_a_command_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "run", tmp_path)
    index = tmp_path / "run" / save_name(tmp_path / "run") / "tensors" / ".metadata"
    index.write_bytes(pickle.dumps(Command()))
    with pytest.raises(
        hs.BadValueError, match=r"wants to make a posix\.system.*nothing of it was e"
    ):
        hs.load_checkpoint(tmp_path / "run", engine())
    assert not (tmp_path / "executed").exists()


def test_entry_that_torch_would_unpickle_is_refused(tmp_path: Path) -> None:
    # torch reads entries of bytes with weights_only=False
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata

    saved(tmp_path / "run", tmp_path)
    index = tmp_path / "run" / save_name(tmp_path / "run") / "tensors" / ".metadata"
    metadata = pickle.loads(index.read_bytes())
    metadata.state_dict_metadata["model/model/0.weight"] = BytesStorageMetadata()
    index.write_bytes(pickle.dumps(metadata))
    with pytest.raises(hs.BadValueError, match="BytesStorageMetadata, which no index"):
        hs.load_checkpoint(tmp_path / "run", engine())


def test_index_that_points_elsewhere_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "run", tmp_path)
    index = tmp_path / "run" / save_name(tmp_path / "run") / "tensors" / ".metadata"
    metadata = pickle.loads(index.read_bytes())
    for info in metadata.storage_data.values():
        info.relative_path = "../../../file.pt"
    index.write_bytes(pickle.dumps(metadata))
    with pytest.raises(hs.BadValueError, match="points outside of its folder"):
        hs.load_checkpoint(tmp_path / "run", engine())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tensors/.metadata", "is not whole: its index is gone"),
        ("rest.pt", "the checkpoint is not whole: 'rest.pt' is gone"),
        ("rank-0000.pt", "the checkpoint is not whole: 'rank-0000.pt' is gone"),
    ],
)
def test_folder_with_a_file_missing_is_refused(tmp_path: Path, name: str, message: str) -> None:
    saved(tmp_path / "run", tmp_path)
    (tmp_path / "run" / save_name(tmp_path / "run") / name).unlink()
    target = engine(seed=1)
    before = target.model.state_dict()
    with pytest.raises(hs.BadValueError, match=message):
        hs.load_checkpoint(tmp_path / "run", target)
    assert differences(before, target.model.state_dict()) == []


def test_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "run", tmp_path)
    path = tmp_path / "run" / save_name(tmp_path / "run") / "rest.pt"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(hs.BadValueError, match=r"'rest\.pt' is cut off"):
        hs.load_checkpoint(tmp_path / "run", engine())


def test_tensor_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "run", tmp_path)
    folder = tmp_path / "run" / save_name(tmp_path / "run") / "tensors"
    (path,) = folder.glob("*.distcp")
    path.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(hs.BadValueError, match="the tensors of the checkpoint cannot be read"):
        hs.load_checkpoint(tmp_path / "run", engine())


def test_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(hs.BadValueError, match="is a folder without a checkpoint of several"):
        hs.load_checkpoint(tmp_path, engine())


def test_folder_with_other_things_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(hs.BadValueError, match=r"with other things in it \('.*'\).*folder of its"):
        saved(tmp_path, tmp_path)


def test_file_is_not_overwritten_by_a_folder(tmp_path: Path) -> None:
    with pytest.raises(hs.BadValueError, match="is a file, and a checkpoint of several processes"):
        saved(tmp_path / "file.pt", tmp_path)


def _killed(folder: Path, who: int, number: int) -> bool:
    """Whether the save that was to be killed came to its end before."""
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if sys.platform == "linux":
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    folder.mkdir()
    arguments = [str(store.port), str(folder), str(who), str(number)]
    pair = [
        subprocess.Popen(
            [sys.executable, killed_save.__file__, str(rank), *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    for process in pair:
        process.communicate(timeout=60)
    return (folder / "ended").exists()


def _loaded(path: Path) -> int:
    """The number of the save that loads, whole."""
    target = cases.engine_of(cases.mlp())
    number: int = hs.load_checkpoint(path, target)["save"]
    assert target.num_updates == number
    return number


@pytest.mark.slow
def test_save_that_is_killed_at_any_write_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, killed_save.__file__, str(tmp_path)]
    subprocess.run(command, env=environment, check=True, timeout=120)
    found = [_loaded(path) for path in sorted(tmp_path.iterdir()) if path.is_dir()]
    assert found == sorted(found)  # the old one up to the move that counts, the new one after it
    assert set(found) == {1, 2}
    assert found.count(1) >= 5


@pytest.mark.slow
@pytest.mark.parametrize(("who", "number"), [(0, 1), (0, 6), (1, 0), (1, 1)])
def test_rank_that_is_killed_while_saving_leaves_a_whole_checkpoint(
    tmp_path: Path, who: int, number: int
) -> None:
    ended = _killed(tmp_path / "folder", who, number)
    assert not ended
    assert _loaded(tmp_path / "folder" / "run") in (1, 2)
