"""Projects of several files with one mistake each, which spreads over functions and files.

A line that must be found says so. Lines marked ``# +`` are there in the right variant alone, lines
marked ``# -`` in the wrong one.
"""

from __future__ import annotations

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
}
