"""``halfstep train``: what goes to stdout, to stderr, to files, and the exit code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result
from user_recipes import Invoke

import halfstep as hs


def runs_in(result: Result) -> list[dict[str, Any]]:
    """The runs of strict JSON; raises where stdout holds anything else."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    runs: list[dict[str, Any]] = json.loads(result.stdout, parse_constant=refuse)["runs"]
    return runs


def test_run_that_finishes_is_0_and_prints_its_table(halfstep: Invoke) -> None:
    result = halfstep("train", "my.py:sums", "--precision", "fp32", "--steps", "3")
    assert result.exit_code == 0
    assert "mine on cpu" in result.stdout
    lines = [line.strip() for line in result.stdout.splitlines() if line.strip()]
    header, row = (re.split(r"\s{2,}", line) for line in (lines[1], lines[3]))
    cells = dict(zip(header, row, strict=True))
    assert (cells["format"], cells["updates"], cells["skipped"]) == ("fp32", "3", "0")
    assert "status" not in cells  # said only where a run did not finish
    assert "samples/s" in cells
    assert " -> " in cells["error"]


def test_line_of_each_step_without_a_terminal_ends_as_people_know_it(halfstep: Invoke) -> None:
    result = halfstep("train", "my.py:build", "--precision", "fp32", "--steps", "5")
    lines = [line for line in result.stderr.splitlines() if line.startswith("[step ")]
    assert [line.split("]")[0] for line in lines] == [f"[step {n}" for n in range(1, 6)]
    assert all(line.endswith(" lr=0.01 skipped=False") for line in lines)


@pytest.mark.parametrize(
    ("steps", "options", "expected"),
    [
        (40, [], [1, *range(4, 41, 4)]),  # ten lines and the first
        (9, ["--log-every", "4"], [1, 4, 8]),
    ],
)
def test_log_lines_come_every_so_many_steps(
    halfstep: Invoke, steps: int, options: list[str], expected: list[int]
) -> None:
    result = halfstep(
        "train", "my.py:build", "--precision", "fp32", "--steps", str(steps), *options
    )
    lines = [line for line in result.stderr.splitlines() if line.startswith("[step ")]
    assert [int(line.split("]")[0].removeprefix("[step ")) for line in lines] == expected


def test_skipped_step_says_so_in_its_line(halfstep: Invoke) -> None:
    result = halfstep("train", "my.py:nans", "--precision", "fp32", "--steps", "1")
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("[step ")]
    assert line.endswith(" skipped=True reason=non_finite")


def test_auto_precision_says_which_and_why(halfstep: Invoke) -> None:
    result = halfstep("train", "my.py:build", "--steps", "1", "--json")
    (run,) = runs_in(result)
    assert f"halfstep: precision: {run['format']} ({run['reason']})" in result.stderr.splitlines()


def test_json_is_all_of_stdout_and_is_the_record(halfstep: Invoke) -> None:
    options = ["--precision", "fp16", "--steps", "6", "--json", "--record", "run.jsonl"]
    result = halfstep("train", "my.py:sums", *options, "--max-norm", "2", "--seed", "3")
    assert result.exit_code == 0
    (run,) = runs_in(result)
    assert run["settings"] == {"steps": 6, "accumulate": 1, "max_norm": 2.0, "seed": 3}
    assert hs.RunRecord.load("run.jsonl").to_dict() == run
    assert hs.RunRecord.from_dict(run).to_dict() == run


def test_compare_runs_each_format_and_records_each(halfstep: Invoke, folder: Path) -> None:
    options = ["--compare", "--steps", "4", "--json", "--record", "my.run.jsonl"]
    result = halfstep("train", "my.py:sums", *options)
    assert result.exit_code == 0
    runs = runs_in(result)
    assert [run["format"] for run in runs] == ["fp32", "bf16", "fp16"]
    files = [f"my.run.{run['format']}.jsonl" for run in runs]
    assert [hs.RunRecord.load(name).to_dict() for name in files] == runs
    assert sorted(path.name for path in folder.glob("*.jsonl")) == sorted(files)


