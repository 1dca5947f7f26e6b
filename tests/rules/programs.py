"""Training programs as lists of operations: correct loops, their mutants, and their source text.

An operation is a tuple of its kind and who it concerns, as ``("step", "scaler", "opt_a")``. A
program is a setup (which optimizers and scalers there are) and the body of the loop over windows.
"""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

Op = tuple[str, ...]
EDITS = ("delete", "insert", "duplicate", "move")

TEXT = {
    "zero": "{0}.zero_grad()",
    "unscale": "{0}.unscale_({1})",
    "clip": "nn.utils.clip_grad_norm_({models}.parameters(), MAX_NORM)",
    "clip both": (
        "both = [*model_a.parameters(), *model_b.parameters()]\n"
        "nn.utils.clip_grad_norm_(both, MAX_NORM)"
    ),
    "step": "{0}.step({1})",
    "direct step": "{0}.step()",
    "update": "{0}.update()",
    "tested update": "before = {0}.get_scale()\n{0}.update()\nran = {0}.get_scale() >= before",
    "schedule": "schedule_{letter}.step()",
    "schedule if ran": "if ran:\n    schedule_{letter}.step()",
    "average": "average_{letter}.update_parameters(model_{letter})",
    "average if ran": "if ran:\n    average_{letter}.update_parameters(model_{letter})",
    "zero if ran": "if ran:\n    {0}.zero_grad()",
}


@dataclass(frozen=True)
class Program:
    """A loop over windows.

    Attributes:
        name: Of the correct loop it comes from.
        body: Operations of one window.
        scalers: Optimizer to its scaler.
        edit: How it differs from the correct loop.
    """

    name: str
    body: tuple[Op, ...]
    scalers: tuple[tuple[str, str], ...] = (("opt_a", "scaler"),)
    edit: str = "none"

    def optimizers(self) -> list[str]:
        return [optimizer for optimizer, _ in self.scalers]


def backward(optimizer: str, slot: int, scaler: str = "scaler") -> Op:
    return ("backward", optimizer, str(slot), scaler)


def closing(optimizer: str, scaler: str = "scaler", *, clip: bool = True) -> list[Op]:
    unscale: list[Op] = [("unscale", scaler, optimizer), ("clip", optimizer)] if clip else []
    return [*unscale, ("step", scaler, optimizer)]


def correct_loops() -> list[Program]:
    a0, a1, b0 = backward("opt_a", 0), backward("opt_a", 1), backward("opt_b", 0)
    update: Op = ("update", "scaler")
    zero_a, zero_b = ("zero", "opt_a"), ("zero", "opt_b")
    one, two = (("opt_a", "scaler"),), (("opt_a", "scaler"), ("opt_b", "scaler"))
    apart = (("opt_a", "scaler"), ("opt_b", "scaler_b"))
    both: list[Op] = [("unscale", "scaler", "opt_a"), ("unscale", "scaler", "opt_b")]
    steps: list[Op] = [("step", "scaler", "opt_a"), ("step", "scaler", "opt_b")]
    tested: Op = ("tested update", "scaler")
    bodies: list[tuple[str, list[Op], tuple[tuple[str, str], ...]]] = [
        ("plain", [zero_a, a0, ("step", "scaler", "opt_a"), update], one),
        ("clipped", [a0, *closing("opt_a"), update, zero_a], one),
        ("accumulated", [zero_a, a0, a1, *closing("opt_a"), update], one),
        (
            "two optimizers",
            [a0, b0, *both, ("clip", "opt_a"), ("clip", "opt_b"), *steps, update, zero_a, zero_b],
            two,
        ),
        ("in turn", [zero_a, a0, *closing("opt_a"), zero_b, b0, *closing("opt_b"), update], two),
        (
            "two scalers",
            [
                *(zero_a, a0, *closing("opt_a"), update),
                *(zero_b, backward("opt_b", 0, "scaler_b"), *closing("opt_b", "scaler_b")),
                ("update", "scaler_b"),
            ],
            apart,
        ),
        (
            "scheduled",
            [a0, *closing("opt_a"), tested, zero_a, ("schedule if ran", "opt_a")],
            one,
        ),
        (
            "averaged",
            [zero_a, a0, a1, *closing("opt_a", clip=False), tested, ("average if ran", "opt_a")],
            one,
        ),
    ]
    return [Program(name, tuple(body), scalers) for name, body, scalers in bodies]


def mutants(program: Program) -> Iterator[Program]:
    """Every program that is one edit away, each body once."""
    seen = {program.body}
    for edit, body in _edits(program):
        if body not in seen:
            seen.add(body)
            yield dataclasses.replace(program, body=body, edit=edit)


def _edits(program: Program) -> Iterator[tuple[str, tuple[Op, ...]]]:
    body = program.body
    for i, op in enumerate(body):
        rest = (*body[:i], *body[i + 1 :])
        yield "delete", rest
        yield "duplicate", (*body[: i + 1], *body[i:])
        for j in range(len(body)):
            yield "move", (*rest[:j], op, *rest[j:])
    for op in _insertable(program):
        for i in range(len(body) + 1):
            yield "insert", (*body[:i], op, *body[i:])


