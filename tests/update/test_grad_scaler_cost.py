"""The drop-in costs no more than torch's class: host waits, operations, write-back of gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

import halfstep as hs
from emulated import Counts, emulated_device, on_device
from halfstep.update.decision.multiplier import factors_for_loss_scale, factors_on_host

EPS = torch.finfo(torch.float32).eps
SHAPES = [(8, 16), (16,), (16, 4), (4,)]
Make = Callable[..., Optimizer]
MAKES: dict[str, Make] = {
    "adamw": lambda params, **kw: AdamW(params, lr=1e-3, **kw),
    "momentum": lambda params, **kw: SGD(params, lr=1e-3, momentum=0.9, **kw),
}


def parameters() -> list[Tensor]:
    torch.manual_seed(0)
    return [on_device(torch.randn(shape, requires_grad=True)) for shape in SHAPES]


def gradients(params: list[Tensor], scaler: Any, factor: float = 1.0) -> None:
    """What backward leaves: random gradients times the scale."""
    scale = float(scaler.scale(on_device(torch.ones(())).detach()).inner)
    generator = torch.Generator().manual_seed(1)
    for p in params:
        p.grad = on_device(torch.randn(p.shape, generator=generator) * factor * scale)


def finish(scaler: Any, optimizer: Optimizer, params: list[Tensor], clip: str) -> None:
    """The lines between backward and zero_grad."""
    if clip == "ours":
        scaler.clip_grad_norm_(optimizer, 1.0)
    elif clip == "torch":
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(params, 1.0)
    scaler.step(optimizer)
    scaler.update()


def run(
    counts: Counts,
    make: Make,
    scaler: Any,
    clip: str,
    factors: tuple[float, ...] = (1.0, 1.0, 1.0),
    **options: Any,
) -> list[Tensor]:
    """Some steps, of which the last is counted; returns the parameters."""
    params = parameters()
    optimizer = make(params, **options)
    for factor in factors:
        gradients(params, scaler, factor)
        counts.clear()
        finish(scaler, optimizer, params, clip)
    return params


@pytest.mark.parametrize("factor", [1.0, math.inf])
@pytest.mark.parametrize("clip", ["none", "torch", "ours"])
@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}], ids=["fused", "foreach"])
@pytest.mark.parametrize("name", MAKES)
def test_step_waits_no_more_than_torch_and_launches_at_most_half_more(
    name: str, options: dict[str, bool], clip: str, factor: float
) -> None:
    # oracle: torch.amp.GradScaler in the same sequence; its clip is unscale_ + clip_grad_norm_
    factors = (1.0, 1.0, factor)
    with emulated_device() as counts:
        stock = torch.amp.GradScaler("cuda")
        wanted = run(
            counts, MAKES[name], stock, "none" if clip == "none" else "torch", factors, **options
        )
        waits, launches = len(counts.waits), sum(counts.ops.values())
        ours = hs.GradScaler("cuda")
        found = run(counts, MAKES[name], ours, clip, factors, **options)
        assert len(counts.waits) <= waits, counts.waits
        assert waits == (0 if "fused" in options else 1)
        assert sum(counts.ops.values()) <= 1.5 * launches, counts.ops
        assert ours.last_outcome is not None
        assert ours.last_outcome.updated == math.isfinite(factor)
        assert ours.get_scale() == stock.get_scale()
    for a, b in zip(wanted, found, strict=True):
        assert torch.allclose(a.inner, b.inner, rtol=32 * EPS, atol=32 * EPS)


@pytest.mark.parametrize("clip", ["none", "torch", "ours"])
def test_kernel_writes_gradients_back_only_where_it_has_to_divide(clip: str) -> None:
    # with a grad_scale the fused kernels write the divided gradient: 8 bytes per parameter
    with emulated_device() as counts:
        run(
            counts,
            MAKES["adamw"],
            torch.amp.GradScaler("cuda"),
            clip.replace("ours", "none"),
            fused=True,
        )
        (stock,) = counts.kernels
        run(counts, MAKES["adamw"], hs.GradScaler("cuda"), clip, fused=True)
        (ours,) = counts.kernels
    writes_back = [kernel.get("grad_scale") is not None for kernel in (stock, ours)]
    assert writes_back == [clip != "torch"] * 2


class Observed(AdamW):
    """A subclass: its step may do anything, so that the kernel is not called directly."""


@pytest.mark.parametrize("clip", ["none", "torch", "ours"])
@pytest.mark.parametrize("kind", ["subclass", "hook", "tensor lr"])
def test_fused_optimizer_that_must_be_called_waits_no_more_than_torch(kind: str, clip: str) -> None:
    # oracle: torch.amp.GradScaler, which never waits for a fused optimizer
    def make(params: list[Tensor], **options: Any) -> Optimizer:
        optimizer: Optimizer = AdamW(params, lr=1e-3, **options)
        if kind == "subclass":
            return Observed(params, lr=1e-3, **options)
        if kind == "tensor lr":
            return AdamW(params, lr=on_device(torch.tensor(1e-3)), **options)
        if kind == "hook":
            optimizer.register_step_post_hook(lambda *_: None)
        return optimizer

    with emulated_device() as counts:
        stock, ours = torch.amp.GradScaler("cuda"), hs.GradScaler("cpu")
        wanted = run(counts, make, stock, clip.replace("ours", "torch"), fused=True)
        waits = len(counts.waits)
        found = run(counts, make, ours, clip, fused=True)
        assert len(counts.waits) <= waits, counts.waits
    for a, b in zip(wanted, found, strict=True):
        assert torch.allclose(a.inner, b.inner, rtol=32 * EPS, atol=32 * EPS)


def test_outcome_on_a_device_is_of_the_scale_before_update() -> None:
    # closed form: a skip at 2^16 leaves 2^15; the outcome is of the window that was skipped
    with emulated_device() as counts:
        scaler = hs.GradScaler("cuda")
        run(counts, MAKES["adamw"], scaler, "none", (1.0, 1.0, math.inf), fused=True)
        assert counts.waits == []
        outcome = scaler.last_outcome
        assert outcome is not None
        assert counts.waits == counts.events == []
        assert (outcome.skipped, outcome.reason) == (True, "non_finite")
        assert (outcome.loss_scale, scaler.get_scale()) == (2.0**16, 2.0**15)
        assert [wait.kind for wait in counts.events] == ["event"]


def test_scale_on_a_device_starts_without_a_wait() -> None:
    with emulated_device() as counts:
        hs.GradScaler("cuda").scale(on_device(torch.ones(())))
        assert counts.waits == []


def test_skip_on_the_floor_of_a_device_scale_warns_at_the_next_step() -> None:
    with emulated_device() as counts:
        scaler = hs.GradScaler("cuda", init_scale=1.0)
        run(counts, MAKES["adamw"], scaler, "none", (1.0, math.inf), foreach=True)
        params = parameters()
        gradients(params, scaler)
        with pytest.warns(UserWarning, match="comparing scales no longer tells a skip"):
            finish(scaler, AdamW(params, foreach=True), params, "none")


@pytest.mark.parametrize("unit", [1.0, 2.0**-10, 2.0**16])
@pytest.mark.parametrize("max_norm", [None, 1e-3, 1.0, math.inf])
@pytest.mark.parametrize("norm", [0.0, 1e-30, 0.5, 3.0, 1e30, math.inf, math.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decision_on_a_device_equals_the_hosts(
    norm: float, max_norm: float | None, unit: float, dtype: torch.dtype
) -> None:
    # oracle: the formula in floats, which test_multiplier.py compares with float64
    grads = [torch.full((1,), norm * unit, dtype=dtype)]
    scaled = norm * unit
    wanted = factors_on_host(scaled, unit, max_norm, grads)
    divisor = unit if unit == 1.0 else torch.tensor(unit)
    found = factors_for_loss_scale(
        torch.tensor(scaled, dtype=torch.float64), divisor, max_norm, grads
    )
    assert float(found.found_inf) == wanted.found_inf
    if not wanted.found_inf:
        assert float(found.grad_norm) == wanted.grad_norm
        assert float(found.clip_coef) == pytest.approx(wanted.clip_coef, rel=EPS)
        assert float(found.multiplier) == pytest.approx(wanted.multiplier, rel=EPS)


def test_multiplier_beyond_float32_is_a_skip_on_a_device() -> None:
    # closed form: 65536 / (1e-6 / 1e30) is 6.6e40, above 2^127
    scaled = torch.tensor(1e30 * 65536.0, dtype=torch.float64)
    found = factors_for_loss_scale(scaled, torch.tensor(65536.0), 1e-6, [torch.ones(1)])
    assert float(found.found_inf) == 1.0
