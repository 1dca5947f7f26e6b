"""``[tool.halfstep]``: where it is looked for, what it does, what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfstep.check.linter import check_paths
from halfstep.check.settings import settings_for
from halfstep.records import BadValueError
from halfstep.rules import registry

RULES = registry.select()
BAD = registry.load("HS101").bad


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'above halfstep'\n")
    project = tmp_path / "project"
    (project / "src" / "inner").mkdir(parents=True)
    monkeypatch.chdir(project)
    return project


def write(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.halfstep]\n{text}\n")


def test_nearest_file_with_the_table_counts(folder: Path) -> None:
    write(folder, "ignore = ['hs101']")
    (folder / "src" / "pyproject.toml").write_text("[project]\nname = 'not halfstep'\n")
    (folder / "src" / "inner" / "train.py").write_text(BAD)
    assert settings_for(["src/inner/train.py"]).ignore == ("HS101",)
    write(folder / "src", "select = ['HS2']")
    settings = settings_for(["src/inner/train.py"])
    assert (settings.ignore, settings.select) == ((), ("HS2",))


def test_without_a_table_nothing_is_set(folder: Path) -> None:
    settings = settings_for(["src"])
    assert (settings.select, settings.ignore, settings.strict) == ((), (), False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exclud = ['a']", r"has no 'exclud'; did you mean 'exclude'\?"),
        ("strict = 1", r"strict must be true or false, got 1"),
        ("select = 'HS1'", r"select must be a list of strings, got 'HS1'"),
        ("per-file-ignores = ['a']", r"must be a table of lists of codes, got \['a'\]"),
        ("select = [", r"pyproject.toml cannot be read: "),
    ],
)
def test_nonsense_is_refused_with_the_place(folder: Path, text: str, message: str) -> None:
    write(folder, text)
    with pytest.raises(BadValueError, match=message) as caught:
        settings_for(["src"])
    assert str(caught.value).startswith("pyproject.toml")


@pytest.mark.parametrize(
    "pattern", ["legacy", "src/legacy", "*/legacy/*", "src/legacy/tr*.py", "./src/legacy/"]
)
def test_excluded_paths_are_left_out_of_folders(folder: Path, pattern: str) -> None:
    write(folder, f"exclude = ['{pattern}']")
    for name in ("src/legacy/train.py", "src/inner/train.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(BAD)
    report = check_paths(["src"], RULES, settings_for(["src"]))
    assert [f.path for f in report.findings] == ["src/inner/train.py"]
    named = ["src/legacy/train.py"]
    assert [f.path for f in check_paths(named, RULES, settings_for(named)).findings] == named


def test_finding_in_an_excluded_file_that_is_imported_is_not_shown(folder: Path) -> None:
    clip = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    old = f"from torch import nn\ndef clip(model):  # with a scaler\n    {clip}\n"
    (folder / "src" / "old.py").write_text(old)
    (folder / "src" / "train.py").write_text(
        "from old import clip\n" + BAD.replace(clip, "clip(model)")
    )
    assert [f.path for f in check_paths(["src"], RULES).findings] == ["src/old.py"]
    write(folder, "exclude = ['old.py']")
    assert check_paths(["src"], RULES, settings_for(["src"])).findings == []


def test_per_file_ignores_silence_codes_in_some_files(folder: Path) -> None:
    write(folder, "per-file-ignores = {'src/inner/*' = ['HS1']}")
    for name in ("src/train.py", "src/inner/train.py"):
        (folder / name).write_text(BAD)
    report = check_paths(["src"], RULES, settings_for(["src"]))
    assert [f.path for f in report.findings] == ["src/train.py"]


def test_include_says_which_names_folders_hold(folder: Path) -> None:
    (folder / "src" / "guide.md").write_text(f"```python\n{BAD}```\n")
    assert check_paths(["src"], RULES).num_files == 0
    write(folder, "include = ['*.py', '*.md']")
    assert len(check_paths(["src"], RULES, settings_for(["src"])).findings) == 1