def _insertable(program: Program) -> Iterator[Op]:
    for optimizer, scaler in program.scalers:
        yield from [("zero", optimizer), ("unscale", scaler, optimizer), ("clip", optimizer)]
        yield from [("step", scaler, optimizer), ("direct step", optimizer), ("update", scaler)]
        yield from [("backward", optimizer, "0", ""), ("schedule", optimizer)]
        yield from [("average", optimizer), backward(optimizer, 0, scaler)]
    if len({scaler for _, scaler in program.scalers}) < len(program.scalers):
        yield ("clip both",)


def setup(program: Program) -> str:
    lines = ["import torch", "from torch import nn", "from faults import *", ""]
    for optimizer, _ in program.scalers:
        letter = optimizer[-1]
        lines += [
            f"model_{letter} = nn.Linear(2, 1, bias=False).double()",
            f"opt_{letter} = torch.optim.SGD(model_{letter}.parameters(), lr=0.25, momentum=0.5)",
            f"schedule_{letter} = torch.optim.lr_scheduler.LambdaLR(opt_{letter}, lambda n: 1.0)",
            f"average_{letter} = torch.optim.swa_utils.AveragedModel(model_{letter})",
        ]
    for scaler in dict.fromkeys(s for _, s in program.scalers):
        arguments = "init_scale=INIT_SCALE, growth_interval=GROWTH_INTERVAL"
        lines.append(f'{scaler} = torch.amp.GradScaler("cpu", {arguments})')
    return "\n".join([*lines, "ran = True", "start(globals())", ""])


def text_of(op: Op, owner: str = "") -> str:
    """Source of one operation; `owner` as ``"self."`` goes before every object's name."""
    kind, *who = op
    if kind == "backward":
        return _backward_text(op, owner)
    letter = who[-1][-1] if who else "a"
    text = TEXT[kind].format(*who, letter=letter, models=f"model_{letter}")
    for name in ("model_", "opt_", "schedule_", "average_", "scaler", "ran", "before"):
        text = _owned(text, name, owner)
    return text


def _owned(text: str, name: str, owner: str) -> str:
    return re.sub(rf"(?<![\w.]){name}", owner + name, text) if owner else text


def _backward_text(op: Op, owner: str) -> str:
    _, optimizer, slot, scaler = op
    forward = f"loss = loss_fn({owner}model_{optimizer[-1]}(batch[{slot}][0]), batch[{slot}][1])"
    lines = ['with torch.autocast("cpu", dtype=torch.float16):', f"    {forward}"]
    call = f"{owner}{scaler}.scale(loss).backward()" if scaler else "loss.backward()"
    return "\n".join([*lines, call])


def flat(program: Program) -> str:
    body = "\n".join(text_of(op) for op in program.body)
    return setup(program) + "for batch in batches:\n" + textwrap.indent(body, "    ") + "\n"


def with_helpers(program: Program) -> str:
    """The body in two functions, the second of which takes its objects as arguments."""
    half = len(program.body) // 2
    first, second = (
        "\n".join(map(text_of, ops)) for ops in (program.body[:half], program.body[half:])
    )
    names = [n for o, s in program.scalers for n in (f"model_{o[-1]}", o, s)]
    arguments = ", ".join(dict.fromkeys(["batch", *names]))
    outer = "    global before, ran\n"
    return (
        setup(program)
        + f"def collect(batch):\n{outer}{textwrap.indent(first or 'pass', '    ')}\n\n\n"
        + f"def apply({arguments}):\n{outer}{textwrap.indent(second or 'pass', '    ')}\n\n\n"
        + f"for batch in batches:\n    collect(batch)\n    apply({arguments})\n"
    )


def in_a_class(program: Program) -> str:
    """A trainer with attributes, and an FP32 branch beside the scaled one."""
    half = len(program.body) // 2
    names = [
        n
        for o, s in program.scalers
        for n in (f"model_{o[-1]}", o, f"schedule_{o[-1]}", f"average_{o[-1]}", s)
    ]
    given = list(dict.fromkeys(names))
    stored = "\n".join(f"        self.{n} = {n}" for n in given)
    first, second = (
        textwrap.indent("\n".join(text_of(op, "self.") for op in ops) or "pass", " " * 12)
        for ops in (program.body[:half], program.body[half:])
    )
    plain = textwrap.indent(
        "\n".join(
            f"self.{o}.zero_grad()\n{text_of(backward(o, 0, ''), 'self.')}\nself.{o}.step()"
            for o in program.optimizers()
        ),
        " " * 12,
    )
    return (
        setup(program)
        + f"class Trainer:\n    def __init__(self, use_amp, {', '.join(given)}):\n"
        + f"        self.use_amp = use_amp\n        self.ran = True\n{stored}\n\n"
        + f"    def collect(self, batch):\n        if self.use_amp:\n{first}\n\n"
        + f"    def apply(self, batch):\n        if self.use_amp:\n{second}\n"
        + f"        else:\n{plain}\n\n"
        + "    def train(self):\n        for batch in batches:\n"
        + "            self.collect(batch)\n            self.apply(batch)\n\n\n"
        + f"Trainer(USE_AMP, {', '.join(given)}).train()\n"
    )


FORMS = {"flat": flat, "helpers": with_helpers, "class": in_a_class}
