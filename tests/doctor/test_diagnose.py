"""Cases from public trackers, and that a diagnosis moves nothing."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from plantable_models import FAMILIES, healthy
from torch import Tensor, nn

import halfstep as hs
from snapshots import differences, snapshot

Loss = Callable[[nn.Module, Any], Any]


def recipe(model: Callable[[], nn.Module], loss_fn: Loss, batch: Any, **changes: Any) -> hs.Recipe:
    settings: dict[str, Any] = {
        "name": "case",
        "model": model,
        "loss_fn": loss_fn,
        "batches": lambda: [batch],
        "optimizer": lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
        "unit": "samples",
    }
    return hs.Recipe(**{**settings, **changes})


def square(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).float().square().mean()


class SquaredLinear(nn.Module):
    """C9a: a large linear output, multiplied by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 1)
        nn.init.constant_(self.body.weight, 100.0)
        nn.init.zeros_(self.body.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        return torch.as_tensor(self.head(y * y * 1e-6))


def test_overflow_in_fp16_has_module_value_and_missing_headroom() -> None:
    found = hs.diagnose(recipe(SquaredLinear, square, torch.ones(4, 8)))
    cause = found.causes[0]
    # closed form: 8 inputs of 1 times 100 are 800, their squares 640,000
    assert (cause.kind, cause.module, cause.fp32_largest) == ("overflow", "SquaredLinear", 640000)
    assert cause.missing_bits == pytest.approx(math.log2(640000 / 65504))
    assert cause.passes == ("fp16", "fp16 scaled")
    assert cause.op is not None
    assert (cause.op.op, cause.op.phase, cause.op.dtype) == ("aten.mul", "forward", "float16")
    assert cause.op.finite_fraction == 0
    assert found.health == "precision"
    assert "No loss scale helps" in cause.explanation
    bad = {p.name: p.first_bad for p in found.passes}
    assert bad["fp32"] is bad["bf16"] is None
    assert bad["fp16"] == cause.op


class Squares(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x * 1e-6


def test_islands_of_a_policy_file_hold_in_every_run(tmp_path: Any) -> None:
    # the remedy that the doctor names, tried: what overflowed is an island now
    def model() -> nn.Module:
        made = nn.Sequential(nn.Linear(8, 8), Squares(), nn.Linear(8, 1))
        nn.init.constant_(made[0].weight, 100.0)  # type: ignore[arg-type]
        return made

    sick = recipe(model, square, torch.ones(4, 8), optimizer=tiny_sgd)
    path = tmp_path / "precision.toml"
    hs.Policy("fp16", base="cuda", modules={"1": "fp32"}).save(path)
    overflow = hs.diagnose(sick).causes[0]
    assert (overflow.kind, overflow.module) == ("overflow", "Sequential.1")
    found = hs.diagnose(sick, policy=str(path))
    assert "overflow" not in [cause.kind for cause in found.causes]
    assert all(p.first_bad is None for p in found.passes)
    assert found.policy == "cuda, islands 1"


def tiny_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-6)


def test_norm_by_hand_in_fp16_is_a_difference_though_nothing_is_nan() -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)
            nn.init.zeros_(self.fc.weight)
            nn.init.constant_(self.fc.bias, 300.0)

        def forward(self, x: Tensor) -> Tensor:
            y = self.fc(x)
            return y / ((y * y).mean(-1, keepdim=True) + 1e-6).sqrt()

    found = hs.diagnose(
        recipe(Norm, lambda m, x: (m(x).float() - 2).square().mean(), torch.ones(4, 8))
    )
    cause = found.causes[0]
    assert (cause.kind, cause.mechanism) == ("silent_difference", "overflow")
    assert (cause.module, cause.op and cause.op.op) == ("Norm", "aten.mul")
    fp16 = next(p for p in found.passes if p.name == "fp16")
    assert math.isfinite(fp16.loss)  # the output is 0, the loss 4 instead of 1
    assert fp16.loss == 4.0