def test_compare_prints_one_table_with_a_row_per_format(halfstep: Invoke) -> None:
    result = halfstep("train", "my.py:build", "--compare", "--steps", "2")
    rows = [line.split()[0] for line in result.stdout.strip().splitlines()[-3:]]
    assert rows == ["fp32", "bf16", "fp16"]


def test_collapse_is_1_with_the_record_and_the_reason(halfstep: Invoke) -> None:
    options = ["--precision", "fp32", "--steps", "200", "--json", "--record", "run.jsonl"]
    result = halfstep("train", "my.py:nans", *options)
    assert result.exit_code == 1
    (run,) = runs_in(result)
    assert run["status"] == "collapsed"
    assert hs.RunRecord.load("run.jsonl").to_dict() == run
    said = result.stderr.splitlines()[-1]
    assert said.startswith("halfstep: 50 updates in a row were skipped")
    assert "Look at the batch first" in said


def test_collapse_in_one_format_of_a_comparison_is_1_after_all_formats(halfstep: Invoke) -> None:
    result = halfstep("train", "my.py:nans", "--compare", "--steps", "60", "--json")
    assert result.exit_code == 1
    assert [run["status"] for run in runs_in(result)] == ["collapsed"] * 3


def test_recipe_file_imports_its_neighbours(halfstep: Invoke, folder: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "next_door.py").write_text("NAME = 'with a neighbour'\n")
    text = (folder / "my.py").read_text().replace('"mine"', "next_door.NAME")
    (folder / "deep" / "mine.py").write_text(
        text.replace("import torch", "import torch, next_door", 1)
    )
    result = halfstep("train", "deep/mine.py:build", "--steps", "1", "--json")
    assert (result.exit_code, runs_in(result)[0]["recipe"]) == (0, "with a neighbour")


def test_seed_makes_two_runs_bit_equal(halfstep: Invoke) -> None:
    options = ["--precision", "fp32", "--steps", "4", "--json"]
    first, again, other = (
        runs_in(halfstep("train", "my.py:build", *options, "--seed", seed))[0]["steps"]
        for seed in ("1", "1", "2")
    )
    assert first == again
    assert first != other


def test_saved_run_resumes_and_its_record_has_every_step(halfstep: Invoke, folder: Path) -> None:
    common = ["train", "my.py:sums", "--precision", "fp32"]
    straight = runs_in(halfstep(*common, "--steps", "6", "--json"))[0]
    saving = ["--steps", "4", "--save-every", "2", "--save-to", "saved", "--keep", "1"]
    assert halfstep(*common, *saving).exit_code == 0
    assert [path.name for path in (folder / "saved").glob("*.pt")] == ["step-00000004.pt"]
    resuming = ["--steps", "6", "--resume", "saved", "--record", "run.jsonl", "--json"]
    resumed = runs_in(halfstep(*common, *resuming))[0]
    assert resumed["steps"] == straight["steps"]
    assert hs.RunRecord.load("run.jsonl").to_dict() == resumed


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--resume", "none.pt"], "no checkpoint 'none.pt'"),
        (["--save-every", "0"], "every must be a whole number of at least 1"),
        (["--compare", "--save-every", "2"], "--compare makes three runs"),
        (["--save-to", "saved"], "has no effect without --save-every"),
    ],
)
def test_saving_that_cannot_be_is_one_line_with_code_2(
    halfstep: Invoke, options: list[str], text: str
) -> None:
    result = halfstep("train", "my.py:build", "--precision", "fp32", "--steps", "2", *options)
    assert result.exit_code == 2
    assert text in result.stderr.splitlines()[-1]


EARLY = ["--precision", "fp32", "--steps", "20", "--validate-every", "2"]


