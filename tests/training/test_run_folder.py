"""No run eats another: a folder belongs to one run, and only its own files are removed."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import halfstep as hs

BATCHES = [torch.full((2, 4), float(n)) for n in range(5)]


def recipe(lr: float = 0.01, batches: Any = lambda: BATCHES, **changes: Any) -> hs.Recipe:
    return hs.Recipe(
        name="mine",
        model=lambda: nn.Linear(4, 1),
        loss_fn=lambda model, batch: model(batch).float().square().mean(),
        batches=batches,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=lr),
        **changes,
    )


def train(folder: Path, steps: int = 4, every: int = 2, lr: float = 0.01, **how: Any) -> Any:
    keep, fresh = how.pop("keep", 3), how.pop("fresh", False)
    return hs.fit(
        how.pop("recipe", None) or recipe(lr),
        precision="fp32",
        steps=steps,
        checkpoints=hs.CheckpointFolder(folder, every, keep, fresh),
        **how,
    )


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_folder_says_whose_it_is(tmp_path: Path) -> None:
    run = train(tmp_path, steps=5, every=1, keep=2)
    about = json.loads((tmp_path / "run.json").read_text())
    assert about["id"] == run.id
    assert len(run.id) == 8
    assert (about["recipe"], about["format"], about["started"]) == ("mine", "fp32", run.started)
    assert about["settings"] == run.settings
    assert about["files"] == ["step-00000004.pt", "step-00000005.pt"]
    assert sorted(content(tmp_path)) == ["run.json", "step-00000004.pt", "step-00000005.pt"]


def test_second_run_into_the_folder_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    first = train(tmp_path)
    before = content(tmp_path)
    text = rf"holds the run {first.id} of mine .*saved up to step 4: go on with it \(--resume"
    with pytest.raises(ValueError, match=text) as caught:
        train(tmp_path, steps=3, every=1, keep=1)
    assert "--fresh" in str(caught.value)
    assert "--save-to" in str(caught.value)
    assert content(tmp_path) == before


def test_fresh_takes_the_next_folder_beside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "halfstep")
    home = tmp_path / "mine"
    first = train(home)
    before = content(home)
    second = train(home, fresh=True)
    third = train(home, fresh=True)
    assert content(home) == before
    assert len({first.id, second.id, third.id}) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "mine-2", "mine-3"]
    assert json.loads((tmp_path / "mine-3" / "run.json").read_text())["id"] == third.id
    assert f"the run is saved in {home}-2; {home} holds another one" in caplog.text


def test_files_that_the_run_did_not_write_are_never_removed(tmp_path: Path) -> None:
    (tmp_path / "step-final.pt").write_bytes(b"the user's")
    (tmp_path / "notes.txt").write_text("the user's")
    train(tmp_path, steps=4, every=1, keep=1)
    names = ["notes.txt", "run.json", "step-00000004.pt", "step-final.pt"]
    assert sorted(content(tmp_path)) == names


def test_resume_goes_on_in_its_folder_with_its_identity(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "halfstep")
    first = train(tmp_path, steps=4, every=1, keep=2)
    resumed = train(tmp_path, steps=6, every=1, keep=2, resume=tmp_path)
    assert resumed.id == first.id
    assert sorted(content(tmp_path)) == ["run.json", "step-00000005.pt", "step-00000006.pt"]
    said = f"resumed {tmp_path / 'step-00000004.pt'} (run {first.id}, started {first.started})"
    assert f"{said}: going on at step 5 of 6" in caplog.text


def test_resume_of_an_earlier_step_does_not_write_over_the_later_ones(tmp_path: Path) -> None:
    train(tmp_path, steps=6)
    before = content(tmp_path)
    early = tmp_path / "step-00000002.pt"
    text = "holds later checkpoints than step 2 .up to step-00000006.pt"
    with pytest.raises(ValueError, match=text):
        train(tmp_path, steps=8, resume=early)
    assert content(tmp_path) == before
    branch = tmp_path / "branch"
    train(branch, steps=4, resume=early)
    assert "step-00000004.pt" in content(branch)
    (tmp_path / "branch").rename(tmp_path.with_name("elsewhere"))
    assert content(tmp_path) == before


def test_resume_saved_into_the_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    train(tmp_path / "a")
    train(tmp_path / "b")
    with pytest.raises(ValueError, match=r"holds the run .* go on with it"):
        train(tmp_path / "b", steps=6, resume=tmp_path / "a")


def test_checkpoint_of_another_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    train(tmp_path / "a", steps=6)
    train(tmp_path / "b", steps=2)
    (tmp_path / "a" / "step-00000006.pt").rename(tmp_path / "b" / "step-00000006.pt")
    with pytest.raises(ValueError, match="holds the run"):
        train(tmp_path / "b", steps=8, resume=tmp_path / "b")


def test_folder_that_another_run_took_meanwhile_is_left_to_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home, others = tmp_path / "mine", []

    def start_another(run: hs.RunRecord, step: hs.StepRecord) -> None:
        if step.step == 1:  # both found the folder free, and this one saves first
            others.append((train(home, lr=0.02), content(home)))

    slow = train(home, steps=6, keep=1, on_step=start_another)
    ((fast, before),) = others
    assert content(home) == before
    assert json.loads((home / "run.json").read_text())["id"] == fast.id
    beside = tmp_path / "mine-2"
    assert sorted(content(beside)) == ["run.json", "step-00000006.pt"]
    assert json.loads((beside / "run.json").read_text())["id"] == slow.id
    assert f"the run {fast.id} has begun to save in {home} meanwhile" in caplog.text
    assert f"this one ({slow.id}) is saved in {beside}" in caplog.text


def test_save_that_was_killed_before_it_was_noted_is_the_runs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".pt":
            raise Killed
        path.unlink(missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", unlink)
        with pytest.raises(Killed):
            train(tmp_path, steps=4, every=2, keep=1)
    assert sorted(content(tmp_path)) == ["run.json", "step-00000002.pt", "step-00000004.pt"]
    train(tmp_path, steps=6, every=2, keep=1, resume=tmp_path)
    assert sorted(content(tmp_path)) == ["run.json", "step-00000006.pt"]


def test_folder_of_a_run_that_has_saved_nothing_names_no_resume(tmp_path: Path) -> None:
    first = train(tmp_path, steps=2)
    (tmp_path / "step-00000002.pt").unlink()
    with pytest.raises(ValueError, match="which has saved nothing: start a new one") as caught:
        train(tmp_path)
    assert first.id in str(caught.value)
    assert "--resume" not in str(caught.value)


def test_folder_of_an_earlier_version_is_taken_and_can_be_gone_on_with(tmp_path: Path) -> None:
    train(tmp_path, steps=4, every=1, keep=2)
    (tmp_path / "run.json").unlink()
    with pytest.raises(ValueError, match="holds a run, saved up to step 4"):
        train(tmp_path)
    train(tmp_path, steps=6, every=1, keep=3, resume=tmp_path)
    names = ["run.json", "step-00000004.pt", "step-00000005.pt", "step-00000006.pt"]
    assert sorted(content(tmp_path)) == names


def test_folder_whose_owner_cannot_be_read_is_refused(tmp_path: Path) -> None:
    train(tmp_path)
    (tmp_path / "run.json").write_text("{half")
    with pytest.raises(ValueError, match=r"cannot read .*run.json.*whose folder this is"):
        train(tmp_path)


def test_run_that_is_refused_leaves_no_trace(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep_best"):
        train(tmp_path, keep_best=hs.Best("nothing", "min"))
    assert content(tmp_path) == {}
    train(tmp_path)


def test_resume_with_nothing_left_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(tmp_path, steps=4)
    train(tmp_path, steps=4, resume=tmp_path)
    assert "has made its 4 steps, and 4 were asked for: nothing is left to train" in caplog.text


def test_resume_says_which_settings_of_the_recipe_are_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def halving(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    train(tmp_path, recipe=recipe(0.01, schedule=halving, engine={"veto": ()}))
    train(tmp_path, steps=6, resume=tmp_path, recipe=recipe(0.03, schedule=halving))
    assert "goes on with lr=0.01 of its checkpoint; the recipe's 0.03 is not used" in caplog.text
    assert "saved with the engine setting veto=[], and goes on with None" in caplog.text
    caplog.clear()
    train(tmp_path, steps=8, resume=tmp_path, recipe=recipe(0.01, schedule=halving))
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_resume_with_other_data_is_refused_and_trains_nothing(tmp_path: Path) -> None:
    train(tmp_path)
    before = content(tmp_path)
    other = recipe(batches=lambda: [batch + 1 for batch in BATCHES])
    steps: list[hs.StepRecord] = []
    text = (
        r"batch 4 of pass 1 of recipe 'mine' is another one .*seeded inside batches\(\), or start"
    )
    with pytest.raises(ValueError, match=text):
        train(
            tmp_path,
            steps=6,
            resume=tmp_path,
            recipe=other,
            on_step=lambda run, step: steps.append(step),
        )
    assert steps == []
    assert content(tmp_path) == before


def test_resume_goes_on_with_data_that_was_said_not_to_repeat(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = iter(range(1000))
    unsteady = recipe(batches=lambda: [batch + next(made) for batch in BATCHES])
    train(tmp_path, recipe=unsteady)
    assert "the data of this run cannot be resumed" in caplog.text
    for steps in (6, 8):  # the second resume still knows it
        caplog.clear()
        assert train(tmp_path, steps=steps, resume=tmp_path, recipe=unsteady).status == "finished"
        assert "the run goes on with other data than a straight one" in caplog.text


def test_old_records_without_identity_load(tmp_path: Path) -> None:
    data = train(tmp_path).to_dict()
    del data["id"]
    assert hs.RunRecord.from_dict(data).id == ""
