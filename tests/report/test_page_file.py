"""Where a page goes: everything that could prevent it is known before the work."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from halfstep.records import BadValueError
from halfstep.report import page
from halfstep.report.page import page_file


def test_page_is_written_as_utf8(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    with page_file(path) as file:
        file.write(lambda: "größe \ud800")  # half of a surrogate pair has no UTF-8
    assert path.read_bytes() == "größe ?".encode()


def test_place_that_cannot_be_written_is_known_at_once(tmp_path: Path) -> None:
    with (
        pytest.raises(BadValueError, match=r"cannot write the page to .*create the folder"),
        page_file(tmp_path / "none" / "page.html"),
    ):
        pytest.fail("the work began")


def test_error_in_the_work_leaves_no_page_and_keeps_an_old_one(tmp_path: Path) -> None:
    old, new = tmp_path / "old.html", tmp_path / "new.html"
    old.write_text("before")
    for path in (old, new):
        with pytest.raises(ZeroDivisionError), page_file(path):
            _ = 1 / 0
    assert old.read_text() == "before"
    assert not new.exists()


def test_without_a_path_nothing_is_made() -> None:
    with page_file(None) as file:
        file.write(lambda: pytest.fail("a page nobody asked for"))


def test_missing_jinja2_is_one_sentence_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    page._environment.cache_clear()
    with (
        pytest.raises(BadValueError, match=r"needs Jinja2 .*pip install 'halfstep\[cli\]'"),
        page_file(tmp_path / "page.html"),
    ):
        pytest.fail("the work began")
    assert list(tmp_path.iterdir()) == []
