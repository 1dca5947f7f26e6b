"""Lines of a stock loop that stayed after the conversion: an error names the line to delete."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import halfstep as hs
from halfstep.training.call_site import call_site
from halfstep.training.surroundings import left_over_lines as surroundings
from halfstep.update.optimizers.observers import leaves_gradients_alone

X = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(16) % 4
FILE = "test_left_over_lines.py"


def make(precision: str = "fp16", **settings: Any) -> tuple[nn.Sequential, Any, hs.Engine]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scale: Any = 1024.0 if precision == "fp16" else "auto"
    return (
        model,
        optimizer,
        hs.Engine(model, optimizer, precision=precision, **{"loss_scale": scale, **settings}),
    )


def loss_of(model: nn.Module) -> Tensor:
    return F.cross_entropy(model(X).float(), Y)


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def unchanged(model: nn.Module, before: list[Tensor]) -> bool:
    return all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


def clip_norm(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def clip_value(model: nn.Module) -> None:
    nn.utils.clip_grad_value_(model.parameters(), 1.0)


def divide_by_hand(model: nn.Module) -> None:
    for p in model.parameters():
        assert p.grad is not None
        p.grad /= 2


def replace_gradient(model: nn.Module) -> None:
    p = next(model.parameters())
    assert p.grad is not None
    p.grad = p.grad.clamp(-1, 1)


def own_backward(model: nn.Module) -> None:
    loss_of(model).backward()


def clamp_the_data(model: nn.Module) -> None:
    """Counts no version of the gradient."""
    for p in model.parameters():
        assert p.grad is not None
        p.grad.data.clamp_(-1e-3, 1e-3)


EDITS = [clip_norm, clip_value, divide_by_hand, replace_gradient, own_backward, clamp_the_data]
Edit = Callable[[nn.Module], None]


@pytest.mark.parametrize("edit", EDITS)
def test_edit_of_scaled_gradients_is_refused_in_the_first_window(edit: Edit) -> None:
    model, _, engine = make()
    before = weights(model)
    engine.backward(loss_of(model))
    edit(model)
    with pytest.raises(hs.CallOrderError, match="gradients were edited between engine"):
        engine.step()
    assert unchanged(model, before)
    engine.abort()
    engine.backward(loss_of(model))
    assert engine.step().updated


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("settings", [{}, {"loss_scale": 8.0}], ids=["fp32", "scaled"])
def test_edit_between_two_micro_batches_is_refused_in_every_format(
    edit: Edit, settings: dict[str, Any]
) -> None:
    model, _, engine = make("fp32", **settings)
    engine.backward(loss_of(model))
    edit(model)
    engine.backward(loss_of(model))
    with pytest.raises(hs.CallOrderError, match="the size of the window"):
        engine.step()


def test_edit_of_sums_is_refused_without_a_scale_too() -> None:
    model, _, engine = make("fp32")
    engine.backward(hs.LossSum(loss_of(model) * 16, 16))
    clip_norm(model)
    with pytest.raises(hs.CallOrderError, match="gradients were edited"):
        engine.step()


@pytest.mark.parametrize("edit", EDITS)
def test_edit_of_true_gradients_is_allowed(edit: Edit) -> None:
    # FP32, no scale, one mean loss: .grad is what a stock loop has; oracle: that loop
    model, _, engine = make("fp32")
    stock, optimizer, _ = make("fp32")
    engine.backward(loss_of(model))
    edit(model)
    engine.step()
    loss_of(stock).backward()
    edit(stock)
    optimizer.step()
    assert unchanged(model, weights(stock))


def test_edit_inside_gradients_is_allowed_and_one_before_it_is_not() -> None:
    model, _, engine = make()
    engine.backward(loss_of(model))
    with engine.gradients() as grads:
        for grad in grads.values():
            grad.mul_(2)
    clip_norm(model)  # after gradients() they are the true ones
    assert engine.step().updated
    engine.backward(loss_of(model))
    clip_norm(model)
    with pytest.raises(hs.CallOrderError, match="gradients were edited"), engine.gradients():
        pass


def test_message_names_the_line() -> None:
    model, _, engine = make()
    engine.backward(loss_of(model))
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # the line
    with pytest.raises(hs.CallOrderError, match=rf"{FILE}:\d+ `nn.utils.clip_grad_norm_\(model"):
        engine.step()


def test_line_that_comes_later_in_a_run_is_seen_as_well() -> None:
    model, _, engine = make()
    last = []

    def train() -> None:
        for number in range(200):
            last.append(number)
            engine.backward(loss_of(model))
            if number > 50:
                clip_norm(model)
            engine.step()

    with pytest.raises(hs.CallOrderError, match="gradients were edited"):
        train()
    assert len(last) < 68


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_optimizer_step_in_an_open_window_is_refused_before_it_moves(precision: str) -> None:
    model, optimizer, engine = make(precision)
    before = weights(model)
    engine.backward(loss_of(model))
    with pytest.raises(hs.CallOrderError, match=rf"{FILE}:\d+ `optimizer.step\(\)`"):
        optimizer.step()
    assert unchanged(model, before)
    assert engine.step().updated


def test_another_optimizer_over_the_same_weights_is_refused_in_an_open_window() -> None:
    model, _, engine = make()
    other = torch.optim.AdamW(model.parameters())
    engine.backward(loss_of(model))
    with pytest.raises(hs.CallOrderError, match="inside an open window"):
        other.step()


def test_step_of_a_stock_scaler_in_an_open_window_is_refused() -> None:
    model, optimizer, engine = make()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones((), requires_grad=True))
    engine.backward(loss_of(model))
    with pytest.raises(hs.CallOrderError, match="inside an open window"):
        scaler.step(optimizer)


def test_optimizer_step_after_an_own_scaled_backward_is_refused() -> None:
    model, optimizer, engine = make()
    engine.scale(loss_of(model))
    optimizer.step()  # nothing carries the scale yet
    engine.scale(loss_of(model)).backward()
    with pytest.raises(hs.CallOrderError, match="inside an open window"):
        optimizer.step()
    assert engine.step().updated


def test_backward_that_fails_leaves_the_optimizer_to_the_user() -> None:
    model, optimizer, engine = make("fp32")
    handle = model[0].weight.register_hook(lambda grad: 1 / 0)
    loss = loss_of(model)
    with pytest.raises(ZeroDivisionError):
        engine.backward(loss)
    handle.remove()
    optimizer.zero_grad()
    loss_of(model).backward()
    before = weights(model)
    optimizer.step()
    assert not unchanged(model, before)


def test_unscale_of_a_stock_scaler_in_an_open_window_is_refused_in_any_window() -> None:
    # its kernel counts no versions of the gradients that it changes
    model, optimizer, engine = make()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones((), requires_grad=True))
    for _ in range(6):
        engine.backward(loss_of(model))
        with pytest.raises(hs.CallOrderError, match=rf"{FILE}:\d+ `scaler.unscale_\(optimizer\)`"):
            scaler.unscale_(optimizer)
        scaler._per_optimizer_states.clear()
        assert engine.step().updated
    loss_of(model).backward()
    before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    scaler.unscale_(optimizer)
    after = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(torch.equal(a * 65536, b) for a, b in zip(after, before, strict=True))


def test_backward_of_the_users_own_instead_of_the_engines_is_named() -> None:
    model, _, engine = make()
    loss_of(model).backward()
    with pytest.raises(hs.CallOrderError, match=r"Write engine\.backward\(loss\) instead"):
        engine.step()


def test_optimizer_of_other_weights_steps_while_a_window_is_open() -> None:
    model, _, engine = make()
    other = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    engine.backward(loss_of(model))
    other(torch.ones(1, 2)).sum().backward()
    before = other.weight.detach().clone()
    optimizer.step()
    assert not torch.equal(other.weight, before)
    engine.step()


def test_stock_loop_after_the_window_is_left_alone() -> None:
    model, optimizer, engine = make("fp32")
    for close in (engine.step, engine.abort):
        engine.backward(loss_of(model))
        close()
        before = weights(model)
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert not unchanged(model, before)
        assert id(engine._surroundings) not in surroundings._refusing


def test_looking_keeps_the_short_road_and_so_does_a_hook_that_leaves_gradients_alone() -> None:
    # optimizer.step() shows in torch's profiler by name, a kernel that is called directly does not
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    engine = hs.Engine(model, optimizer, precision="fp32")

    def calls_step() -> bool:
        with torch.profiler.profile() as profile:
            engine.train_step([torch.ones(2, 4)], lambda m, x: m(x).mean())
        return any(event.key.startswith("Optimizer.step") for event in profile.key_averages())

    assert calls_step()  # makes the state
    assert not calls_step()
    optimizer.register_step_post_hook(leaves_gradients_alone(lambda *arguments: None))
    assert not calls_step()
    optimizer.register_step_post_hook(lambda *arguments: None)
    assert calls_step()


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "exponential": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
    "sequential": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [
            torch.optim.lr_scheduler.LinearLR(o, total_iters=2),
            torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
        ],
        [2],
    ),
    "chained": lambda o: torch.optim.lr_scheduler.ChainedScheduler(
        [torch.optim.lr_scheduler.ExponentialLR(o, 0.9), torch.optim.lr_scheduler.StepLR(o, 2)]
    ),
}


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.filterwarnings("ignore:The epoch parameter")
def test_schedule_that_the_loop_steps_as_well_is_refused_in_the_second_window(kind: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = SCHEDULES[kind](optimizer)
    engine = hs.Engine(model, optimizer, precision="fp32", schedule=schedule)
    engine.backward(loss_of(model))
    engine.step()
    schedule.step()
    with pytest.raises(hs.CallOrderError, match=rf"{FILE}:\d+ `schedule.step\(\)`"):
        engine.backward(loss_of(model))


def test_schedule_that_the_loop_steps_before_the_engine_does_is_refused_as_well() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    engine = hs.Engine(model, optimizer, precision="fp32", schedule=schedule)
    for number in range(2):
        engine.backward(loss_of(model))
        if number == 1:
            schedule.step()
        engine.step()
    with pytest.raises(hs.CallOrderError, match="stepped by the loop as well"):
        engine.backward(loss_of(model))


def test_schedule_that_is_loaded_or_stepped_before_training_is_left_alone() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    engine = hs.Engine(model, optimizer, precision="fp32", schedule=schedule)
    schedule.load_state_dict({**schedule.state_dict(), "last_epoch": 3})
    for _ in range(3):
        engine.backward(loss_of(model))
        engine.step()
    assert schedule.last_epoch == 6


def test_loss_that_a_scaler_has_scaled_is_refused() -> None:
    model, _, engine = make()
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(hs.CallOrderError, match=r"scaled by a GradScaler before engine.backward"):
        engine.backward(scaler.scale(loss_of(model)))
    assert all(p.grad is None for p in model.parameters())


def test_loss_times_a_number_or_a_tensor_of_the_users_is_fine() -> None:
    model, _, engine = make()
    torch.amp.GradScaler("cpu").scale(torch.ones((), requires_grad=True))
    for factor in (3.0, torch.tensor(3.0), torch.tensor(3.0, requires_grad=True)):
        engine.backward(loss_of(model) * factor)
        engine.step()


@pytest.mark.parametrize("divide", [lambda loss: loss / 4, lambda loss: loss * 0.25])
def test_division_by_the_size_of_the_window_is_said_once(
    divide: Callable[[Tensor], Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    model, _, engine = make()
    with caplog.at_level(logging.WARNING, "halfstep"):
        for _ in range(3):
            for _ in range(4):
                engine.backward(divide(loss_of(model)))
            engine.step()
    assert [r.message for r in caplog.records if "divided by 4" in r.message] == [
        "each loss was divided by 4, the number of micro-batches of its window: the engine averages"
        " them itself, so that the update is 4 times too small. Delete the division, unless it"
        " averages something else (said once)"
    ]


def test_division_by_another_number_is_not_said(caplog: pytest.LogCaptureFixture) -> None:
    model, _, engine = make()
    with caplog.at_level(logging.WARNING, "halfstep"):
        for _ in range(3):
            engine.backward(loss_of(model) / 3)
        engine.backward(loss_of(model) / 4)
        engine.step()
        engine.backward(loss_of(model) / 1)
        engine.step()
    assert not [r for r in caplog.records if "divided by" in r.message]


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_looking_around_runs_no_torch_operation() -> None:
    # every 16th window is looked at closely, the others are not: same operations. The first three
    # take a norm after each backward, on a CPU
    model, _, engine = make("bf16")
    counts = []
    for _ in range(66):
        loss = loss_of(model)
        with Counting() as mode:
            engine.backward(loss)
            engine.step()
        counts.append(mode.count)
    assert len(set(counts[3:])) == 1


def test_cast_to_fp16_after_the_engine_was_made_is_refused_whenever_it_comes() -> None:
    for windows in (0, 5):
        model, _, engine = make("fp32", loss_scale=8.0)
        for _ in range(windows):
            engine.backward(loss_of(model))
            engine.step()
        model.half()
        before = weights(model)
        loss = F.cross_entropy(model(X.half()).float(), Y)
        with pytest.raises(hs.BadValueError, match=r"parameter '0\.weight' is FP16"):
            _ = engine.backward(loss), engine.step()
        assert unchanged(model, before)


def test_model_on_another_kind_of_device_is_refused() -> None:
    model, _, engine = make("fp32")
    loss = loss_of(model)
    model.to("meta")
    with pytest.raises(hs.BadValueError, match=r"parameter '0\.weight' has moved away from cpu"):
        engine.backward(loss)


def test_cast_to_bf16_after_the_engine_was_made_is_said(caplog: pytest.LogCaptureFixture) -> None:
    model, _, engine = make("fp32")
    model.bfloat16()
    with caplog.at_level(logging.WARNING, "halfstep"):
        for _ in range(3):
            engine.backward(F.cross_entropy(model(X.bfloat16()).float(), Y))
            engine.step()
    said = [r for r in caplog.records if "parameter '0.weight' is BF16 (4 of 4 are)" in r.message]
    assert len(said) == 1


def test_cast_to_bf16_in_a_later_window_is_said(caplog: pytest.LogCaptureFixture) -> None:
    model, _, engine = make("fp32")
    engine.backward(loss_of(model))
    engine.step()
    model.bfloat16()
    with caplog.at_level(logging.WARNING, "halfstep"):
        engine.backward(F.cross_entropy(model(X.bfloat16()).float(), Y))
    assert "is BF16" in caplog.text


def test_bf16_model_is_said_once_at_construction(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 4).bfloat16()
    with caplog.at_level(logging.WARNING, "halfstep"):
        engine = hs.Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), precision="bf16")
        for _ in range(3):
            engine.backward(F.cross_entropy(model(X.bfloat16()).float(), Y))
            engine.step()
    assert len([r for r in caplog.records if "is BF16" in r.message]) == 1


def test_gradients_of_a_parameter_outside_every_optimizer_are_dropped_with_the_window(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # right: a group that is added in window 7 applies one window's gradient; closed form
    model = nn.ModuleDict({"a": nn.Linear(1, 1, bias=False), "b": nn.Linear(1, 1, bias=False)})
    optimizer = torch.optim.SGD(model["a"].parameters(), lr=1.0)
    with caplog.at_level(logging.WARNING, "halfstep"):
        engine = hs.Engine(model, optimizer, precision="fp32", loss_scale=4.0)
    assert "dropped with each window" in caplog.text

    def loss_fn(m: Any, x: Tensor) -> Tensor:
        return (m["a"](x) + m["b"](x)).mean()

    for _ in range(6):
        engine.train_step([torch.ones(1, 1)], loss_fn)
        assert model["b"].weight.grad is None
    engine.backward(loss_fn(model, torch.ones(1, 1)))
    optimizer.add_param_group({"params": list(model["b"].parameters())})
    before = model["b"].weight.item()
    engine.step()
    assert before - model["b"].weight.item() == pytest.approx(1.0)


@pytest.mark.parametrize("module", [torch, hs], ids=["torch", "halfstep"])
def test_folder_whose_name_only_begins_like_a_library_is_the_users(module: Any) -> None:
    path = f"{module.__path__[0]}_experiments/train.py"
    found: dict[str, Any] = {"call_site": call_site}
    exec(compile("site = call_site()", path, "exec"), found)
    assert (found["site"].path, found["site"].line) == (path, 1)
