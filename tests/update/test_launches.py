"""What a step launches on a device: operations, host waits and what the kernels are given.

The emulated device counts every operation but views and memory without contents. A stock step
(`GradScaler`, `unscale_`, `clip_grad_norm_`, fused AdamW, `update`) is 18 by the same count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer, RMSprop
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn

import halfstep as hs
from emulated import DEVICE, Counts, emulated_device, on_device
from halfstep.training.followers.average import AverageUpdate, EmaUpdate
from halfstep.training.followers.buffers import BufferRollback
from halfstep.update import Joint, OptimizerSlot, Update
from halfstep.update.optimizers.observers import leaves_gradients_alone

Make = Callable[[list[Tensor]], Optimizer]
Hook = Callable[..., None]


def fused(params: list[Tensor], **options: Any) -> Optimizer:
    return AdamW(params, lr=1e-3, **{"fused": True, **options})


def dynamic(**options: Any) -> hs.DynamicLossScale:
    return hs.DynamicLossScale(2.0**4, **options)


def update_of(
    counts: int,
    scale: hs.LossScale,
    make: Make = fused,
    joint: Joint | None = None,
    names: tuple[str, ...] = ("optimizer",),
    **settings: Any,
) -> tuple[list[Tensor], Update]:
    """An update of optimizers that share the tensors, all on the device."""
    torch.manual_seed(0)
    params = [on_device(torch.randn(8, requires_grad=True)) for _ in range(counts)]
    scale.to(DEVICE)
    share = counts // len(names)
    slots = [
        OptimizerSlot(name, make(params[i * share : (i + 1) * share]), scale, **settings)
        for i, name in enumerate(names)
    ]
    return params, Update(slots, joint=joint)


def step(params: list[Tensor], update: Update, factor: float = 1.0) -> hs.StepOutcome:
    generator = torch.Generator().manual_seed(1)
    for p in params:
        p.grad = on_device(torch.randn(p.shape, generator=generator) * factor)
    loss = on_device(torch.tensor(2.0))
    for slot in update.slots:
        slot.window.add(loss, None, {}, number=1)
    return update.run(update.slots)


def counted(counts: Counts, params: list[Tensor], update: Update) -> tuple[int, int]:
    """Operations and waits of the fourth step: state exists, buffers are made."""
    for _ in range(3):
        step(params, update)
    counts.clear()
    step(params, update)
    return launches(counts), len(counts.waits)


def launches(counts: Counts) -> int:
    """Every operation but views and memory without contents."""
    return sum(n for name, n in counts.ops.items() if name != "split_with_sizes")


SPIKE = hs.veto.norm_spike


@pytest.mark.parametrize(
    ("expected", "at_most", "settings"),
    [
        (11, 25, {}),
        (18, 25, {"max_norm": 1.0}),
        (13, 25, {"scale": lambda: hs.StaticLossScale(1024.0)}),
        (24, 30, {"scale": dynamic, "max_norm": 1.0}),
        (31, 45, {"vetoes": True}),
        (45, 45, {"vetoes": True, "scale": dynamic, "max_norm": 1.0}),
        (47, 70, {"joint": Joint(1.0), "names": ("a", "b"), "scale": dynamic}),
        (40, 70, {"names": ("a", "b"), "scale": dynamic, "max_norm": 1.0}),
    ],
    ids=["plain", "clip", "static", "dynamic clip", "spike", "spike dynamic", "joint", "two"],
)
def test_fused_step_launches_so_many_operations_and_never_waits(
    expected: int, at_most: int, settings: dict[str, Any]
) -> None:
    settings = dict(settings)
    if settings.pop("vetoes", False):
        settings["vetoes"] = [SPIKE(6)]
    with emulated_device() as counts:
        params, update = update_of(300, settings.pop("scale", hs.NoLossScale)(), **settings)
        found, waits = counted(counts, params, update)
    assert (found, waits) == (expected, 0), counts.ops
    assert found <= at_most


def test_stock_step_launches_20_operations_by_the_same_count() -> None:
    # torch clips lists on a device that it knows, and tensor by tensor on this one: the norms and
    # the products of 300 gradients are counted as the two operations on lists that they are there
    with emulated_device() as counts:
        params, update = update_of(300, hs.NoLossScale())
        optimizer, scaler = update.slots[0].optimizer, torch.amp.GradScaler("cpu")
        for _ in range(3):
            scale = scaler.scale(on_device(torch.ones(()).detach()))
            for p in params:
                p.grad = on_device(torch.ones(8)) * scale
            counts.clear()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(params, 1.0)
            scaler.step(optimizer)
            scaler.update()
        assert launches(counts) - 2 * 299 == 20, counts.ops


def test_multiplier_that_is_one_is_not_given_to_the_kernel() -> None:
    # with a grad_scale the kernel writes divided gradients back
    given = []
    for settings in ({}, {"max_norm": 1.0}, {"scale": hs.StaticLossScale(2.0)}):
        with emulated_device() as counts:
            options: dict[str, Any] = dict(settings)
            params, update = update_of(4, options.pop("scale", hs.NoLossScale()), **options)
            counted(counts, params, update)
            (kernel,) = counts.kernels
            given.append(kernel.get("grad_scale") is not None)
            assert kernel.get("found_inf") is not None
    assert given == [False, True, True]


def test_multiplier_that_cannot_be_skips_on_the_device_and_divides_nothing() -> None:
    # a known unit of 0 (an empty window) is no number to divide gradients by in place
    with emulated_device() as counts:
        params, update = update_of(4, hs.StaticLossScale(2.0))
        counted(counts, params, update)
        before = [p.inner.clone() for p in params]
        for p in params:
            p.grad = on_device(torch.ones(8))
        (slot,) = update.slots
        slot.window.add(on_device(torch.tensor(1.0)), 0.0, {}, number=1)
        counts.clear()
        outcome = update.run(update.slots)
        assert counts.ops["_foreach_div_"] == 0
        assert (outcome.updated, outcome.reason) == (False, "empty_window")
        assert all(torch.equal(p.inner, b) for p, b in zip(params, before, strict=True))


def test_constant_scale_is_known_on_a_device_until_somebody_writes_it() -> None:
    with emulated_device() as counts:
        static, moving = hs.StaticLossScale(3.0), dynamic()
        assert (static.known_value, moving.known_value) == (3.0, 16.0)
        for scale in (static, moving):
            scale.to(DEVICE)
        assert (static.known_value, moving.known_value) == (3.0, None)
        static.load_state_dict({**hs.StaticLossScale(5.0).state_dict()})
        assert static.known_value == 5.0
        static.value.fill_(7.0)
        assert static.known_value is None
        assert counts.waits == []


def capturable(params: list[Tensor]) -> Optimizer:
    optimizer = fused(params)
    optimizer.param_groups[0]["capturable"] = True
    return optimizer


def tensor_rate(params: list[Tensor]) -> Optimizer:
    return AdamW(params, lr=on_device(torch.tensor(1e-3)), fused=True)


def hooked(params: list[Tensor]) -> Optimizer:
    optimizer = fused(params)
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


def marked(params: list[Tensor]) -> Optimizer:
    optimizer = fused(params)
    optimizer.register_step_post_hook(leaves_gradients_alone(lambda *_: None))
    return optimizer


@pytest.mark.parametrize(
    ("make", "waits", "is_direct"),
    [
        (capturable, 0, True),
        (tensor_rate, 0, True),
        (marked, 0, True),
        (hooked, 0, False),
        (lambda params: RMSprop(params, lr=1e-3), 1, False),
        (lambda params: AdamW(params, lr=1e-3, foreach=True), 1, False),
    ],
    ids=["capturable", "tensor lr", "marked hook", "hook", "unfused", "foreach"],
)
def test_step_waits_once_at_most_whatever_the_optimizer_is(
    make: Make, waits: int, is_direct: bool
) -> None:
    with emulated_device() as counts:
        scale = dynamic()
        params, update = update_of(4, scale, make, max_norm=1.0, vetoes=[SPIKE(6)])
        _, found = counted(counts, params, update)
        assert found == waits, counts.waits
        outcome = step(params, update)
        assert outcome.updated
        assert outcome.lr == pytest.approx(1e-3)
        assert (update.slots[0].adapter._plan is not None) == is_direct


def test_hook_finds_true_gradients_and_the_decision_before_the_host_knows_it() -> None:
    # oracle: the gradients that were set, over the scale
    seen: list[tuple[Tensor, float]] = []

    def look(optimizer: Any, args: Any, options: Any) -> None:
        found_inf = getattr(optimizer, "found_inf", None)
        decision = math.nan if found_inf is None else float(found_inf.inner)
        seen.append((optimizer.param_groups[0]["params"][0].grad.inner.clone(), decision))

    def make(params: list[Tensor]) -> Optimizer:
        optimizer = fused(params)
        optimizer.register_step_pre_hook(look)
        return optimizer

    with emulated_device():
        params, update = update_of(4, hs.StaticLossScale(16.0), make)
        step(params, update, 16.0)
        step(params, update, 16.0)
        before = [p.inner.clone() for p in params]
        outcome = step(params, update, math.inf)
        assert outcome.skipped
        assert all(torch.equal(p.inner, b) for p, b in zip(params, before, strict=True))
    expected = torch.randn(8, generator=torch.Generator().manual_seed(1))
    assert [torch.equal(grad, expected) for grad, _ in seen] == [True, True, False]
    assert [decision for _, decision in seen[1:]] == [0.0, 1.0]


def test_gradient_of_a_channels_last_1x1_convolution_is_copied_nowhere() -> None:
    # its weight's strides and those of its gradient differ in dimensions of one element, which
    # torch's kernels do not compare (ForeachUtils.h); oracle: the same step on plain layouts
    generator = torch.Generator().manual_seed(0)
    shapes = [(8, 4, 1, 1), (8, 4, 3, 3)]
    values, gradients = ([torch.randn(s, generator=generator) for s in shapes] for _ in range(2))
    found = []
    with emulated_device() as counts:
        for layout in (torch.contiguous_format, torch.channels_last):
            params = [on_device(v.to(memory_format=layout)).requires_grad_(True) for v in values]
            grads = [gradients[0], gradients[1].to(memory_format=layout)]
            update = Update([OptimizerSlot("optimizer", fused(params), hs.NoLossScale())])
            for _ in range(4):
                for p, gradient in zip(params, grads, strict=True):
                    p.grad = on_device(gradient)
                counts.clear()
                update.slots[0].window.add(on_device(torch.tensor(2.0)), None, {}, number=1)
                update.run(update.slots)
            assert update.slots[0].adapter._plan is not None
            found.append((dict(counts.ops), [p.inner.detach() for p in params]))
    assert params[0].stride() != grads[0].stride()
    (plain, expected), (channels_last, weights) = found
    assert channels_last == plain
    assert all(map(torch.equal, weights, expected))


def batch_norms() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.BatchNorm1d(8) for _ in range(53)])
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, on_device(buffer))
        for name, p in list(module.named_parameters(recurse=False)):
            delattr(module, name)
            module.register_parameter(name, nn.Parameter(on_device(p), requires_grad=True))
    return model


def test_rollback_of_53_batch_norms_launches_a_handful_of_operations() -> None:
    with emulated_device() as counts:
        torch.manual_seed(0)
        model = batch_norms()
        rollback = BufferRollback(model)
        rollback.remember()
        counts.clear()
        rollback.remember()
        assert launches(counts) == 2
        for buffer in model.buffers():
            buffer.add_(1)
        counts.clear()
        rollback.restore(on_device(torch.tensor(1.0)))
        assert (launches(counts), counts.waits) == (10, [])


AVERAGES = {
    "ema": lambda: get_ema_multi_avg_fn(0.9),  # type: ignore[no-untyped-call]
    "swa": lambda: get_swa_multi_avg_fn(),  # type: ignore[no-untyped-call]
    "user": lambda: lambda own, new, n: torch._foreach_lerp_(own, new, 0.25),
}


@pytest.mark.parametrize(
    ("kind", "use_buffers"),  # torch's other averages refuse buffers of integers
    [("ema", False), ("ema", True), ("swa", False), ("user", False)],
)
def test_average_moves_as_torchs_method_moves_it_to_the_bit(kind: str, use_buffers: bool) -> None:
    # oracle: AveragedModel.update_parameters
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    stock, ours = (
        AveragedModel(model, multi_avg_fn=AVERAGES[kind](), use_buffers=use_buffers)
        for _ in range(2)
    )
    if kind == "ema" and use_buffers:
        ours.multi_avg_fn = EmaUpdate(0.9)
    move = AverageUpdate(ours, model)
    for _ in range(4):
        model(torch.randn(5, 3))
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn(p.shape))
        stock.update_parameters(model)
        move(1)
    for name, value in stock.state_dict().items():
        assert torch.equal(value, ours.state_dict()[name]), name


def test_average_whose_count_was_loaded_goes_on_from_it() -> None:
    model = nn.Linear(2, 1)
    average = AveragedModel(model, multi_avg_fn=EmaUpdate(0.5))
    move = AverageUpdate(average, model)
    move(1)
    average.n_averaged.fill_(0)
    with torch.no_grad():
        model.weight.fill_(3.0)
    move(1)  # the first update of an average copies
    assert torch.equal(average.module.weight, model.weight)
    assert int(average.n_averaged) == 1


def test_average_of_53_batch_norms_launches_a_handful_and_never_waits() -> None:
    with emulated_device() as counts:
        model, averaged = batch_norms(), batch_norms()
        average = AveragedModel(nn.Identity(), multi_avg_fn=EmaUpdate(0.9), use_buffers=True)
        average.module = averaged
        move = AverageUpdate(average, model)
        move(1)
        counts.clear()
        move(2)
        assert (launches(counts), counts.waits) == (8, []), counts.ops
        move.remember_buffers(3)
        counts.clear()
        move.remember_buffers(4)  # what a late commit costs more
        assert (launches(counts), counts.waits) == (2, []), counts.ops
        counts.clear()
        move(4)
        assert (launches(counts), counts.waits) == (8, []), counts.ops
