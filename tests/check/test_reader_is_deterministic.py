"""The reader says the same in every process: nothing hangs on addresses or on the order of sets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_field_depth import DEEP, MEASURE

from halfstep.check.torch_models.optimizers import Optimizer, Schedule
from halfstep.check.torch_models.scalers import Scaler
from halfstep.check.values.base import Value


@pytest.mark.parametrize(
    "make",
    [Value, lambda: Scaler("s"), lambda: Optimizer("o", None), lambda: Schedule("s", None)],
    ids=["value", "scaler", "optimizer", "schedule"],
)
def test_key_of_a_value_is_never_used_again(make: type[Value]) -> None:
    assert len({make().key for _ in range(1000)}) == 1000


def test_key_of_a_value_stays() -> None:
    value = Value()
    assert value.key == value.key


def test_findings_are_the_same_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DEEP)
    (tmp_path / "measure.py").write_text(MEASURE)
    command = [sys.executable, "-m", "halfstep", "check", "--isolated", "--strict", "--json", "."]
    seen = set()
    for seed in ("0", "1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, check=False
        )
        assert b"HS117" in done.stdout
        seen.add(done.stdout)
    assert len(seen) == 1
