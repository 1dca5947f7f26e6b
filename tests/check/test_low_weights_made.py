"""HS201 where a function makes the model, or a setting of the file decides."""

from __future__ import annotations

import pytest

from halfstep.check.linter import check_text
from halfstep.rules import registry

RULES = registry.select(["HS201"])
HEAD = "import torch\nfrom torch import nn\n\n"
REST = """\
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
for x in torch.randn(12, 5, 8).cuda():
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = (net(x) - x).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
BUILD = "def build():\n    body = nn.Linear(8, 8)\n"
FOUND = {
    "a constant": "half = True\nnet = nn.Linear(8, 8)\nif half:\n    net = net.half()  # <-\n",
    "returned": BUILD + "    return body.half()  # <-\n\n\nnet = build()\n",
    "returned and moved": BUILD
    + "    return body.half().cuda()  # <-\n\n\nnet = build().train()\n",
    "cast before": BUILD + "    body.half()  # <-\n    return body\n\n\nnet = build()\n",
}
SILENT = {
    "a setting": "from conf import half\nnet = nn.Linear(8, 8)\nif half:\n    net = net.half()\n",
    "a constant that is off": "half = False\nnet = nn.Linear(8, 8)\n"
    "if half:\n    net = net.half()\n",
    "the other branch": "half = True\nnet = nn.Linear(8, 8)\n"
    "if half:\n    pass\nelse:\n    net.half()\n",
    "back in FP32": BUILD + "    return body.half()\n\n\nnet = build()\nnet.float()\n",
    "another model": BUILD
    + "    return body.half()\n\n\nteacher = build()\nnet = nn.Linear(8, 8)\n",
    "one of two": "def build(low):\n    body = nn.Linear(8, 8)\n"
    "    if low:\n        return body.half()\n"
    "    return body\n\n\nnet = build(False)\n",
    "set from outside": "import sys\nhalf = True\nhalf = len(sys.argv) > 1\n"
    "net = nn.Linear(8, 8)\n"
    "if half:\n    net.half()\n",
}


@pytest.mark.parametrize("name", FOUND)
def test_half_model_that_is_surely_trained_is_found_at_the_cast(name: str) -> None:
    text = HEAD + FOUND[name] + REST
    line = next(i for i, part in enumerate(text.splitlines(), 1) if "# <-" in part)
    assert [(f.code, f.line) for f in check_text("train.py", text, RULES)] == [("HS201", line)]


@pytest.mark.parametrize("name", SILENT)
def test_model_that_may_be_in_full_precision_gives_no_finding(name: str) -> None:
    assert check_text("train.py", HEAD + SILENT[name] + REST, RULES) == []
