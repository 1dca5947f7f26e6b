"""The place is where digits are lost, not where that shows; remedies work when followed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs


def seeded(*shape: int, normal: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    make = torch.randn if normal else torch.rand
    return make(*shape, generator=generator)


def recipe(
    model: Callable[[], nn.Module], loss_fn: Callable[[Any, Any], Any], batch: Any
) -> hs.Recipe:
    return hs.Recipe(
        name="case",
        model=model,
        loss_fn=loss_fn,
        batches=lambda: [batch],
        optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3),
    )


def square(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).float().square().mean()


def followed(sick: hs.Recipe, cause: hs.Cause) -> hs.Diagnosis:
    """The diagnosis with the islands of a cause, as ``precision.toml`` would make them."""
    assert cause.islands
    policy = hs.Policy("fp16", base="cuda", modules=dict.fromkeys(cause.islands, "fp32"))
    return hs.diagnose(sick, policy=policy)


def error(found: hs.Diagnosis) -> hs.Cause:
    (cause,) = [cause for cause in found.causes if cause.severity == "error"]
    return cause


class NegativeVariance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 64), nn.Linear(64, 4)
        nn.init.constant_(self.a.bias, 30.0)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        mean = y.mean(-1, keepdim=True)
        variance = (y * y).mean(-1, keepdim=True) - mean * mean
        return torch.as_tensor(self.b((y - mean) * torch.rsqrt(variance + 1e-6)))


def test_variance_below_0_is_a_matter_of_precision_with_its_proof() -> None:
    found = hs.diagnose(recipe(NegativeVariance, square, seeded(64, 16)))
    cause = error(found)
    assert (found.health, cause.kind) == ("precision", "rounding")
    assert "In FP32 it has: this is a matter of precision" in cause.explanation
    assert "aten.sub gives -" in cause.evidence
    assert cause.remedy.endswith("Tried on this batch: healthy.")
    assert "`with hs.fp32():` around the ops of the model's own forward" in cause.remedy


def test_block_that_the_remedy_names_makes_the_model_healthy() -> None:
    class Mended(NegativeVariance):
        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x)
            with hs.fp32():
                mean = y.mean(-1, keepdim=True)
                variance = (y * y).mean(-1, keepdim=True) - mean * mean
                h = (y - mean) * torch.rsqrt(variance + 1e-6)
            return torch.as_tensor(self.b(h))

    assert hs.diagnose(recipe(Mended, square, seeded(64, 16))).is_healthy


def rounded_before_batchnorm() -> hs.Recipe:
    x = 20200 + seeded(64, 1, normal=False) * 20
    model = lambda: nn.Sequential(  # noqa: E731
        nn.Linear(1, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1)
    )
    return recipe(model, lambda m, b: F.mse_loss(m(b).float(), (b - 20210) / 10), x)


def test_rounding_before_batch_norm_is_named_and_not_the_batch_norm() -> None:
    sick = rounded_before_batchnorm()
    cause = error(hs.diagnose(sick))
    assert (cause.module, cause.islands) == ("Sequential.0", ("0",))
    assert cause.shown_by is not None
    assert cause.shown_by.module == "Sequential.1"
    assert followed(sick, cause).is_healthy


class Rotary(nn.Module):
    """Angles that are made of a position and a frequency by a product in 16 bits."""

    def forward(self, positions: Tensor) -> Tensor:
        frequencies = 1.0 / 10000 ** (torch.arange(0, 16, 2) / 16)
        return torch.cos(positions[:, None].float() @ frequencies[None])


class RotaryBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rotary, self.fc = Rotary(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.fc(x) * self.rotary(torch.arange(3000, 3000 + len(x))))


class Rotated(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(RotaryBlock() for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize(("depth", "pattern"), [(1, "blocks.0.rotary"), (4, "blocks.*.rotary")])
def test_same_fault_in_every_block_is_one_pattern(depth: int, pattern: str) -> None:
    sick = recipe(lambda: Rotated(depth), square, seeded(16, 8))
    cause = error(hs.diagnose(sick))
    assert (cause.kind, cause.islands) == ("silent_difference", (pattern,))
    assert cause.module == "Rotated.blocks.0.rotary"
    assert f'"{pattern}" = "fp32"' in cause.remedy
    assert followed(sick, cause).is_healthy


def test_one_minus_a_probability_near_1_names_the_probability() -> None:
    class Surprise(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            p = torch.sigmoid(h * 0.1 + 11.0)
            return torch.log(1.0 - p)

    model = lambda: nn.Sequential(nn.Linear(8, 8), Surprise())  # noqa: E731
    sick = recipe(model, lambda m, x: m(x).float().mean(), seeded(16, 8))
    cause = error(hs.diagnose(sick))
    assert (cause.kind, cause.module) == ("rounding", "Sequential.1")
    assert cause.op is not None
    assert cause.op.op == "aten.sigmoid"
    assert followed(sick, cause).is_healthy


def test_two_faults_that_hide_one_another_are_found_in_one_go() -> None:
    class Squares(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.scale = scale

        def forward(self, x: Tensor) -> Tensor:
            y = self.fc(x) * self.scale
            return y * y / self.scale**2

    model = lambda: nn.Sequential(  # noqa: E731
        nn.Linear(8, 8), Squares(1000.0), nn.Tanh(), Squares(3000.0), nn.Linear(8, 1)
    )
    sick = recipe(model, square, seeded(16, 8))
    found = hs.diagnose(sick)
    causes = [cause for cause in found.causes if cause.severity == "error"]
    assert [(c.kind, c.module) for c in causes] == [
        ("silent_difference", "Sequential.1"),  # whose inf a tanh makes 1 of
        ("overflow", "Sequential.3"),
    ]  # fmt: skip
    assert causes[0].islands == causes[1].islands == ("1", "3")
    assert followed(sick, causes[0]).is_healthy


def test_loss_far_too_large_says_by_how_much_and_its_scale_works() -> None:
    model = lambda: nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1))  # noqa: E731
    loss = lambda m, x: square(m, x) * 1e9  # noqa: E731
    cause = error(hs.diagnose(recipe(model, loss, seeded(16, 16))))
    assert cause.kind == "loss_too_large"
    assert "No loss scale above min_scale=1 helps" in cause.explanation
    assert "the loss is 2^10 too large" in cause.explanation
    assert "FP32" not in cause.remedy
    (text,) = [part for part in cause.remedy.split(": ") if part.startswith("DynamicLossScale")]
    # oracle: the engine commits at that scale and skips at 1
    for scale, updated in ((pasted(text), True), (1.0, False)):
        torch.manual_seed(0)
        made = model()
        engine = hs.Engine(
            made,
            torch.optim.SGD(made.parameters(), lr=1e-12),
            precision=hs.Policy("fp16", base="cuda"),
            loss_scale=scale,
        )
        assert engine.train_step([seeded(16, 16)], loss).updated is updated


def pasted(text: str) -> hs.DynamicLossScale:
    """The first call of DynamicLossScale in a remedy, evaluated as a user would paste it."""
    start = text.index("DynamicLossScale(")
    call = text[start : text.index(")", start) + 1]
    scale = eval(call, {"DynamicLossScale": hs.DynamicLossScale})
    assert isinstance(scale, hs.DynamicLossScale)
    return scale


def test_loss_far_too_small_has_a_scale_that_can_be_pasted_and_works() -> None:
    model = lambda: nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1))  # noqa: E731
    loss = lambda m, x: square(m, x) * 1e-13  # noqa: E731
    cause = error(hs.diagnose(recipe(model, loss, seeded(16, 16))))
    assert cause.kind == "gradient_underflow"
    scale = float(pasted(cause.remedy).value)
    assert math.log2(scale).is_integer()
    # oracle: gradients in float64 beside those of FP16 at that scale
    torch.manual_seed(0)
    low = model()
    exact = model().double()
    exact.load_state_dict(low.state_dict())
    with hs.Policy("fp16", base="cuda").autocast("cpu"):
        total = loss(low, seeded(16, 16))
    (total * scale).backward()
    exact(seeded(16, 16).double()).square().mean().mul(1e-13).backward()
    for p, wanted in zip(low.parameters(), exact.parameters(), strict=True):
        assert p.grad is not None
        assert wanted.grad is not None
        gap = (p.grad.double() / scale - wanted.grad).norm() / wanted.grad.norm()
        assert gap < 16 * 2**-10


def test_bad_sample_is_one_cause_with_its_number_and_the_buffers_it_poisons() -> None:
    x = seeded(8, 4)
    x[3, 0] = math.nan
    model = lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))  # noqa: E731
    found = hs.diagnose(recipe(model, lambda m, b: m(b).float().mean(), x))
    (cause,) = found.causes
    assert (found.health, cause.kind, cause.is_precision) == ("not_precision", "bad_batch", False)
    assert cause.evidence.startswith("sample 3 of 8 (counted from 0): 1 of 32 values: 1 NaN")
    assert "in FP32 too: 1.running_mean, 1.running_var" in cause.evidence


@pytest.mark.parametrize("tool", ["doctor", "fit"])
def test_module_that_the_factory_froze_stays_in_eval_mode(tool: str) -> None:
    class Frozen(nn.BatchNorm1d):
        def forward(self, x: Tensor) -> Tensor:
            assert not self.training
            return super().forward(x)

    def model() -> nn.Module:
        made = nn.Sequential(nn.Linear(8, 8), Frozen(8), nn.Linear(8, 1))
        made[1].eval()
        return made

    case = recipe(model, lambda m, x: m(x).float().mean(), seeded(16, 8))
    if tool == "doctor":
        assert hs.diagnose(case, steps=2).is_healthy
    else:
        assert hs.fit(case, steps=2).num_updates == 2
