"""What two ranks find out together is true of both, and what is wrong is refused by both."""

from __future__ import annotations

import math
import re
from typing import Any

import agreement_cases as cases
import pytest
import torch
from torch import Tensor
from world import Results, run_cases

from snapshots import differences

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="this torch was built without torch.distributed"
)
EPS = torch.finfo(torch.float32).eps
BOTH = pytest.mark.parametrize("model", ["ddp", "fsdp"])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_cases("agreement_cases", 2, tmp_path_factory.mktemp("agreement"))


def check_same(results: list[Any]) -> None:
    assert differences(results[0], results[1]) == []


def check_said(texts: list[str], message: str) -> None:
    for text in texts:
        assert re.search(message, text), text


def whole_batch(xs: list[Tensor], *, is_mean: bool = False) -> tuple[Any, float]:
    """A model in float64 with the gradients of the sum over all rows by their number."""
    model = cases.mlp().double()
    x = torch.cat(xs).double()
    squares = model(x).square()
    (squares.mean() if is_mean else squares.sum() / len(x)).backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return model, math.sqrt(sum(float(grad.square().sum()) for grad in grads))


def close(values: list[Tensor], right: list[Tensor]) -> None:
    for value, truth in zip(values, right, strict=True):
        assert float((value - truth.detach()).abs().max()) <= 1e-6


def test_windows_of_other_lengths_are_one_window(found: Results) -> None:
    results = found["windows_of_other_lengths"]
    xs = [cases.rows(0, 3, 1), cases.rows(0, 4, 2), cases.rows(1, 3, 1)]
    model, norm = whole_batch(xs)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    for result in results:
        close(result["weights"], list(model.parameters()))
        assert result["norm"] == pytest.approx(norm, rel=32 * EPS)
        assert result["divisor"] == 10
    check_same(results)


@BOTH
def test_true_gradients_are_those_of_all_rows(found: Results, model: str) -> None:
    right, _ = whole_batch([cases.rows(0, 7), cases.rows(1, 17)])
    for result in found["true_gradients"]:
        grads = result[model]
        assert list(grads) == [name for name, _ in right.named_parameters()]
        close(list(grads.values()), [p.grad for p in right.parameters()])
    check_same(found["true_gradients"])


@BOTH
def test_metrics_and_lost_updates_are_of_all(found: Results, model: str) -> None:
    results = [result[model] for result in found["metrics_and_lost_updates"]]
    for result in results:
        assert result["metrics"] == pytest.approx({"rows": 1.0, "ranks": 2 / 7})
        assert set(result["lost"]) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    check_same(results)


def test_lost_updates_are_the_same_sharded_or_not(found: Results) -> None:
    result = found["metrics_and_lost_updates"][0]
    assert result["ddp"]["lost"] == pytest.approx(result["fsdp"]["lost"], abs=0.05)


@BOTH
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_inf_in_the_batch_of_one_rank_is_a_skip_on_both(
    found: Results, model: str, optimizer: str
) -> None:
    results = [result[model][optimizer] for result in found["inf_in_one_row"]]
    for result in results:
        assert result["reasons"] == [None, None, "non_finite", None]
        assert result["scale"] == 512.0
        assert all(torch.isfinite(each).all() for each in result["weights"])
    check_same(results)


def test_inf_in_the_shard_of_one_rank_is_a_skip_on_both(found: Results) -> None:
    for result in found["inf_in_one_shard"]:
        assert result["reason"] == "non_finite"
        assert differences(result["before"], result["after"]) == []


def test_parameter_is_named_by_both_ranks(found: Results) -> None:
    check_said(found["stop_with_a_name"], r"NonFiniteGradientError.*first in 2.weight \(1 of 4")


def test_collapse_is_raised_by_both_ranks(found: Results) -> None:
    check_said(found["collapse"], r"ScaleCollapse.*0\.weight")


def test_replay_names_the_rank_with_the_bad_batch(found: Results) -> None:
    for result in found["replay"]:
        diagnosis = result["diagnosis"]
        assert (diagnosis["rank"], diagnosis["verdict"]) == (1, "bad_batch")
        assert list(diagnosis["bad_samples"]) == [2]
        assert result["text"].startswith("on rank 1: batch, sample 2, is not finite; first in")
        assert result["then"]


@BOTH
def test_loop_by_hand_equals_all_rows(found: Results, model: str) -> None:
    xs = [cases.rows(rank, 2 + rank + n, n) for rank in range(2) for n in range(3)]
    right, norm = whole_batch(xs)
    for p in right.parameters():
        p.grad.mul_(min(1.0, 0.5 / (norm + 1e-6)))
    torch.optim.SGD(right.parameters(), lr=0.1).step()
    results = [result[model] for result in found["by_hand"]]
    for result in results:
        close(result["weights"], list(right.parameters()))
        assert result["norm"] == pytest.approx(norm, rel=32 * EPS)
    check_same(results)


@BOTH
def test_model_holds_its_average_inside_of_averaged(found: Results, model: str) -> None:
    results = [result[model] for result in found["averaged_weights"]]
    for result in results:
        assert differences(result["inside"], result["average"]) == []
        assert differences(result["after"], result["own"]) == []
        plain = cases.mlp()
        plain.load_state_dict(dict(zip(plain.state_dict(), result["average"], strict=True)))
        assert torch.allclose(plain(cases.rows(0, 4)), result["output"], atol=1e-6)
    check_same(results)


