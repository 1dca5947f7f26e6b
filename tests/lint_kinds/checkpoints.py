"""Missed kinds: scalers made after the load, and programs that start without a word of AMP."""

from __future__ import annotations

_TOP = "import os\n\nimport torch\nfrom torch import nn\n"
_STEP = """\
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
_SAVE = """\
    parts = {"model": model, "optimizer": optimizer, "scaler": scaler}
    torch.save({name: part.state_dict() for name, part in parts.items()}, path)
"""
_LOAD = """\
    if os.path.exists(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        if scaler is not None:
            scaler.load_state_dict(state["scaler"])
"""
_MADE = '    scaler = torch.amp.GradScaler("cuda")  # <- HS118\n'
_HEAD = _TOP + "\n\ndef train(model, loader, optimizer, path):\n"
_LOOP = "    for x, y in loader:\n" + _STEP
_CLASS = (
    _TOP
    + """

class Trainer:
    def __init__(self, model, optimizer, path):
        self.model, self.optimizer, self.path = model, optimizer, path
        self.scaler = FIRST
        self.load()

    def load(self):
        if not os.path.exists(self.path):
            return
        state = torch.load(self.path)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])

    def save(self):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**state, "scaler": self.scaler.state_dict()}, self.path)

    def fit(self, loader):
LATER        for x, y in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(self.model(x), y)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.save()
"""
)
_NEW = 'torch.amp.GradScaler("cuda")'
_RESUME = (
    _TOP
    + """

def resume(path, model, optimizer, scaler=None):
    if os.path.exists(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        if scaler is not None:
            scaler.load_state_dict(state["scaler"])


def train(model, loader, optimizer, path):
"""
)

# Projects: an engine with the mixed precision, and a main file without a word of it.
_ENGINE = """\
# file: engine.py
import torch


def train_one_epoch(model, criterion, loader, optimizer, args):
    scaler = torch.amp.GradScaler("cuda", enabled=args.amp)  # <- HS111
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16, enabled=args.amp):
            loss = criterion(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
_MAIN = """\
# file: main.py
import torch
from engine import train_one_epoch


def main(args, loader, build, criterion):
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for _ in range(args.epochs):
        train_one_epoch(model, criterion, loader, optimizer, args)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, "last.pt")  # <- HS117
"""
_TRAINER = """\
# file: trainer.py
import torch


class Fitter:
    def __init__(self, model, optimizer, criterion, args):
        self.model, self.optimizer, self.criterion = model, optimizer, criterion
        self.args = args

    def epoch(self, loader):
        scaler = torch.amp.GradScaler("cuda", enabled=self.args.amp)  # <- HS111
        for x, y in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16, enabled=self.args.amp):
                loss = self.criterion(self.model(x), y)
            scaler.scale(loss).backward()
            scaler.step(self.optimizer)
            scaler.update()
"""
_CLIPPED = """\
# file: steps.py
import torch
from torch import nn

scaler = torch.amp.GradScaler("cuda")


def move(loss, model, optimizer):
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)  # <- HS101
    scaler.step(optimizer)
    scaler.update()
# file: main.py
import torch
from steps import move


def main(args, loader, build, criterion):
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for x, y in loader:
        optimizer.zero_grad()
        move(criterion(model(x), y), model, optimizer)
"""

KINDS: dict[str, dict[str, str]] = {
    "scaler made after the load": {
        "attribute that is None": _CLASS.replace("FIRST", "None").replace(
            "LATER", f"        self.scaler = {_NEW}  # <- HS118\n"
        ),
        "made anew": _CLASS.replace("FIRST", _NEW).replace(
            "LATER", f"        self.scaler = {_NEW}  # <- HS118\n"
        ),
        "name that is None": _HEAD + "    scaler = None\n" + _LOAD + _MADE + _LOOP + _SAVE,
        "helper that gets none": _RESUME
        + "    resume(path, model, optimizer)\n"
        + _MADE
        + _LOOP
        + _SAVE,
        "helper that gets None": _RESUME + "    scaler = None\n"
        "    resume(path, model, optimizer, scaler)\n" + _MADE + _LOOP + _SAVE,
        "made only if there is none, behind the load": _HEAD
        + "    scaler = None\n"
        + _LOAD
        + "    if scaler is None:\n    "
        + _MADE
        + _LOOP
        + _SAVE,
        "made before": _CLASS.replace("FIRST", _NEW).replace("LATER", ""),
        "kept and loaded later": _HEAD
        + _LOAD.replace(
            '        if scaler is not None:\n            scaler.load_state_dict(state["scaler"])\n',
            "",
        ).replace("    if os", "    state = None\n    if os")
        + _MADE.replace("  # <- HS118", "")
        + '    if state is not None:\n        scaler.load_state_dict(state["scaler"])\n'
        + _LOOP
        + _SAVE,
        "helper that gets it": _RESUME
        + _MADE.replace("  # <- HS118", "")
        + "    resume(path, model, optimizer, scaler)\n"
        + _LOOP
        + _SAVE,
    },
    "main without a word of AMP": {
        "function": _ENGINE + _MAIN,
        "module": _ENGINE
        + _MAIN.replace("from engine import train_one_epoch", "import engine").replace(
            " train_one_epoch(", " engine.train_one_epoch("
        ),
        "another name": _ENGINE
        + _MAIN.replace("import train_one_epoch", "import train_one_epoch as fit").replace(
            " train_one_epoch(", " fit("
        ),
        "class": _TRAINER
        + _MAIN.replace("from engine import train_one_epoch", "from trainer import Fitter")
        .replace("    for _", "    fitter = Fitter(model, optimizer, criterion, args)\n    for _")
        .replace(
            "train_one_epoch(model, criterion, loader, optimizer, args)", "fitter.epoch(loader)"
        ),
        "script": _ENGINE
        + """\
# file: main.py
import torch
from engine import train_one_epoch
from project import args, build, criterion, loader

model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
for _ in range(2):
    train_one_epoch(model, criterion, loader, optimizer, args)
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")  # <- HS117
""",
        "clip in the other file": _CLIPPED,
        "weights alone, one epoch": _ENGINE.replace("  # <- HS111", "")
        + _MAIN.replace("    for _ in range(args.epochs):\n        train", "    train").replace(
            '        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}\n'
            '        torch.save(state, "last.pt")  # <- HS117\n',
            '    torch.save(model.state_dict(), "last.pt")\n',
        ),
        "scaler of the main file's engine kept": _TRAINER.replace(
            "        self.args = args\n",
            "        self.args = args\n"
            '        self.scaler = torch.amp.GradScaler("cuda", enabled=args.amp)\n',
        )
        .replace(
            '        scaler = torch.amp.GradScaler("cuda", enabled=self.args.amp)  # <- HS111\n', ""
        )
        .replace(" scaler.", " self.scaler.")
        + """
    def state_dict(self):
        parts = {"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler}
        return {name: part.state_dict() for name, part in parts.items()}
"""
        + _MAIN.replace("from engine import train_one_epoch", "from trainer import Fitter")
        .replace("    for _", "    fitter = Fitter(model, optimizer, criterion, args)\n    for _")
        .replace(
            "train_one_epoch(model, criterion, loader, optimizer, args)", "fitter.epoch(loader)"
        )
        .replace(
            '        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}\n'
            '        torch.save(state, "last.pt")  # <- HS117\n',
            '        torch.save(fitter.state_dict(), "last.pt")\n',
        ),
    },
}
