"""``steps``: counters and averages in 16 bits that stop, buffers that drift, weights that stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import halfstep as hs


class Counting(nn.Module):
    def __init__(self, start: Tensor, next_one: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 1)
        self.register_buffer("seen", start)
        self.next_one = next_one

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.next_one(self.seen)
        return torch.as_tensor(self.lin(x))


def diagnosed(start: Tensor, next_one: Callable[[Tensor], Tensor], steps: int) -> hs.Diagnosis:
    batch = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    return hs.diagnose(
        hs.Recipe(
            name="counting",
            model=lambda: Counting(start.clone(), next_one),
            loss_fn=lambda m, x: m(x).float().square().mean(),
            batches=lambda: [batch],
            optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=1e-2),
        ),
        steps=steps,
    )


def test_counter_in_bf16_stops_at_256_in_every_format() -> None:
    found = diagnosed(torch.zeros((), dtype=torch.bfloat16), lambda seen: seen + 1, steps=300)
    (cause,) = [cause for cause in found.causes if cause.severity == "error"]
    assert (cause.kind, cause.subject) == ("state_stops", "seen")
    assert cause.passes == ("fp32", "bf16", "fp16")
    # closed form: 256 + 1 rounds to 256 in BF16, whose spacing is 2 from there on
    assert "of 300, and in none after it; its last value is 256" in cause.evidence
    assert not found.is_healthy


def test_average_in_16_bits_that_stops_short_is_named() -> None:
    decayed = lambda seen: seen * 0.999 + torch.full_like(seen, 0.001)  # noqa: E731
    start = torch.zeros(4, dtype=torch.bfloat16)
    found = diagnosed(start, decayed, steps=800)
    assert [c.kind for c in found.causes] == ["state_stops"]
    # closed form: an average of 1 is 1 - 0.999^800 = 0.55 by then; at 0.5 half the spacing of BF16,
    # 2^-9, is more than 0.001; the norm of 4 such values is twice that
    assert found.causes[0].evidence.endswith("its last value is norm 1")


@pytest.mark.parametrize(
    ("start", "next_one"),
    [
        (torch.zeros(()), lambda seen: seen + 1),
        (torch.zeros((), dtype=torch.bfloat16), lambda seen: torch.ones_like(seen)),
        (torch.zeros((), dtype=torch.float16), lambda seen: seen + 1),
    ],
    ids=["fp32-counter", "flag", "not-there-yet"],
)
def test_state_that_is_as_it_should_be_is_healthy(
    start: Tensor, next_one: Callable[[Tensor], Tensor]
) -> None:
    found = diagnosed(start, next_one, steps=60)
    assert [c.kind for c in found.causes if c.severity == "error"] == []


def test_buffer_that_drifts_from_fp32_is_named() -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(8, 8)
            self.register_buffer("total", torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            h = self.lin(x)
            # in 16 bits the part of 1e4 that is left is the rounding of h, always to even
            with torch.no_grad():
                self.total += ((h * 0 + 10001.0) - 10000.0).float().mean()
            return torch.as_tensor(h)

    batch = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    found = hs.diagnose(
        hs.Recipe(
            name="sums",
            model=Sums,
            loss_fn=lambda m, x: m(x).float().square().mean(),
            batches=lambda: [batch],
            optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=1e-2),
        ),
        steps=20,
    )
    (cause,) = [cause for cause in found.causes if cause.severity == "error"]
    assert (cause.kind, cause.subject) == ("state_drifts", "total")


def test_bound_on_time_is_kept_and_what_it_left_out_is_said() -> None:
    batch = torch.ones(4, 8)
    recipe = hs.Recipe(
        name="bounded",
        model=lambda: nn.Linear(8, 1),
        loss_fn=lambda m, x: m(x).float().square().mean(),
        batches=lambda: [batch],
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=1e-2),
    )
    found = hs.diagnose(recipe, max_seconds=1e-9, steps=5)
    assert found.cost is not None
    assert [p.name for p in found.passes] == ["fp32", "bf16"]
    assert found.cost.left_out[:2] == ("the pass fp16", "the pass fp16 scaled")
    assert "the training runs" in found.cost.left_out
    whole = hs.diagnose(recipe)
    assert whole.cost is not None
    assert whole.cost.left_out == ()
    assert 0 < whole.cost.step_seconds < whole.cost.seconds <= whole.cost.max_seconds == 600
    assert hs.Diagnosis.from_dict(whole.to_dict()).cost == whole.cost


@pytest.mark.parametrize("value", [0, -1.0, True, "1"])
def test_bound_that_cannot_be_is_refused(value: object) -> None:
    recipe = hs.load_recipe("digits")
    with pytest.raises(hs.BadValueError, match="max_seconds must be a number above 0, got"):
        hs.diagnose(recipe, max_seconds=value)  # type: ignore[arg-type]