def test_average_of_a_sharded_model_says_how_it_is_used(found: Results) -> None:
    for result in found["averaged_weights"]:
        assert re.search("use `with engine.averaged", result["fsdp"]["called"])
        assert result["ddp"]["called"] == "nothing was raised"


@BOTH
def test_fp16_windows_agree(found: Results, model: str) -> None:
    results = [result[model] for result in found["low_precision_window"]]
    assert None in results[0]["reasons"]
    check_same(results)


@pytest.mark.parametrize("hook", ["allreduce_hook", "fp16_compress_hook"])
def test_hooks_that_average_are_allowed(found: Results, hook: str) -> None:
    right, _ = whole_batch([cases.rows(0, 4), cases.rows(1, 4)], is_mean=True)
    torch.optim.SGD(right.parameters(), lr=0.1).step()
    for result in found["hooks_of_communication"]:
        for value, truth in zip(result[hook], right.parameters(), strict=True):
            assert float((value - truth.detach()).abs().max()) <= 1e-3  # FP16 has 11 bits
    check_same([result[hook] for result in found["hooks_of_communication"]])


@BOTH
def test_save_in_the_background_is_of_its_moment(found: Results, model: str) -> None:
    for result in found["saved_in_the_background"]:
        saved = result[model]
        assert (saved["number"], saved["last"], saved["num_updates"]) == (1, 4, 1)
        assert differences(saved["saved"], saved["loaded"]) == []
        assert differences(saved["saved"], saved["after"]) != []


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("alone", "BadValueError: this is one of 2 processes, and nothing says how they train"),
        ("own", "nothing was raised"),
        ("by hand", "nothing was raised"),
        ("hook", "the communication hook '_sums_only' of DistributedDataParallel is not one of"),
        ("first fsdp", "is in a flat one of FullyShardedDataParallel.*use .*fully_shard"),
        ("replay", "diagnose='on_skip' runs a window again on each process by itself"),
        ("groups", "have different process groups.*give them one group"),
    ],
)
def test_setup_that_cannot_be_right_is_refused(found: Results, what: str, message: str) -> None:
    check_said([result[what] for result in found["refused"]], message)


@BOTH
def test_other_loss_scales_are_an_error_on_both(found: Results, model: str) -> None:
    for each in found["other_loss_scales"]:
        result = each[model]
        assert re.search("BadValueError: the ranks do not agree on this step", result["error"])
        assert re.search("CallOrderError: this engine has failed before", result["again"])
        assert differences(result["before"], result["after"]) == []


@BOTH
def test_mean_here_and_sum_there_is_an_error_on_both(found: Results, model: str) -> None:
    texts = [result[model] for result in found["other_kinds_of_loss"]]
    check_said(texts, "BadValueError: this loss is a LossSum on some processes and a mean on other")


@BOTH
def test_kind_of_loss_stays(found: Results, model: str) -> None:
    texts = [result[model] for result in found["kind_of_loss_that_changes"]]
    check_said(texts, "CallOrderError: the kind of the loss changed.*from means to LossSums")


def test_gradients_that_were_not_exchanged_are_an_error_on_both(found: Results) -> None:
    results = found["last_backward_without_exchange"]
    for name in ("ddp", "forward"):
        message = "BadValueError: the gradients of parameters that all ranks hold alike are not"
        check_said([result[name] for result in results], message)
    message = "CallOrderError: the last backward of this window did not exchange its gradients"
    check_said([result["fsdp"] for result in results], message)


def test_gradients_that_one_rank_changed_are_an_error_on_both(found: Results) -> None:
    message = "BadValueError: the gradients of parameters that all ranks hold alike are not"
    check_said(found["gradients_changed_on_one_rank"], message)


# --- the drop-in ----------------------------------------------------------------------------------

WAYS = [
    f"{model}, {optimizer}, {how}"
    for model in ("ddp", "fsdp")
    for optimizer in ("sgd", "adamw", "fused_adamw")
    for how in ("plain", "unscale", "clip")
]


@pytest.mark.parametrize("way", WAYS)
def test_drop_in_decides_once_for_both(found: Results, way: str) -> None:
    results = [result[way] for result in found["drop_in"]]
    for result in results:
        assert result["skipped"] == [False, False, True, False, False]
        assert result["scale"] == 512.0
    check_same(results)


@pytest.mark.parametrize("way", WAYS)
def test_drop_in_equals_torch_in_float64(found: Results, way: str) -> None:
    _, optimizer, how = way.split(", ")
    model = cases.mlp().double()
    stepper = getattr(cases, optimizer)(model)
    for step in (0, 1, 3, 4):
        stepper.zero_grad()
        x = torch.cat([cases.rows(rank, 4, step) for rank in range(2)]).double()
        model(x).square().mean().backward()
        if how == "clip":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        stepper.step()
    for result in found["drop_in"]:
        for value, right in zip(result[way]["weights"], model.parameters(), strict=True):
            assert float((value - right.detach()).abs().max()) <= 2e-6


@BOTH
def test_drop_in_with_other_scales_is_an_error_on_both(found: Results, model: str) -> None:
    for each in found["drop_in_with_other_scales"]:
        result = each[model]
        message = "BadValueError: the loss scales of the processes differ .from 64 to 128"
        assert re.search(message, result["error"]), result["error"]
        assert differences(result["before"], result["after"]) == []