def test_row_masked_as_a_whole_is_not_a_precision_problem() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            mask = torch.zeros(4, 4)
            mask[1] = -math.inf
            return (self.score(x) + mask).softmax(-1)

    found = hs.diagnose(recipe(Masked, square, torch.ones(4, 8)))
    assert (found.causes[0].kind, found.health) == ("invalid_operation", "not_precision")
    assert found.causes[0].op is not None
    assert found.causes[0].op.op == "aten._softmax"
    assert found.headline.endswith("in FP32 too: not a precision problem.")


def test_batch_norm_that_overflows_leaves_a_poisoned_buffer_that_is_named() -> None:
    model = lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))  # noqa: E731
    found = hs.diagnose(recipe(model, square, torch.randn(16, 8) * 3e5))
    kinds = [cause.kind for cause in found.causes]
    assert kinds[0] == "overflow"
    poisoned = [cause.subject for cause in found.causes if cause.kind == "poisoned_buffer"]
    assert "1.running_mean" in poisoned
    remedy = next(c.remedy for c in found.causes if c.kind == "poisoned_buffer")
    assert "buffers='rollback'" in remedy


def test_nan_at_any_scale_is_told_from_a_scale_that_is_still_searching() -> None:
    def times(factor: float) -> Loss:
        return lambda model, x: square(model, x) * factor

    model = lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))  # noqa: E731
    searching = hs.diagnose(recipe(model, times(300.0), torch.ones(4, 8)))
    assert searching.is_healthy
    (note,) = [c for c in searching.causes if c.kind == "scale_searching"]
    scaled = next(p for p in searching.passes if p.name == "fp16 scaled")
    assert scaled.is_finite
    assert scaled.loss_scale < 65536
    assert "skipped steps at the start of a run are normal" in note.explanation
    # oracle: an engine at that scale commits and at twice of it skips
    for scale, updated in ((scaled.loss_scale, True), (scaled.loss_scale * 2, False)):
        torch.manual_seed(0)
        fresh = model()
        engine = hs.Engine(
            fresh, torch.optim.SGD(fresh.parameters(), lr=0.1), precision="fp16", loss_scale=scale
        )
        assert engine.train_step([torch.ones(4, 8)], times(300.0)).updated is updated
    never = hs.diagnose(recipe(model, times(math.nan), torch.ones(4, 8)))
    assert never.health == "not_precision"


def half_model() -> nn.Module:
    return nn.Linear(8, 1).half()


def half_loss(model: nn.Module, x: Tensor) -> Tensor:
    return model(x.half()).float().square().mean()


def test_half_weights_are_named_with_the_eps_that_vanishes() -> None:
    adam = lambda m: torch.optim.Adam(m.parameters(), lr=1e-3)  # noqa: E731
    found = hs.diagnose(recipe(half_model, half_loss, torch.randn(4, 8), optimizer=adam))
    cause = next(c for c in found.causes if c.kind == "low_precision_weights")
    assert cause.subject == "weight"
    assert "eps=1e-08 is 0 in FP16" in cause.explanation
    assert "model.float()" in cause.remedy


def test_updates_that_bf16_weights_lose_are_counted() -> None:
    class Ones(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64, dtype=torch.bfloat16))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight

    sgd = lambda m: torch.optim.SGD(m.parameters(), lr=1e-4)  # noqa: E731
    loss = lambda m, x: m(x).float().sum()  # noqa: E731
    found = hs.diagnose(recipe(Ones, loss, torch.ones(1, 64), optimizer=sgd))
    (row,) = found.lost_updates
    # closed form: 1 - 1e-4 rounds to 1 in BF16, whose spacing below 1 is 2^-8
    assert (row.lost_fraction, row.changed_fraction, row.dtype) == (1.0, 0.0, "bfloat16")
    assert {"lost_updates", "low_precision_weights"} <= {c.kind for c in found.causes}


