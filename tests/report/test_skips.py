"""Rows of the table of skips."""

from __future__ import annotations

from made_runs import diagnosis, made_run, made_skip, made_step

from halfstep.report.skips import skip_rows


def test_neighbours_with_one_cause_are_one_row() -> None:
    (row,) = skip_rows("fp16", made_run(10, {4, 5, 6}))
    assert (row.first, row.last, row.count) == (4, 6, 3)
    assert (row.scale, row.next_scale) == (65536.0, 8192.0)
    assert row.reason == "a gradient was inf or NaN"


def test_skips_apart_or_of_another_cause_are_rows_of_their_own() -> None:
    skips = {2: diagnosis("a"), 3: diagnosis("a"), 4: diagnosis("b"), 6: diagnosis("b")}
    rows = skip_rows("fp16", made_run(10, skips))
    assert [(row.first, row.last) for row in rows] == [(2, 3), (4, 4), (6, 6)]
    assert [row.diagnosis for row in rows] == [str(diagnosis(name)) for name in "abb"]


def test_empty_windows_are_told_from_overflows() -> None:
    steps = [made_step(1), made_skip(2), made_skip(3, reason="empty_window")]
    rows = skip_rows("fp16", made_run(3, steps=steps))
    assert [row.reason for row in rows] == [
        "a gradient was inf or NaN",
        "the window's divisor was 0",
    ]


def test_run_without_skips_has_no_rows() -> None:
    assert skip_rows("fp16", made_run(10)) == []
