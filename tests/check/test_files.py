"""The walk: what is read, what is left out, what is one line of the report."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from halfstep.check import linter
from halfstep.check.documents import files
from halfstep.check.documents.files import source_files
from halfstep.check.linter import check_paths
from halfstep.rules import registry

RULES = registry.select()
BAD = registry.load("HS101").bad


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def walked(*paths: str) -> list[str]:
    return [path for path, _ in source_files(paths)]


def test_folders_of_tools_are_left_out(folder: Path) -> None:
    left_out = [".git", ".venv", "node_modules", "build", "dist", "__pycache__", "site-packages"]
    for name in ["src", *left_out]:
        (folder / name).mkdir()
        (folder / name / "a.py").touch()
    (folder / "src" / "b.ipynb").touch()
    (folder / "src" / "c.md").touch()
    assert walked(".") == ["src/a.py", "src/b.ipynb"]


def test_file_that_is_named_twice_is_checked_once(folder: Path) -> None:
    (folder / "a.py").touch()
    assert walked("a.py", ".", "./a.py") == ["a.py"]


def test_link_to_a_folder_above_ends(folder: Path) -> None:
    (folder / "src").mkdir()
    (folder / "src" / "a.py").touch()
    (folder / "src" / "loop").symlink_to(folder)
    assert walked(".") == ["src/a.py"]


def test_link_to_nothing_is_one_line(folder: Path) -> None:
    (folder / "a.py").symlink_to("nowhere")
    (folder / "train.py").write_text(BAD)
    report = check_paths(["."], RULES)
    assert report.problems == [("a.py", "no such file or directory", False)]
    assert [f.path for f in report.findings] == ["train.py"]


def test_link_to_itself_is_one_line(folder: Path) -> None:
    (folder / "a.py").symlink_to("a.py")
    ((path, reason, _),) = check_paths(["."], RULES).problems
    assert (path, reason) == ("a.py", "too many levels of symbolic links")


def test_file_that_vanishes_in_between_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.py", "b.py"):
        (folder / name).write_text(BAD)
    read = linter.read_bytes

    def read_and_remove(path: str) -> bytes:
        data = read(path)
        if path == "a.py":
            os.unlink(path)
        return data

    monkeypatch.setattr(linter, "read_bytes", read_and_remove)
    report = check_paths(["."], RULES)
    assert report.problems == [("a.py", "no such file or directory", False)]
    assert [f.path for f in report.findings] == ["b.py"]


def test_pipe_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "a.py")
    assert check_paths(["."], RULES).problems == [("a.py", "not a file", False)]


def test_folder_with_the_name_of_a_script_is_walked(folder: Path) -> None:
    (folder / "a.py").mkdir()
    (folder / "a.py" / "b.py").touch()
    assert walked(".") == ["a.py/b.py"]


def test_huge_file_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_LARGEST", 2**20)
    (folder / "a.py").write_text("scaler = 1\n" * 100_000)
    assert check_paths(["a.py"], RULES).problems == [("a.py", "larger than 1 MiB", True)]


@pytest.mark.parametrize(
    ("data", "number"),
    [
        (b"\xef\xbb\xbf" + BAD.encode(), 1),
        (b"# coding: latin-1\n# \xe9\n" + BAD.encode(), 1),
        (b"# coding: unheard-of\n" + BAD.encode(), 0),
        (b"# \xe9\n" + BAD.encode(), 0),
    ],
    ids=["byte order mark", "latin-1", "unknown", "undeclared"],
)
def test_encodings(folder: Path, data: bytes, number: int) -> None:
    (folder / "a.py").write_bytes(data)
    report = check_paths(["a.py"], RULES)
    assert (len(report.findings), len(report.problems)) == (number, 1 - number)


def test_column_counts_characters(folder: Path) -> None:
    (folder / "a.py").write_text("import torch\nx = 'ä€😀'; y = torch.cuda.amp.autocast()\n")
    (found,) = check_paths(["a.py"], RULES).found
    assert (found.finding.column, found.end_column) == (16, 41)
    assert found.source[15:40] == "torch.cuda.amp.autocast()"


def test_mistake_of_a_rule_is_one_line_and_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = registry.load("HS303")

    def fail(*_: object) -> None:
        raise KeyError("oops")

    (folder / "a.py").write_text("import torch\ntorch.cuda.amp.autocast()\n")
    monkeypatch.setattr(rule, "check", fail)
    ((path, reason, matters),) = check_paths(["."], [rule]).problems
    assert (path, matters) == ("a.py", True)
    assert reason == "halfstep failed here (KeyError: 'oops'); please report it"


def test_any_number_of_processes_gives_the_same_report(folder: Path) -> None:
    for number in range(9):
        (folder / f"a{number}.py").write_text(BAD if number % 2 else "scaler = (\n")
    code = (
        "import sys\n"
        "from halfstep.check.linter import check_paths\n"
        "from halfstep.rules import registry\n"
        "if __name__ == '__main__':\n"
        "    report = check_paths(['.'], registry.select(), jobs=int(sys.argv[1]))\n"
        "    print([str(f) for f in report.findings], report.problems)\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code, jobs], capture_output=True, text=True, check=True
        ).stdout
        for jobs in ("1", "2", "5")
    }
    assert len(outputs) == 1
    assert outputs.pop().count("HS101") == 4
