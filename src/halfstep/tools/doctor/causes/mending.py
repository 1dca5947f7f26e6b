"""The counterfactual: what heals a pass when it runs in FP32, tried before it is advised."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from halfstep.precision import Policy
from halfstep.records import HalfstepError, OpRecord
from halfstep.tools.doctor.examination import Examination
from halfstep.tools.doctor.runs.own_ops import own_ops
from halfstep.tools.doctor.runs.passes import Pass
from halfstep.tools.doctor.runs.products import gpu_products
from halfstep.tools.doctor.runs.results import (
    LOSS,
    OtherRounding,
    Results,
    errors,
    results_of,
    run_for_results,
    tolerance,
)
from halfstep.tracing.against import format_of

IN_LOSS, IN_FORWARD = "loss", "forward"
_HEALED, _HALF = 0.25, 0.5  # of the error before
_PART = 0.5  # of the 16-bit ops: a remedy that keeps more than that in FP32 explains nothing
_BACK_OFF = 2.0**6  # between the loss scales that are tried
_HALVES = ("float16", "bfloat16")
# Names that compiling and checkpointing put before those of the model itself.
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")


@dataclass(frozen=True)
class Remedy:
    """What to keep in FP32.

    Attributes:
        islands: Module patterns, as ``precision.toml`` takes them.
        own: ``"loss"`` or ``"forward"``: ops of the loss function, or of the model's own forward,
            for ``with hs.fp32():``; empty without.
    """

    islands: tuple[str, ...] = ()
    own: str = ""


def pattern_of(path: str) -> str:
    """A module's name without the class of the model: ``Net.blocks.0.fc`` is ``blocks.0.fc``.

    Args:
        path: As in `OpRecord.module`.
    """
    name = f"{path.partition('.')[2]}."
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name.removesuffix(".")


def alike(pattern: str) -> str:
    """The pattern of all blocks of a kind: ``blocks.*.fc``; itself without a number.

    Args:
        pattern: Name of a module.
    """
    return re.sub(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)", "*", pattern)


def remedies(found: Examination, low: Pass, ops: Sequence[OpRecord]) -> Iterator[Remedy]:
    """What to try for a fault, the smallest part of the model first.

    Args:
        found: The passes.
        low: The pass that has the fault.
        ops: The op that made it, then those that show it.
    """
    places = list(dict.fromkeys(op.module for op in ops))
    names = [name for path in places if (name := pattern_of(path))]
    inputs = list(dict.fromkeys(_modules_of_inputs(found, low, ops)))
    tried: set[Remedy] = set()
    for remedy in _proposed(found, low, ops, places, names, inputs):
        if remedy not in tried and _is_part(low, remedy, names + inputs):
            tried.add(remedy)
            yield remedy


def _proposed(
    found: Examination,
    low: Pass,
    ops: Sequence[OpRecord],
    places: Sequence[str],
    names: Sequence[str],
    inputs: Sequence[str],
) -> Iterator[Remedy]:
    repeated = _has_likes(found, low, ops)
    for name in names:
        yield Remedy((name,))
        if repeated:
            yield Remedy((alike(name),))
    if len(places) > len(names):
        for name in inputs:
            yield Remedy((name,))
        yield Remedy(own=IN_LOSS if "" in places else IN_FORWARD)
        if "" in places:
            yield Remedy(own=IN_FORWARD)
    for name in names:
        if parent := name.rpartition(".")[0]:
            yield Remedy((parent,))
    for name in inputs:
        yield Remedy((name,))
    both = tuple(dict.fromkeys([*names, *inputs]))[:6]
    if len(both) > 1:
        yield Remedy(both)
        yield Remedy(tuple(dict.fromkeys(map(alike, both))))


def _modules_of_inputs(found: Examination, low: Pass, ops: Iterable[OpRecord]) -> Iterator[str]:
    """Names of the modules whose results an op takes, past casts."""
    beside = found.beside.get(low.name)
    if beside is None:
        return
    for op in ops:
        for parent in beside.parents(op.index):
            here = parent
            for _ in range(4):
                if low.ops[here].dtype in _HALVES and low.ops[here].op != "aten._to_copy":
                    break
                here = next(iter(beside.parents(here)), here)
            if (name := pattern_of(low.ops[here].module)) and low.ops[here].dtype in _HALVES:
                yield name


def _has_likes(found: Examination, low: Pass, ops: Sequence[OpRecord]) -> bool:
    """Whether other blocks have the same op with values as bad."""
    beside = found.beside.get(low.name)
    if beside is None or not ops:
        return False
    first = ops[-1]
    wanted = alike(pattern_of(first.module))
    for op in low.ops:
        if op.op != first.op or op.module == first.module or op.dtype != first.dtype:
            continue
        if alike(pattern_of(op.module)) == wanted and op.index in beside.differences:
            format = format_of(op.dtype)
            difference = beside.differences[op.index]
            is_beyond = format is not None and difference.reference_largest > format.largest
            if is_beyond or difference.relative_error > tolerance(low.policy.row):
                return True
    return False


def everything(found: Examination, low: Pass, ops: Sequence[OpRecord]) -> Remedy:
    """All that could heal a pass at once: where this does not help, no part of it does.

    Args:
        found: The passes.
        low: The pass.
        ops: Which may be to blame.
    """
    places = [op.module for op in ops]
    names = {pattern_of(path) for path in places} | set(_modules_of_inputs(found, low, ops))
    names |= {parent for name in names if (parent := name.rpartition(".")[0])}
    own = "" if all(map(pattern_of, places)) else IN_LOSS if "" in places else IN_FORWARD
    return Remedy(without_covered(alike(name) for name in sorted(names) if name), own)


def without_covered(patterns: Iterable[str]) -> tuple[str, ...]:
    """Patterns without those whose modules lie inside of others'.

    Args:
        patterns: In any order; this one is kept.
    """
    every = list(dict.fromkeys(patterns))
    return tuple(p for p in every if not any(other != p and _covers(other, p) for other in every))


def _is_part(low: Pass, remedy: Remedy, near: Sequence[str]) -> bool:
    if not remedy.islands or all(name in near for name in remedy.islands):
        return True
    halves = [op for op in low.ops if op.dtype in _HALVES]
    inside = sum(any(_covers(p, pattern_of(op.module)) for p in remedy.islands) for op in halves)
    return inside <= _PART * max(1, len(halves))


def _covers(pattern: str, name: str) -> bool:
    expression = re.escape(pattern).replace(r"\*", ".*")
    return re.fullmatch(rf"{expression}(\..*)?", name) is not None


def with_islands(policy: Policy, islands: Sequence[str]) -> Policy:
    """A policy with further islands.

    Args:
        policy: The policy.
        islands: Patterns.
    """
    return replace(policy, modules={**policy.modules, **dict.fromkeys(islands, "fp32")})


def is_healed(
    found: Examination,
    low: Pass,
    remedy: Remedy,
    wrong: Mapping[str, float],
    other_rounding: bool = False,
) -> bool:
    """Run a pass again with a part of it in FP32.

    Args:
        found: Model, batch and passes.
        low: The pass.
        remedy: What to keep in FP32.
        wrong: Its results that are wrong, with their errors.
        other_rounding: Round the products in another way too: what is healed by chance (a choice
            between equals that falls as in FP32) is not healed then.

    Returns:
        Whether the worst of these are right then, and all results finite. What is less wrong may
        have another cause, or none: the error of a deep model that grows in every op.
    """
    model = found.subject.model
    policy = with_islands(low.policy, remedy.islands)
    try:
        if remedy.islands:
            policy.attach(model)
        with contextlib.ExitStack() as stack:
            if other_rounding:
                stack.enter_context(gpu_products(policy, found.subject.device))
                stack.enter_context(OtherRounding(low.policy.row.dtype, low.policy.row.eps))
            results = _run(found, low, policy, remedy)
    except (HalfstepError, RuntimeError):  # the part cannot run in FP32
        found.subject.reset()
        return False
    finally:
        if remedy.islands:
            policy.detach(model)
    if not results.is_finite:
        return False
    now = errors(results, results_of(found.passes["fp32"]))
    limit = tolerance(low.policy.row)
    worst = {name: min(error, 1.0) for name, error in wrong.items()}
    most = max(worst.values(), default=0.0)
    return all(
        now.get(name, 0.0) <= min(_HALF * error, max(limit, _HEALED * error))
        for name, error in worst.items()
        if error >= _HALF * most and (name != LOSS or math.isfinite(wrong[name]))
    )


def _run(found: Examination, low: Pass, policy: Policy, remedy: Remedy) -> Results:
    """The results, at a lower loss scale where the pass's own is still too large: as in training.

    A fault can hide that the search for the scale is not over.
    """
    scale = low.loss_scale
    while True:
        inside = own_ops(found.subject.model, remedy.own == IN_LOSS) if remedy.own else None
        results = run_for_results(found.subject, policy, scale, inside)
        if results.is_finite or not math.isfinite(results.loss) or scale <= 1:
            return results
        scale = max(1.0, scale / _BACK_OFF)
