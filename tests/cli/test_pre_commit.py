"""The hooks, run by pre-commit itself in a repository of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from halfstep.rules import registry

ROOT = Path(__file__).parents[2]
OLD = "import torch\nwith torch.cuda.amp.autocast():\n    pass\n"


def git(folder: Path, *arguments: str) -> str:
    names = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    command = ["git", "-C", str(folder), *names, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository that uses the hooks of another one."""
    hooks, project = tmp_path / "hooks", tmp_path / "project"
    for folder in (hooks, project):
        folder.mkdir()
        git(folder, "init", "-q")
    text = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    (hooks / ".pre-commit-hooks.yaml").write_text(text)
    git(hooks, "add", ".")
    git(hooks, "commit", "-qm", "hooks")
    revision = git(hooks, "rev-parse", "HEAD")
    (project / ".pre-commit-config.yaml").write_text(
        f"repos:\n- repo: {hooks}\n  rev: {revision}\n"
        "  hooks: [{id: halfstep}, {id: halfstep-fix}]\n"
    )
    return project


def run_hook(project: Path, hook: str) -> subprocess.CompletedProcess[str]:
    git(project, "add", ".")
    environment = {
        **os.environ,
        "PRE_COMMIT_HOME": str(project.parent / "cache"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    command = [sys.executable, "-m", "pre_commit", "run", hook, "--all-files"]
    return subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, check=False
    )


def test_hook_fails_on_an_error_and_shows_it(project: Path) -> None:
    (project / "train.py").write_text(registry.load("HS101").bad)
    result = run_hook(project, "halfstep")
    assert result.returncode == 1
    assert "train.py:17:5: HS101 error" in result.stdout


def test_hook_passes_on_a_correct_script(project: Path) -> None:
    (project / "train.py").write_text(registry.load("HS101").good)
    result = run_hook(project, "halfstep")
    assert (result.returncode, "Passed" in result.stdout) == (0, True)


def test_repairing_hook_repairs(project: Path) -> None:
    (project / "train.py").write_text(OLD)
    result = run_hook(project, "halfstep-fix")
    assert (result.returncode, "files were modified" in result.stdout) == (1, True)
    expected = OLD.replace("torch.cuda.amp.autocast()", 'torch.amp.autocast("cuda")')
    assert (project / "train.py").read_text() == expected
