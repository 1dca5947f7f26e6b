"""False kind: one question asked twice, in one round or over the rounds of a loop.

Every question has one answer in a program, whatever its form. Each stands in several shapes of a
training step, and beside four of them the program whose second question is the opposite of the
first, so that either answer is wrong.
"""

from __future__ import annotations

import re

# The question, and what has to stand above the function it is asked in.
QUESTIONS = {
    "call": "torch.cuda.is_available()",
    "call on a model": "next(model.parameters()).is_cuda",
    "attribute": "cfg.amp",
    "entry": 'cfg["amp"]',
    "entry that may lack": '"with_amp" in cfg',
    "get": 'cfg.get("with_amp", False)',
    "getattr": 'getattr(cfg, "with_amp", False)',
    "getattr compared": 'getattr(cfg, "mode", None) == "fp16"',
    "hasattr": 'hasattr(model, "amp")',
    "isinstance": 'isinstance(cfg.get("with_amp"), bool)',
    "method": 'cfg.mode.startswith("fp16")',
    "compared": 'cfg.mode == "fp16"',
    "among several": 'cfg.mode in ("fp16", "half")',
    "unequal": 'cfg.mode != "fp32"',
    "negation": 'not cfg.mode == "fp32"',
    "of a type": 'torch.device(device).type == "cuda"',
    "both of two": "cfg.amp and model is not None",
    "one of two": 'cfg.amp or cfg.mode == "fp16"',
    "number": "len(cfg.mode) == 4 and cfg.fp16",
    "truth of an entry": 'bool(cfg["fp16"])',
    "entry of an entry": 'cfg["train"]["amp"]',
    "method without arguments": "cfg.uses_amp()",
    "is True": "cfg.amp is True",
    "environment": 'os.environ.get("USE_AMP", "0") == "1"',
}

_FUNCTION = """\
import torch
from torch import nn


def train(model, loader, optimizer, cfg, device):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16, enabled=bool(ASK)):
            loss = nn.functional.mse_loss(model(x), y)
        if ASK:
            scaler.scale(loss).backward()
        else:
            loss.backward()  # <- HS108
        if AGAIN:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()  # <- HS107
"""
_CLASS = """\
import torch
from torch import nn


class Trainer:
    def __init__(self, model, optimizer, cfg, device):
        self.model, self.optimizer = model, optimizer
        self.cfg, self.device = cfg, device
        self.scaler = torch.amp.GradScaler("cuda")

    def backward(self, loss):
        if ASK:
            self.scaler.scale(loss).backward()
        else:
            loss.backward()  # <- HS108

    def move(self):
        if AGAIN:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()  # <- HS107
        self.optimizer.zero_grad()

    def fit(self, loader):
        for x, y in loader:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(self.model(x), y)
            self.backward(loss)
            self.move()
"""
_NOTEBOOK = """\
import torch
from torch import nn
from project import cfg, device, loader, model

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
i = 0
while i < len(loader):
    x, y = loader[i]
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    if ASK:
        scaler.scale(loss).backward()
    else:
        loss.backward()  # <- HS108
    if AGAIN:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()  # <- HS107
    i += 1
"""
_NESTED = """\
import torch
from torch import nn


def train(model, loader, optimizer, cfg, device):
    scaler = torch.amp.GradScaler("cuda")

    def backward(loss):
        if ASK:
            return scaler.scale(loss).backward()
        return loss.backward()  # <- HS108

    def move():
        if not (AGAIN):
            optimizer.step()  # <- HS107
            return
        scaler.step(optimizer)
        scaler.update()

    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        backward(loss)
        move()
        optimizer.zero_grad()
"""
_TERNARY = """\
import torch
from torch import nn


def train(model, loader, optimizer, cfg, device):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaled = scaler.scale(loss) if ASK else loss
        scaled.backward()  # <- HS108
        scaler.step(optimizer) if AGAIN else optimizer.step()  # <- HS107
        if AGAIN:
            scaler.update()
"""
_CONTINUE = """\
import torch
from torch import nn


def train(model, loader, optimizer, cfg, device):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        if ASK:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
        else:
            loss.backward()  # <- HS108
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if not (AGAIN):
            optimizer.step()
            optimizer.zero_grad()
            continue
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
_ROUNDS = """\
import torch
from torch import nn


def train(model, loader, optimizer, cfg, device):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y) / 2
        if ASK:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        if i % 2 == 0:
            continue
        try:
            if AGAIN:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
        finally:
            optimizer.zero_grad()
"""
_SHAPES = {
    "function": _FUNCTION,
    "class": _CLASS,
    "notebook": _NOTEBOOK,
    "nested": _NESTED,
    "ternary": _TERNARY,
    "continue": _CONTINUE,
    "accumulation": _ROUNDS,
}
# The shapes of which every question has a wrong twin.
_WITH_TWIN = ("function", "class", "notebook", "nested")
_OWN = re.compile(r'(?<![\w."])(model|cfg|device)\b(?!")')


def _program(shape: str, question: str, again: str) -> str:
    if shape == "class":
        question, again = (_OWN.sub(r"self.\1", text) for text in (question, again))
    text = _SHAPES[shape].replace("ASK", question).replace("AGAIN", again)
    return f"import os\n\n{text}" if "os.environ" in question else text


def _right(shape: str, question: str) -> str:
    return re.sub(r"  # <- HS\d+", "", _program(shape, question, question))


KINDS: dict[str, dict[str, str]] = {
    f"asked twice: {name}": {
        **{shape: _right(shape, question) for shape in _SHAPES},
        **{
            f"{shape}, then its opposite": _program(shape, question, f"not ({question})")
            for shape in _WITH_TWIN
        },
    }
    for name, question in QUESTIONS.items()
}
