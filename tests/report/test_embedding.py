"""Data inside HTML: nothing in it may mean anything to a parser."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfstep.report.embedding import safe_json

DATA = st.recursive(
    st.text() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.none(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


class Scripts(HTMLParser):
    """Start tags, and the text of the script elements."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@given(DATA)
def test_data_in_a_script_element_comes_back_and_makes_no_element(data: Any) -> None:
    text = safe_json(data)
    assert not {*text} & {*"<>&\u2028\u2029"}
    reader = Scripts()
    reader.feed(f"<script>{text}</script>")
    assert reader.tags == ["script"]
    assert json.loads(reader.text) == data


def test_nan_is_refused_because_it_is_no_json() -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        safe_json(float("nan"))
