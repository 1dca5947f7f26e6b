"""Random sequences of calls, the engine and a plain float64 reference side by side."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from torch import Tensor, nn

import halfstep as hs
from failing_operations import FailAt, out_of_memory
from halfstep.training.surroundings import left_over_lines as surroundings

EPS = torch.finfo(torch.float32).eps
LR, MOMENTUM, MAX_NORM, INTERVAL, DECAY = 0.05, 0.9, 0.7, 2, 0.8


@dataclass
class Reference:
    """Oracle: SGD with momentum on a linear model in float64; no halfstep, no autograd.

    loss = sum over samples of (w x - 1)^2, so the gradient is 2 (w x - 1) x.
    """

    w: Tensor
    momentum: Tensor | None = None
    average: Tensor | None = None
    scale: float = 2.0**6
    good: int = 0
    updates: int = 0
    attempts: int = 0
    consumed: float = 0.0
    grad: Tensor | None = None
    divisor: float = 0.0
    is_bad: bool = False
    samples: list[int] = field(default_factory=list)

    def backward(self, x: Tensor, bad: bool) -> None:
        wide = x.double()
        residual = wide @ self.w - 1.0
        grad = 2 * wide.t() @ residual
        self.grad = grad if self.grad is None else self.grad + grad
        self.divisor += len(x)
        self.is_bad |= bad
        self.samples.append(len(x))

    def step(self) -> str | None:
        self.attempts += 1
        reason = "empty_window" if self.divisor == 0 else "non_finite" if self.is_bad else None
        if reason is None:
            assert self.grad is not None
            grad = self.grad / self.divisor
            grad = grad * min(1.0, MAX_NORM / (float(grad.norm()) + 1e-6))
            self.momentum = grad if self.momentum is None else MOMENTUM * self.momentum + grad
            self.w = self.w - LR * self.momentum
            self.average = (
                self.w if self.average is None else DECAY * self.average + (1 - DECAY) * self.w
            )
            self.updates += 1
            self.consumed += self.divisor
            self.good += 1
            if self.good >= INTERVAL:
                self.good, self.scale = 0, min(2.0**24, self.scale * 2)
        elif reason == "non_finite":
            self.good, self.scale = 0, max(1.0, self.scale / 2)
        self.close()
        return reason

    def close(self) -> None:
        self.grad, self.divisor, self.is_bad, self.samples = None, 0.0, False, []


class EngineMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Linear(3, 1, bias=False)
        self.engine = hs.Engine(
            self.model,
            torch.optim.SGD(self.model.parameters(), lr=LR, momentum=MOMENTUM),
            precision="fp32",
            max_norm=MAX_NORM,
            ema=DECAY,
            loss_scale=hs.DynamicLossScale(
                2.0**6, growth_interval=INTERVAL, max_consecutive_skips=10_000
            ),
        )
        self.reference = Reference(self.model.weight.detach().double().view(3))
        self.saved: tuple[Any, Reference] | None = None
        self.hooks: list[Any] = []
        self.step_hooks: list[Any] = []
        self.average_is_whole = True
        self.first, surroundings._FIRST = surroundings._FIRST, 10**9  # look in every window

    def teardown(self) -> None:
        surroundings._FIRST = self.first

    @property
    def is_open(self) -> bool:
        return bool(self.reference.samples)

    @rule(size=st.integers(0, 4), seed=st.integers(0, 50), bad=st.sampled_from([0.0] * 4 + [1.0]))
    def one_backward(self, size: int, seed: int, bad: float) -> None:
        self.add_micro_batch(size, seed, bad)

    def add_micro_batch(self, size: int, seed: int, bad: float) -> None:
        x = torch.randn(size, 3, generator=torch.Generator().manual_seed(seed))
        total = (self.model(x) - 1.0).square().sum()
        if bad and size:
            total = total * math.inf
        self.engine.backward(hs.LossSum(total, size))
        self.reference.backward(x, bad=bool(bad and size))

    @rule()
    def one_step(self) -> None:
        self.close_window()

    def close_window(self) -> None:
        if not self.is_open:
            with pytest.raises(RuntimeError, match="without backward"):
                self.engine.step()
            return
        assert self.engine.step().reason == self.reference.step()
        assert self.model.weight.grad is None

    @rule(
        sizes=st.lists(st.integers(0, 4), min_size=1, max_size=3),
        seed=st.integers(0, 50),
        bad=st.sampled_from([0.0, 0.0, 1.0]),
        count=st.integers(1, 5),
    )
    def windows(self, sizes: list[int], seed: int, bad: float, count: int) -> None:
        """Several whole windows of one kind in a row, as a run makes them."""
        for number in range(count):
            for index, size in enumerate(sizes):
                self.add_micro_batch(size, seed + 7 * number + index, bad)
            self.close_window()

    @precondition(lambda self: self.is_open)
    @rule(number=st.integers(1, 45))
    def step_that_fails_at_an_operation(self, number: int) -> None:
        """Out of memory anywhere in the step: it has happened as a whole, or not at all."""
        attempts = self.reference.attempts
        error: Exception | None = None
        try:
            with FailAt(number, out_of_memory):
                self.engine.step()
        except (torch.OutOfMemoryError, hs.CallOrderError) as raised:
            error = raised
        if self.engine.num_updates + self.engine.num_skipped > attempts:
            self.reference.step()
        else:
            assert error is not None
            self.reference.close()
        if isinstance(error, hs.CallOrderError):
            assert "the average of the weights failed" in str(error)
            self.average_is_whole = False
        assert self.model.weight.grad is None

    @rule(factor=st.sampled_from([0.5, 0.75, 1.25]))
    def weights_change_in_place(self, factor: float) -> None:
        with torch.no_grad():
            self.model.weight.mul_(factor)
        self.reference.w = self.reference.w * factor

    @rule(after=st.booleans(), edits=st.booleans())
    def hook_on_the_weight(self, after: bool, edits: bool) -> None:
        """A hook that looks, or that clamps far above every gradient; or none any more."""
        if self.hooks:
            self.hooks.pop().remove()
        elif after:
            self.hooks.append(
                self.model.weight.register_post_accumulate_grad_hook(lambda p: None)  # type: ignore[no-untyped-call]
            )
        else:
            self.hooks.append(
                self.model.weight.register_hook(
                    lambda grad: (
                        grad.clamp(-1e30, 1e30) if edits and grad.isfinite().all() else None
                    )
                )
            )

    @rule(acts=st.booleans())
    def hook_on_the_optimizer(self, acts: bool) -> None:
        """A step hook that would see scaled gradients: it halves what is far beyond the limit."""
        if self.step_hooks:
            self.step_hooks.pop().remove()
            return

        def hook(optimizer: Any, arguments: Any, options: Any) -> None:
            assert self.model.weight.grad is not None
            if acts and float(self.model.weight.grad.norm()) > 1.01 * MAX_NORM:
                self.model.weight.grad.mul_(0.5)

        self.step_hooks.append(self.engine.optimizer.register_step_pre_hook(hook))

    @precondition(lambda self: self.is_open)
    @rule()
    def line_left_over_clips(self) -> None:
        assert self.model.weight.grad is not None
        self.model.weight.grad.mul_(0.5)
        with pytest.raises(hs.CallOrderError, match="gradients were edited"):
            self.engine.step()
        self.engine.abort()
        self.reference.close()

    @precondition(lambda self: self.is_open)
    @rule()
    def line_left_over_steps(self) -> None:
        with pytest.raises(hs.CallOrderError, match="inside an open window"):
            self.engine.optimizer.step()

    @rule()
    def abort(self) -> None:
        self.engine.abort()
        self.reference.close()

    @precondition(lambda self: not self.is_open)
    @rule()
    def save(self) -> None:
        owners = (self.model, self.engine.optimizer, self.engine)
        states = [copy.deepcopy(owner.state_dict()) for owner in owners]
        self.saved = states, copy.deepcopy(self.reference)

    @precondition(lambda self: self.saved is not None)
    @rule()
    def load(self) -> None:
        assert self.saved is not None
        states, reference = copy.deepcopy(self.saved)
        owners = (self.model, self.engine.optimizer, self.engine)
        for owner, state in zip(owners, states, strict=True):
            owner.load_state_dict(state)
        self.reference = reference

    @invariant()
    def agrees(self) -> None:
        reference, engine = self.reference, self.engine
        assert float(engine.loss_scale.value) == reference.scale
        assert engine.num_updates == reference.updates
        assert engine.num_skipped == reference.attempts - reference.updates
        assert engine.consumed == reference.consumed
        tolerance = 64 * EPS * (1 + reference.updates)
        assert (self.model.weight.detach().view(3) - reference.w).abs().max() <= tolerance
        if reference.average is not None and self.average_is_whole:
            assert engine.ema is not None
            found = next(engine.ema.parameters()).detach().view(3)
            assert (found - reference.average).abs().max() <= tolerance


EngineMachine.TestCase.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestEngineMachine = EngineMachine.TestCase
