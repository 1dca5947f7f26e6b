"""Training programs as lists of operations, and their source text in three forms.

An operation is a tuple of its kind and who it concerns, as ``("step", "scaler", "opt_a")``. A
program is a setup (which optimizers and scalers there are) and the body of the loop over windows.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

Op = tuple[str, ...]

TEXT = {
    "zero": "{0}.zero_grad()",
    "unscale": "{0}.unscale_({1})",
    "clip": "norm = nn.utils.clip_grad_norm_({models}.parameters(), MAX_NORM)",
    "measure": (
        "grads = [p.grad for p in {models}.parameters() if p.grad is not None]\n"
        "norm = nn.utils.get_total_norm(grads)"
    ),
    "clip both": (
        "both = [*model_a.parameters(), *model_b.parameters()]\n"
        "norm = nn.utils.clip_grad_norm_(both, MAX_NORM)"
    ),
    "give up": ("if not torch.isfinite(norm):\n    {1}.zero_grad()\n    {0}.update()\n    LEAVE"),
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
OWNED = ("model_", "opt_", "schedule_", "average_", "scaler", "ran", "before", "norm")


@dataclass(frozen=True)
class Program:
    """A loop over windows.

    Attributes:
        name: Of the correct loop it comes from.
        body: Operations of one window.
        scalers: Optimizer to its scaler.
        flag: Whether the scalers are made with ``enabled=`` a setting.
        edit: How it differs from the correct loop.
    """

    name: str
    body: tuple[Op, ...]
    scalers: tuple[tuple[str, str], ...] = (("opt_a", "scaler"),)
    flag: bool = False
    edit: str = "none"

    def optimizers(self) -> list[str]:
        return [optimizer for optimizer, _ in self.scalers]

    def uses(self, kind: str, optimizer: str = "") -> bool:
        """Whether the body has operations of a kind, of one optimizer or of any."""
        return any(op[0].startswith(kind) and op[-1].startswith(optimizer) for op in self.body)

    def leaves(self) -> bool:
        return self.uses("give up")


def setup(program: Program) -> str:
    lines = ["import torch", "from torch import nn", "from faults import *", ""]
    for optimizer, _ in program.scalers:
        letter = optimizer[-1]
        lines += [
            f"model_{letter} = nn.Linear(2, 1, bias=False).double()",
            f"opt_{letter} = torch.optim.SGD(model_{letter}.parameters(), lr=0.25, momentum=0.5)",
        ]
        if program.uses("schedule", optimizer):
            schedule = f"torch.optim.lr_scheduler.LambdaLR(opt_{letter}, lambda n: 1.0)"
            lines.append(f"schedule_{letter} = {schedule}")
        if program.uses("average", optimizer):
            average = f"torch.optim.swa_utils.AveragedModel(model_{letter})"
            lines.append(f"average_{letter} = {average}")
    enabled = ", enabled=USE_AMP" if program.flag else ""
    for scaler in dict.fromkeys(s for _, s in program.scalers):
        arguments = f"init_scale=INIT_SCALE, growth_interval=GROWTH_INTERVAL{enabled}"
        lines.append(f'{scaler} = torch.amp.GradScaler("cpu", {arguments})')
    norm = ["norm = torch.zeros(())"] if program.leaves() else []
    return "\n".join([*lines, *norm, "ran = True", "start(globals())", ""])


def text_of(op: Op, owner: str = "", leave: str = "continue") -> str:
    """Source of one operation.

    Args:
        op: The operation.
        owner: As ``"self."``, goes before every object's name.
        leave: How the round of the loop is left.
    """
    kind, *who = op
    if kind.endswith("backward"):
        return _backward_text(op, owner)
    letter = who[-1][-1] if who else "a"
    text = TEXT[kind].format(*who, letter=letter, models=f"model_{letter}")
    for name in OWNED:
        text = _owned(text, name, owner)
    return text.replace("LEAVE", leave)


def _owned(text: str, name: str, owner: str) -> str:
    return re.sub(rf"(?<![\w.]){name}", owner + name, text) if owner else text


def _backward_text(op: Op, owner: str) -> str:
    kind, optimizer, slot, scaler = op
    forward = f"loss = loss_fn({owner}model_{optimizer[-1]}(batch[{slot}][0]), batch[{slot}][1])"
    lines = ['with torch.autocast("cpu", dtype=torch.float16):', f"    {forward}"]
    call = f"{owner}{scaler}.scale(loss).backward()" if scaler else "loss.backward()"
    text = "\n".join([*lines, call])
    return f"if number(batch) >= 1:\n{textwrap.indent(text, '    ')}" if "late" in kind else text


def flat(program: Program) -> str:
    body = "\n".join(text_of(op) for op in program.body)
    return setup(program) + "for batch in batches:\n" + textwrap.indent(body, "    ") + "\n"


def operations_by_line(program: Program) -> dict[int, int]:
    """Line of the flat text to the operation that stands there."""
    line = flat(program).splitlines().index("for batch in batches:") + 2
    lines: dict[int, int] = {}
    for i, op in enumerate(program.body):
        for _ in text_of(op).splitlines():
            lines[line] = i
            line += 1
    return lines


def with_helpers(program: Program) -> str:
    """The body in two functions, the second of which takes its objects as arguments."""
    half = len(program.body) // 2
    first, second = (
        "\n".join(text_of(op, leave="return True") for op in ops)
        for ops in (program.body[:half], program.body[half:])
    )
    names = [n for o, s in program.scalers for n in (f"model_{o[-1]}", o, s)]
    arguments = ", ".join(dict.fromkeys(["batch", *names]))
    outer = "    global before, ran, norm\n"
    collect = "    if collect(batch):\n        continue\n"
    return (
        setup(program)
        + f"def collect(batch):\n{outer}{textwrap.indent(first or 'pass', '    ')}\n\n\n"
        + f"def apply({arguments}):\n{outer}{textwrap.indent(second or 'pass', '    ')}\n\n\n"
        + "for batch in batches:\n"
        + (collect if program.leaves() else "    collect(batch)\n")
        + f"    apply({arguments})\n"
    )


def in_a_class(program: Program) -> str:
    """A trainer with attributes, and an FP32 branch beside the scaled one."""
    half = len(program.body) // 2
    names = [n for o, s in program.scalers for n in _names_of(program, o, s)]
    given = list(dict.fromkeys(names))
    stored = "\n".join(f"        self.{n} = {n}" for n in given)
    first, second = (
        textwrap.indent("\n".join(text_of(op, "self.", "return True") for op in ops), " " * 12)
        or " " * 12 + "pass"
        for ops in (program.body[:half], program.body[half:])
    )
    collect = "            self.collect(batch)\n"
    if program.leaves():
        collect = "            if self.collect(batch):\n                continue\n"
    return (
        setup(program)
        + f"class Trainer:\n    def __init__(self, use_amp, {', '.join(given)}):\n"
        + "        self.use_amp = use_amp\n        self.ran = True\n"
        + f"        self.norm = torch.zeros(())\n{stored}\n\n"
        + f"    def collect(self, batch):\n        if self.use_amp:\n{first}\n\n"
        + f"    def apply(self, batch):\n        if self.use_amp:\n{second}\n"
        + f"        else:\n{_plain(program)}\n\n"
        + f"    def train(self):\n        for batch in batches:\n{collect}"
        + "            self.apply(batch)\n\n\n"
        + f"Trainer(USE_AMP, {', '.join(given)}).train()\n"
    )


def _names_of(program: Program, optimizer: str, scaler: str) -> list[str]:
    letter = optimizer[-1]
    kept = [n for n in ("schedule", "average") if program.uses(n, optimizer)]
    return [f"model_{letter}", optimizer, *(f"{n}_{letter}" for n in kept), scaler]


def _plain(program: Program) -> str:
    steps = (
        f"self.{o}.zero_grad()\n{text_of(('backward', o, '0', ''), 'self.')}\nself.{o}.step()"
        for o in program.optimizers()
    )
    return textwrap.indent("\n".join(steps), " " * 12)


FORMS = {"flat": flat, "helpers": with_helpers, "class": in_a_class}
