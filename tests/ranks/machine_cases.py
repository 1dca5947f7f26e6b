"""A state machine that both ranks run in step: any order of calls, against one process in float64.

hypothesis draws the same calls on both ranks, because it draws them from a fixed seed.
"""

from __future__ import annotations

import agreement_cases as cases
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch import Tensor
from world import case

import halfstep as hs

MAX_NORM, RATE, INTERVAL = 0.5, 0.05, 3
SETTINGS = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=15,
    stateful_step_count=20,
    suppress_health_check=list(HealthCheck),
)
COUNTS = st.tuples(st.integers(0, 4), st.integers(0, 4))


class Oracle:
    """One process in float64 that sees the rows of both ranks."""

    def __init__(self) -> None:
        self.model = cases.mlp().double()
        self.scale, self.good, self.updates, self.skips, self.consumed = 2.0**8, 0, 0, 0, 0.0
        self.rows: list[Tensor] = []
        self.is_bad = False

    def step(self) -> str | None:
        rows, is_bad = torch.cat(self.rows).double(), self.is_bad
        self.drop()
        if not len(rows) and not is_bad:
            self.skips += 1
            return "empty_window"
        if is_bad:
            self.scale, self.good, self.skips = max(1.0, self.scale / 2), 0, self.skips + 1
            return "non_finite"
        self.model.zero_grad()
        (self.model(rows).square().sum() / len(rows)).backward()
        parameters = list(self.model.parameters())
        torch.nn.utils.clip_grad_norm_(parameters, MAX_NORM)
        with torch.no_grad():
            for p in parameters:
                p.sub_(RATE * p.grad)
        self.good += 1
        if self.good == INTERVAL:
            self.scale, self.good = self.scale * 2, 0
        self.updates += 1
        self.consumed += len(rows)
        return None

    def drop(self) -> None:
        self.rows, self.is_bad = [], False


class Machine(RuleBasedStateMachine):
    kind, rank = "ddp", 0

    def __init__(self) -> None:
        super().__init__()
        self.model = cases.MODELS[self.kind]()
        self.engine = hs.Engine(
            self.model,
            torch.optim.SGD(self.model.parameters(), lr=RATE),
            precision="fp32",
            max_norm=MAX_NORM,
            loss_scale=hs.DynamicLossScale(
                2.0**8, growth_interval=INTERVAL, max_consecutive_skips=10**6
            ),
        )
        self.oracle = Oracle()
        self.seed = 0
        self.is_open = False

    @rule(counts=COUNTS, bad=st.sampled_from([None, None, None, 0, 1]))
    def micro_batch(self, counts: tuple[int, int], bad: int | None) -> None:
        self.seed += 1
        both = [cases.rows(rank, 4, self.seed)[: counts[rank]] for rank in range(2)]
        self.oracle.rows += both
        x = torch.cat([both[self.rank], torch.ones(1, cases.WIDTH)])  # a row that does not count
        with self.engine.autocast():
            errors = self.model(x).square().sum(1)
            total = errors[:-1].sum() + 0.0 * errors[-1]
        if bad is not None:
            self.oracle.is_bad = True
            if bad == self.rank:
                total = total * torch.inf
        self.engine.backward(hs.LossSum(total, counts[self.rank]))
        self.is_open = True

    @precondition(lambda self: self.is_open)
    @rule()
    def step(self) -> None:
        outcome = self.engine.step()
        assert outcome.reason == self.oracle.step()
        self.is_open = False

    @rule()
    def abort(self) -> None:
        self.engine.abort()
        self.oracle.drop()
        self.is_open = False

    @rule()
    def save_and_load(self) -> None:
        """A round through the engine's own state, which drops an open window."""
        self.engine.abort()
        self.oracle.drop()
        self.is_open = False
        self.engine.load_state_dict(self.engine.state_dict())

    @invariant()
    def counters_agree(self) -> None:
        engine, oracle = self.engine, self.oracle
        assert (engine.num_updates, engine.num_skipped) == (oracle.updates, oracle.skips)
        assert engine.consumed == oracle.consumed
        assert float(engine.loss_scale.value) == oracle.scale

    @invariant()
    def weights_agree(self) -> None:
        if self.is_open:
            return  # FSDP has the weights whole inside of a window
        for ours, right in zip(
            cases.weights(self.model), self.oracle.model.parameters(), strict=True
        ):
            assert float((ours - right.detach()).abs().max()) <= 2e-5


@case(2)
def any_order_of_calls(rank: int, world: int) -> dict[str, str]:
    found = {}
    for kind in cases.MODELS:
        machine = type("Machine", (Machine,), {"kind": kind, "rank": rank})
        found[kind] = cases.error_of(
            lambda m=machine: run_state_machine_as_test(m, settings=SETTINGS)
        )
    return found
