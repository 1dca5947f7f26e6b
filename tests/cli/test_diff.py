"""``halfstep diff`` and ``halfstep resume-check``: exit codes and first lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from user_recipes import Invoke


@pytest.fixture
def records(halfstep: Invoke, folder: Path) -> dict[str, str]:
    names = {}
    for name, options in {
        "a": [],
        "same": [],
        "seed": ["--seed", "1"],
        "clipped": ["--max-norm", "0.01"],
    }.items():
        names[name] = f"{name}.jsonl"
        common = ["--precision", "fp32", "--steps", "6", "--checksums", "--record", names[name]]
        assert halfstep("train", "my.py:build", *common, *options).exit_code == 0
    return names


def test_diff_of_equal_runs_is_0(halfstep: Invoke, records: dict[str, str]) -> None:
    result = halfstep("diff", records["a"], records["same"])
    assert (result.exit_code, result.stdout) == (0, "equal in all 6 steps\n")


def test_diff_of_clipped_runs_is_1_and_names_step_and_field(
    halfstep: Invoke, records: dict[str, str]
) -> None:
    result = halfstep("diff", records["a"], records["clipped"])
    assert result.exit_code == 1
    assert result.stdout.startswith("step 1 differs first, by checksum: ")
    plain = json.loads(halfstep("diff", records["a"], records["clipped"], "--json").stdout)
    assert (plain["step"], plain["matters"], plain["noise"]) == (1, True, None)


def test_diff_with_noise_says_whether_it_is_more(halfstep: Invoke, records: dict[str, str]) -> None:
    arguments = [records["a"], records["same"], "--noise", records["seed"]]
    result = halfstep("diff", *arguments)
    assert result.exit_code == 0
    assert "no more than the noise between seeds" in result.stdout
    other = halfstep("diff", records["a"], records["seed"], "--noise", records["same"])
    assert other.exit_code == 1
    assert "more than the noise between seeds (0)" in other.stdout


def test_diff_of_what_is_no_record_is_one_line_with_code_2(halfstep: Invoke, folder: Path) -> None:
    (folder / "text.jsonl").write_text("hello\n")
    for name in ("text.jsonl", "none.jsonl"):
        result = halfstep("diff", name, name)
        assert result.exit_code == 2
        assert len(result.stderr.splitlines()) == 1


def test_resume_check_of_a_recipe_is_0_and_shows_both_runs(halfstep: Invoke) -> None:
    common = ["resume-check", "my.py:build", "--at", "2", "--steps", "2", "--precision", "fp32"]
    result = halfstep(*common)
    assert result.exit_code == 0
    assert result.stdout.endswith(
        "straight against resumed: equal in all 2 steps\n"
        "after the last step: the whole state is equal\n"
    )
    assert result.stdout.count("resumed") == 3
    without = halfstep(*common, "--without", "everything")
    assert without.exit_code == 2
    assert "without must be of" in without.stderr.splitlines()[-1]
