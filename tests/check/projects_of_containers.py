"""Projects as in `projects`, whose objects are in lists, dicts, classes and partial functions."""

from __future__ import annotations

from projects import BACKWARD, HEAD, OBJECTS, STEP

CONTAINERS: dict[str, dict[str, str]] = {
    "optimizers in a list that is filled": {
        "main.py": HEAD
        + """\
scaler = torch.amp.GradScaler("cuda")
nets, optimizers = [build(), build()], []
for net in nets:
    optimizers.append(torch.optim.SGD(net.parameters(), lr=0.1))
for x, y in loader:
    for net in nets:
        scaler.scale(criterion(net(x), y)).backward()
    for net, opt in zip(nets, optimizers):
        scaler.unscale_(opt)  # +
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # <- HS101
    for opt in optimizers:
        scaler.step(opt)
        opt.zero_grad()
    scaler.update()
""",
    },
    "optimizers in a dict": {
        "main.py": HEAD
        + """\
nets = {"g": build(), "d": build()}
optimizers = {name: torch.optim.SGD(net.parameters(), lr=0.1) for name, net in nets.items()}
optimizers = {
    "g": torch.optim.SGD(nets["g"].parameters(), lr=0.1),
    "d": torch.optim.SGD(nets["d"].parameters(), lr=0.1),
}
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    for name in ("g", "d"):
        scaler.scale(criterion(nets[name](x), y)).backward()
    for name, opt in optimizers.items():
        scaler.step(opt)  # <- HS105
    scaler.update()  # +
    for opt in optimizers.values():
        opt.zero_grad()
""",
    },
    "loops in comprehensions": {
        "main.py": HEAD
        + """\
nets = [build(), build()]
optimizers = [torch.optim.SGD(nets[0].parameters()), torch.optim.SGD(nets[1].parameters())]
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    [scaler.scale(criterion(net(x), y)).backward() for net in nets]
    [scaler.unscale_(opt) for opt in optimizers]  # +
    [nn.utils.clip_grad_value_(net.parameters(), 0.1) for net in nets]  # <- HS101
    [scaler.step(opt) for opt in optimizers]
    scaler.update()
    [opt.zero_grad() for opt in optimizers]
""",
    },
    "a partial": {
        "main.py": HEAD
        + "from functools import partial\n"
        + OBJECTS
        + "clip = partial(nn.utils.clip_grad_norm_, max_norm=1.0)\n"
        + BACKWARD
        + "    scaler.unscale_(optimizer)  # +\n    clip(model.parameters())  # <- HS101\n"
        + STEP,
    },
    "a partial of a function of the project": {
        "main.py": HEAD
        + """\
import functools


def finish(amp, opt):
    amp.step(opt)  # <- HS105
    amp.update()  # +
    opt.zero_grad()


"""
        + OBJECTS
        + "close = functools.partial(finish, scaler, opt=optimizer)\n"
        + BACKWARD
        + "    close()\n",
    },
    "fields of a dataclass with factories": {
        "main.py": HEAD
        + """\
from dataclasses import dataclass, field


@dataclass
class Parts:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler = field(default_factory=torch.amp.GradScaler)


def train(parts):
    for x, y in loader:
        parts.scaler.scale(criterion(parts.model(x), y)).backward()
        parts.scaler.step(parts.optimizer)  # <- HS105
        parts.scaler.update()  # +
        parts.optimizer.zero_grad()


net = build()
train(Parts(net, torch.optim.SGD(net.parameters(), lr=0.1)))
""",
    },
    "a named tuple that is taken apart": {
        "main.py": HEAD
        + """\
from typing import NamedTuple


class Parts(NamedTuple):
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler


def make():
    net = build()
    return Parts(net, torch.optim.SGD(net.parameters()), torch.amp.GradScaler("cuda"))


model, optimizer, scaler = make()
"""
        + BACKWARD
        + "    scaler.unscale_(optimizer)  # +\n"
        + "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- HS101\n"
        + STEP,
    },
    "a namespace": {
        "main.py": HEAD
        + """\
from types import SimpleNamespace

state = SimpleNamespace(model=build(), scaler=torch.amp.GradScaler("cuda"))
state.optimizer = torch.optim.SGD(state.model.parameters(), lr=0.1)
for x, y in loader:
    state.scaler.scale(criterion(state.model(x), y)).backward()
    state.scaler.step(state.optimizer)  # <- HS105
    state.scaler.update()  # +
    state.optimizer.zero_grad()
""",
    },
    "properties": {
        "main.py": HEAD
        + """\
from functools import cached_property


class Trainer:
    def __init__(self):
        self._model = build()

    @property
    def model(self):
        return self._model

    @cached_property
    def scaler(self):
        return torch.amp.GradScaler("cuda")

    @cached_property
    def optimizer(self):
        return torch.optim.SGD(self.model.parameters(), lr=0.1)

    def fit(self):
        for x, y in loader:
            self.scaler.scale(criterion(self.model(x), y)).backward()
            self.scaler.unscale_(self.optimizer)  # +
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  # <- HS101
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()


Trainer().fit()
""",
    },
    "a module of the project with a loss of its own": {
        "net.py": """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(1))

    def loss(self, x, y):
        return ((self.body(x) * self.scale - y) ** 2).mean()
""",
        "main.py": HEAD
        + """\
from net import Net

model, critic = Net().to("cuda"), Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
second = torch.optim.SGD(critic.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    scaler.scale(model.loss(x, y)).backward()
    scaler.unscale_(optimizer)  # +
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- HS101
    scaler.step(optimizer)
    optimizer.zero_grad()
    scaler.scale(critic.loss(x, y)).backward()
    scaler.step(second)
    second.zero_grad()
    scaler.update()
""",
    },
}
