"""``halfstep check``: output, exit codes, and what its start does not import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from halfstep import Finding
from halfstep.cli.check import check
from halfstep.cli.plain import run
from halfstep.rules import registry

BAD = registry.load("HS101").bad
NOTE = registry.load("HS109").bad
EXCERPT = """\
   16 |     scaler.scale(loss_of(x, y)).backward()
      |     - scaled backward
   17 |     nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- HS101
      |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^"""


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "train.py"


def test_text_says_what_where_why_and_what_to_do(
    train: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train.write_text(BAD)
    assert check(["train.py"]) == 1
    message, *excerpt, remedy = capsys.readouterr().out.splitlines()[:6]
    assert message.startswith("train.py:17:5: HS101 error: the gradients still carry the loss")
    assert "\n".join(excerpt) == EXCERPT
    assert remedy.startswith("      = call scaler.unscale_(optimizer) once")


def test_json_is_the_documented_form(train: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train.write_text(BAD)
    assert check(["train.py", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    (finding,) = map(Finding.from_dict, data["findings"])
    assert (finding.code, finding.line, finding.count) == ("HS101", 17, 1)
    assert (data["num_files"], data["problems"]) == (1, [])


@pytest.mark.parametrize(("options", "shown"), [([], 0), (["--strict"], 1)])
def test_note_is_shown_when_strict_and_never_in_the_exit_code(
    train: Path, options: list[str], shown: int, capsys: pytest.CaptureFixture[str]
) -> None:
    train.write_text(NOTE)
    assert check(["train.py", *options]) == 0
    assert capsys.readouterr().out.count("HS109 note") == shown


@pytest.mark.parametrize("options", [["--ignore", "HS101"], ["--select", "hs102,HS12"]])
def test_rule_that_is_not_selected_is_silent(train: Path, options: list[str]) -> None:
    train.write_text(BAD)
    assert check(["train.py", *options]) == 0


def test_unknown_code_is_one_line_and_exit_code_2(
    train: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train.write_text(BAD)
    assert run("check", ["train.py", "--select", "HS9"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("halfstep: no rule begins with 'HS9'")


def test_named_file_that_cannot_be_read_is_exit_code_2(
    train: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train.write_text("scaler = (")
    assert check(["train.py"]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("train.py: not checked: line 1")
    assert printed.out == "no findings in 0 files\n"
    assert check(["."]) == 0  # found in a folder, it is a line and no more


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"def f(:\n", "line 1: invalid syntax"),
        (b"\xff\xfea\x00", "not a text file"),
        (b"# -*- coding: nope -*-\n", "it declares an unknown encoding: nope"),
    ],
    ids=["no Python", "UTF-16", "coding"],
)
def test_named_file_without_a_word_for_any_rule_is_parsed_all_the_same(
    train: Path, capsys: pytest.CaptureFixture[str], data: bytes, reason: str
) -> None:
    train.write_bytes(data)
    assert check(["train.py"]) == 2
    assert capsys.readouterr().err == f"train.py: not checked: {reason}\n"


def test_command_starts_without_torch_typer_and_rich(train: Path) -> None:
    train.write_text(BAD)
    code = (
        "import sys; sys.argv = ['halfstep', 'check', 'train.py']\n"
        "from halfstep.cli import main\n"
        "try: main()\n"
        "finally: print(sorted({'torch', 'typer', 'rich', 'click'} & {*sys.modules}))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (1, "")
    assert result.stdout.endswith("[]\n")