@pytest.mark.parametrize(("lr", "lost"), [(1e-9, 1.0), (1e-3, 0.0)])
def test_tiny_learning_rate_loses_fp32_updates(lr: float, lost: float) -> None:
    def model() -> nn.Module:
        linear = nn.Linear(8, 1, bias=False)
        nn.init.constant_(linear.weight, 1.0)
        return linear

    sgd = lambda m: torch.optim.SGD(m.parameters(), lr=lr)  # noqa: E731
    found = hs.diagnose(recipe(model, square, torch.ones(4, 8), optimizer=sgd))
    assert [row.lost_fraction for row in found.lost_updates] == [lost]
    assert found.is_healthy is (lost == 0)


@pytest.mark.parametrize(("dim", "severity"), [(1, "error"), (0, "note")])
def test_fp16_loss_is_named(dim: int, severity: str) -> None:
    loss = lambda m, x: m(x).mean(0) if dim else m(x).mean()  # noqa: E731
    found = hs.diagnose(recipe(lambda: nn.Linear(8, 1), loss, torch.ones(1, 8)))
    cause = next(c for c in found.causes if c.kind == "half_loss")
    assert (cause.severity, cause.passes) == (severity, ("fp16", "fp16 scaled"))


def test_op_that_refuses_a_format_is_named_with_its_line() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        scores = model(x)
        return scores.masked_fill(x[:, :1] > 5, -1e9).float().mean()

    found = hs.diagnose(recipe(lambda: nn.Linear(8, 1), loss, torch.randn(4, 8)))
    cause = found.causes[0]
    assert (cause.kind, cause.passes) == ("cannot_run", ("fp16", "fp16 scaled"))
    assert "without overflow at " in cause.evidence
    assert "test_diagnose.py:" in cause.evidence
    assert [p.name for p in found.passes] == ["fp32", "bf16"]
    assert found.headline == "FP16 cannot run this model."


def everything_with_state() -> hs.Recipe:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    model.eval()
    model[0].weight.grad = torch.ones(8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    optimizer.step()
    return recipe(lambda: model, square, torch.randn(8, 8), optimizer=lambda m: optimizer)


@pytest.mark.parametrize("factor", [1.0, 1e6, math.nan], ids=["fine", "overflow", "nan"])
def test_diagnosis_moves_nothing(factor: float) -> None:
    # oracle: deep copies of everything, bit for bit; a model that the recipe hands out again
    base = everything_with_state()
    loss: Loss = lambda m, x: square(m, x) * factor  # noqa: E731
    shared = dataclasses.replace(base, loss_fn=loss)
    model = shared.model()
    optimizer = shared.optimizer(model)
    gradient = copy.deepcopy(model[0].weight.grad)  # type: ignore[index]
    before = [*snapshot(model, optimizer), torch.get_rng_state(), random.getstate()]
    hs.diagnose(shared)
    after = [*snapshot(model, optimizer), torch.get_rng_state(), random.getstate()]
    assert differences(before, after) == []
    assert not any(m.training for m in model.modules())
    assert torch.equal(model[0].weight.grad, gradient)  # type: ignore[index]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_dropout_draws_the_same_masks_in_every_run() -> None:
    model = lambda: nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 1))  # noqa: E731
    found = hs.diagnose(recipe(model, square, torch.randn(4, 8)))
    assert found.equality is not None
    assert all(p.output_error < 0.05 for p in found.equality.passes)


def test_four_runs_and_their_layers_are_in_the_record() -> None:
    found = hs.diagnose(healthy(FAMILIES[0]))
    assert [p.name for p in found.passes] == ["fp32", "bf16", "fp16", "fp16 scaled"]
    assert [p.loss_scale for p in found.passes] == [1, 1, 1, 65536]
    for p in found.passes:
        modules = [layer.module for layer in p.layers if layer.phase == "forward"]
        assert modules[-1] == "Net"
        assert "Net.blocks.1.fc" in modules
        assert next(x.module for x in p.layers if x.phase == "backward") == "Net.head"
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert hs.Diagnosis.from_dict(json.loads(json.dumps(found.to_dict()))).passes == found.passes


