"""Files and folders: what is read, what is left out, what a comment silences."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from halfstep.check.linter import Report, check_paths, check_text
from halfstep.records import BadValueError
from halfstep.rules import registry

RULES = registry.select()
BAD = registry.load("HS101").bad
LINE = next(i for i, line in enumerate(BAD.splitlines(), 1) if "HS101" in line)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(*paths: str) -> Report:
    return check_paths(paths, RULES)


def places(report: Report) -> list[tuple[str, int, str]]:
    return [(f.path, f.line, f.code) for f in report.findings]


def test_finding_has_place_other_line_and_remedy(folder: Path) -> None:
    (folder / "train.py").write_text(BAD)
    (finding,) = check("train.py").findings
    assert (finding.path, finding.line, finding.column) == ("train.py", LINE, 5)
    assert [(r.path, r.line) for r in finding.related] == [("train.py", LINE - 1)]
    assert "scaler.unscale_(optimizer)" in finding.remedy


def test_folder_is_walked_without_tests_and_environments(folder: Path) -> None:
    for name in ("src/train.py", "tests/loop.py", "test_it.py", ".hidden/x.py", "env/lib/y.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(BAD)
    (folder / "env/pyvenv.cfg").touch()
    report = check(".")
    assert places(report) == [("src/train.py", LINE, "HS101")]
    assert report.num_files == 1


def test_test_file_that_is_named_is_checked(folder: Path) -> None:
    (folder / "test_it.py").write_text(BAD)
    assert places(check("test_it.py")) == [("test_it.py", LINE, "HS101")]


def test_mistake_in_an_imported_file_is_found_there_once(folder: Path) -> None:
    (folder / "engine.py").write_text(
        "import torch\n"
        "def train_step(model, optimizer, scaler, loss):\n"
        "    scaler.scale(loss).backward()\n"
        "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        "    scaler.step(optimizer)\n"
        "    scaler.update()\n"
        "    optimizer.zero_grad()\n"
    )
    setup = BAD.split("for x, y in batches")[0]
    (folder / "main.py").write_text(
        setup
        + "from engine import train_step\n"
        + "for x, y in batches:\n    train_step(model, optimizer, scaler, loss_of(x, y))\n"
    )
    assert places(check("main.py")) == [("engine.py", 4, "HS101")]
    assert places(check(".")) == [("engine.py", 4, "HS101")]


@pytest.mark.parametrize("comment", ["ignore", "ignore[HS101]", "ignore[HS102, HS101]"])
def test_comment_silences_its_line(comment: str) -> None:
    text = BAD.replace("# <- HS101", f"# halfstep: {comment}")
    assert check_text("train.py", text, RULES) == []


def test_comment_for_another_rule_silences_nothing() -> None:
    text = BAD.replace("# <- HS101", "# halfstep: ignore[HS102]")
    assert [f.code for f in check_text("train.py", text, RULES)] == ["HS101", "HS304"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"scaler = (\n", r"line 1: '\(' was never closed"),
        (b"scaler\0", "not a text file"),
        (b"scaler = '\xe9'\n", "not UTF-8"),
        (b"scaler = " + b"(" * 5000 + b")" * 5000, "nested|parentheses"),
        (b"scaler = " + b"-" * 30_000 + b"1\n", "nested"),
    ],
    ids=["syntax", "binary", "latin", "parentheses", "operators"],
)
def test_file_that_cannot_be_read_is_a_line_and_the_rest_is_checked(
    folder: Path, data: bytes, reason: str
) -> None:
    (folder / "broken.py").write_bytes(data)
    (folder / "train.py").write_text(BAD)
    report = check("broken.py", "train.py")
    ((path, said, named),) = report.problems
    assert (path, named) == ("broken.py", True)
    assert re.search(reason, said)
    assert places(report) == [("train.py", LINE, "HS101")]


def test_declared_encoding_is_honoured(folder: Path) -> None:
    text = "# -*- coding: latin-1 -*-\n# caf\xe9\n" + BAD
    (folder / "train.py").write_bytes(text.encode("latin-1"))
    assert places(check("train.py")) == [("train.py", LINE + 2, "HS101")]


def test_names_are_resolved_through_imports_and_aliases() -> None:
    text = (
        "import torch as t\nfrom torch.cuda import amp\nfrom torch.cuda.amp import autocast as ac\n"
        "t.cuda.amp.GradScaler()\namp.autocast()\nac()\nt.amp.autocast('cuda')\n"
    )
    found = [(f.code, f.line) for f in check_text("train.py", text, RULES)]
    assert sorted(found) == [("HS303", 4), ("HS303", 5), ("HS303", 6)]


def test_missing_path_is_refused() -> None:
    with pytest.raises(BadValueError, match=r"no such file or folder: nowhere\.py"):
        check("nowhere.py")


def test_file_is_never_executed(folder: Path) -> None:
    (folder / "train.py").write_text("open('mark', 'w')\n" + BAD)
    check("train.py")
    assert not (folder / "mark").exists()
