"""A folder with a user's recipes in it, and the command line inside this process."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result
from user_recipes import RECIPES, Invoke

from halfstep.cli.app import app


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder; afterwards the log, the imports and the path are as they were."""
    (tmp_path / "my.py").write_text(RECIPES)
    monkeypatch.chdir(tmp_path)
    logger = logging.getLogger("halfstep")
    log = (logger.level, logger.handlers, logger.propagate)
    path = list(sys.path)
    yield tmp_path
    logger.level, logger.handlers, logger.propagate = log
    logger.setLevel(log[0])
    sys.path[:] = path
    for name in [name for name in sys.modules if name.startswith("halfstep_recipe_")]:
        del sys.modules[name]


@pytest.fixture
def halfstep() -> Invoke:
    """``halfstep ...`` without a process of its own: no terminal, stdout apart from stderr."""

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments))

    return invoke


@pytest.fixture
def messages() -> Callable[[Result], list[str]]:
    """What stderr says besides the log lines of the start."""

    def said(result: Result) -> list[str]:
        log = re.compile(r"halfstep: (precision: |SGD: using the fused kernel)")
        return [line for line in result.stderr.splitlines() if not log.match(line)]

    return said
