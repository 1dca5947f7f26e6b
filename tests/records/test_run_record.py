"""`RunRecord`: in memory, as strict JSON, and as a file that a killed run leaves behind."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from halfstep import HalfstepError, RunRecord, StepRecord
from halfstep.records import Validation


def step(number: int, updated: bool = True, divisor: float | None = 64.0) -> StepRecord:
    return StepRecord(
        step=number,
        updated=updated,
        reason=None if updated else "non_finite",
        loss=1.0 / number,
        divisor=divisor,
        metrics={"accuracy": 0.5},
        grad_norm=1.0 if updated else math.inf,
        clip_coef=1.0,
        loss_scale=65536.0,
        next_loss_scale=65536.0 if updated else 32768.0,
        lr=[3e-4],
        consumed=64.0 * number,
    )


def run(**changes: object) -> RunRecord:
    record = RunRecord(
        recipe="nan",  # a text that is also the name of a float
        format="fp16",
        reason="inf",
        device="cpu",
        torch="2.13.0",
        started="2026-01-01T00:00:00+00:00",
        unit="tokens",
        settings={"steps": 3, "accumulate": 1, "max_norm": math.inf, "seed": 0},
        steps=[step(1, updated=False), step(2), step(3)],
        validation={"val_loss": math.inf},
        initial_validation={"val_loss": 5.5},
        duration_s=2.0,
        status="finished",
        validations=[Validation(2, {"val_loss": math.inf}), Validation(3, {})],
    )
    return dataclasses.replace(record, **changes)


def test_dict_round_trip_through_strict_json_is_the_identity() -> None:
    text = json.dumps(run().to_dict(), allow_nan=False)
    assert RunRecord.from_dict(json.loads(text)) == run()


def test_dict_round_trip_of_nan_keeps_it() -> None:
    record = run(validation={"val_loss": math.nan})
    back = RunRecord.from_dict(json.loads(json.dumps(record.to_dict(), allow_nan=False)))
    assert math.isnan(back.validation["val_loss"])
    assert dataclasses.replace(back, validation={}) == dataclasses.replace(record, validation={})


def test_dict_has_every_field_and_the_version() -> None:
    fields = {field.name for field in dataclasses.fields(RunRecord)}
    assert set(run().to_dict()) == fields | {"halfstep_run"}


def test_file_round_trip_is_the_identity(tmp_path: Path) -> None:
    run().save(tmp_path / "run.jsonl")
    assert RunRecord.load(tmp_path / "run.jsonl") == run()


def test_file_of_a_run_without_steps_loads(tmp_path: Path) -> None:
    run(steps=[]).save(tmp_path / "run.jsonl")
    assert RunRecord.load(tmp_path / "run.jsonl") == run(steps=[])


def test_every_line_of_the_file_is_strict_json() -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    lines = [json.loads(line, parse_constant=refuse) for line in run().lines()]
    assert len(lines) == 1 + len(run().steps) + 2 + 1  # header, steps, validations, footer


def test_file_cut_at_any_byte_after_its_header_loads_the_whole_steps(tmp_path: Path) -> None:
    lines = list(run().lines())
    data = "".join(f"{line}\n" for line in lines).encode()
    path = tmp_path / "killed.jsonl"
    for end in range(len(lines[0]) + 1, len(data) - len(lines[-1]) - 1):
        path.write_bytes(data[:end])
        loaded = RunRecord.load(path)
        # a line is whole with or without its line end
        whole = sum(len("\n".join(lines[: n + 2])) <= end for n in range(3))
        assert loaded.steps == run().steps[:whole]
        assert (loaded.status, loaded.validation) == ("running", {})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"hello\n",
        b"[1, 2]\n",
        b"[1]\n[2]\n",
        b"42\n",
        b'{"a": 1}\n',
        b'{"halfstep_run": 1}\n',
        b'{"halfstep_run": 1, "colour": "red"}\n',
        b'{"halfstep_run": 1, "recipe": "lm", "form',
        b"\x89PNG\r\n\x1a\n\xff\xfe",
    ],
    ids=str,
)
def test_foreign_file_is_refused_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "foreign.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"foreign\.txt") as caught:
        RunRecord.load(path)
    assert isinstance(caught.value, HalfstepError)
    assert "\n" not in str(caught.value)


def test_file_of_another_version_is_refused_with_both_versions(tmp_path: Path) -> None:
    path = tmp_path / "new.jsonl"
    path.write_text('{"halfstep_run": 99}\n')
    with pytest.raises(ValueError, match="record of version 1, got 99; record the run again"):
        RunRecord.load(path)


def test_foreign_line_after_the_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    path.write_text(json.dumps(run().header()) + "\nhello\n")
    with pytest.raises(ValueError, match=r"mixed\.jsonl:2 is not JSON"):
        RunRecord.load(path)


def test_counts_of_a_run_are_sums_over_its_steps() -> None:
    assert (run().num_updates, run().num_skipped) == (2, 1)


def test_consumed_per_second_is_the_clock_over_the_duration() -> None:
    assert run().consumed_per_s == 64.0 * 3 / 2.0


@pytest.mark.parametrize(
    "changes",
    [{"steps": []}, {"duration_s": 0.0}, {"steps": [step(1, divisor=None)]}],
    ids=["no steps", "no time", "mean losses"],
)
def test_consumed_per_second_without_a_meaning_is_none(changes: dict[str, object]) -> None:
    assert run(**changes).consumed_per_s is None


def test_record_without_validations_loads_as_one_that_made_none(tmp_path: Path) -> None:
    """Files and dicts of earlier versions have no such lines."""
    data = run().to_dict()
    del data["validations"]
    assert RunRecord.from_dict(data) == run(validations=[])
    path = tmp_path / "old.jsonl"
    lines = [line for line in run().lines() if "after_step" not in line]
    path.write_text("".join(f"{line}\n" for line in lines))
    assert RunRecord.load(path) == run(validations=[])


def test_validation_has_a_line_of_its_own() -> None:
    rows = [json.loads(line) for line in run().lines()]
    found = [row for row in rows if "after_step" in row]
    assert found == [
        {"after_step": 2, "metrics": {"val_loss": "inf"}},
        {"after_step": 3, "metrics": {}},
    ]
