"""The op that broke a pass, found in two runs of it: a light one, then one that looks closely."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from halfstep.records import OpRecord
from halfstep.tracing.lineage import Lineage
from halfstep.tracing.module_paths import Models
from halfstep.tracing.op_trace import OpTrace
from halfstep.tracing.producer import Producer, bad_starts, first_producer, producers

Run = Callable[[], Sequence[Tensor]]


@dataclass(frozen=True)
class BadOp:
    """The op with the first result that is not finite and matters.

    Attributes:
        record: The op; `finite_fraction` and `largest_finite` are known.
        largest_input: Largest finite magnitude among its inputs.
        leaf: Name of the weight, buffer or part of the batch that the bad value came in with.
    """

    record: OpRecord
    largest_input: float
    leaf: str


def find_first_bad_op(
    model: Models, run: Run, leaves: Mapping[int, str] | None = None
) -> BadOp | None:
    """Run a pass under a tracer, and once more under a closer one if something was not finite.

    Args:
        model: Whose modules are named.
        run: Forward and backward; returns the tensors that matter: the loss, the gradients. It
            has to do the same at every call.
        leaves: As for `Lineage`.

    Returns:
        The op that made inf or NaN from finite inputs; without one (the batch held it) the first
        op that got it. ``None`` if every result that matters is finite.

    Syncs: yes.
    """
    light = OpTrace(model)
    with light:
        run()
    ops = light.read().ops
    if all(op.is_finite for op in ops):
        return None
    close = Lineage(model, leaves, examine=bad_starts(ops, light))
    with close:
        results = run()
    if all(bool(torch.isfinite(result).all()) for result in results):
        return None
    ends = [close.origin(result).position for result in results]
    found = first_producer(producers(close), [end for end in ends if end is not None])
    return None if found is None else described(found, ops, close)


def described(found: Producer, ops: Sequence[OpRecord], close: Lineage) -> BadOp:
    """A producer with all that is known about its op.

    Args:
        found: The producer.
        ops: Of the pass.
        close: The pass that examined it.
    """
    output = close.outputs[found.position]
    record = replace(
        ops[found.position],
        finite_fraction=output.finite_fraction,
        largest_finite=output.largest_finite,
    )
    return BadOp(record, found.largest_input, found.leaf)
