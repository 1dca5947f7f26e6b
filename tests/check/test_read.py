"""What the reader can see: one mistake, written in many ways, is found at its line."""

from __future__ import annotations

import re

import pytest

from halfstep.check.linter import check_text
from halfstep.rules import registry

RULES = registry.select(["HS1"])
HEAD = """\
import torch
from torch import nn
from data import build, loader
"""
STEP = """\
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- HS101
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
LOOP = "for x, y in loader:\n    loss = criterion(model(x), y)\n"

WRONG = {
    "aliases of modules": """
import torch as t
import torch.nn.utils as tools
from torch.cuda import amp
from data import build, loader
model, criterion = build()
opt = t.optim.SGD(model.parameters(), lr=0.1)
s = amp.GradScaler()
for x, y in loader:
    s.scale(criterion(model(x), y)).backward()
    tools.clip_grad_norm_(model.parameters(), 1.0)  # <- HS101
    s.step(opt)
    s.update()
    opt.zero_grad()
""",
    "objects from a function's tuple": HEAD
    + """
def make():
    model = build()
    return model, torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cuda")

criterion = nn.MSELoss()
model, optimizer, scaler = make()
"""
    + LOOP
    + STEP,
    "objects in a dataclass": HEAD
    + """
from dataclasses import dataclass

@dataclass
class State:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler

def train(state, criterion):
    for x, y in loader:
        state.scaler.scale(criterion(state.model(x), y)).backward()
        nn.utils.clip_grad_norm_(state.model.parameters(), 1.0)  # <- HS101
        state.scaler.step(state.optimizer)
        state.scaler.update()
        state.optimizer.zero_grad()

model = build()
optimizer = torch.optim.AdamW(model.parameters())
train(State(model, optimizer, torch.amp.GradScaler("cuda")), nn.MSELoss())
""",
    "parameters by their use": HEAD
    + """
def train(net, opt, amp_scaler, criterion):
    for x, y in loader:
        amp_scaler.scale(criterion(net(x), y)).backward()
        nn.utils.clip_grad_value_(net.parameters(), 1.0)  # <- HS101
        amp_scaler.step(opt)
        amp_scaler.update()
        opt.zero_grad()
""",
    "a method per stage": HEAD
    + """
class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")

    def backward(self, loss):
        self.scaler.scale(loss).backward()

    def clip(self):
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  # <- HS101

    def apply(self):
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def fit(self):
        for x, y in loader:
            self.backward(self.model(x, y).loss)
            self.clip()
            self.apply()
""",
    "a base class of the project": HEAD
    + """
class Base:
    def __init__(self, model):
        self.model = model
        self.scaler = torch.amp.GradScaler("cuda")
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def finish(self):
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  # <- HS101
        self.scaler.step(self.optimizer)
        self.scaler.update()

class Trainer(Base):
    def __init__(self, model, rate):
        super().__init__(model)
        self.rate = rate

    def step(self, x):
        self.optimizer.zero_grad()
        self.scaler.scale(self.model(x).mean()).backward()
        self.finish()
""",
    "clipping by hand": HEAD
    + "model = build()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    + 'scaler = torch.amp.GradScaler("cuda")\n'
    + """
for x, y in loader:
    scaler.scale(model(x).mean()).backward()
    for p in model.parameters():
        if p.grad is not None:
            p.grad.data.clamp_(-1, 1)  # <- HS101
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
    "a scaled loss with a name": HEAD
    + """
model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    scaled = scaler.scale(model(x).mean()) + scaler.scale(model(y).mean())
    scaled.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- HS101
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
    "a condition that counts": HEAD
    + """
model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for i, x in enumerate(loader):
    scaler.scale(model(x).mean() / 8).backward()
    scaler.unscale_(optimizer)  # <- HS102
    if (i + 1) % 8 == 0:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    "an update in every round, a step in some": HEAD
    + """
model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
step = 0
while True:
    x = next(loader)
    scaler.scale(model(x).mean()).backward()
    step += 1
    if step % 4 == 0:
        scaler.step(optimizer)
        optimizer.zero_grad()
    scaler.update()  # <- HS104
""",
    "one condition, asked twice": HEAD
    + """
from data import use_amp
model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
for x in loader:
    if use_amp:
        scaler.scale(model(x).mean()).backward()
    else:
        model(x).mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- HS101
    if not use_amp:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad()
""",
    "the norm is looked at before it goes on": HEAD
    + """
model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x in loader:
    optimizer.zero_grad()
    scaler.scale(model(x).mean()).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not torch.isfinite(norm):
        continue  # <- HS112
    scaler.step(optimizer)
    scaler.update()
""",
    "a step inside try": HEAD
    + """
model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x in loader:
    try:
        scaler.scale(model(x).mean()).backward()
    except RuntimeError:
        optimizer.zero_grad()
        continue
    optimizer.step()  # <- HS107
    scaler.update()
    optimizer.zero_grad()
""",
    "in main, behind the guard": HEAD
    + """
def main():
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(10):
        run(model, optimizer, scaler)

def run(model, optimizer, scaler):
    for x in loader:
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # <- HS105
        optimizer.zero_grad()

if __name__ == "__main__":
    main()
""",
}


def expected(text: str) -> list[tuple[str, int]]:
    lines = enumerate(text.splitlines(), 1)
    found = ((re.search(r"# <- (HS\d+)$", line), number) for number, line in lines)
    return [(mark.group(1), number) for mark, number in found if mark]


@pytest.mark.parametrize("way", WRONG)
def test_mistake_is_found_at_its_line_however_it_is_written(way: str) -> None:
    text = WRONG[way]
    found = [(f.code, f.line) for f in check_text("train.py", text, RULES) if f.severity != "note"]
    assert found == expected(text)


@pytest.mark.parametrize("form", ["accelerator.backward(loss)", "self.manual_backward(loss)"])
def test_framework_that_does_the_backward_silences_its_path(form: str) -> None:
    text = LOOP + f"    {form}\n" + STEP.replace("scaler.scale(loss).backward()\n", "pass\n")
    assert check_text("train.py", HEAD + text, RULES) == []
