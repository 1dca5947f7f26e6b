"""What a user's mistake looks like: one line, exit code 2, nothing half done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result
from user_recipes import Invoke

import halfstep as hs

Messages = Callable[[Result], list[str]]

SETTINGS = [
    (["--steps", "0"], "steps must be a whole number of at least 1, got 0"),
    (["--accumulate", "0"], "accumulate must be a whole number of at least 1, got 0"),
    (["--max-norm", "0"], "max_norm must be > 0, got 0"),
    (["--max-norm", "-1"], "max_norm must be > 0, got -1"),
    (["--max-norm", "nan"], "max_norm must be > 0, got nan"),
    (["--precision", "fp12"], "precision must be 'auto', 'fp32', 'bf16' or 'fp16', got 'fp12'"),
    (["--device", "nonsense"], "nonsense"),
    (["--device", "cuda:4096"], "cuda:4096"),
]
RECIPES = [
    ("none.py:build", "no file 'none.py'"),
    ("no_such_module_at_all:build", "No module named 'no_such_module_at_all'"),
    ("my.py:none", "my.py has no function 'none'"),
    ("my.py", "expected one of digits, lm, or path/to/file.py:function"),
    ("syntax.py:build", "SyntaxError"),
    ("failing.py:build", "ValueError: at import at failing.py:1"),
    ("my.py:number", "my.py:number must return a halfstep.Recipe, got int"),
    ("my.py:raises", "the recipe's own"),
    ("my.py:empty", "batches() of recipe 'mine' yields nothing"),
    ("my.py:tuple_loss", "the loss must be a scalar tensor or an hs.LossSum, got tuple"),
    ("my.py:dict_loss", "the loss must be a scalar tensor or an hs.LossSum, got dict"),
    ("my.py:vector_loss", "the loss must be a scalar, got a tensor of shape (2, 1)"),
    ("my.py:integer_loss", "the loss must be a real floating-point tensor, got torch.int64"),
    ("my.py:detached_loss", "the loss needs no gradient"),
]


def files_in(folder: Path) -> set[Path]:
    """Every file and folder below, except what Python itself writes when it imports a recipe."""
    return {path for path in folder.rglob("*") if "__pycache__" not in path.parts}


@pytest.mark.parametrize(
    ("recipe", "options", "text"),
    [
        *(("my.py:build", options, text) for options, text in SETTINGS),
        *((recipe, [], text) for recipe, text in RECIPES),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_input_is_one_line_with_code_2_and_no_file(
    halfstep: Invoke, messages: Messages, folder: Path, recipe: str, options: list[str], text: str
) -> None:
    (folder / "syntax.py").write_text("def build(:\n")
    (folder / "failing.py").write_text("raise ValueError('at import')\n")
    before = files_in(folder)
    result = halfstep("train", recipe, "--record", "run.jsonl", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = messages(result)
    assert line.startswith("halfstep: ")
    assert text in line
    assert files_in(folder) == before


@pytest.mark.parametrize("options", [["--steps", "0"], ["--precision", "fp12"]], ids=" ".join)
def test_bad_input_leaves_an_older_record_alone(
    halfstep: Invoke, folder: Path, options: list[str]
) -> None:
    older = folder / "run.jsonl"
    older.write_text("a record of last week\n")
    assert halfstep("train", "my.py:build", "--record", "run.jsonl", *options).exit_code == 2
    assert older.read_text() == "a record of last week\n"


@pytest.mark.parametrize(
    "record", ["missing/run.jsonl", "my.py/run.jsonl", "taken"], ids=["none", "file", "folder"]
)
@pytest.mark.parametrize("compare", [[], ["--compare"]], ids=["one run", "compare"])
def test_record_that_cannot_be_written_stops_before_training(
    halfstep: Invoke, messages: Messages, folder: Path, record: str, compare: list[str]
) -> None:
    for name in ("taken", "taken.bf16"):
        (folder / name).mkdir()
    before = files_in(folder)
    result = halfstep("train", "my.py:build", "--record", record, *compare)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = messages(result)
    assert line.startswith("halfstep: cannot write the record to ")
    assert line.endswith("; create the folder or choose another path.")
    assert files_in(folder) == before


OWN_MISTAKE = """
import torch
from my import make

def forward(model, batch):
    return model(batch) @ torch.ones(7)  # line 6

def loss_fn(model, batch):
    return forward(model, batch).mean()  # line 9

def build():
    return make(loss_fn)
"""


def test_error_in_the_users_loss_shows_the_users_frames_only(
    halfstep: Invoke, folder: Path
) -> None:
    (folder / "own.py").write_text(OWN_MISTAKE)
    result = halfstep("train", "own.py:build", "--precision", "fp32")
    assert (result.exit_code, result.stdout) == (2, "")
    trace = result.stderr[result.stderr.index("Traceback (most recent call last)") :]
    frames = [line.strip() for line in trace.splitlines() if line.startswith("  File ")]
    path = folder / "own.py"
    assert frames == [f'File "{path}", line 9, in loss_fn', f'File "{path}", line 6, in forward']
    assert trace.splitlines()[-1].startswith("RuntimeError: ")


def test_error_in_the_users_loss_keeps_the_steps_made_in_the_record(
    halfstep: Invoke, folder: Path
) -> None:
    body = "from my import make\nleft = [1, 1, 1]\n"
    body += "def loss_fn(model, batch):\n    left.pop()\n    return model(batch).mean()\n"
    (folder / "own.py").write_text(body + "def build(): return make(loss_fn)\n")
    result = halfstep("train", "own.py:build", "--record", "run.jsonl", "--precision", "fp32")
    assert result.exit_code == 2
    assert "IndexError: pop from empty list" in result.stderr
    run = hs.RunRecord.load(folder / "run.jsonl")
    assert ([step.step for step in run.steps], run.status) == ([1, 2, 3], "running")


def test_debug_shows_the_traceback_and_keeps_the_exit_code(halfstep: Invoke) -> None:
    result = halfstep("train", "my.py:build", "--steps", "0", "--debug")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "BadValueError: steps must be" in result.stderr


def test_interrupt_while_the_recipe_loads_is_130(halfstep: Invoke) -> None:
    result = halfstep("train", "my.py:interrupted")
    assert result.exit_code == 130
    assert "Traceback" not in result.stderr
