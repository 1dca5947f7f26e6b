"""``halfstep check``: each option, and the frozen set of them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from user_recipes import Invoke

from halfstep.cli.check import check
from halfstep.cli.check_options import parser
from halfstep.cli.plain import run
from halfstep.rules import registry

BAD, GOOD = registry.load("HS101").bad, registry.load("HS101").good
NOTE = registry.load("HS109").bad
OLD = "import torch\r\nwith torch.cuda.amp.autocast():\r\n\tpass\r\n"
NEW = OLD.replace("torch.cuda.amp.autocast()", 'torch.amp.autocast("cuda")')
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "train.py"


def test_options_are_these_and_no_others() -> None:
    options = {name for action in parser()._actions for name in action.option_strings}
    assert sorted(options) == [
        "--diff",
        "--explain",
        "--fix",
        "--format",
        "--help",
        "--ignore",
        "--isolated",
        "--jobs",
        "--json",
        "--select",
        "--statistics",
        "--stdin-filename",
        "--strict",
        "--unsafe-fixes",
        "-h",
    ]


def test_list_of_commands_has_check_and_rules(halfstep: Invoke) -> None:
    text = halfstep("--help").stdout
    assert "Find mixed-precision mistakes in training scripts" in text
    assert "List the rules of a correct mixed-precision step" in text


def test_check_through_the_application_is_the_same_command(train: Path, halfstep: Invoke) -> None:
    train.write_text(BAD)
    result = halfstep("check", "train.py", "--format", "github")
    assert (result.exit_code, result.stdout[:22]) == (1, "::error file=train.py,")


def test_json_and_its_long_form_are_the_same(train: Path, capsys: Capture) -> None:
    train.write_text(BAD)
    assert check(["train.py", "--json"]) == check(["train.py", "--format", "json"]) == 1
    text = capsys.readouterr().out
    assert text[: len(text) // 2] == text[len(text) // 2 :]


def test_json_has_checklist_and_statistics_beside_the_findings(
    train: Path, capsys: Capture
) -> None:
    train.write_text(BAD)
    check(["train.py", "--json", "--statistics"])
    data = json.loads(capsys.readouterr().out)
    assert data["statistics"] == {"HS101": 1}
    assert data["checklist"]["unscale before clip, once per optimizer"] == "HS101"


def test_sarif_is_one_document(train: Path, capsys: Capture) -> None:
    train.write_text(BAD)
    assert check(["train.py", "--format", "sarif"]) == 1
    (result,) = json.loads(capsys.readouterr().out)["runs"][0]["results"]
    assert result["ruleId"] == "HS101"


def test_statistics_count_by_rule(train: Path, capsys: Capture) -> None:
    train.write_text(BAD)
    check(["train.py", "--statistics"])
    assert "    1  HS101  error    clip-before-unscale\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("script", "options", "line", "answer"),
    [
        (GOOD, [], 1, "ok"),
        (BAD, [], 1, "HS101"),
        (GOOD, [], 3, "not seen"),
        (NOTE, ["--strict"], 3, "HS109"),
        (GOOD, ["--select", "HS303"], 1, "not asked"),
    ],
    ids=["ok", "finding", "not seen", "note", "not asked"],
)
def test_checklist_says_of_each_line_what_is_known(
    train: Path, capsys: Capture, script: str, options: list[str], line: int, answer: str
) -> None:
    train.write_text(script)
    check(["train.py", *options])
    lines = [text for text in capsys.readouterr().out.splitlines() if text.startswith("  ")][-5:]
    assert [text.strip().split("  ")[0] for text in lines] == [
        "autocast around forward and loss only",
        "unscale before clip, once per optimizer",
        "max_norm untouched",
        "scale watched",
        "BF16 without scaling",
    ]
    assert lines[line].endswith(f"  {answer}")


def test_checklist_is_left_out_where_nothing_trains(train: Path, capsys: Capture) -> None:
    train.write_text("print('hello')\n")
    assert check(["train.py"]) == 0
    assert capsys.readouterr().out == "no findings in 1 file\n"


def test_explain_says_all_about_a_rule(capsys: Capture) -> None:
    assert check(["--explain", "hs109"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("HS109 schedule-ignores-skip (note; linter and guard; fix: by hand)\n")
    for part in ("What: ", "Why: ", "Source: ", "Remedy: ", "Wrong:", "Right:"):
        assert part in text
    assert "\n        if scaler.get_scale() >= before:\n            scheduler.step()\n" in text


def test_explain_of_an_unknown_code_is_one_line(capsys: Capture) -> None:
    assert run("check", ["--explain", "HS999"]) == 2
    assert capsys.readouterr().err == (
        "halfstep: there is no rule 'HS999'; `halfstep rules` lists them all.\n"
    )


def test_nothing_to_check_is_one_line(capsys: Capture) -> None:
    assert run("check", []) == 2
    assert "check needs files or folders" in capsys.readouterr().err


def test_settings_and_options_go_together(train: Path) -> None:
    train.write_text(BAD)
    Path("pyproject.toml").write_text("[tool.halfstep]\nignore = ['HS101']\n")
    assert check(["train.py"]) == 0
    assert check(["train.py", "--isolated"]) == 1
    Path("pyproject.toml").write_text("[tool.halfstep]\nselect = ['HS3']\n")
    assert check(["train.py"]) == 0
    assert check(["train.py", "--select", "HS1"]) == 1
    assert check(["train.py", "--select", "HS1", "--ignore", "HS10"]) == 0


def test_settings_can_ask_for_notes(train: Path, capsys: Capture) -> None:
    train.write_text(NOTE)
    Path("pyproject.toml").write_text("[tool.halfstep]\nstrict = true\n")
    assert check(["train.py"]) == 0
    assert "HS109 note" in capsys.readouterr().out


def test_bad_setting_is_one_line(train: Path, capsys: Capture) -> None:
    Path("pyproject.toml").write_text("[tool.halfstep]\nslect = []\n")
    assert run("check", ["."]) == 2
    assert capsys.readouterr().err == (
        "halfstep: pyproject.toml: [tool.halfstep] has no 'slect'; did you mean 'select'?\n"
    )


def test_fix_writes_and_says_what_it_did(train: Path, capsys: Capture) -> None:
    train.write_bytes(OLD.encode())
    assert check(["train.py", "--fix"]) == 0
    assert train.read_bytes() == NEW.encode()
    output = capsys.readouterr()
    assert output.err == "train.py: repaired 1 x HS303\n"
    assert output.out.endswith("no findings in 1 file\n")


def test_unsafe_fix_leaves_nothing_to_find(train: Path) -> None:
    train.write_text(BAD)
    assert check(["train.py", "--fix"]) == 1
    assert train.read_text() == BAD
    assert check(["train.py", "--unsafe-fixes"]) == 0


@pytest.mark.parametrize("text", [OLD, OLD.rstrip()], ids=["with a last line end", "without"])
def test_diff_shows_what_fix_would_do_and_writes_nothing(
    train: Path, capsys: Capture, text: str
) -> None:
    train.write_bytes(text.encode())
    assert check(["train.py", "--diff"]) == 0
    assert train.read_bytes() == text.encode()
    shown = capsys.readouterr().out
    patch = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", "-"], input=shown.encode(), check=False
    )
    assert (patch.returncode, train.read_bytes()) == (
        0,
        text.replace("torch.cuda.amp.autocast()", 'torch.amp.autocast("cuda")').encode(),
    )


def test_file_that_cannot_be_written_is_one_line(
    train: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    train.write_bytes(OLD.encode())
    monkeypatch.setattr(os, "replace", fail)
    assert check(["train.py", "--fix"]) == 2
    expected = "train.py: not checked: could not be written (Read-only file system)\n"
    assert capsys.readouterr().err == expected


def test_only_files_that_were_named_are_repaired(train: Path) -> None:
    clip = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    helper = f"from torch import nn\ndef clip(model):  # for a scaler\n    {clip}\n"
    Path("helper.py").write_text(helper)
    train.write_text("from helper import clip\n" + BAD.replace(clip, "clip(model)"))
    assert check(["train.py", "--unsafe-fixes"]) == 1
    assert Path("helper.py").read_text() == helper


class Stdin(io.StringIO):
    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.buffer = io.BytesIO(data)


def test_stdin_is_checked_under_the_name_it_is_given(
    train: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(BAD.encode()))
    assert check(["-", "--stdin-filename", "src/x.py"]) == 1
    assert capsys.readouterr().out.startswith("src/x.py:17:5: HS101")


def test_stdin_with_other_paths_is_refused() -> None:
    assert run("check", ["-", "a.py"]) == 2


def test_fix_of_stdin_is_what_stdout_holds(train: Path) -> None:
    command = [sys.executable, "-m", "halfstep", "check", "-", "--fix"]
    result = subprocess.run(command, input=OLD.encode(), capture_output=True, check=False)
    assert (result.returncode, result.stdout) == (0, NEW.encode())
    assert result.stderr.startswith(b"stdin.py: repaired 1 x HS303")


def test_reader_that_stops_reading_is_no_error(train: Path) -> None:
    for number in range(300):
        Path(f"train{number}.py").write_text(BAD)
    command = f"{sys.executable} -m halfstep check . --jobs 1 | head -1"
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert result.stdout.startswith("train0.py:17:5")
    assert result.stderr == ""


def test_rules_are_listed_and_told(capsys: Capture) -> None:
    assert run("rules", []) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(registry.names())
    assert run("rules", ["hs10"]) == 0
    assert all(line.startswith("HS10") for line in capsys.readouterr().out.splitlines())
    assert run("rules", ["HS101"]) == 0
    assert "Wrong:" in capsys.readouterr().out


def test_rules_as_json_hold_their_examples(capsys: Capture) -> None:
    assert run("rules", ["HS101", "--json"]) == 0
    (rule,) = json.loads(capsys.readouterr().out)["rules"]
    assert (rule["code"], rule["bad"], rule["fixes"]) == ("HS101", BAD, "unsafe")


def test_unknown_rule_is_one_line(capsys: Capture) -> None:
    assert run("rules", ["HS9"]) == 2
    assert "no rule begins with 'HS9'" in capsys.readouterr().err


def test_rules_start_without_torch_typer_and_rich() -> None:
    code = (
        "import sys; sys.argv = ['halfstep', 'rules']\n"
        "from halfstep.cli import main\n"
        "try: main()\n"
        "finally: print(sorted({'torch', 'typer', 'rich', 'click'} & {*sys.modules}))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.endswith("[]\n")


CLEAN_START = """
import sys
sys.argv = ["halfstep", "check", *sys.argv[1:]]
from halfstep.cli import main
try: main()
finally: print("loaded", *sorted(m for m in sys.modules if m.startswith("halfstep.")))
"""


def test_file_without_a_training_step_loads_no_reader_and_one_format(train: Path) -> None:
    train.write_text("print('hello')\n")
    result = subprocess.run(
        [sys.executable, "-c", CLEAN_START, "train.py"], capture_output=True, text=True, check=True
    )
    loaded = set(result.stdout.split("loaded ")[1].split())
    assert {"halfstep.check.linter", "halfstep.cli.check"} <= loaded
    assert {m for m in loaded if m.startswith(("halfstep.report.", "halfstep.rules.catalog"))} == {
        "halfstep.report.findings",
        "halfstep.report.findings.checked",
        "halfstep.report.findings.formats",
        "halfstep.report.findings.formats.text",
        "halfstep.report.findings.registry",
    }
    assert "halfstep.check.interpreter.read" not in loaded
