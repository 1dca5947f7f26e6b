"""The first sentence of a run's page."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from made_runs import diagnosis, made_run, made_skip, made_step

from halfstep.records import RunRecord
from halfstep.report.run_verdict import run_verdict

NOT_THE_SCALE = diagnosis("head", verdict="never_finite", finite_at_scale=None)


def with_losses(losses: list[float], **changes: object) -> RunRecord:
    steps = [made_step(n, loss=loss, clip_coef=1.0) for n, loss in enumerate(losses, 1)]
    return made_run(len(losses), steps=steps, **changes)


def falling_back() -> RunRecord:
    run = made_run(5, {5})
    run.steps[-1] = replace(run.steps[-1], fallback="bf16")
    return run


@pytest.mark.parametrize(
    ("run", "level", "headline"),
    [
        (with_losses([4.0, 2.0]), "good", "2 updates in fp16; the loss went from 4 to 2."),
        (with_losses([4.0]), "good", "1 update in fp16; the loss was 4."),
        (made_run(300, {1, 2}), "good", "298 updates in fp16; the loss went from 4.8 to 1.11."),
        (made_run(0), "note", "The run made no step."),
        (
            made_run(50, range(11, 51), status="collapsed"),
            "bad",
            "The run collapsed: its last 40 steps were skipped.",
        ),
        (made_run(9, range(1, 10)), "bad", "Nothing was learned: all 9 steps were skipped."),
        (made_run(1, {1}), "bad", "Nothing was learned: its only step was skipped."),
        (
            with_losses([4.0, 3.0, math.nan, math.inf]),
            "bad",
            "The loss is not finite from step 3 on.",
        ),
        (
            with_losses([4.0, 3.0], status="interrupted", settings={"steps": 9000}),
            "note",
            "The run was interrupted after 2 of 9,000 steps.",
        ),
        (
            with_losses([4.0, 3.0], status="running", settings={"steps": 9}),
            "note",
            "The record ends after 2 of 9 steps: the run was killed, or still goes on.",
        ),
        (
            with_losses([4.0, 3.0], status="interrupted", settings={}),
            "note",
            "The run was interrupted after 2 steps.",
        ),
        (
            falling_back(),
            "note",
            "The run left fp16 for bf16 at step 5, because its loss scale collapsed.",
        ),
        (made_run(100, {50, 60, 70}), "note", "3 of 100 steps were skipped on the way."),
        (
            made_run(100, {1, 50, 60, 70}),
            "note",
            "3 of 100 steps were skipped after the loss scale had found its place.",
        ),
        (
            made_run(100, {50: NOT_THE_SCALE}),
            "note",
            "The run went through, but one skip is not the loss scale's doing.",
        ),
        (
            with_losses([2.0 + n / 100 for n in range(30)]),
            "note",
            "The loss did not fall: 2.01 at first, 2.28 at last.",
        ),
    ],
)
def test_verdict_says_what_matters_most(run: RunRecord, level: str, headline: str) -> None:
    verdict = run_verdict(run)
    assert (verdict.level, verdict.headline) == (level, headline)


def test_loss_that_is_not_finite_on_a_last_skip_is_no_verdict() -> None:
    run = made_run(3, steps=[made_step(1), made_step(2), made_skip(3, loss=math.inf)])
    assert run_verdict(run).level == "good"


def test_details_tell_the_search_of_the_scale_from_other_skips() -> None:
    (search, *_), (other, *_) = (
        run_verdict(made_run(300, skips)).details for skips in ({1, 2}, {1, 40})
    )
    assert search == (
        "2 of 300 steps were skipped and moved nothing, all at the start, while the loss scale was"
        " searching: it settled at 16,384."
    )
    assert other == "2 of 300 steps were skipped and moved nothing."


def test_details_give_shares_of_clipping_and_zeros() -> None:
    coefs, zeros = [1.0, 0.5, 0.5, 1.0], [0.1, 0.2, 0.3, None]
    steps = [
        made_step(n, clip_coef=coef, zero_gradient_fraction=zero)
        for n, (coef, zero) in enumerate(zip(coefs, zeros, strict=True), 1)
    ]
    assert run_verdict(made_run(4, steps=steps)).details == (
        "Clipping shortened 50 % of the updates.",
        "20 % of the gradient values were exactly 0.",
    )


def test_details_quote_the_last_diagnosis() -> None:
    details = run_verdict(made_run(300, {1: diagnosis("first"), 2: diagnosis("second")})).details
    assert details[1].startswith("The last diagnosis: the loss scale is searching")
    assert "second" in details[1]


def test_run_that_its_own_rule_stopped_is_good_and_says_when() -> None:
    verdict = run_verdict(with_losses([4.0, 3.0], status="stopped", settings={"steps": 9}))
    assert verdict.level == "good"
    assert "The run's own rule stopped it after 2 of 9 steps." in verdict.details
