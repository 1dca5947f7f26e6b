"""Saves and loads in any order: a load has a report and does what it says, or changes nothing.

The oracle is the file itself, read by `torch.load`, beside what the engine held before.
"""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from torch import nn

import halfstep as hs
from snapshots import differences

PARTS = ("model", "optimizer", "schedule", "loss_scale", "average", "counters", "rng")
X = torch.arange(20.0).reshape(5, 4) / 10
RATES = ("lr", "initial_lr")

CONFIGS = st.fixed_dictionaries(
    {
        "precision": st.sampled_from(["fp32", "bf16", "fp16"]),
        "optimizer": st.sampled_from(["momentum", "adamw"]),
        "compiled": st.booleans(),
        "ema": st.sampled_from([None, 0.5]),
        "schedule": st.booleans(),
        "width": st.sampled_from([3, 3, 3, 5]),
    }
)


def build(config: dict[str, Any]) -> hs.Engine:
    width = config["width"]
    model: Any = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 1))
    if config["compiled"]:
        model = torch.compile(model, backend="eager")
    optimizer: torch.optim.Optimizer = (
        torch.optim.AdamW(model.parameters(), lr=0.01)
        if config["optimizer"] == "adamw"
        else torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    )
    schedule = None
    if config["schedule"]:
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    return hs.Engine(
        model, optimizer, precision=config["precision"], schedule=schedule, ema=config["ema"]
    )


def plain(state: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_orig_mod.", ""): value for name, value in state.items()}


def parts_of(engine: hs.Engine) -> dict[str, Any]:
    """What each part holds now, in plain words of torch."""
    return copy.deepcopy(
        as_parts(
            engine.model.state_dict(),
            engine.optimizer.state_dict(),
            engine.state_dict(),
            torch.get_rng_state(),
        )
    )


def as_parts(model: Any, optimizer: Any, engine: Any, generator: Any) -> dict[str, Any]:
    groups = optimizer["param_groups"]
    average = engine["emas"]["model"]
    return {
        "model": plain(model),
        "optimizer": {
            "state": optimizer["state"],
            "groups": [{k: v for k, v in g.items() if k not in RATES} for g in groups],
        },
        "schedule": {
            "state": engine["schedules"],
            "rates": [{k: g.get(k) for k in RATES} for g in groups],
        },
        "loss_scale": engine["loss_scales"],
        "average": None if average is None else plain(average),
        "counters": [engine["counters"], engine["nominal"], engine["optimizers"]],
        "rng": generator,
    }


class Checkpoints(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.engine: hs.Engine | None = None
        self.saved: list[Path] = []

    @initialize(first=CONFIGS, second=CONFIGS, steps=st.integers(1, 3))
    def begin(self, first: dict[str, Any], second: dict[str, Any], steps: int) -> None:
        self.make(first, seed=0)
        self.train(steps, is_bad=False)
        self.save()
        self.make(second, seed=1)

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule(config=CONFIGS, seed=st.integers(0, 3))
    def make(self, config: dict[str, Any], seed: int) -> None:
        torch.manual_seed(seed)
        self.engine = build(config)

    @precondition(lambda self: self.engine is not None)
    @rule(steps=st.integers(1, 3), is_bad=st.booleans())
    def train(self, steps: int, is_bad: bool) -> None:
        assert self.engine is not None
        for _ in range(steps):
            x = X + torch.randn(5, 4) * (float("nan") if is_bad else 0.1)
            self.engine.train_step(
                [(x,)], lambda m, b: hs.LossSum(m(b[0]).float().square().sum(), 5)
            )

    @precondition(lambda self: self.engine is not None)
    @rule()
    def save(self) -> None:
        assert self.engine is not None
        path = Path(self.folder.name) / f"{len(self.saved)}.pt"
        hs.save_checkpoint(path, self.engine, extra={"number": len(self.saved)})
        self.saved.append(path)

    @precondition(lambda self: self.engine is not None and self.saved)
    @rule(
        data=st.data(),
        parts=st.none() | st.lists(st.sampled_from(PARTS), min_size=1, unique=True),
        without=st.lists(st.sampled_from(PARTS), unique=True, max_size=2),
        strict=st.booleans(),
    )
    def load(self, data: st.DataObject, parts: Any, without: Any, strict: bool) -> None:
        assert self.engine is not None
        path = data.draw(st.sampled_from(self.saved))
        before = parts_of(self.engine)
        try:
            found = hs.load_checkpoint(
                path, self.engine, parts=parts, without=without, strict=strict
            )
        except ValueError:
            assert differences(before, parts_of(self.engine)) == []
            return
        assert found == {"number": self.saved.index(path)}
        content = torch.load(path, weights_only=True)
        self.check(found.report, before, content, strict)

    def check(self, report: Any, before: Any, content: Any, strict: bool) -> None:
        assert self.engine is not None
        there = as_parts(
            content["model"]["model"],
            content["optimizer"]["optimizer"],
            content["engine"],
            content["rng"]["torch"],
        )
        now = parts_of(self.engine)
        entries = {name for name in report.left_out if name.startswith("model: ")}
        assert set(report.loaded) | set(report.left_out) - entries == set(PARTS)
        assert not set(report.loaded) & set(report.left_out)
        assert not (strict and entries)
        for part in PARTS:
            wanted = there[part] if part in report.loaded else before[part]
            if part == "model" and entries:
                left = {plain({name.removeprefix("model: "): 0}).popitem()[0] for name in entries}
                wanted = {k: (before if k in left else there)["model"][k] for k in before["model"]}
            restarts = part not in report.loaded and "model" in report.loaded
            if part == "average" and now["average"] is not None and restarts:
                wanted = {"n_averaged": torch.tensor(0)}
                wanted |= {f"module.{k}": v for k, v in now["model"].items()}
            assert differences(in_order(wanted), in_order(now[part])) == [], part


def in_order(value: Any) -> Any:
    return dict(sorted(value.items())) if isinstance(value, dict) else value


Checkpoints.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestCheckpoints = Checkpoints.TestCase
