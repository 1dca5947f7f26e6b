"""Two real processes: what they compute together is right, and the rest is refused by both."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import two_processes as two
from small_recipes import SMALL
from torch import Tensor
from typer.testing import CliRunner

import halfstep as hs
from halfstep.cli.app import app
from halfstep.update.ranks.find import num_processes
from snapshots import differences

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="this torch was built without torch.distributed"
)

EPS = torch.finfo(torch.float32).eps


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What every case returned, by process."""
    folder = tmp_path_factory.mktemp("two_processes")
    pair = list(_started(folder))
    try:
        texts = [process.communicate(timeout=120)[0] for process in pair]
    finally:
        for process in pair:
            process.kill()
    assert [process.returncode for process in pair] == [0, 0], "\n".join(texts)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(two.WORLD)]


def _started(folder: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        environment.pop(name, None)
    for rank in range(two.WORLD):
        yield subprocess.Popen(
            [sys.executable, two.__file__, str(rank), str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def both(found: list[dict[str, Any]], case: str) -> list[Any]:
    """What a case returned in each process; fails with the traceback where it raised."""
    results = [each[case] for each in found]
    for result in results:
        assert not (isinstance(result, str) and result.startswith("FAILED")), result
    return results


def check_refused(results: list[dict[str, Any]], type_name: str, message: str) -> None:
    """Both processes raised it, and nothing moved in either."""
    for result in results:
        assert re.search(message, result["text"]), result["text"]
        assert (result["type"], result["moved"]) == (type_name, [])


def test_comparison_of_the_two_processes_sees_a_single_bit() -> None:
    one = torch.ones(3)
    assert differences([one], [one.clone()]) == []
    assert differences([one], [torch.nextafter(one, one + 1)]) == ["/0"]


# --- one process of a group -----------------------------------------------------------------


def test_world_of_one_is_bit_equal_to_no_process_group(found: list[dict[str, Any]]) -> None:
    for result in both(found, "world_of_one"):
        assert result["grouped"] == []
        assert "'non_finite'" in result["numbers"]  # the run compared did skip
        assert result["fit"] == "finished"


def test_wrapper_in_a_world_of_one_changes_no_bit(found: list[dict[str, Any]]) -> None:
    for result in both(found, "world_of_one"):
        assert (result["wrapped"], result["said"]) == ([], [])


# --- what works -----------------------------------------------------------------------------


class Truth:
    """The whole batch in one process in float64: torch's SGD and clipping, averages by hand."""

    def __init__(self) -> None:
        self.model = two.mlp().double()
        self.norms: list[float] = []
        self.averages: list[Tensor] = []
        optimizer = two.sgd(self.model)
        for index, batch in enumerate(two.global_batches()):
            if index == two.BAD_STEP:
                continue
            optimizer.zero_grad()
            two.mean_loss(self.model, batch.double()).backward()
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), two.MAX_NORM)
            self.norms.append(float(norm))
            optimizer.step()
            for group in optimizer.param_groups:
                group["lr"] *= self.gamma
            self._average()

    gamma = 1.0

    def _average(self) -> None:
        weights = [p.detach().clone() for p in self.model.parameters()]
        if not self.averages:
            self.averages = weights
            return
        for average, weight in zip(self.averages, weights, strict=True):
            average.lerp_(weight, 1 - two.DECAY)


class DecayingTruth(Truth):
    """With the rate times 0.9 after every update."""

    gamma = 0.9


def check_close(values: list[Tensor], truth: list[Tensor]) -> None:
    """Within 64 eps of the largest element: five updates of sums over at most 16 terms."""
    for value, right in zip(values, truth, strict=True):
        error = (value.double() - right.detach()).abs().max() / right.detach().abs().max()
        assert float(error) <= 64 * EPS


def test_mean_losses_equal_the_whole_batch_in_float64(found: list[dict[str, Any]]) -> None:
    truth = DecayingTruth()
    for result in both(found, "mean_losses"):
        check_close(result["weights"], list(truth.model.parameters()))
        norms = [norm for norm in result["norms"].tolist() if math.isfinite(norm)]
        assert norms == pytest.approx(truth.norms, rel=64 * EPS)
        assert max(norms) > two.MAX_NORM  # clipping took part


def test_inf_on_one_process_is_a_skip_on_both(found: list[dict[str, Any]]) -> None:
    for result in both(found, "mean_losses"):
        expected = [None] * two.STEPS
        expected[two.BAD_STEP] = "non_finite"
        assert result["reasons"] == expected
        assert result["scales"] == [1024.0] * two.BAD_STEP + [512.0] * (two.STEPS - two.BAD_STEP)
        assert result["num_updates"] == two.STEPS - 1
        assert result["lr"] == pytest.approx(two.RATE * 0.9 ** (two.STEPS - 1), rel=64 * EPS)


def test_average_of_the_weights_equals_the_whole_batch(found: list[dict[str, Any]]) -> None:
    truth = DecayingTruth()
    for result in both(found, "mean_losses"):
        check_close(result["averages"], truth.averages)


def test_drop_in_equals_the_whole_batch_in_float64(found: list[dict[str, Any]]) -> None:
    truth = Truth()
    for result in both(found, "drop_in_with_mean_losses"):
        check_close(result["weights"], list(truth.model.parameters()))
        assert result["skipped"] == [index == two.BAD_STEP for index in range(two.STEPS)]


@pytest.mark.parametrize(
    "case",
    [
        "mean_losses",
        "fp16_with_a_fused_optimizer",
        "two_wrapped_models",
        "drop_in_with_mean_losses",
    ],
)
def test_processes_agree_to_the_bit(found: list[dict[str, Any]], case: str) -> None:
    left, right = both(found, case)
    assert differences(left, right) == []


def test_fp16_skips_on_both_where_one_has_an_inf(found: list[dict[str, Any]]) -> None:
    for result in both(found, "fp16_with_a_fused_optimizer"):
        assert result["reasons"][two.BAD_STEP] == "non_finite"
        assert None in result["reasons"]  # and learns in other steps


def test_buffers_come_back_on_both_after_a_skip(found: list[dict[str, Any]]) -> None:
    left, right = both(found, "buffers_are_rolled_back")
    for result in (left, right):
        assert (result["reason"], result["moved"]) == ("non_finite", [])
    assert differences(left["weights"], right["weights"]) == []


def test_inf_on_one_process_stops_both_where_that_was_asked_for(
    found: list[dict[str, Any]],
) -> None:
    message = "first in 0.weight .1 of 4 parameters"
    check_refused(both(found, "stop_at_an_inf"), "NonFiniteGradientError", message)


def test_optimizers_of_one_wrapper_step_together(found: list[dict[str, Any]]) -> None:
    left, right = both(found, "refused_part_of_a_wrapper")
    assert left["together"]
    assert differences(left["weights"], right["weights"]) == []


# --- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "first"),
    [
        ("beside", r"2 trainable parameters \(first: 'head.weight'\)"),
        ("ignored", r"1 trainable parameters \(first: 'module.2.bias'\)"),
        ("named", r"4 trainable parameters \(first: 'right.0.weight'\)"),
    ],
)
def test_trainable_parameters_outside_of_the_wrapper_are_refused(
    found: list[dict[str, Any]], model: str, first: str
) -> None:
    results = [result[model] for result in both(found, "refused_parameters_outside")]
    check_refused(results, "BadValueError", f"{first}.*would drift apart. Wrap the whole model")


