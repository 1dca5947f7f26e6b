"""False kind: two stages in one script or notebook, each with models of its own."""

from __future__ import annotations

_TOP = """\
import torch
from torch import nn
from project import build, loader

coder, net = build().cuda(), build().cuda()
"""
_FIRST = """\
opt = torch.optim.SGD(coder.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    opt.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(coder(x), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
"""
_SECOND = """\
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net = net.cuda()
second = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        code = coder(x)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(net(x), y + 0 * code)
    second.scale(loss).backward()
    second.step(optimizer)
    second.update()
"""
_OTHERS = """\
from project import cfg


def outer(inputs, model, coder):
    return model(inputs)


"""

KINDS: dict[str, dict[str, str]] = {
    "two stages": {
        "one after the other": _TOP + _FIRST + _SECOND,
        "same names": _TOP
        + _FIRST
        + _SECOND.replace("second", "scaler").replace("optimizer", "opt"),
        "epochs": _TOP
        + _FIRST.replace("for x", "for x")
        .replace("for x, y in loader:", "for epoch in range(2):\n  for x, y in loader:")
        .replace("\n    ", "\n      ")
        .replace("      with", "    with")
        .replace("    with", "      with")
        + _SECOND,
        "made before both": _TOP
        + "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        + 'second = torch.amp.GradScaler("cuda")\n'
        + _FIRST
        + "\n".join(
            line
            for line in _SECOND.splitlines()
            if not line.startswith(("optimizer =", "second ="))
        )
        + "\n",
        "through an unknown call": _OTHERS
        + _TOP
        + _FIRST
        + _SECOND.replace("net(x)", "outer(inputs=x, model=net, coder=coder)"),
        "the first one frozen": _TOP
        + _FIRST
        + """\
coder.eval()
for p in coder.parameters():
    p.requires_grad_(False)
"""
        + _SECOND,
        "the second one fine-tunes": _TOP
        + _FIRST
        + _SECOND.replace("net.parameters()", "coder.parameters()").replace(
            "net = net.cuda()", "net = coder"
        ),
        "functions": _TOP
        + """

def fit(model):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    return model


fit(coder)
fit(net)
""",
        "in a list": _TOP
        + """\
for stage in (coder, net):
    opt = torch.optim.SGD(stage.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(stage(x), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
""",
        "one scaler": _TOP
        + _FIRST
        + "\n".join(
            line for line in _SECOND.splitlines() if not line.startswith("second =")
        ).replace("second", "scaler")
        + "\n",
        "FP32 first": _TOP
        + _FIRST.replace("scaler.scale(loss).backward()", "loss.backward()")
        .replace("    scaler.step(opt)\n    scaler.update()\n", "    opt.step()\n")
        .replace('scaler = torch.amp.GradScaler("cuda")\n', "")
        .replace('    with torch.autocast("cuda", dtype=torch.float16):\n        ', "    ")
        + _SECOND,
        "second one steps the first one's optimizer": _TOP
        + _FIRST
        + _SECOND.replace("second.step(optimizer)", "second.step(opt)  # <- HS107"),
        "second one with the first one's scaler": _TOP
        + _FIRST
        + _SECOND.replace("second.step(optimizer)", "optimizer.step()  # <- HS107"),
        "second one clipped too early": _TOP
        + _FIRST
        + _SECOND.replace(
            "    second.step",
            "    nn.utils.clip_grad_norm_(net.parameters(), 0.5)  # <- HS101\n    second.step",
        ),
    },
}