def test_dtype_picture_shows_what_autocast_does() -> None:
    found = hs.diagnose(healthy(FAMILIES[0]))
    rows = {(row.stage, row.name): row.dtypes for row in found.dtypes}
    assert rows["layer", "Net.head"] == {
        "fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp16 scaled": "float16",
    }  # fmt: skip
    assert set(rows["loss", "loss"].values()) == {"float32"}
    assert set(rows["gradient", "head.weight"].values()) == {"float32"}
    assert rows["activation gradient", "Net.head"]["fp16"] == "float16"
    assert rows["input", "batch[1]"]["fp16"] == "int64"
    assert set(rows["update", "head.weight"].values()) == {"float32"}


def test_batch_number_is_which_batch() -> None:
    bad = torch.full((4, 8), math.nan)
    r = recipe(lambda: nn.Linear(8, 1), square, None, batches=lambda: [torch.ones(4, 8), bad])
    assert hs.diagnose(r).is_healthy
    assert hs.diagnose(r, batch=1).causes[0].subject == "batch"
    with pytest.raises(hs.RecipeError, match="has no batch number 2, counted from 0"):
        hs.diagnose(r, batch=2)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"batch": -1}, "batch must be a whole number of at least 0, got -1"),
        ({"steps": 1.5}, "steps must be a whole number of at least 0, got 1.5"),
        ({"policy": "tpu"}, "policy must be 'cuda', 'device', a Policy or the path.*'tpu'"),
        ({"symptoms": ["cough"]}, "symptom must be one of clipped-gradients, .*, got 'cough'"),
        ({"device": "nonsense"}, "cannot use device 'nonsense'"),
    ],
)
def test_bad_setting_is_one_sentence(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(hs.BadValueError, match=text):
        hs.diagnose(healthy(FAMILIES[0]), **settings)


def test_window_without_a_valid_token_is_refused() -> None:
    loss = lambda m, x: hs.LossSum(m(x).float().sum(), 0)  # noqa: E731
    with pytest.raises(hs.BadValueError, match="batch 0 has the divisor 0, so it trains nothing"):
        hs.diagnose(recipe(lambda: nn.Linear(8, 1), loss, torch.ones(4, 8)))


def test_error_of_the_users_own_comes_through_as_it_is() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x) @ torch.ones(7)

    with pytest.raises(RuntimeError, match="size mismatch"):
        hs.diagnose(recipe(lambda: nn.Linear(8, 1), loss, torch.ones(4, 8)))


def test_cross_entropy_with_ignored_targets_is_healthy() -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> hs.LossSum:
        total = F.cross_entropy(model(batch[0]), batch[1], ignore_index=-100, reduction="sum")
        return hs.LossSum(total, (batch[1] != -100).sum())

    batch = (torch.randn(6, 8), torch.tensor([0, 1, -100, 2, -100, 1]))
    assert hs.diagnose(recipe(lambda: nn.Linear(8, 3), loss, batch)).is_healthy


def test_recipe_that_the_engine_refuses_is_diagnosed_nevertheless(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("WARNING", logger="halfstep"):
        found = hs.diagnose(
            recipe(half_model, half_loss, torch.randn(4, 8)), steps=2, symptoms=["resume"]
        )
    assert "low_precision_weights" in [c.kind for c in found.causes]
    assert found.equality is not None
    assert found.equality.curves == ()
    assert any(r.getMessage().startswith("no runs to compare: ") for r in caplog.records)
    (symptom,) = [s for s in found.symptoms if s.name == "resume"]
    assert symptom.found is None
    assert symptom.evidence.startswith("could not run: parameter 'weight' is FP16")


def test_optimizer_that_wants_a_closure_leaves_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    lbfgs = lambda m: torch.optim.LBFGS(m.parameters())  # noqa: E731
    with caplog.at_level("WARNING", logger="halfstep"):
        found = hs.diagnose(
            recipe(lambda: nn.Linear(8, 1), square, torch.randn(4, 8), optimizer=lbfgs)
        )
    assert found.is_healthy
    assert found.lost_updates == ()
    assert any("no update could be tried" in r.getMessage() for r in caplog.records)
