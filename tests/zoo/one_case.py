"""One case in a process of its own: ``python -m zoo.one_case NAME MODE FILE``.

Modes: ``plain`` trains one step in FP32 and runs forward and backward in BF16 and FP16, without
the doctor; ``doctor`` asks the doctor, judges its answer, and follows what it printed.
"""

from __future__ import annotations

import json
import logging
import math
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

import halfstep as hs
from halfstep.training.rng import rng_state, set_rng_state
from zoo.case import Case, all_cases
from zoo.judge import cause_problems, place_problems, problem
from zoo.remedies import (
    Instructions,
    NotLiteralError,
    instructions,
    policy_file,
    put_blocks,
    scale_problem,
)

_OF_SCALE = ("gradient_underflow", "loss_too_large", "scale_searching")


def plain(case: Case) -> dict[str, Any]:
    """One step in FP32, then forward and backward in 16 bits beside it.

    Args:
        case: What to run.

    Returns:
        Losses, gradient norms, and the relative error of all gradients beside FP32.
    """
    recipe = case.recipe()
    torch.manual_seed(0)
    made = recipe.model()
    model = nn.ModuleDict(made) if isinstance(made, Mapping) else made
    optimizer = recipe.optimizer(made)
    optimizers = [*optimizer.values()] if isinstance(optimizer, Mapping) else [optimizer]
    batch = next(iter(recipe.batches()))
    parameters = [p for p in model.parameters() if p.requires_grad]
    state = {k: v.clone() for k, v in model.state_dict().items()}
    chance = rng_state()

    def run(format: str, scale: float) -> tuple[float, list[torch.Tensor | None]]:
        set_rng_state(chance)
        model.load_state_dict(state)
        model.zero_grad(set_to_none=True)
        policy = hs.Policy(format, base="cuda")
        with policy.autocast("cpu"):
            loss = recipe.loss_fn(made, batch)
        divisor = 1.0
        if isinstance(loss, hs.LossSum):
            loss, divisor = loss.total, float(loss.divisor)
        loss = loss.float().reshape(())
        with policy.recompute("cpu"):
            (loss * scale / divisor).backward()
        unit = torch.tensor(scale)
        return float(loss) / divisor, [
            None if p.grad is None else p.grad / unit for p in parameters
        ]

    start = time.perf_counter()
    loss, reference = run("fp32", 1.0)
    seconds = time.perf_counter() - start
    result: dict[str, Any] = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "fp32": {"loss": loss, "grad_norm": _norm(reference), "seconds": round(seconds, 3)},
    }
    for format in ("bf16", "fp16"):
        scale = 1.0 if format == "bf16" else 2.0**16
        try:
            while True:
                low, gradients = run(format, scale)
                if math.isfinite(_norm(gradients)) or scale <= 1.0:
                    break
                scale /= 4.0
        except Exception as error:
            result[format] = {"error": f"{type(error).__name__}: {error}"[:300]}
            continue
        result[format] = {
            "loss": low,
            "grad_norm": _norm(gradients),
            "scale": scale,
            "gradient_error": _difference(gradients, reference) / max(_norm(reference), 1e-30),
        }
    run("fp32", 1.0)
    for each in optimizers:
        each.step()
    result["finite_after_step"] = all(bool(torch.isfinite(p).all()) for p in parameters)
    return result


def _norm(tensors: list[torch.Tensor | None]) -> float:
    squares = [float(t.double().square().sum()) for t in tensors if t is not None]
    return math.sqrt(math.fsum(squares)) if all(map(math.isfinite, squares)) else math.nan


def _difference(one: list[torch.Tensor | None], other: list[torch.Tensor | None]) -> float:
    pairs = zip(one, other, strict=True)
    return _norm([None if a is None or b is None else a - b for a, b in pairs])


def doctored(case: Case, folder: Path) -> dict[str, Any]:
    """What the doctor says, whether it is right, and whether following it heals.

    Args:
        case: What to look at.
        folder: For files that are written on the way.
    """
    start = time.perf_counter()
    found = hs.diagnose(case.recipe(), steps=case.steps)
    seconds = time.perf_counter() - start
    errors = [cause for cause in found.causes if cause.severity == "error"]
    told = instructions(found)
    result: dict[str, Any] = {
        "seconds": round(seconds, 2),
        "health": found.health,
        "headline": found.headline,
        "errors": [
            {
                "kind": c.kind,
                "module": c.module,
                "place": c.place,
                "passes": list(c.passes),
                "evidence": c.evidence,
                "remedy": c.remedy,
            }
            for c in errors
        ],
        "notes": [f"{c.kind}: {c.evidence}" for c in found.causes if c.severity != "error"],
        "symptoms": [s.name for s in found.symptoms if s.found],
        "problem": problem(case, found),
        "told": asdict(told),
    }
    if case.truth is not None:
        first = errors[0] if errors else None
        result["place_is_right"] = first is not None and not place_problems(first, case.truth)
        result["cause_is_right"] = first is not None and not cause_problems(first, case.truth)
    if told.has_any:
        is_all = all(cause.kind in _OF_SCALE for cause in errors)
        result["followed"] = followed(case, told, folder, is_all)
    return result


def followed(case: Case, told: Instructions, folder: Path, is_all: bool) -> dict[str, Any]:
    """Do what was printed and ask again; a process that has put blocks cannot take them away.

    Args:
        case: What was looked at.
        told: What was printed.
        folder: For files.
        is_all: Whether nothing but the loss scale was wrong.

    Returns:
        What is wrong with each of ``"islands"`` (with blocks) and ``"scales"``; empty is right.
    """
    result: dict[str, Any] = {}
    if told.scales:
        tried = [scale_problem(case.recipe(), call, is_all) for call in told.scales]
        result["scales"] = "; ".join(text for text in tried if text)
    if told.islands or told.blocks:
        result["islands"] = _island_problem(case, told, folder)
    return result


def _island_problem(case: Case, told: Instructions, folder: Path) -> str:
    if told.blocks:
        for name in [n for n in sys.modules if n.startswith(("zoo.healthy.", "zoo.planted."))]:
            del sys.modules[name]
        import zoo.case

        zoo.case._cases.clear()
        if foreign := put_blocks(told.blocks):
            return f"not followed: {', '.join(foreign)} is in no file of the zoo"
        try:
            case = all_cases()[case.name]
        except NotLiteralError as error:
            return f"cannot be followed to the letter: {error}"
    policy = str(policy_file(told, folder / "precision.toml")) if told.islands else "cuda"
    try:
        again = hs.diagnose(case.recipe(), policy=policy, steps=case.steps)
    except hs.HalfstepError as error:
        return f"cannot be pasted: {error}"
    return "" if again.is_healthy else f"not healthy then: {again.headline}"


def main() -> None:
    """Run a case and write what came of it."""
    name, mode, path = sys.argv[1:]
    torch.set_num_threads(1)
    logging.getLogger("halfstep").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")  # of the packages: they are not what is tested
    case = all_cases()[name]
    with tempfile.TemporaryDirectory() as folder:
        result = plain(case) if mode == "plain" else doctored(case, Path(folder))
    result["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    Path(path).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
