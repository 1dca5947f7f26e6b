"""The recipe of the docs trains; their code runs and prints what they say."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import halfstep as hs
from halfstep.cli.app import app
from halfstep.report.run_page import run_page

DOCS = Path(__file__).parents[1] / "docs"


def test_recipe_of_the_docs_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / "recipes.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(# my.py.*?)```", text, re.DOTALL)
    assert found is not None
    monkeypatch.chdir(tmp_path)
    Path("my.py").write_text(found.group(1))
    run = hs.fit(hs.load_recipe("my.py:build"), precision="fp32", steps=60)
    assert run.status == "finished"
    assert run.steps[-1].loss < 0.9 * run.steps[0].loss
    run.save("run.jsonl")
    assert hs.RunRecord.load("run.jsonl") == run


def test_code_of_the_policy_page_runs_and_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (DOCS / "policy.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.py").write_text(
        "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    )
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile((tmp_path / "page.py").read_text(), "page.py", "exec"), {"__name__": "page"})
    shown = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    assert printed.getvalue() == shown[1] + "native\n"
    command, _, output = shown[0].partition("\n")
    assert CliRunner().invoke(app, command.split()[2:]).stdout == output
    (toml,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert (tmp_path / "precision.toml").read_text() == toml


def test_code_of_the_docs_reads_a_page_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (DOCS / "report.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(import json.*?)```", text, re.DOTALL)
    assert found is not None
    run = hs.fit(hs.load_recipe("digits"), precision="fp32", steps=2)
    monkeypatch.chdir(tmp_path)
    Path("out.html").write_text(run_page([run]), encoding="utf-8")
    names: dict[str, object] = {}
    exec(found.group(1), names)
    assert names["run"] == run


def test_code_and_output_of_the_doctor_page_are_what_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (DOCS / "doctor.md").read_text(encoding="utf-8")
    sick, *blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("sick.py").write_text(sick)
    shown = re.search(r"\$ halfstep doctor sick.py:build\n(.*?)```", text, re.DOTALL)
    assert shown is not None
    result = CliRunner().invoke(app, ["doctor", "sick.py:build"])
    assert result.exit_code == 1
    (version,) = re.findall(r"torch (\S+);", shown.group(1))  # of the torch that it was shown with
    expected = shown.group(1).replace(version, torch.__version__)
    assert " ".join(expected.split()) in " ".join(result.stdout.split())
    printed = io.StringIO()
    torch.manual_seed(0)
    with contextlib.redirect_stdout(printed):
        exec("\n".join(blocks), {"hs": hs, "torch": torch})
    said = re.findall(r"^ *print\(.*\)  # (.*)$", "\n".join(blocks), re.MULTILINE)
    assert printed.getvalue().splitlines() == said
