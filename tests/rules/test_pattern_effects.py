"""What the mistakes of the pattern rules do on stock torch, seen in their own examples."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from halfstep.rules import registry
from halfstep.rules.rule import SourceRule

PATTERNS = [rule for rule in registry.select(["HS2", "HS3"]) if issubclass(rule, SourceRule)]
RAISES = {
    "HS201": "Attempting to unscale FP16 gradients",
    "HS209": "to have the same dtype",
    "HS215": "non-finite",
}
NO_CUDA = not torch.cuda.is_available()


def run(code: str, example: str) -> dict[str, Any]:
    """The variables that an example leaves behind."""
    names: dict[str, Any] = {"__name__": "__main__"}
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about some of the mistakes
        exec(getattr(registry.load(code), example), names)
    return names


def first_weight() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 1).weight.detach().clone()


@pytest.mark.parametrize("example", ["bad", "good"])
@pytest.mark.parametrize("code", [rule.code for rule in PATTERNS])
def test_example_runs_and_raises_only_where_the_rule_says_so(code: str, example: str) -> None:
    if code in RAISES and example == "bad":
        with pytest.raises((ValueError, RuntimeError), match=RAISES[code]):
            run(code, example)
    else:
        run(code, example)


def gradient(x: torch.Tensor, scaler: torch.amp.GradScaler | None) -> torch.Tensor:
    """Of the mean of ``x @ w``, in FP16, with or without a scale."""
    w = torch.nn.Parameter(torch.ones(4, 1))
    optimizer = torch.optim.SGD([w], lr=0.1)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = (x @ w).float().mean() * 1e-7
    (scaler.scale(loss) if scaler else loss).backward()
    if scaler:
        scaler.unscale_(optimizer)
    assert w.grad is not None
    return w.grad


def test_hs202_small_gradients_are_zero_without_a_scale_and_right_with_one() -> None:
    x = torch.ones(8, 4)
    assert torch.equal(gradient(x, None), torch.zeros(4, 1))
    scaled = gradient(x, torch.amp.GradScaler("cpu"))
    true = torch.full((4, 1), 1e-7)  # the derivative, by hand
    assert torch.allclose(scaled, true, rtol=8 * 2**-11, atol=0)


def test_hs203_a_scale_changes_nothing_in_bf16() -> None:
    bad = run("HS203", "bad")
    text = registry.load("HS203").bad.replace("=1024.0)", "=1024.0, enabled=False)")
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(text, names)
    assert torch.equal(bad["model"].weight, names["model"].weight)


@pytest.mark.skipif(not NO_CUDA, reason="with CUDA the scaler stays on")
def test_hs204_the_scaler_is_off() -> None:
    assert not run("HS204", "bad")["scaler"].is_enabled()
    assert run("HS204", "good")["scaler"].is_enabled()


def test_hs207_the_mask_raises_or_becomes_infinite_in_fp16() -> None:
    scores = torch.zeros(2, 2, dtype=torch.float16)
    mask = torch.ones(2, 2, dtype=torch.bool)
    with pytest.raises(RuntimeError, match="without overflow"):
        scores.masked_fill(mask, -1e9)
    assert torch.where(mask, -1e9, scores).isinf().all()


def test_hs208_the_loss_is_nan_with_the_eps_in_fp16_and_zero_in_fp32() -> None:
    assert run("HS208", "bad")["loss"].isnan()
    assert run("HS208", "good")["loss"] == 0


def test_hs210_the_number_shown_is_the_loss_times_the_scale(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run("HS210", "bad")
    scaled = [float(line) for line in capsys.readouterr().out.split()]
    run("HS210", "good")
    true = [float(line) for line in capsys.readouterr().out.split()]
    assert scaled == [1024 * value for value in true]


def test_hs211_the_weights_never_move_in_bf16_and_do_in_fp32() -> None:
    start = first_weight()
    large = start.abs() > 0.1  # against updates of about 1e-4
    bad, good = (run("HS211", example)["model"].weight for example in ("bad", "good"))
    assert torch.equal(bad[large], start.bfloat16()[large])
    assert (good != start)[large].all()


def test_hs212_the_scaled_loss_is_infinite_with_one_element_and_not_without_dimensions() -> None:
    for example, infinite in (("bad", True), ("good", False)):
        names = run("HS212", example)
        assert names["scaler"].scale(names["loss"]).isinf().all() == infinite


def test_hs213_the_output_is_fp32_outside_of_autocast() -> None:
    assert run("HS213", "bad")["output"].dtype == torch.float32
    assert run("HS213", "good")["output"].dtype == torch.float16


def test_hs214_the_loss_stays_fp16_in_the_island_without_a_cast() -> None:
    names = run("HS214", "bad")
    assert names["output"].dtype == torch.float16
    # the difference from an FP32 target is FP32, the squares of the output alone would not be
    with torch.autocast("cpu", dtype=torch.float16), torch.autocast("cpu", enabled=False):
        assert names["output"].square().mean().dtype == torch.float16
