"""`Recipe(engine=...)`: several optimizers and every setting of the engine reach every tool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import halfstep as hs
from halfstep.tools.doctor import diagnose
from halfstep.tools.resume import verify_resume

X = torch.arange(20.0).reshape(5, 4) / 10


def recipe(**changes: Any) -> hs.Recipe:
    settings: dict[str, Any] = {
        "name": "line",
        "model": lambda: nn.Linear(4, 1),
        "loss_fn": lambda model, x: model(x).float().square().mean(),
        "batches": lambda: [X, X + 1, X + 2],
        "optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
    }
    return hs.Recipe(**{**settings, **changes})


def two_models(**changes: Any) -> hs.Recipe:
    """An encoder by AdamW and a decoder by SGD."""

    def loss_fn(models: Any, x: Tensor) -> Tensor:
        decoded = models["decoder"](torch.tanh(models["encoder"](x)))
        found: Tensor = (decoded.float() - x).square().mean()
        return found

    settings: dict[str, Any] = {
        "model": lambda: {"encoder": nn.Linear(4, 2), "decoder": nn.Linear(2, 4)},
        "loss_fn": loss_fn,
        "optimizer": lambda models: {
            "first": torch.optim.AdamW(models["encoder"].parameters(), lr=0.01),
            "second": torch.optim.SGD(models["decoder"].parameters(), lr=0.1),
        },
        "validate": lambda models: float(len(models)),
    }
    return recipe(**{**settings, **changes})


def by_hand(steps: int) -> list[float]:
    """The two models trained without halfstep: the oracle."""
    torch.manual_seed(0)
    encoder, decoder = nn.Linear(4, 2), nn.Linear(2, 4)
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(encoder.parameters(), lr=0.01, fused=True),
        torch.optim.SGD(decoder.parameters(), lr=0.1, fused=True),
    ]
    losses = []
    for step in range(steps):
        x = X + step % 3
        loss = (decoder(torch.tanh(encoder(x))) - x).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def test_two_models_and_optimizers_train_as_by_hand() -> None:
    run = hs.fit(two_models(), precision="fp32", steps=7)
    assert [step.loss for step in run.steps] == by_hand(7)
    assert run.validation == {"validation": 2.0}
    parts = run.steps[-1].per_optimizer
    assert parts is not None
    assert list(parts) == ["first", "second"]


def test_settings_reach_the_engine_and_the_record() -> None:
    def clip_hard(parameters: list[Tensor]) -> None:
        torch.nn.utils.clip_grad_value_(parameters, 1e-3)

    settings = {"loss_scale": 1024.0, "clip": clip_hard, "veto": hs.veto.norm_spike(6)}
    run = hs.fit(recipe(engine=settings), precision="fp32", steps=3)
    assert [step.loss_scale for step in run.steps] == [1024.0] * 3
    assert all(step.clip_coef < 0.1 for step in run.steps)
    assert run.settings["engine"]["loss_scale"] == 1024.0
    assert "clip_hard" in run.settings["engine"]["clip"]
    assert hs.RunRecord.from_dict(run.to_dict()).settings == run.settings


def test_loss_scale_object_starts_afresh_in_every_run() -> None:
    scale = hs.DynamicLossScale(2.0**4, growth_interval=2)
    made = recipe(engine={"loss_scale": scale})
    first, second = (hs.fit(made, precision="fp16", steps=5) for _ in range(2))
    assert [s.loss_scale for s in first.steps] == [16.0, 16.0, 32.0, 32.0, 64.0]
    assert [s.loss_scale for s in second.steps] == [s.loss_scale for s in first.steps]
    assert float(scale.value) == 16.0


def test_number_given_to_the_run_goes_before_the_recipes() -> None:
    made = recipe(engine={"max_norm": 100.0})
    loose = hs.fit(made, precision="fp32", steps=1)
    tight = hs.fit(made, precision="fp32", steps=1, max_norm=1e-3)
    assert loose.steps[0].clip_coef == 1.0
    assert tight.steps[0].clip_coef < 0.1


def test_factory_gets_what_the_run_decides_and_makes_the_engine() -> None:
    got: list[dict[str, Any]] = []

    def engine(model: Any, optimizer: Any, **settings: Any) -> hs.Engine:
        got.append(settings)
        return hs.Engine(model, optimizer, loss_scale=8.0, **settings)

    run = hs.fit(recipe(engine=engine), precision="fp32", steps=2, max_norm=1.0)
    assert run.steps[0].loss_scale == 8.0
    assert got == [{"precision": "fp32", "max_norm": 1.0}]
    assert "engine" in run.settings["engine"]["factory"]


def test_factory_that_makes_no_engine_is_refused() -> None:
    made = recipe(engine=lambda model, optimizer, **settings: model)
    with pytest.raises(ValueError, match=r"must return a halfstep\.Engine, got Linear"):
        hs.fit(made, precision="fp32", steps=1)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"engine": {"los_scale": 1}}, ValueError, "no los_scale; did you mean loss_scale"),
        ({"engine": {"max_grad_norm": 1}}, ValueError, "the setting is called max_norm"),
        ({"engine": {"precision": "fp16"}}, ValueError, "leave out 'precision'; the run decides"),
        ({"engine": {"diagnose": "raise"}}, ValueError, "leave out 'diagnose'"),
        ({"engine": {"schedule": 1}}, ValueError, "leave out 'schedule'; it needs the optimizer"),
        ({"engine": {"ema": 0.9}, "ema": 0.9}, ValueError, r"Recipe\(ema=...\) has it already"),
        ({"engine": 3}, TypeError, "engine must be a function or a mapping of settings"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_the_recipe(
    changes: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        recipe(**changes)


@pytest.mark.parametrize("model", [{}, {"a": 3}, 3], ids=repr)
def test_model_that_is_none_is_refused(model: Any) -> None:
    with pytest.raises(TypeError, match=r"Recipe.model must return"):
        hs.fit(recipe(model=lambda: model), precision="fp32", steps=1)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_resume_of_two_models_is_the_straight_run(precision: str) -> None:
    scale = hs.DynamicLossScale(2.0**20, growth_interval=2)
    made = two_models(ema=0.9, engine={"loss_scale": scale if precision == "fp16" else None})
    check = verify_resume(made, at=3, steps=3, precision=precision)
    assert check.comparison.is_equal, str(check.comparison)


@pytest.mark.parametrize("part", ["optimizer", "data"])
def test_resume_check_of_two_models_finds_what_was_left_out(part: str) -> None:
    check = verify_resume(two_models(), at=4, steps=3, precision="fp32", without=[part])
    assert not check.comparison.is_equal


def test_checkpoints_of_two_models_go_on(tmp_path: Path) -> None:
    folder = hs.CheckpointFolder(tmp_path / "a", every=4)
    straight = hs.fit(two_models(), precision="fp32", steps=8, checkpoints=folder)
    resumed = hs.fit(
        two_models(), precision="fp32", steps=8, resume=tmp_path / "a" / "step-00000004.pt"
    )
    assert [s.loss for s in resumed.steps] == [s.loss for s in straight.steps]


def test_doctor_looks_at_two_models() -> None:
    found = diagnose(two_models(), steps=2)
    names = {row.name for row in found.lost_updates}
    assert names == {f"{m}.{p}" for m in ("encoder", "decoder") for p in ("weight", "bias")}