def test_frozen_parameters_outside_of_the_wrapper_are_allowed(found: list[dict[str, Any]]) -> None:
    for result in both(found, "refused_parameters_outside"):
        assert result["frozen"]["text"] == "nothing was refused"


def test_optimizer_of_a_part_of_a_wrapper_is_refused(found: list[dict[str, Any]]) -> None:
    results = [result["part"] for result in both(found, "refused_part_of_a_wrapper")]
    check_refused(results, "CallOrderError", "backward for 'first' alone.*Wrap a model for each")


def test_group_made_after_the_engine_is_seen_at_the_first_backward(
    found: list[dict[str, Any]],
) -> None:
    results = both(found, "group_made_after_the_engine")
    for call in ("step", "again"):
        message = r"2 trainable parameters \(first: 'head.weight'\)"
        check_refused([result[call] for result in results], "BadValueError", message)
    message = "one of 2 processes, and nothing says how they train together"
    check_refused([result["alone"] for result in results], "BadValueError", message)


# --- fit and the command line ---------------------------------------------------------------


def test_fit_in_a_group_of_two_is_refused(found: list[dict[str, Any]]) -> None:
    message = "run in one process, and this is one of 2.*Start it without torchrun"
    check_refused(both(found, "refused_fit"), "BadValueError", message)


def test_fit_under_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(hs.HalfstepError, match="this is one of 4"):
        hs.fit(SMALL, steps=1)


@pytest.mark.parametrize("size", ["1", "", "many"])
def test_fit_with_a_world_size_of_one_or_none_trains(
    monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", size)
    assert hs.fit(SMALL, precision="fp32", steps=1).status == "finished"


def test_train_under_torchrun_is_exit_code_2_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = CliRunner().invoke(app, ["train", "lm", "--record", "run.jsonl", "--save-every", "1"])
    assert result.exit_code == 2
    assert re.search("fit and `halfstep train` run in one process", result.stderr)
    assert list(tmp_path.iterdir()) == []


def test_without_a_process_group_there_is_one_process() -> None:
    assert num_processes() == 1
