"""Several optimizers in one engine: windows, decisions, norms and scales by name."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs
from snapshots import differences, snapshot

EPS = torch.finfo(torch.float32).eps
NAMES = ("generator", "discriminator")


def networks() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {
        "generator": nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)),
        "discriminator": nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1)),
    }


def optimizers(models: dict[str, nn.Module], lr: float = 1.0) -> dict[str, torch.optim.Optimizer]:
    return {name: torch.optim.SGD(model.parameters(), lr=lr) for name, model in models.items()}


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def make(**settings: Any) -> hs.Engine:
    models = networks()
    settings = {"precision": "fp32", "loss_scale": hs.DynamicLossScale(2.0**8), **settings}
    return hs.Engine(models, optimizers(models), **settings)


def noise(seed: int = 1) -> Tensor:
    return torch.randn(16, 4, generator=torch.Generator().manual_seed(seed))


def generator_loss(models: Any, batch: Tensor) -> Tensor:
    return F.softplus(-models["discriminator"](models["generator"](batch))).mean()


def discriminator_loss(models: Any, batch: Tensor) -> Tensor:
    fake = models["generator"](batch).detach()
    return F.softplus(models["discriminator"](fake)).mean()


def joint_loss(models: Any, batch: Tensor) -> Tensor:
    return generator_loss(models, batch) + discriminator_loss(models, batch)


def poisoned(name: str) -> Any:
    """A joint loss whose gradient is NaN in one network only."""

    def loss_fn(models: Any, batch: Tensor) -> Tensor:
        bad = sum(p.sum() for p in models[name].parameters())
        return joint_loss(models, batch) + bad * math.nan

    return loss_fn


def weights(engine: hs.Engine, name: str) -> list[Tensor]:
    return [p.detach().clone() for p in engine.models[name].parameters()]


def is_equal(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_alternating_steps_equal_stock_torch_to_the_bit() -> None:
    # oracle: a stock FP32 loop; powers of two change no bit
    engine, models = make(), networks()
    stock = optimizers(models)
    for seed in range(3):
        for name, loss_fn in zip(NAMES, (generator_loss, discriminator_loss), strict=True):
            engine.backward(loss_fn(engine.models, noise(seed)), optimizers=name)
            assert engine.step(name).updated
            other = NAMES[1 - NAMES.index(name)]
            assert all(p.grad is None for p in engine.models[other].parameters())
            for each in stock.values():
                each.zero_grad()
            loss_fn(models, noise(seed)).backward()
            stock[name].step()
    for name in NAMES:
        assert is_equal(weights(engine, name), [p.detach() for p in models[name].parameters()])
    assert {name: c.num_updates for name, c in engine.counters.items()} == dict.fromkeys(NAMES, 3)
    assert engine.num_updates == 6


def test_window_of_one_optimizer_stays_open_while_another_steps() -> None:
    engine, models = make(), networks()
    engine.backward(generator_loss(engine.models, noise(1)), optimizers=("generator",))
    engine.backward(discriminator_loss(engine.models, noise(2)), optimizers=("discriminator",))
    engine.step("discriminator")
    # the generator's second micro-batch sees the discriminator that has moved
    engine.backward(generator_loss(engine.models, noise(3)), optimizers=("generator",))
    engine.step("generator")
    stock = optimizers(models)
    first = generator_loss(models, noise(1))
    kept = torch.autograd.grad(first, list(models["generator"].parameters()))
    discriminator_loss(models, noise(2)).backward()
    stock["discriminator"].step()
    stock["generator"].zero_grad()
    generator_loss(models, noise(3)).backward()
    for p, grad in zip(models["generator"].parameters(), kept, strict=True):
        assert p.grad is not None
        p.grad = (p.grad + grad) / 2
    stock["generator"].step()
    for name in NAMES:
        for ours, theirs in zip(weights(engine, name), models[name].parameters(), strict=True):
            assert torch.allclose(ours, theirs, rtol=16 * EPS, atol=16 * EPS)


@pytest.mark.parametrize("bad", NAMES)
def test_overflow_in_one_holds_both_together(bad: str) -> None:
    # C8: stock torch steps the other one
    engine = make()
    before = {name: weights(engine, name) for name in NAMES}
    outcome = engine.train_step([noise()], poisoned(bad))
    good = NAMES[1 - NAMES.index(bad)]
    assert (outcome.skipped, outcome.reason) == (True, outcome.record.reason)
    assert outcome.per_optimizer[bad].reason == "non_finite"
    assert outcome.per_optimizer[good].reason == "together"
    assert all(is_equal(before[name], weights(engine, name)) for name in NAMES)
    assert float(engine.loss_scale.value) == 2.0**7


@pytest.mark.parametrize("bad", NAMES)
def test_overflow_in_one_lets_the_other_step_independently(bad: str) -> None:
    engine = make(overflow="independent")
    before = {name: weights(engine, name) for name in NAMES}
    outcome = engine.train_step([noise()], poisoned(bad))
    good = NAMES[1 - NAMES.index(bad)]
    assert outcome.updated
    assert outcome.per_optimizer[bad].skipped
    assert outcome.per_optimizer[good].updated
    assert is_equal(before[bad], weights(engine, bad))
    assert not is_equal(before[good], weights(engine, good))
    assert float(engine.loss_scale.value) == 2.0**7  # one update of the scale they share
    assert f"{bad}: skipped=True reason=non_finite" in str(outcome)
    assert engine.counters[bad].num_skipped == 1
    assert engine.counters[good].num_updates == 1


def test_joint_norm_clips_both_by_one_factor() -> None:
    # C8's second half. Oracle: torch's clip_grad_norm_ over both in FP32
    engine, models = make(max_norm=hs.Joint(0.1)), networks()
    outcome = engine.train_step([noise()], joint_loss)
    joint_loss(models, noise()).backward()
    params = [p for model in models.values() for p in model.parameters()]
    norm = float(nn.utils.clip_grad_norm_(params, 0.1))
    for optimizer in optimizers(models).values():
        optimizer.step()
    assert outcome.grad_norm == pytest.approx(norm, rel=8 * EPS)
    coefs = {record.clip_coef for record in outcome.per_optimizer.values()}
    assert coefs == {outcome.clip_coef}
    for name in NAMES:
        for ours, theirs in zip(weights(engine, name), models[name].parameters(), strict=True):
            assert torch.allclose(ours, theirs, rtol=16 * EPS, atol=16 * EPS)


def test_each_optimizer_is_clipped_by_its_own_norm() -> None:
    engine, models = make(max_norm={"generator": 0.01}), networks()
    outcome = engine.train_step([noise()], joint_loss)
    joint_loss(models, noise()).backward()
    norms = {
        name: float(nn.utils.get_total_norm([p.grad for p in model.parameters()]))
        for name, model in models.items()
    }
    for name in NAMES:
        assert outcome.per_optimizer[name].grad_norm == pytest.approx(norms[name], rel=8 * EPS)
    assert outcome.per_optimizer["generator"].clip_coef < 1
    assert outcome.per_optimizer["discriminator"].clip_coef == 1
    assert outcome.grad_norm == pytest.approx(math.hypot(*norms.values()), rel=8 * EPS)


def test_shared_scale_moves_once_when_the_last_window_closes() -> None:
    # oracle: torch's GradScaler.update after both steps
    engine = make(loss_scale=hs.DynamicLossScale(2.0**8, growth_interval=2))
    scale = engine.loss_scale
    for _ in range(2):
        engine.backward(generator_loss(engine.models, noise()), optimizers="generator")
        engine.backward(discriminator_loss(engine.models, noise()), optimizers="discriminator")
        before = float(scale.value)
        assert engine.step("discriminator").next_loss_scale == before
        assert float(scale.value) == before  # the generator's gradients carry it
        engine.step("generator")
    assert float(scale.value) == 2.0**9


def test_overflow_noted_in_a_closed_window_lowers_the_shared_scale_at_the_end() -> None:
    engine = make()
    engine.backward(generator_loss(engine.models, noise()), optimizers="generator")
    bad = discriminator_loss(engine.models, noise()) * math.inf
    engine.backward(bad, optimizers="discriminator")
    assert engine.step("discriminator").skipped
    assert float(engine.loss_scale.value) == 2.0**8
    assert engine.step("generator").updated
    assert float(engine.loss_scale.value) == 2.0**7


def test_abort_of_the_last_open_window_tells_the_scale_what_the_others_found() -> None:
    engine = make()
    engine.backward(generator_loss(engine.models, noise()), optimizers="generator")
    bad = discriminator_loss(engine.models, noise()) * math.inf
    engine.backward(bad, optimizers="discriminator")
    engine.step("discriminator")
    engine.abort()
    assert float(engine.loss_scale.value) == 2.0**7


def test_scales_of_their_own_move_apart() -> None:
    scales = {name: hs.DynamicLossScale(2.0**8) for name in NAMES}
    engine = make(loss_scale=scales)
    engine.backward(generator_loss(engine.models, noise()), optimizers="generator")
    bad = discriminator_loss(engine.models, noise()) * math.inf
    engine.backward(bad, optimizers="discriminator")
    outcome = engine.step()
    assert outcome.skipped
    assert float(scales["discriminator"].value) == 2.0**7
    assert float(scales["generator"].value) == 2.0**8
    with pytest.raises(RuntimeError, match=r"engine.loss_scales\[name\]"):
        engine.loss_scale  # noqa: B018
    with pytest.raises(RuntimeError, match="have loss scales of their own"):
        engine.backward(joint_loss(engine.models, noise()))


def test_optimizer_that_only_skips_collapses_though_the_other_is_well() -> None:
    engine = make(
        loss_scale=hs.DynamicLossScale(2.0**8, max_consecutive_skips=3), overflow="independent"
    )
    for _ in range(2):
        engine.train_step([noise()], poisoned("generator"))
    with pytest.raises(hs.ScaleCollapse, match=r"3 updates in a row.*generator\.0\.weight"):
        engine.train_step([noise()], poisoned("generator"))


def test_alternating_optimizer_that_only_skips_collapses_too() -> None:
    engine = make(loss_scale=hs.DynamicLossScale(2.0**8, max_consecutive_skips=3))

    def bad_loss(models: Any, batch: Tensor) -> Tensor:
        return discriminator_loss(models, batch) * math.nan

    for _ in range(2):
        assert engine.train_step([noise()], generator_loss, optimizers="generator").updated
        engine.train_step([noise()], bad_loss, optimizers="discriminator")
    with pytest.raises(hs.ScaleCollapse, match="3 updates in a row"):
        engine.train_step([noise()], bad_loss, optimizers="discriminator")


def test_schedules_and_averages_follow_their_own_optimizer() -> None:
    models = networks()
    opts = optimizers(models)
    schedules = {
        name: torch.optim.lr_scheduler.ExponentialLR(opt, 0.5) for name, opt in opts.items()
    }
    engine = hs.Engine(
        models,
        opts,
        precision="fp32",
        loss_scale=2.0**4,
        schedule=schedules,
        ema={"generator": 0.9},
        overflow="independent",
    )
    engine.train_step([noise()], joint_loss)
    before = snapshot(engine.emas["generator"])
    assert engine.emas["discriminator"] is None
    engine.train_step([noise()], poisoned("generator"))
    assert differences(before, snapshot(engine.emas["generator"])) == []
    assert [opts[name].param_groups[0]["lr"] for name in NAMES] == [0.5, 0.25]


def test_single_torch_schedule_belongs_to_its_own_optimizer() -> None:
    models = networks()
    opts = optimizers(models)
    schedule = torch.optim.lr_scheduler.ExponentialLR(opts["generator"], 0.5)
    engine = hs.Engine(models, opts, precision="fp32", schedule=schedule)
    outcome = engine.train_step([noise()], joint_loss)
    assert (outcome.lr, outcome.record.lr) == (1.0, [1.0, 1.0])
    assert [opts[name].param_groups[0]["lr"] for name in NAMES] == [0.5, 1.0]


def test_two_optimizers_of_one_model_step_together() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    engine = hs.Engine(
        model,
        {
            "matrices": torch.optim.SGD([m.weight for m in (model[0], model[2])], lr=0.1),
            "vectors": torch.optim.Adam([m.bias for m in (model[0], model[2])], lr=0.1),
        },
        precision="bf16",
        ema=0.9,
    )
    outcome = engine.train_step([noise()], lambda model, x: model(x).square().mean())
    assert outcome.updated
    assert set(outcome.per_optimizer) == {"matrices", "vectors"}
    assert engine.model is model
    assert engine.ema is not None
    assert int(engine.ema.n_averaged) == 1


def test_average_of_a_model_moves_with_any_of_its_optimizers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    opts = {str(i): torch.optim.SGD(model[i].parameters(), lr=0.1) for i in range(2)}
    engine = hs.Engine(model, opts, precision="fp32", ema=0.9)
    moved = []
    for name in ("0", "1", None):
        engine.train_step([noise()], lambda m, x: m(x).square().mean(), optimizers=name)
        assert engine.ema is not None
        moved.append(int(engine.ema.n_averaged))
    assert moved == [1, 2, 3]


def test_state_goes_on_bit_for_bit() -> None:
    def run(engine: hs.Engine, seeds: range) -> None:
        for seed in seeds:
            loss_fn = poisoned("generator") if seed == 1 else joint_loss
            engine.train_step([noise(seed)], loss_fn)
            engine.train_step([noise(seed)], discriminator_loss, optimizers="discriminator")

    settings = {"max_norm": hs.Joint(0.5), "ema": 0.9, "veto": hs.veto.norm_spike(2, warmup=1)}
    straight, resumed = make(**settings), make(**settings)
    run(straight, range(4))
    owners = [*straight.models.values(), *straight.optimizers.values(), straight]
    states = [copy.deepcopy(owner.state_dict()) for owner in owners]
    fresh = [*resumed.models.values(), *resumed.optimizers.values(), resumed]
    run(resumed, range(7, 9))
    for owner, state in zip(fresh, states, strict=True):
        owner.load_state_dict(state)
    run(straight, range(4, 8))
    run(resumed, range(4, 8))
    assert differences(snapshot(*owners), snapshot(*fresh)) == []


def test_checkpoint_holds_every_network(tmp_path: Any) -> None:
    straight, resumed = make(), make()
    straight.train_step([noise(1)], joint_loss)
    hs.save_checkpoint(tmp_path / "gan.pt", straight)
    hs.load_checkpoint(tmp_path / "gan.pt", resumed)
    for engine in (straight, resumed):
        engine.train_step([noise(2)], joint_loss)
    for name in NAMES:
        assert is_equal(weights(straight, name), weights(resumed, name))


def test_optimizer_without_gradients_is_said_and_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # C10: torch raises an AssertionError, after one of them has stepped
    engine = make()
    before = weights(engine, "generator")
    outcome = engine.train_step([noise()], discriminator_loss)
    assert outcome.updated
    assert outcome.per_optimizer["generator"].reason == "no_gradient"
    assert is_equal(before, weights(engine, "generator"))
    assert "no parameter of the optimizer 'generator' received a gradient" in caplog.text
    assert engine.counters["generator"].num_updates == 0


def test_losses_of_windows_that_differ_are_averaged() -> None:
    engine = make()
    engine.backward(generator_loss(engine.models, noise()), optimizers="generator")
    engine.backward(discriminator_loss(engine.models, noise()), optimizers="discriminator")
    outcome = engine.step()
    parts = [record.loss for record in outcome.per_optimizer.values()]
    assert outcome.loss == pytest.approx(sum(parts) / 2, rel=EPS)


def test_loss_of_windows_of_three_and_one_micro_batches_weighs_each_the_same() -> None:
    # oracle: the mean of the four losses in float64
    engine = make()
    losses = [generator_loss(engine.models, noise(seed)) for seed in range(3)]
    losses.append(discriminator_loss(engine.models, noise(3)))
    for loss in losses[:3]:
        engine.backward(loss, optimizers="generator")
    engine.backward(losses[3], optimizers="discriminator")
    wanted = sum(float(loss.detach().double()) for loss in losses) / 4
    assert engine.step().loss == pytest.approx(wanted, rel=4 * EPS)


def test_gradients_of_one_optimizer_are_named_with_their_model() -> None:
    engine = make()
    engine.backward(joint_loss(engine.models, noise()))
    with engine.gradients("generator") as grads:
        assert set(grads) == {
            f"generator.{i}.{kind}" for i in (0, 2) for kind in ("weight", "bias")
        }
    assert engine.step().updated


def test_buffers_of_a_network_that_was_held_come_back() -> None:
    models = networks()
    models["discriminator"] = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
    opts = optimizers(models, lr=0.01)
    engine = hs.Engine(models, opts, precision="fp32", buffers="rollback")
    before = snapshot(models["discriminator"])
    bad = noise() * math.nan
    assert engine.train_step([bad], discriminator_loss, optimizers="discriminator").skipped
    assert differences(before, snapshot(models["discriminator"])) == []
    assert engine.train_step([noise()], discriminator_loss, optimizers="discriminator").updated
    assert differences(before, snapshot(models["discriminator"])) != []


@pytest.mark.usefixtures("either_decides")
@pytest.mark.parametrize("bad", [(), ("head",), ("body",), ("body", "head")], ids=str)
def test_buffers_of_a_model_come_back_if_none_of_its_optimizers_moved(bad: tuple[str]) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    parts = {"body": [*model[0].parameters(), *model[1].parameters()], "head": [model[2].weight]}
    opts = {name: torch.optim.SGD(params, lr=0.1) for name, params in parts.items()}
    model[2].bias.requires_grad_(False)
    engine = hs.Engine(model, opts, precision="fp32", overflow="independent", buffers="rollback")
    norm = model[1]

    def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
        loss: Tensor = model(x).square().mean()
        return loss + math.nan * sum(p.sum() for name in bad for p in parts[name])

    outcome = engine.train_step([noise()], loss_fn)
    assert {name for name, r in outcome.per_optimizer.items() if not r.updated} == set(bad)
    assert int(norm.num_batches_tracked) == (0 if len(bad) == 2 else 1)
    assert torch.equal(norm.running_var, torch.ones(8)) is (len(bad) == 2)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: make(max_norm={"genrator": 1.0}), "did you mean 'generator'"),
        (lambda: make(loss_scale={"other": 1.0}), "loss_scale names 'other', this engine has"),
        (lambda: make(ema={"other": 0.9}), "ema names 'other'"),
        (lambda: make(overflow="both"), "overflow must be 'together' or 'independent'"),
        (lambda: make().backward(torch.ones(()), optimizers="x"), "optimizers names 'x'"),
        (lambda: make().step("generator"), "without backward.*the window of 'generator' has no"),
        (lambda: make().step(), r"step\(\) without backward"),
        (lambda: make().model, r"engine.models\[name\], with a name of 'generator'"),
        (lambda: hs.Engine({}, {}), "model got an empty mapping"),
    ],
)
def test_names_that_cannot_be_are_refused(call: Any, text: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=text):
        call()


def test_parameter_in_two_optimizers_is_refused() -> None:
    model = nn.Linear(2, 1)
    twice = {name: torch.optim.SGD(model.parameters(), lr=0.1) for name in ("a", "b")}
    with pytest.raises(ValueError, match=r"in the optimizers 'a' and 'b'.*twice"):
        hs.Engine(model, twice, precision="fp32")


def test_frozen_optimizer_is_said() -> None:
    engine = make()
    engine.models["generator"].requires_grad_(False)
    loss = discriminator_loss(engine.models, noise())
    with pytest.raises(ValueError, match="every parameter of 'generator' is frozen"):
        engine.backward(loss, optimizers="generator")


def test_graph_of_a_generator_survives_a_skip_of_the_discriminator() -> None:
    # the standard loop: one fake batch, detached for one network and used again for the other
    models = networks()
    models["generator"] = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    engine = hs.Engine(models, optimizers(models, lr=0.01), precision="fp32", buffers="rollback")
    with engine.autocast():
        fake = engine.models["generator"](noise())
        loss = engine.models["discriminator"](fake.detach()).mean()
    engine.backward(loss * math.nan, "discriminator")
    assert engine.step("discriminator").skipped
    with engine.autocast():
        loss = engine.models["discriminator"](fake).mean()
    engine.backward(loss, "generator")
    assert engine.step("generator").updated


def test_skips_at_a_pinned_scale_are_one_try_of_it() -> None:
    # the discriminator's open window pins the scale, so that the generator cannot be helped yet
    scale = hs.DynamicLossScale(2.0**8, max_consecutive_skips=3)
    engine = make(loss_scale=scale)
    engine.backward(discriminator_loss(engine.models, noise()), "discriminator")
    for _ in range(10):
        engine.backward(generator_loss(engine.models, noise()) * math.inf, "generator")
        assert engine.step("generator").skipped
    assert engine.step("discriminator").updated
    assert float(scale.value) == 2.0**7
    engine.train_step([noise()], poisoned("generator"))
    with pytest.raises(hs.ScaleCollapse):
        engine.train_step([noise()], poisoned("generator"))


@pytest.mark.parametrize("bad", NAMES)
def test_reason_of_a_held_step_is_its_cause(bad: str) -> None:
    outcome = make().train_step([noise()], poisoned(bad))
    assert outcome.reason == "non_finite"
    assert f"{bad}: skipped=True reason=non_finite" in str(outcome)


@pytest.mark.parametrize("bad", NAMES)
def test_replay_names_the_op_whichever_optimizer_is_the_cause(bad: str) -> None:
    engine = make(diagnose="on_skip")
    outcome = engine.train_step([noise()], poisoned(bad))
    assert outcome.diagnosis is not None
    assert outcome.diagnosis.op == "aten.mul"


def test_replay_that_fails_does_not_end_the_run(caplog: pytest.LogCaptureFixture) -> None:
    calls = iter(range(10))

    def loss_fn(models: Any, batch: Tensor) -> Tensor:
        if next(calls):
            raise OSError("the file is gone")
        return joint_loss(models, batch) * math.nan

    outcome = make(diagnose="on_skip").train_step([noise()], loss_fn)
    assert outcome.skipped
    assert outcome.diagnosis is None
    assert "the replay of a skipped window failed: the file is gone" in caplog.text


def test_line_of_a_step_names_the_optimizer() -> None:
    engine = make()
    outcome = engine.train_step([noise()], generator_loss, "generator")
    assert str(outcome).startswith("[step 1 generator] loss=")


def test_empty_window_of_one_leaves_the_norm_of_the_other() -> None:
    engine = make(loss_scale=2.0**8)
    models = engine.models
    engine.backward(hs.LossSum(discriminator_loss(models, noise()), 0), "discriminator")
    engine.backward(hs.LossSum(generator_loss(models, noise()), 1), "generator")
    outcome = engine.step()
    assert outcome.per_optimizer["discriminator"].reason == "empty_window"
    assert outcome.grad_norm == outcome.per_optimizer["generator"].grad_norm


def test_abort_and_exceptions_leave_windows_of_others_open() -> None:
    engine = make()
    engine.backward(discriminator_loss(engine.models, noise()), "discriminator")
    with pytest.raises(ZeroDivisionError):
        engine.train_step([noise()], lambda models, batch: 1 / 0, "generator")
    engine.backward(generator_loss(engine.models, noise()), "generator")
    engine.abort("generator")
    with pytest.raises(RuntimeError, match=r"open window of 'discriminator' would lose"):
        engine.state_dict()
    assert engine.step("discriminator").updated


def test_state_goes_into_an_engine_with_another_order_of_names() -> None:
    scales = {name: hs.DynamicLossScale(2.0**n) for n, name in enumerate(NAMES, start=4)}
    engine = make(loss_scale=scales)
    engine.train_step([noise()], generator_loss, "generator")
    models = dict(reversed(networks().items()))
    other = hs.Engine(
        models, optimizers(models), precision="fp32", loss_scale=dict.fromkeys(NAMES, "auto")
    )
    state = engine.state_dict()
    with pytest.raises(ValueError, match="this run uses no loss scale, the state has"):
        other.load_state_dict(state)
    other = hs.Engine(
        models,
        optimizers(models),
        precision="fp32",
        loss_scale={name: hs.DynamicLossScale() for name in NAMES},
    )
    other.load_state_dict(state)
    assert {n: float(s.value) for n, s in other.loss_scales.items()} == {
        "generator": 2.0**4,
        "discriminator": 2.0**5,
    }
    assert other.counters["generator"].num_updates == 1


def test_frozen_network_may_stand_beside_those_that_learn() -> None:
    models = {**networks(), "features": nn.Linear(2, 3).requires_grad_(False)}
    trained = {name: models[name] for name in NAMES}
    engine = hs.Engine(models, optimizers(trained), precision="fp32")
    outcome = engine.train_step([noise()], joint_loss)
    assert outcome.updated


def test_condition_may_be_for_one_optimizer() -> None:
    def hold_the_generator(facts: hs.veto.Facts) -> bool:
        return facts.optimizer == "generator"

    engine = make(veto=hold_the_generator, overflow="independent")
    outcome = engine.train_step([noise()], joint_loss)
    reasons = {name: record.reason for name, record in outcome.per_optimizer.items()}
    assert reasons == {"generator": "veto: hold_the_generator", "discriminator": None}


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: make(max_norm={"generator": hs.Joint(1.0)}), "goes into no mapping"),
        (lambda: make(veto=hs.veto.norm_spike), r"call it: hs\.veto\.norm_spike\(6\)"),
        (lambda: make().step(next(iter(make().optimizers.values()))), "takes names"),
        (
            lambda: hs.Engine([nn.Linear(2, 1)], sgd(nn.Linear(2, 1))),
            "or a mapping of them by name, got list",
        ),  # type: ignore[arg-type]
        (lambda: make(veto=lambda facts: torch.ones(3)).train_step([noise()], joint_loss), "shape"),
    ],
)
def test_types_that_cannot_be_are_refused(call: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        call()


def test_module_under_two_names_is_refused() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="in the mapping twice"):
        hs.Engine({"a": model, "b": model}, optimizer, precision="fp32")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"names": ("g", "d")}, r"holds the models 'discriminator', 'generator', this engine has"),
        ({"ema": 0.9}, "without an average of the weights, this engine has one"),
        (
            {"loss_scale": 4.0, "optimizers": 1},
            "'generator' has groups of",
        ),
        ({"loss_scale": None}, "this run uses no loss scale"),
        ({"width": 3}, "has the shape .* there and .* here"),
    ],
)
def test_checkpoint_that_does_not_fit_changes_nothing(
    change: dict[str, Any], text: str, tmp_path: Any
) -> None:
    saved = make()
    saved.train_step([noise()], joint_loss)
    hs.save_checkpoint(tmp_path / "gan.pt", saved)
    models = networks()
    if "width" in change:
        models["discriminator"] = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    models = dict(zip(change.get("names", NAMES), models.values(), strict=True))
    opts = optimizers(models)
    if "optimizers" in change:
        opts["generator"] = torch.optim.SGD([*models["generator"].parameters()][:2], lr=0.1)
    scale = change.get("loss_scale", hs.DynamicLossScale())
    settings: Any = {"ema": change.get("ema"), "loss_scale": scale}
    engine = hs.Engine(models, opts, precision="fp32", **settings)
    before = copy.deepcopy(snapshot(*models.values(), *engine.optimizers.values(), engine))
    with pytest.raises(ValueError, match=text):
        hs.load_checkpoint(tmp_path / "gan.pt", engine)
    after = snapshot(*models.values(), *engine.optimizers.values(), engine)
    assert differences(before, after) == []


@pytest.mark.parametrize("as_sum", [True, False])
def test_divisor_of_a_joint_step_is_the_sum_over_its_windows(as_sum: bool) -> None:
    engine = make()

    def loss(models: Any, name: str, count: int) -> Any:
        total = models[name](noise()[:count]).float().sum()
        return hs.LossSum(total, count) if as_sum else total / count

    engine.backward(loss(engine.models, "generator", 3), "generator")
    engine.backward(
        hs.LossSum(engine.models["discriminator"](torch.ones(5, 2)).sum(), 5)
        if as_sum
        else engine.models["discriminator"](torch.ones(5, 2)).mean(),
        "discriminator",
    )
    assert engine.step().divisor == (8 if as_sum else None)
