"""`load_recipe`: what is found, what is refused, and how."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import halfstep as hs
from halfstep.records import RecipeError
from halfstep.training.run.load_recipe import built_in_recipes

GOOD = """
import torch, halfstep as hs

def build():
    return hs.Recipe(
        name="{name}",
        model=lambda: torch.nn.Linear(4, 1),
        loss_fn=lambda model, batch: model(batch).mean(),
        batches=lambda: [torch.ones(2, 4)],
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    )
"""


@pytest.fixture(autouse=True)
def _imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder of one's own, and imports as they were."""
    monkeypatch.chdir(tmp_path)
    modules, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("halfstep_recipe_") or name in ("neighbour", "package", "package.mine"):
            del sys.modules[name]


def refused(spec: str) -> str:
    with pytest.raises(RecipeError) as caught:
        hs.load_recipe(spec)
    text = str(caught.value)
    assert "\n" not in text  # one sentence
    assert "frozen" not in text  # a place in the import system is no place to look
    return text


@pytest.mark.parametrize("name", ["lm", "digits"])
def test_built_in_recipe_is_listed(name: str) -> None:
    assert name in built_in_recipes()


def test_built_in_recipe_loads_by_its_name() -> None:
    assert hs.load_recipe("lm").name == "lm"


def test_file_and_function_is_loaded(tmp_path: Path) -> None:
    Path("my.py").write_text(GOOD.format(name="mine"))
    assert hs.load_recipe("my.py:build").name == "mine"
    assert hs.load_recipe(f"{tmp_path / 'my.py'}:build").name == "mine"


def test_module_and_function_is_loaded_from_the_working_folder() -> None:
    Path("package").mkdir()
    Path("package/mine.py").write_text(GOOD.format(name="packaged"))
    assert hs.load_recipe("package.mine:build").name == "packaged"


@pytest.mark.parametrize("lazily", [False, True], ids=["at import", "inside the function"])
def test_file_imports_its_neighbours_from_any_working_folder(lazily: bool) -> None:
    Path("folder").mkdir()
    Path("folder/neighbour.py").write_text(GOOD.format(name="next door"))
    body = "def build():\n    import neighbour\n    return neighbour.build()\n"
    Path("folder/my.py").write_text(body if lazily else "import neighbour\n" + body)
    assert hs.load_recipe("folder/my.py:build").name == "next door"


def test_file_with_a_dataclass_is_loaded() -> None:
    # dataclasses look the module of postponed annotations up in sys.modules
    head = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    body = "@dataclass(slots=True)\nclass Batch:\n    x: int\n"
    Path("my.py").write_text(head + body + GOOD.format(name="typed"))
    assert hs.load_recipe("my.py:build").name == "typed"


@pytest.mark.parametrize("spec", ["nothing", "my.py", "", "lm2"])
def test_spec_without_a_function_lists_what_it_may_be(spec: str) -> None:
    text = refused(spec)
    assert text.startswith(f"no recipe {spec!r}: expected one of digits, lm, or path/to/file.py:")


def test_spec_with_a_function_and_nothing_else_is_refused_alike() -> None:
    assert refused(":build").startswith("no recipe ':build': expected one of")


def test_missing_file_is_named() -> None:
    assert refused("none.py:build").startswith("no file 'none.py'; give the path")


def test_folder_called_like_a_file_is_no_file() -> None:
    Path("folder.py").mkdir()
    assert refused("folder.py:build").startswith("no file 'folder.py'")


def test_missing_module_is_named() -> None:
    assert "No module named 'no_such_module_at_all'" in refused("no_such_module_at_all.x:build")


def test_missing_function_lists_the_functions_that_are_there() -> None:
    Path("my.py").write_text("from math import sqrt\ndef a(): ...\ndef b(): ...\nx = 3\n")
    assert refused("my.py:build") == "my.py has no function 'build'; it has a, b."
    assert refused("my.py:x") == "my.py has no function 'x'; it has a, b."


@pytest.mark.parametrize(
    ("content", "kind", "place"),
    [
        ("x = 1\ny = (\n", "SyntaxError", "my.py:2"),
        ("import no_such_module_at_all\n", "ModuleNotFoundError", "my.py:1"),
        ("\n\nraise ValueError('first\\nsecond')\n", "ValueError: first", "my.py:3"),
        ("def f():\n    raise KeyError('gone')\nf()\n", "KeyError: 'gone'", "my.py:2"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3", "my.py:2"),
    ],
    ids=["syntax", "missing package", "several lines", "deeper", "exit"],
)
def test_file_that_does_not_import_says_what_and_where(content: str, kind: str, place: str) -> None:
    Path("my.py").write_text(content)
    text = refused("my.py:build")
    assert kind in text
    assert place in text.replace("my.py, line ", "my.py:")


def test_failed_import_leaves_no_trace() -> None:
    Path("my.py").write_text("raise ValueError\n")
    before = (set(sys.modules), list(sys.path))
    refused("my.py:build")
    assert (set(sys.modules), list(sys.path)) == before


def test_interrupt_during_import_passes() -> None:
    Path("my.py").write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        hs.load_recipe("my.py:build")


def test_function_that_returns_something_else_is_refused() -> None:
    Path("my.py").write_text("def build(): return 3\n")
    assert refused("my.py:build") == "my.py:build must return a halfstep.Recipe, got int."


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("def build():\n    raise ValueError('mine\\nsecond')\n", ["ValueError: mine", "my.py:2"]),
        ("def build(size): ...\n", ["TypeError", "size"]),
        ("def build():\n    import no_such_module_at_all\n", ["no_such_module_at_all"]),
        ("def build():\n    raise ImportError('one\\ntwo')\n", ["one"]),
    ],
    ids=["raises", "needs arguments", "missing package", "several lines"],
)
def test_function_that_fails_is_refused_in_one_sentence(content: str, words: list[str]) -> None:
    Path("my.py").write_text(content)
    text = refused("my.py:build")
    assert [word for word in words if word not in text] == []
