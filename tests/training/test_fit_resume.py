"""A resumed run of `fit` is the straight run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_recipes import small
from torch import nn

import halfstep as hs


def noisy_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))


RECIPE = small(
    model=noisy_model,
    batches=lambda: [torch.full((2, 4), float(n)) for n in range(5)],
    loss_fn=lambda model, batch: model(batch).float().square().mean(),
    optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
)


def steps_of(run: hs.RunRecord) -> list[dict[str, Any]]:
    return [step.to_dict() for step in run.steps]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_resumed_run_has_the_steps_of_the_straight_run(precision: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"precision": precision, "accumulate": 2}
    straight = hs.fit(RECIPE, steps=9, **settings)
    folder = hs.CheckpointFolder(tmp_path, every=3)
    first = hs.fit(RECIPE, steps=7, checkpoints=folder, **settings)
    assert sorted(p.name for p in tmp_path.glob("*.pt")) == ["step-00000003.pt", "step-00000006.pt"]
    resumed = hs.fit(RECIPE, steps=9, resume=tmp_path, **settings)
    assert steps_of(first) == steps_of(straight)[:7]
    assert steps_of(resumed) == steps_of(straight)
    assert resumed.duration_s > 0


def test_only_the_last_checkpoints_are_kept(tmp_path: Path) -> None:
    hs.fit(RECIPE, precision="fp32", steps=5, checkpoints=hs.CheckpointFolder(tmp_path, 1, keep=2))
    assert sorted(p.name for p in tmp_path.glob("*.pt")) == ["step-00000004.pt", "step-00000005.pt"]


def test_resume_of_a_finished_run_makes_no_step(tmp_path: Path) -> None:
    folder = hs.CheckpointFolder(tmp_path, 4)
    done = hs.fit(RECIPE, precision="fp32", steps=4, checkpoints=folder)
    again = hs.fit(RECIPE, precision="fp32", steps=4, resume=tmp_path / "step-00000004.pt")
    assert steps_of(again) == steps_of(done)
    assert again.status == "finished"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"precision": "bf16"}, "saved with format fp32, this run has bf16"),
        ({"accumulate": 2}, "saved with accumulate 1, this run has 2"),
        ({"seed": 5}, "saved with seed 0, this run has 5"),
        ({"max_norm": 1.0}, "saved with max_norm None, this run has 1.0"),
    ],
)
def test_resume_with_other_settings_is_refused(
    changes: dict[str, Any], text: str, tmp_path: Path
) -> None:
    folder = hs.CheckpointFolder(tmp_path, 2)
    hs.fit(RECIPE, precision="fp32", steps=2, checkpoints=folder)
    with pytest.raises(ValueError, match=text):
        hs.fit(RECIPE, **{"precision": "fp32", "steps": 4, "resume": tmp_path, **changes})


def test_resume_from_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no checkpoint \(step-\*.pt\)"):
        hs.fit(RECIPE, precision="fp32", steps=4, resume=tmp_path)
    with pytest.raises(ValueError, match="no checkpoint"):
        hs.fit(RECIPE, precision="fp32", steps=4, resume=tmp_path / "none.pt")


def test_checkpoint_folder_with_settings_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="every must be a whole number of at least 1, got 0"):
        hs.CheckpointFolder(tmp_path, 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot make the folder"):
        hs.CheckpointFolder(tmp_path / "file" / "inside", 1)


def test_folder_keeps_three_checkpoints_unless_told_otherwise(tmp_path: Path) -> None:
    hs.fit(RECIPE, precision="fp32", steps=5, checkpoints=hs.CheckpointFolder(tmp_path, 1))
    assert [path.name for path in sorted(tmp_path.glob("*.pt"))] == [
        f"step-{number:08d}.pt" for number in (3, 4, 5)
    ]
