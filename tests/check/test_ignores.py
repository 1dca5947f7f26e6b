"""Which findings a comment silences, and which comments silence nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfstep.check.linter import check_paths, check_text
from halfstep.rules import registry

RULES = registry.select()
BAD = registry.load("HS101").bad
CLIP = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- HS101"


def codes(text: str, rules: list[str] | None = None) -> list[str]:
    chosen = RULES if rules is None else registry.select(rules)
    return [finding.code for finding in check_text("train.py", text, chosen)]


@pytest.mark.parametrize(
    "statement",
    [
        "torch.nn.utils.clip_grad_norm_(  # halfstep: ignore\n     model.parameters(), 1.0\n    )",
        "nn.utils.clip_grad_norm_(\n     model.parameters(), 1.0\n    )  # halfstep: ignore[HS1]",
        "nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # why  # halfstep: ignore[HS1]",
        "nn.utils.clip_grad_norm_(model.parameters(), 1.0)  #halfstep:ignore [hs101]",
    ],
    ids=["first line", "last line", "after words", "no spaces"],
)
def test_comment_anywhere_in_the_statement_silences_it(statement: str) -> None:
    assert CLIP in BAD
    assert codes(BAD.replace(CLIP, statement)) == []


@pytest.mark.parametrize(
    ("comment", "fault"),
    [
        ("ignore[HS101", "not written as"),
        ("ignore HS101", "not written as"),
        ("ignore: HS101", "not written as"),
        ("ignore[]", "not written as"),
        ("ignore[clip-before-unscale]", "no rule CLIP-BEFORE-UNSCALE"),
        ("ignore[HS999]", "no rule HS999"),
    ],
)
def test_comment_that_is_written_wrong_silences_nothing_and_says_so(
    comment: str, fault: str
) -> None:
    text = BAD.replace(CLIP, f"{CLIP.split('  #')[0]}  # halfstep: {comment}")
    found = {f.code: f.message for f in check_text("train.py", text, RULES)}
    assert "HS101" in found
    assert fault in found["HS304"]


def test_comment_with_one_code_that_does_not_exist_silences_the_other() -> None:
    text = BAD.replace(CLIP, f"{CLIP.split('  #')[0]}  # halfstep: ignore[HS101, HS999]")
    (found,) = check_text("train.py", text, RULES)
    assert found.code == "HS304"
    assert "no rule HS999" in found.message


@pytest.mark.parametrize(
    "text",
    [
        BAD.replace("for x, y in batches:", "for x, y in batches:  # halfstep: ignore"),
        BAD.replace(CLIP, CLIP + '; "# halfstep: ignore"').replace("  # <- HS101;", ";"),
    ],
    ids=["head of the loop", "in a string"],
)
def test_comment_elsewhere_silences_nothing(text: str) -> None:
    assert codes(text, ["HS101"]) == ["HS101"]


def test_form_feed_does_not_move_the_lines() -> None:
    assert codes("\f\n" + BAD.replace("# <- HS101", "# halfstep: ignore")) == []


@pytest.mark.parametrize(
    ("comment", "rules", "expected"),
    [
        ("ignore[HS102]", None, ["HS304"]),
        ("ignore[HS999]", None, ["HS304"]),
        ("ignore", None, ["HS304"]),
        ("ignore", ["HS1", "HS304"], []),
        ("ignore[HS102]", ["HS101", "HS304"], []),
        ("ignore[HS102, HS304]", None, []),
    ],
    ids=["wrong", "unknown", "all", "all, some asked", "not asked", "meant to stay"],
)
def test_unused_comment_is_noted_only_where_its_rules_were_asked(
    comment: str, rules: list[str] | None, expected: list[str]
) -> None:
    good = registry.load("HS101").good
    assert (
        codes(good.replace("scaler.update()", f"scaler.update()  # halfstep: {comment}"), rules)
        == expected
    )


def test_comment_used_from_another_file_is_not_unused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("engine.py").write_text(
        "import torch\n"
        "def clip(model):  # what a scaler needs\n"
        "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # halfstep: ignore[HS101]\n"
    )
    Path("main.py").write_text("from engine import clip\n" + BAD.replace(CLIP, "clip(model)"))
    assert check_paths(["."], RULES).findings == []
    engine = Path("engine.py").read_text()
    Path("engine.py").write_text(engine.replace("  # halfstep: ignore[HS101]", ""))
    assert [f.path for f in check_paths(["."], RULES).findings] == ["engine.py"]
