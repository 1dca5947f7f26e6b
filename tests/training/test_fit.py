"""`fit`: determinism, data order, what is recorded."""

from __future__ import annotations

import pytest
import torch
from small_recipes import SMALL, Batch, data, small, watched

import halfstep as hs
from halfstep.training.run.data.windows import to_device

FORMATS = ["fp32", "bf16", "fp16"]


@pytest.mark.parametrize("precision", FORMATS)
def test_fit_with_one_seed_gives_bit_equal_records(precision: str) -> None:
    runs = [hs.fit(SMALL, precision=precision, steps=20, accumulate=2, seed=7) for _ in range(2)]
    # as plain data, in which NaN (the norm of a skipped FP16 window) equals itself
    assert runs[0].to_dict()["steps"] == runs[1].to_dict()["steps"]
    assert runs[0].num_updates > 0


def test_fit_with_another_seed_starts_elsewhere() -> None:
    losses = {hs.fit(SMALL, precision="fp32", steps=1, seed=seed).steps[0].loss for seed in (0, 1)}
    assert len(losses) == 2


@pytest.mark.parametrize("precision", FORMATS)
def test_fit_in_any_format_sees_the_same_batches(precision: str) -> None:
    seen: list[Batch] = []
    hs.fit(watched(lambda _, batch: seen.append(batch)), precision=precision, steps=3)
    for batch, expected in zip(seen, data(3), strict=True):
        assert torch.equal(batch.x, expected.x)
        assert torch.equal(batch.y, expected.y)


@pytest.mark.parametrize(("steps", "accumulate"), [(7, 1), (3, 2), (2, 4)])
def test_fit_beyond_finite_batches_starts_again_in_order(steps: int, accumulate: int) -> None:
    seen: list[int] = []
    recipe = watched(lambda _, batch: seen.append(len(batch.x)))
    hs.fit(recipe, precision="fp32", steps=steps, accumulate=accumulate)
    assert seen == [4 + n % 3 for n in range(steps * accumulate)]  # sizes of the three batches


def test_fit_counts_the_divisors_of_whole_windows() -> None:
    run = hs.fit(SMALL, precision="fp32", steps=3, accumulate=2)
    # sizes 4 5 6 again and again, two by two
    assert [step.divisor for step in run.steps] == [9.0, 10.0, 11.0]
    assert [step.consumed for step in run.steps] == [9.0, 19.0, 30.0]


def test_fit_records_the_number_of_the_first_batch_of_each_window() -> None:
    # batch n of the endless sequence has 4 + n % 3 rows
    run = hs.fit(SMALL, precision="fp32", steps=4, accumulate=2)
    assert [step.batch for step in run.steps] == [0, 2, 4, 6]
    rows = [sum(4 + (step.batch + n) % 3 for n in range(2)) for step in run.steps]
    assert [step.divisor for step in run.steps] == rows


def test_fit_records_what_it_was_asked_for() -> None:
    run = hs.fit(SMALL, precision="fp16", steps=2, accumulate=3, max_norm=0.5, seed=4)
    assert run.settings == {"steps": 2, "accumulate": 3, "max_norm": 0.5, "seed": 4}
    assert (run.recipe, run.format, run.unit) == ("small", "fp16", "samples")
    assert (run.torch, run.status, len(run.steps)) == (torch.__version__, "finished", 2)


def test_fit_with_a_schedule_moves_the_rate_after_each_update() -> None:
    recipe = small(schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5))
    run = hs.fit(recipe, precision="fp32", steps=3)
    assert [step.lr for step in run.steps] == [[0.01], [0.005], [0.0025]]  # halves are exact


def test_on_step_gets_the_run_so_far_and_every_step_in_order() -> None:
    seen: list[tuple[int, int, bool]] = []

    def on_step(run: hs.RunRecord, step: hs.StepRecord) -> None:
        seen.append((step.step, len(run.steps), run.steps[-1] is step))

    hs.fit(SMALL, precision="fp32", steps=3, on_step=on_step)
    assert seen == [(1, 1, True), (2, 2, True), (3, 3, True)]


def test_clip_coef_is_torchs_formula() -> None:
    (step,) = hs.fit(SMALL, precision="fp32", steps=1, max_norm=1e-3).steps
    expected = 1e-3 / (step.grad_norm + 1e-6)  # torch.nn.utils.clip_grad_norm_
    assert abs(step.clip_coef / expected - 1) <= 8 * torch.finfo(torch.float32).eps


def test_to_device_moves_every_tensor_and_nothing_else() -> None:
    one = torch.ones(1)
    batch = {"pair": Batch(one, one), "list": [one, 3, "text"], "none": None}
    moved = to_device(batch, torch.device("meta"))
    assert isinstance(moved["pair"], Batch)
    assert [t.device.type for t in (*moved["pair"], moved["list"][0])] == ["meta"] * 3
    assert (moved["list"][1:], moved["none"]) == ([3, "text"], None)
