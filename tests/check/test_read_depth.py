"""How deep the reader sees: wrappers, helpers, containers and files of a project, both ways."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from halfstep.check.linter import check_paths
from halfstep.rules import registry

RULES = registry.select(["HS1"])
HEAD = """\
import torch
from torch import nn
from data import build, criterion, loader

"""
OBJECTS = """\
model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
"""
BACKWARD = """\
for x, y in loader:
    scaler.scale(criterion(model(x), y)).backward()
"""
STEP = """\
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""

# Each project is wrong where a line says so, and right once its lines marked "# +" are there, and
# those marked "# -" are not.
PROJECTS: dict[str, dict[str, str]] = {
    "a wrapper in the project forgets update": {
        "loss_scaler.py": """\
import torch
from torch.nn.utils import clip_grad_norm_


class NativeScaler:
    def __init__(self):
        self._scaler = torch.amp.GradScaler("cuda")

    def __call__(self, loss, optimizer, clip_grad=None, parameters=None, update_grad=True):
        self._scaler.scale(loss).backward()
        norm = None
        if update_grad:
            if clip_grad is not None:
                self._scaler.unscale_(optimizer)
                norm = clip_grad_norm_(parameters, clip_grad)
            self._scaler.step(optimizer)  # <- HS105
            self._scaler.update()  # +
        return norm

    def state_dict(self):
        return self._scaler.state_dict()
""",
        "main.py": HEAD
        + """\
from loss_scaler import NativeScaler

model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss_scaler = NativeScaler()
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y)
    loss_scaler(loss, optimizer, 1.0, model.parameters(), update_grad=(i + 1) % 4 == 0)
    if (i + 1) % 4 == 0:
        optimizer.zero_grad()
""",
    },
    "a wrapper split over calls": {
        "main.py": HEAD
        + """\
class Stepper:
    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.amp = torch.amp.GradScaler("cuda")

    def backward(self, loss):
        self.amp.scale(loss).backward()

    def clip(self, net, limit):
        self.amp.unscale_(self.optimizer)  # +
        nn.utils.clip_grad_norm_(net.parameters(), limit)  # <- HS101

    def step(self):
        self.amp.step(self.optimizer)
        self.amp.update()
        self.optimizer.zero_grad()


model = build()
stepper = Stepper(torch.optim.SGD(model.parameters(), lr=0.1))
for x, y in loader:
    stepper.backward(criterion(model(x), y))
    stepper.clip(model, 1.0)
    stepper.step()
""",
    },
    "a helper in a file without the word": {
        "tools/clipping.py": """\
from torch import nn


def limit(net, maximum):
    nn.utils.clip_grad_norm_(net.parameters(), maximum)  # <- HS101
""",
        "main.py": HEAD
        + "from tools.clipping import limit\n"
        + OBJECTS
        + BACKWARD
        + "    scaler.unscale_(optimizer)  # +\n    limit(model, 1.0)\n"
        + STEP,
    },
    "a helper behind a helper": {
        "tools/__init__.py": "from .inner import finish\n",
        "tools/inner.py": """\
from .last import apply


def finish(opt, amp):
    apply(opt, amp)
""",
        "tools/last.py": """\
def apply(opt, amp):
    amp.step(opt)  # <- HS105
    amp.update()  # +
    opt.zero_grad()
""",
        "main.py": HEAD
        + "import tools\n"
        + OBJECTS
        + BACKWARD
        + "    tools.finish(optimizer, scaler)\n",
    },
    "objects at the top of an imported file": {
        "state.py": HEAD + OBJECTS,
        "main.py": HEAD
        + "from state import model, optimizer, scaler\n"
        + BACKWARD
        + "    scaler.unscale_(optimizer)  # +\n"
        + "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- HS101\n"
        + STEP,
    },
    "objects of an imported file by its name": {
        "state.py": HEAD + OBJECTS,
        "main.py": HEAD
        + """\
import state

for x, y in loader:
    state.scaler.scale(criterion(state.model(x), y)).backward()
    state.scaler.step(state.optimizer)  # <- HS105
    state.scaler.update()  # +
    state.optimizer.zero_grad()
""",
    },
    "everything imported with a star": {
        "state.py": HEAD + OBJECTS,
        "main.py": HEAD
        + "from state import *\n"
        + BACKWARD
        + "    optimizer.step()  # - <- HS107\n    scaler.step(optimizer)  # +\n"
        + "    scaler.update()\n    optimizer.zero_grad()\n",
    },
    "a handler after a backward that ran out of memory": {
        "main.py": HEAD
        + OBJECTS
        + """\
for x, y in loader:
    try:
        optimizer.zero_grad()
        scaler.scale(criterion(model(x), y)).backward()
    except torch.OutOfMemoryError:
        scaler.update()  # - <- HS104
        continue
    scaler.step(optimizer)
    scaler.update()
""",
    },
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


def written(text: str, wrong: bool) -> str:
    marker = "# +" if wrong else "# -"
    kept = [line for line in text.splitlines() if marker not in line]
    return "\n".join(kept) + "\n"


def findings(folder: Path, files: dict[str, str]) -> set[tuple[str, str, int]]:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    found = check_paths(["main.py"], RULES).findings
    return {(f.path, f.code, f.line) for f in found if f.severity != "note"}


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", PROJECTS)
def test_mistake_of_a_project_is_found_at_its_line(tmp_path: Path, name: str) -> None:
    files = {path: written(text, wrong=True) for path, text in PROJECTS[name].items()}
    expected = {
        (path, code, number)
        for path, text in files.items()
        for number, line in enumerate(text.splitlines(), 1)
        for code in re.findall(r"<- (HS\d+)$", line)
    }
    assert expected
    assert findings(tmp_path, files) == expected


@pytest.mark.parametrize("name", PROJECTS)
def test_project_without_the_mistake_gives_no_finding(tmp_path: Path, name: str) -> None:
    files = {path: written(text, wrong=False) for path, text in PROJECTS[name].items()}
    assert findings(tmp_path, files) == set()
