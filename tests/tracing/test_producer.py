"""Which op made the first inf or NaN that matters: a table of small functions."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from halfstep.tracing import BadOp, find_first_bad_op
from halfstep.tracing.lineage import memory_of


class Body(nn.Module):
    def __init__(self, body: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def found_in(body: Callable[[Tensor], Tensor], x: Tensor | None = None) -> BadOp | None:
    model = Body(body)
    x = torch.full((2, 3), 2.0) if x is None else x
    x.requires_grad_()

    def run() -> list[Tensor]:
        x.grad = None
        loss = model(x).sum()
        loss.backward()
        assert x.grad is not None
        return [loss.detach(), x.grad]

    return find_first_bad_op(model, run, {memory_of(x): "x"})


INF = math.inf
MASK = torch.tensor([[0.0, 0.0, -INF], [-INF, -INF, -INF]])
HALF_MASK = torch.tensor([[0.0, 0.0, -INF], [0.0, -INF, -INF]])

CASES: list[tuple[str, Callable[[Tensor], Tensor], str, str]] = [
    ("log of a negative", lambda x: (x - 5).log() * 2 + 1, "aten.log", "forward"),
    ("difference of infs", lambda x: (x * 1e38 * 1e38) - (x * 1e38 * 1e38), "aten.mul", "forward"),
    ("0 / 0", lambda x: (x - x) / (x - x), "aten.div", "forward"),
    ("row masked as a whole", lambda x: (x + MASK).softmax(-1), "aten._softmax", "forward"),
    ("inf that is clamped, then NaN elsewhere",
     lambda x: (1 / (x - x)).clamp(max=5) + (x - 9).sqrt(), "aten.sqrt", "forward"),
    ("root at 0", lambda x: x + ((x - x).square().sum()).sqrt(), "aten.div", "backward"),
    ("in place", lambda x: (x * 2).sub_(9).log_().mul_(3), "aten.log_", "forward"),
    ("through a view", lambda x: (x - 9).log().view(3, 2).t() * 2, "aten.log", "forward"),
    ("through a stack", lambda x: torch.stack([x, (x - 9).log()]).mean(0), "aten.log", "forward"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "op", "phase"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_producer_is_named_and_not_what_handed_it_on(
    body: Callable[[Tensor], Tensor], op: str, phase: str
) -> None:
    found = found_in(body)
    assert found is not None
    assert (found.record.op, found.record.phase, found.leaf) == (op, phase, "")
    assert found.record.module == "Body"
    assert not found.record.is_finite


HARMLESS: list[tuple[str, Callable[[Tensor], Tensor]]] = [
    ("mask of -inf", lambda x: (x + HALF_MASK).softmax(-1)),
    ("masked_fill", lambda x: x.masked_fill(HALF_MASK < 0, -INF).softmax(-1)),
    ("maximum with -inf", lambda x: torch.maximum(x, torch.full_like(x, -INF))),
]


@pytest.mark.parametrize("body", [c[1] for c in HARMLESS], ids=[c[0] for c in HARMLESS])
def test_infinities_that_reach_nothing_that_matters_are_nothing(
    body: Callable[[Tensor], Tensor],
) -> None:
    assert found_in(body) is None


@pytest.mark.parametrize("value", [math.nan, INF])
def test_bad_value_that_came_in_names_the_leaf(value: float) -> None:
    x = torch.full((2, 3), 2.0)
    x[0, 1] = value
    found = found_in(lambda x: (x * 2) - (x * 2), x)
    assert found is not None
    assert found.leaf == "x"
    assert found.record.op == "aten.mul"


def test_counts_and_largest_values_of_the_bad_op() -> None:
    found = found_in(lambda x: (x - torch.tensor([1.0, 2.0, 5.0])).log())
    assert found is not None
    # per row log(1), log(0), log(-3): one in three is finite, and it is 0
    assert found.record.finite_fraction == pytest.approx(1 / 3)
    assert found.record.largest_finite == 0.0
    assert found.largest_input == 3.0


def test_nothing_bad_is_none() -> None:
    assert found_in(lambda x: x * 2) is None
