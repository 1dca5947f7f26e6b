"""HS205: the loss of probabilities in a module's forward, called under autocast elsewhere."""

from __future__ import annotations

import pytest

from halfstep.check.linter import check_text
from halfstep.rules import registry

RULES = registry.select(["HS205"])
HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(8, 1)
        self.measure = nn.BCELoss()

    def forward(self, x, y):
        BODY


class Other(nn.Module):
    def forward(self, x, y):
        return x


"""
PLAIN = "return self.measure(self.line(x).sigmoid(), y)"
FUNCTION = "return F.binary_cross_entropy(self.line(x).sigmoid(), y)"
ISLAND = """\
with torch.autocast("cuda", enabled=False):
            return self.measure(self.line(x).float().sigmoid(), y)
"""
CALLS = {
    "a variable": 'net = Net().cuda()\nwith torch.autocast("cuda"):\n    loss = net(x, y)\n',
    "wrapped": "net = Net()\nnet = nn.parallel.DistributedDataParallel(net.to(0))\n"
    'with torch.autocast("cuda"):\n    loss = net(x, y)\n',
    "compiled twice": "net = torch.compile(Net())\nnet = torch.compile(net)\n"
    'with torch.autocast("cuda"):\n    loss = net(x, y)\n',
    "an attribute": """\
class Trainer:
    def __init__(self):
        self.net = Net().to("cuda").train()

    def step(self, x, y):
        with torch.autocast("cuda"):
            return self.net(x, y)
""",
}
SILENT = {
    "outside of autocast": HEAD.replace("BODY", PLAIN)
    + 'net = Net()\nwith torch.autocast("cuda"):\n    z = x * 2\nloss = net(x, y)\n',
    "another class": HEAD.replace("BODY", PLAIN)
    + 'net = Other()\nwith torch.autocast("cuda"):\n    z = net(x, y)\nloss = Net()(x, y)\n',
    "one of two classes": HEAD.replace("BODY", PLAIN)
    + 'net = Net()\nnet = Other()\nwith torch.autocast("cuda"):\n    z = net(x, y)\n',
    "an island": HEAD.replace("BODY", ISLAND) + CALLS["a variable"],
    "a CPU": HEAD.replace("BODY", PLAIN) + CALLS["a variable"].replace('"cuda"', '"cpu"'),
}


@pytest.mark.parametrize("body", [PLAIN, FUNCTION])
@pytest.mark.parametrize("name", CALLS)
def test_loss_in_a_forward_under_its_callers_autocast_is_found(name: str, body: str) -> None:
    found = check_text("train.py", HEAD.replace("BODY", body) + CALLS[name], RULES)
    assert [(f.code, f.line) for f in found] == [("HS205", 13)]


@pytest.mark.parametrize("name", SILENT)
def test_loss_in_a_forward_without_autocast_gives_no_finding(name: str) -> None:
    assert check_text("train.py", SILENT[name], RULES) == []
