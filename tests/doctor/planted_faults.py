"""Faults with a known place and cause, planted into healthy networks.

The truth is written here, by who plants: kind, phase, module, formats.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from plantable_models import DEPTH, FAMILIES, Family, Net, batches, cross_entropy, healthy
from torch import Tensor, nn

import halfstep as hs

FP16 = frozenset({"fp16", "fp16 scaled"})
HALVES = FP16 | {"bf16"}
EVERY = HALVES | {"fp32"}


@dataclass(frozen=True)
class Truth:
    """What is wrong.

    Attributes:
        kinds: Causes that are right; more than one where the words overlap.
        module: Path of the module (the fault's modules below it are right too).
        phase: Of the op; empty where no op is to blame.
        passes: In which passes it shows, at most; at least one of them.
        is_precision: Whether FP32 is free of it.
        subject: Name of a weight, buffer or part of the batch.
    """

    kinds: tuple[str, ...]
    module: str
    phase: str
    passes: frozenset[str]
    is_precision: bool = True
    subject: str = ""


@dataclass(frozen=True)
class Planted:
    name: str
    recipe: hs.Recipe
    truth: Truth


class Fault(nn.Module):
    """A linear map (so that values are in 16 bits under autocast) and then something wrong."""

    def __init__(self, linear: nn.Module, body: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = linear
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.linear(x))


# ---- forward ------------------------------------------------------------------------------------


def squares_too_large(h: Tensor) -> Tensor:
    large = (h + 1.5) * 500.0
    return (large * large) / 250000.0


def norm_by_hand(h: Tensor) -> Tensor:
    large = (h + 2.0) * 300.0
    return large * torch.rsqrt((large * large).mean(-1, keepdim=True) + 1e-6)


def tiny_norm(h: Tensor) -> Tensor:
    small = h * 1e-5
    return small / (small * small).sum(-1, keepdim=True).sqrt()


def product_too_small(h: Tensor) -> Tensor:
    small = (h + 2.0) * 1e-5
    gain = (small * small).detach()
    return h * (gain.float() * 1e10)


def log_of_negative(h: Tensor) -> Tensor:
    return torch.log(h - 30.0)


def masked_row(h: Tensor) -> Tensor:
    mask = torch.zeros_like(h)
    mask[0] = -math.inf
    return torch.softmax(h + mask, -1) + h


def exploding(h: Tensor) -> Tensor:
    return torch.exp((h + 3.0) * 200.0)


def zero_by_zero(h: Tensor) -> Tensor:
    centred = h - h
    return h + centred / centred.abs().amax(-1, keepdim=True)


def digits_lost(h: Tensor) -> Tensor:
    return (h + 6000.0) - 6000.0


def variance_by_difference(h: Tensor) -> Tensor:
    x = h * 0.02 + 30.0
    variance = (x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True) * x.mean(-1, keepdim=True)
    return h * 0.02 / (variance.abs() + 1e-6)


def log_of_one_minus(h: Tensor) -> Tensor:
    p = torch.sigmoid(h * 0.1 + 11.0)
    return h + torch.log(1.0 - p)


# ---- backward -----------------------------------------------------------------------------------


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


class _Overshoots(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return (gradient * 1e5) * 1e7 / 1e6 / 1e6


class _DividesByZero(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient / (x - x)


def root_at_zero(h: Tensor) -> Tensor:
    zero = h * 0.0
    return h + (zero * zero).sum(-1, keepdim=True).sqrt()


def gradient_overshoots(h: Tensor) -> Tensor:
    return torch.as_tensor(_Overshoots.apply(h))


def gradient_divides_by_zero(h: Tensor) -> Tensor:
    return torch.as_tensor(_DividesByZero.apply(h))


def gradient_vanishes(h: Tensor) -> Tensor:
    return torch.as_tensor(_ScaleGradient.apply(h, 1e-13))


BODIES: list[tuple[Callable[[Tensor], Tensor], Truth]] = [
    (squares_too_large, Truth(("overflow",), "", "forward", FP16)),
    (norm_by_hand, Truth(("silent_difference",), "", "forward", FP16)),
    (tiny_norm, Truth(("underflow",), "", "forward", FP16)),
    (product_too_small, Truth(("silent_difference",), "", "forward", FP16)),
    (log_of_negative, Truth(("invalid_operation",), "", "forward", EVERY, False)),
    (masked_row, Truth(("invalid_operation",), "", "forward", EVERY, False)),
    (exploding, Truth(("overflow",), "", "forward", EVERY, False)),
    (zero_by_zero, Truth(("invalid_operation",), "", "forward", EVERY, False)),
    (digits_lost, Truth(("silent_difference",), "", "forward", HALVES)),
    (variance_by_difference, Truth(("silent_difference", "rounding"), "", "forward", HALVES)),
    (log_of_one_minus, Truth(("rounding",), "", "forward", HALVES)),
    (root_at_zero, Truth(("invalid_operation",), "", "backward", EVERY, False)),
    (gradient_overshoots, Truth(("overflow",), "", "backward", FP16)),
    (gradient_divides_by_zero, Truth(("invalid_operation",), "", "backward", EVERY, False)),
    (gradient_vanishes, Truth(("gradient_underflow",), "", "backward", FP16)),
]


def planted(seed: int = 0, share: int = 2) -> Iterator[Planted]:
    """Every kind of fault in every `share`-th family, at a depth that goes round.

    Args:
        seed: Of the data; another one also begins at another depth and family.
        share: 1 for all families of each kind.
    """
    depths = itertools.cycle(range(DEPTH))
    for _ in range(seed):
        next(depths)
    kinds = len(BODIES) + len(OTHERS)
    for kind, (number, family) in itertools.product(range(kinds), enumerate(FAMILIES)):
        depth = next(depths)
        if (kind + number + seed) % share:
            continue
        if kind < len(BODIES):
            yield _with_body(family, depth, *BODIES[kind], seed)
        else:
            yield OTHERS[kind - len(BODIES)](family, depth, seed)


def _with_body(
    family: Family, depth: int, body: Callable[[Tensor], Tensor], truth: Truth, seed: int
) -> Planted:
    def model() -> nn.Module:
        net = Net(family)
        net.blocks[depth].extra = Fault(family.linear(), body)
        return net

    recipe = _recipe(family, seed, model=model)
    where = dataclasses.replace(truth, module=f"Net.blocks.{depth}.extra")
    return Planted(f"{body.__name__}-{family.name}-{depth}", recipe, where)


def _recipe(family: Family, seed: int, **changes: Any) -> hs.Recipe:
    base = dataclasses.replace(healthy(family), batches=lambda: batches(family, 7 + seed))
    return dataclasses.replace(base, **changes)


def _weight(family: Family) -> str:
    return {"mlp": "fc.weight", "cnn": "conv.weight", "rnn": "cell.weight_hh"}.get(
        family.name, "proj.weight"
    )


def weight_is_nan(family: Family, depth: int, seed: int) -> Planted:
    name = f"blocks.{depth}.{_weight(family)}"

    def model() -> nn.Module:
        net = Net(family)
        with torch.no_grad():
            net.get_parameter(name).view(-1)[3] = math.nan
        return net

    module = f"Net.{name.rpartition('.')[0]}"
    truth = Truth(("bad_weights",), module, "", EVERY, False, subject=name)
    return Planted(
        f"weight_is_nan-{family.name}-{depth}", _recipe(family, seed, model=model), truth
    )


def weight_is_large(family: Family, depth: int, seed: int) -> Planted:
    """The product itself does not fit FP16; what follows is small again."""

    class Shrink(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = family.linear()

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.linear(x)) / 1e6

    def model() -> nn.Module:
        net = Net(family)
        net.blocks[depth].extra = shrink = Shrink()
        with torch.no_grad():
            shrink.linear.bias.fill_(1.0)
            shrink.linear.bias.mul_(1e6)
        return net

    truth = Truth(("overflow",), f"Net.blocks.{depth}.extra", "forward", FP16)
    return Planted(
        f"weight_is_large-{family.name}-{depth}", _recipe(family, seed, model=model), truth
    )


def buffer_is_nan(family: Family, depth: int, seed: int) -> Planted:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("gain", torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.gain

    def model() -> nn.Module:
        net = Net(family)
        net.blocks[depth].extra = Scaled()
        net.blocks[depth].extra.gain.fill_(math.nan)
        return net

    name = f"blocks.{depth}.extra.gain"
    truth = Truth(("poisoned_buffer",), f"Net.blocks.{depth}.extra", "", EVERY, False, subject=name)
    return Planted(
        f"buffer_is_nan-{family.name}-{depth}", _recipe(family, seed, model=model), truth
    )


def batch_is_bad(family: Family, depth: int, seed: int) -> Planted:
    value = (math.nan, math.inf, math.nan)[depth]

    def bad() -> list[tuple[Tensor, Tensor]]:
        ((x, y),) = batches(family, 7 + seed)
        x = x.clone()
        x.view(-1)[5] = value
        return [(x, y)]

    truth = Truth(("bad_batch",), "", "", EVERY, False, subject="batch[0]")
    return Planted(f"batch_is_{value}-{family.name}", _recipe(family, seed, batches=bad), truth)


def loss_divides_by_zero(family: Family, depth: int, seed: int) -> Planted:
    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
        valid = (batch[1] > 100).float()
        return (losses * valid).sum() / valid.sum()

    truth = Truth(("invalid_operation",), "", "forward", EVERY, False)
    return Planted(
        f"loss_divides_by_zero-{family.name}", _recipe(family, seed, loss_fn=loss_fn), truth
    )


def loss_is_tiny(family: Family, depth: int, seed: int) -> Planted:
    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return cross_entropy(model, batch) * 1e-13

    truth = Truth(("gradient_underflow",), "", "backward", FP16)
    return Planted(f"loss_is_tiny-{family.name}", _recipe(family, seed, loss_fn=loss_fn), truth)


OTHERS: list[Callable[[Family, int, int], Planted]] = [
    weight_is_nan,
    weight_is_large,
    buffer_is_nan,
    batch_is_bad,
    loss_divides_by_zero,
    loss_is_tiny,
]


def right(found: hs.Diagnosis, truth: Truth) -> str:
    """Empty if a diagnosis is right, else what is wrong with it."""
    errors = [cause for cause in found.causes if cause.severity == "error"]
    if not errors:
        return "found nothing"
    first = errors[0]
    problems = []
    if first.kind not in truth.kinds:
        problems.append(f"kind {first.kind}")
    if not first.module.startswith(truth.module) or (
        not truth.module and first.kind != "gradient_underflow" and first.module
    ):
        problems.append(f"module {first.module!r}")
    if truth.phase and (first.op is None or first.op.phase != truth.phase):
        problems.append(f"phase {first.op.phase if first.op else None}")
    if not set(first.passes) <= truth.passes:
        problems.append(f"passes {first.passes}")
    if first.is_precision != truth.is_precision:
        problems.append("precision or not")
    if truth.subject and first.subject != truth.subject:
        problems.append(f"subject {first.subject}")
    return "; ".join(problems)
