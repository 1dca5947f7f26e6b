"""What happens in a training program, in the words that both readers use.

A program path is a sequence of `Event`s. Scalers, optimizers, models and schedules are opaque
names: the linter makes them from variables, the guard from objects. A reader fills in what it
knows; a rule must be silent about the rest.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple


class Place(NamedTuple):
    """Where an event stands in source; lines and columns count from 1."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int


class Event(NamedTuple):
    """One thing that a training program does.

    Attributes:
        kind: One of the constants below.
        where: The call, as a range of text.
        scaler: Who scales, unscales, steps or updates; ``None`` where no scaler takes part.
        optimizers: Whose gradients, parameters or state are surely concerned.
        maybe: Whose may be; a reader that cannot tell puts them here.
        model: The model, schedule, average or file concerned.
        facts: What else the reader knows; the keys are listed at each kind.
    """

    kind: str
    where: Place
    scaler: str | None = None
    optimizers: tuple[str, ...] = ()
    maybe: tuple[str, ...] = ()
    model: str | None = None
    facts: dict[str, Any] = {}  # noqa: RUF012 - never written to

    def fact(self, name: str) -> Any:
        """The fact `name`, ``None`` where the reader does not know it."""
        return self.facts.get(name)


def is_around(outer: Event, inner: Event) -> bool:
    """Whether `outer` stands outside of the innermost loop around `inner`; known in source only."""
    loops, own = outer.fact("loops"), inner.fact("loops")
    if loops is None or own is None:
        return False
    return len(loops) < len(own) and bool(own[: len(loops)] == loops)


def is_same_round(one: Event, other: Event) -> bool:
    """Whether two events are in one round of the loops around both; so where nobody knows."""
    loops, others = one.fact("loops") or (), other.fact("loops") or ()
    rounds = zip(one.fact("rounds") or (), other.fact("rounds") or (), strict=False)
    shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(loops, others, strict=False))
    return all(mine == its for _, (mine, its) in zip(shared, rounds, strict=False))


def is_deeper(inner: Event, outer: Event) -> bool:
    """Whether `inner` stands in a branch that the reader chose and `outer` does not."""
    return (inner.fact("chosen") or 0) > (outer.fact("chosen") or 0)


# Construction. SCALER facts: enabled, device, growth_interval, backoff_factor, growth_factor,
# variable (that holds it, also of SCALE and LOAD). OPTIMIZER facts: eps, fused, name.
SCALER, OPTIMIZER, SCHEDULE_MADE = "scaler", "optimizer", "schedule made"

# Contexts. AUTOCAST facts: dtype ("float16", "bfloat16"), enabled, device. NO_SYNC: DDP's;
# facts: chosen (in a branch that the reader took without knowing).
AUTOCAST_ENTER, AUTOCAST_EXIT = "autocast enter", "autocast exit"
CACHE_CLEARED = "autocast cache cleared"  # torch.clear_autocast_cache()
NO_SYNC_ENTER, NO_SYNC_EXIT = "no_sync enter", "no_sync exit"

# One micro-batch. LOSS facts: reduction, count (of valid targets; the guard alone knows it).
# BACKWARD has a scaler where the loss was scaled; facts: create_graph.
FORWARD, LOSS, SCALE, BACKWARD = "forward", "loss", "scale", "backward"

# Gradients. CLIP facts: how ("norm", "value", "hand"), max_norm (a number, if constant),
# max_norm_scaled (multiplied by the scale), error_if_nonfinite.
# EDIT facts: how ("nan": NaN or inf replaced; "hook": changed by a tensor hook, whatever the scale;
# "limit": cut off at a number, before they are anybody's gradients;
# "add": something without the scale is added; "multiply", "unscale", "set", "zero").
# ZERO_GRAD facts: set_to_none, unbroken (in source: no choice since the last backward).
UNSCALE, CLIP, EDIT, ZERO_GRAD = "unscale", "clip", "edit", "zero_grad"

# The update. STEP has a scaler where it goes through one; facts: closure,
# guarded (by a finite check). OUTCOME follows a step whose result is known, in a running script;
# facts: skipped. STEP, SCHEDULE and EMA facts: loops (in source, the lines of the loops around,
# outermost first), rounds (their rounds). UPDATE facts: new_scale (set by hand).
STEP, OUTCOME, UPDATE = "step", "outcome", "update"

# What follows an update. Facts of both: guarded (under a test whether the step was skipped).
# SCHEDULE names its optimizer; facts: epoch (a metric or an epoch was passed), position (it).
SCHEDULE, EMA = "schedule", "ema"

# READ_SCALE: get_scale(), state of found_inf. SKIP_TEST facts: operator, scales (both sides are
# the scale), skipped (what the path goes on with).
READ_SCALE, SKIP_TEST = "read scale", "skip test"

# State. SAVE facts: holds (kinds of state in the file: "model", "optimizer", "scaler", or
# "anything"), entry (the optimizer's in a dict that is written out), apart (that dict is made in
# another function). LOAD has a scaler.
SAVE, LOAD = "save", "load"

# CAST: parameters to a dtype by hand; facts: dtype, live (of a model in training or of its moving
# average). EVALUATE: a validation pass.
CAST, EVALUATE = "cast", "evaluate"

# WEIGHTS: parameters changed in place, outside of an optimizer's step. FORWARD and WEIGHTS facts:
# of (names of the modules). MEASURED: a norm of gradients, its name in `model`; LOGGED: shown to
# people. SCALE facts: carried (where gradients in the loss were taken that carry the scale).
WEIGHTS, MEASURED, LOGGED = "weights", "measured", "logged"

# halfstep's own engine. ENGINE names its optimizers; facts: schedules (names of those it steps),
# clips. ENGINE_BACKWARD facts: scaled (the loss went through a scaler), divided (text of what the
# loss is divided by, where that is written in the call). ENGINE_STEP ends a window, ENGINE_DROP
# throws it away; between ENGINE_OPEN and ENGINE_CLOSED the gradients are the true ones.
ENGINE, ENGINE_BACKWARD, ENGINE_STEP = "engine", "engine backward", "engine step"
ENGINE_DROP, ENGINE_OPEN, ENGINE_CLOSED = "engine drop", "engine open", "engine closed"

# LEFT: `continue`, `break` or `return` in a branch that the reader chose; facts: raised (an
# exception of the call instead).
LEFT = "left"

# A call that the reader could not look into, with a scaler, an optimizer or a scaled loss in it.
OPAQUE = "opaque"
