"""`Finding`: its JSON form, which is a contract, and the line people read."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from halfstep import Finding
from halfstep.records.finding import Related

FINDING = Finding(
    code="HS101",
    name="clip-before-unscale",
    severity="error",
    path="train.py",
    line=12,
    column=5,
    message="the gradients still carry the loss scale.",
    remedy="call scaler.unscale_(optimizer) first.",
    related=(Related("train.py", 10, "scaled backward"),),
)
texts, numbers = st.text(), st.integers(1)
findings = st.builds(
    Finding,
    code=texts,
    name=texts,
    severity=st.sampled_from(["error", "warning", "note"]),
    path=texts,
    line=numbers,
    column=numbers,
    message=texts,
    remedy=texts,
    related=st.lists(st.builds(Related, texts, numbers, texts), max_size=3).map(tuple),
    count=numbers,
)


@settings(deadline=None, derandomize=True)
@given(findings)
def test_json_round_trip_of_any_finding_is_the_identity(finding: Finding) -> None:
    assert Finding.from_dict(json.loads(json.dumps(finding.to_dict()))) == finding


def test_dict_of_a_finding_is_the_documented_form() -> None:
    assert FINDING.to_dict() == {
        "code": "HS101",
        "name": "clip-before-unscale",
        "severity": "error",
        "path": "train.py",
        "line": 12,
        "column": 5,
        "message": "the gradients still carry the loss scale.",
        "remedy": "call scaler.unscale_(optimizer) first.",
        "related": [{"path": "train.py", "line": 10, "message": "scaled backward"}],
        "count": 1,
    }


def test_str_of_a_finding_is_place_code_and_message() -> None:
    expected = "train.py:12:5: HS101 the gradients still carry the loss scale."
    assert str(FINDING) == expected
    assert str(FINDING._replace(count=3)) == f"{expected} (seen 3 times)"
