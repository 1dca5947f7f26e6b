"""``train --report`` and ``halfstep report``."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from user_recipes import Invoke

import halfstep as hs
from halfstep.report import page


def data_in(path: str) -> Any:
    text = Path(path).read_text(encoding="utf-8")
    found = re.search(r'id="halfstep-data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))


def test_train_writes_the_page_of_its_run(halfstep: Invoke) -> None:
    options = ["--precision", "bf16", "--steps", "3", "--report", "out.html", "--json"]
    result = halfstep("train", "my.py:sums", *options)
    assert result.exit_code == 0
    assert data_in("out.html")["runs"] == json.loads(result.stdout)["runs"]
    run = hs.RunRecord.from_dict(data_in("out.html")["runs"][0])
    assert [step.zero_gradient_fraction for step in run.steps] == [0.0] * 3


def test_train_in_three_formats_writes_one_page(halfstep: Invoke) -> None:
    result = halfstep("train", "my.py:build", "--compare", "--steps", "2", "--report", "out.html")
    assert result.exit_code == 0
    assert [run["format"] for run in data_in("out.html")["runs"]] == ["fp32", "bf16", "fp16"]


def test_run_that_collapses_has_a_page_all_the_same(halfstep: Invoke) -> None:
    result = halfstep("train", "my.py:nans", "--precision", "fp16", "--report", "out.html")
    assert result.exit_code == 1
    assert "The run collapsed: its last 50 steps were skipped." in Path("out.html").read_text()


def test_run_that_was_recorded_gives_the_same_page_later(halfstep: Invoke) -> None:
    files = ["--record", "run.jsonl", "--report", "now.html"]
    assert halfstep("train", "my.py:sums", "--precision", "bf16", "--steps", "3", *files)
    result = halfstep("report", "run.jsonl", "-o", "later.html")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    assert Path("later.html").read_bytes() == Path("now.html").read_bytes()


def test_runs_of_one_format_are_named_by_their_files(halfstep: Invoke) -> None:
    for seed in ("1", "2"):
        options = ["--precision", "fp32", "--steps", "2", "--seed", seed]
        halfstep("train", "my.py:build", *options, "--record", f"seed-{seed}.jsonl")
    assert halfstep("report", "seed-1.jsonl", "seed-2.jsonl", "-o", "out.html").exit_code == 0
    assert "<h1>mine in seed-1 and seed-2</h1>" in Path("out.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["none.jsonl", "-o", "out.html"], "cannot read 'none.jsonl'"),
        (["my.py", "-o", "out.html"], "is not JSON"),
        (["run.jsonl", "-o", "no/out.html"], "cannot write the page to 'no/out.html'"),
        (["run.jsonl", "-o", "./run.jsonl"], "is one of the records; it would be lost"),
        (["run.jsonl"] * 7 + ["-o", "out.html"], "a page shows 1 to 6 runs, got 7"),
    ],
)
def test_page_that_cannot_be_made_is_one_line_with_code_2_and_no_file(
    halfstep: Invoke, folder: Path, arguments: list[str], text: str
) -> None:
    recording = ["--precision", "fp32", "--steps", "1", "--record", "run.jsonl"]
    assert halfstep("train", "my.py:build", *recording).exit_code == 0
    before = sorted(folder.iterdir()), Path("run.jsonl").read_text()
    result = halfstep("report", *arguments)
    (line,) = result.stderr.splitlines()
    assert (result.exit_code, result.stdout) == (2, "")
    assert text in line
    assert (sorted(folder.iterdir()), Path("run.jsonl").read_text()) == before


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--report", "no/out.html"], "cannot write the page to 'no/out.html'"),
        (["--report", "run.jsonl", "--record", "run.jsonl"], "need a file each"),
    ],
)
def test_page_without_a_place_is_known_before_the_first_step(
    halfstep: Invoke, options: list[str], text: str
) -> None:
    result = halfstep("train", "my.py:build", "--log-every", "1", *options)
    assert result.exit_code == 2
    assert text in result.stderr.splitlines()[-1]
    assert "[step 1]" not in result.stderr


def test_page_without_jinja2_is_known_before_the_first_step(
    halfstep: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    page._environment.cache_clear()
    result = halfstep("train", "my.py:build", "--steps", "1", "--report", "out.html")
    assert result.exit_code == 2
    assert "pip install 'halfstep[cli]'" in result.stderr.splitlines()[-1]
    assert "[step 1]" not in result.stderr
