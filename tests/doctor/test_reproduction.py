"""The script for a bug report: torch alone, and it shows the failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from plantable_models import FAMILIES, healthy
from planted_faults import planted

import halfstep as hs

FAULTS = {f.name.rsplit("-", 1)[0]: f for f in planted(share=1)}
SHOWN = [
    ("squares_too_large-mlp", "finite 0.0%, largest inf"),
    ("weight_is_large-cnn", "largest inf"),
    ("log_of_negative-rnn", "largest nan"),
    ("masked_row-transformer", "largest nan"),
    ("product_too_small-mlp", "relative error 1"),
    ("digits_lost-mlp", "relative error"),
    ("gradient_overshoots-mlp", "largest inf"),
    ("gradient_divides_by_zero-cnn", "finite 0.0%"),
    ("root_at_zero-mlp", "largest inf"),
]


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", str(folder / "repro.py")],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("name", "text"), SHOWN, ids=[name for name, _ in SHOWN])
def test_script_runs_alone_and_shows_the_failure(tmp_path: Path, name: str, text: str) -> None:
    found = hs.diagnose(FAULTS[name].recipe, repro=tmp_path)
    script = (tmp_path / "repro.py").read_text()
    assert "halfstep" not in script
    assert len(script.splitlines()) <= 35
    inputs = torch.load(tmp_path / "inputs.pt", weights_only=True)
    assert all(isinstance(tensor, torch.Tensor) for tensor in inputs.values())
    result = run(tmp_path)
    assert result.returncode == 1, result.stderr
    assert text in result.stdout
    assert "AssertionError" in result.stderr
    op = found.causes[0].shown_by or found.causes[0].op
    assert op is not None
    assert f"torch.ops.{op.op}." in script


def test_healthy_recipe_writes_nothing(tmp_path: Path) -> None:
    hs.diagnose(healthy(FAMILIES[0]), repro=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(hs.BadValueError, match=r"cannot write to '.*taken'"):
        hs.diagnose(FAULTS["squares_too_large-mlp"].recipe, repro=tmp_path / "taken")