def test_patience_stops_the_run_with_0_and_records_its_validations(
    halfstep: Invoke, tmp_path: Path
) -> None:
    record = tmp_path / "run.jsonl"
    # the error rises from -0.7 towards 0, so that the first validation stays the smallest
    options = [*EARLY, "--metric", "error", "--patience", "2", "--record", str(record), "--json"]
    result = halfstep("train", "my.py:sums", *options)
    assert result.exit_code == 0
    (run,) = runs_in(result)
    assert (run["status"], len(run["steps"])) == ("stopped", 6)
    loaded = hs.RunRecord.load(record)
    assert [one.step for one in loaded.validations] == [2, 4, 6]
    assert loaded.to_dict() == run
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    order = [row.get("step", row.get("after_step", "")) for row in rows]
    assert order == ["", 1, 2, 2, 3, 4, 4, 5, 6, 6, ""]  # each stands where it was made


def test_keep_best_writes_the_best_checkpoint(halfstep: Invoke, tmp_path: Path) -> None:
    saving = ["--save-every", "20", "--save-to", str(tmp_path / "saved"), "--keep-best"]
    saving += ["--metric", "error:max"]
    assert halfstep("train", "my.py:sums", *EARLY, *saving).exit_code == 0
    assert sorted(path.name for path in (tmp_path / "saved").glob("*.pt")) == [
        "best.pt",
        "step-00000020.pt",
    ]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--patience", "2"], "patience needs validate_every"),
        (["--keep-best"], "--keep-best needs --save-every, whose folder best.pt lies in"),
        (["--metric", "error:up"], "direction must be"),
        (["--validate-every", "2", "--patience", "2"], "goes by the metric 'validation'"),
        (["--validate-every", "2", "--patience", "0"], "patience must be a whole number of at"),
    ],
    ids=" ".join,
)
def test_validation_option_that_cannot_be_is_2(
    halfstep: Invoke, options: list[str], text: str
) -> None:
    result = halfstep("train", "my.py:sums", "--precision", "fp32", "--steps", "3", *options)
    assert result.exit_code == 2
    assert text in " ".join(result.stderr.split())


def test_story_of_two_runs(halfstep: Invoke, folder: Path) -> None:
    """Train, change the rate, train again, compare, resume the right one."""
    train = ["train", "my.py:build", "--precision", "fp32", "--save-every", "2"]
    first = halfstep(*train, "--steps", "4", "--record", "first.jsonl", "--json")
    assert first.exit_code == 0
    text = (folder / "my.py").read_text()
    (folder / "my.py").write_text(text.replace("lr=0.01", "lr=0.0200"))
    again = halfstep(*train, "--steps", "4", "--record", "second.jsonl")
    assert again.exit_code == 2
    assert "'runs/mine' holds the run" in again.stderr
    assert "--resume runs/mine" in again.stderr
    second = halfstep(*train, "--steps", "4", "--record", "second.jsonl", "--fresh", "--json")
    assert second.exit_code == 0
    assert "saved in runs/mine-2" in second.stderr
    differ = halfstep("diff", "first.jsonl", "second.jsonl")
    assert differ.exit_code == 1
    assert "step 1 differs first, by lr: 0.01 against 0.02" in differ.stdout
    resumed = halfstep(*train, "--steps", "6", "--resume", "runs/mine-2", "--json")
    assert resumed.exit_code == 0, resumed.stderr
    assert runs_in(resumed)[0]["id"] == runs_in(second)[0]["id"] != runs_in(first)[0]["id"]
    assert runs_in(resumed)[0]["steps"][:4] == runs_in(second)[0]["steps"]
    wrong = halfstep(*train, "--steps", "6", "--resume", "runs/mine", "--save-to", "runs/mine-3")
    assert "goes on with lr=0.01 of its checkpoint; the recipe's 0.02 is not used" in wrong.stderr


def test_fresh_without_effect_is_refused(halfstep: Invoke) -> None:
    for options in (["--fresh"], ["--fresh", "--save-every", "2", "--resume", "runs/mine"]):
        result = halfstep("train", "my.py:build", *options)
        assert result.exit_code == 2
        assert "--fresh starts a new run" in result.stderr
