"""Correct programs with loops that begin late, end early, take turns or count other things."""

HEAD = """\
import torch
from torch import nn
from data import args, loader, val_loader

model = nn.Linear(8, 8).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
"""
MICRO = """\
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
"""
STEP = """\
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
EPOCHS = "for epoch in range(90):\n    for i, x in enumerate(loader):\n"
END = "    schedule.step()\n"
OTHERS = """\
second, third = nn.Linear(8, 8).cuda(), nn.Linear(8, 8).cuda()
two, three = torch.optim.SGD(second.parameters()), torch.optim.SGD(third.parameters())
"""

LOOPS = {
    "first batches left out": HEAD
    + EPOCHS
    + "        if i < 200:\n            continue\n"
    + MICRO
    + STEP
    + END,
    "batches left out after a resume": HEAD
    + "step = 0\n"
    + EPOCHS
    + "        step += 1\n        if step <= args.done:\n            continue\n"
    + MICRO
    + STEP
    + END,
    "a limit of batches": HEAD
    + EPOCHS
    + "        if i > 500:\n            break\n"
    + MICRO
    + STEP
    + END,
    "a limit from outside": HEAD
    + EPOCHS
    + "        if i >= args.limit:\n            break\n"
    + MICRO
    + STEP
    + END,
    "another schedule at first": HEAD
    + "warm = torch.optim.lr_scheduler.LinearLR(optimizer)\n"
    + EPOCHS
    + MICRO
    + STEP
    + "    if epoch < 5:\n        warm.step()\n    else:\n        schedule.step()\n",
    "patience": HEAD
    + "bad, best = 0, 1e9\n"
    + EPOCHS
    + MICRO
    + STEP
    + END
    + "    if loss < best:\n        bad = 0\n    else:\n        bad += 1\n"
    + "        if bad >= 5:\n            break\n",
    "a window of one": HEAD
    + "size = 1\n"
    + EPOCHS
    + "        if i % size == 0:\n            optimizer.zero_grad()\n"
    + MICRO
    + "        if (i + 1) % size == 0 or i + 1 == len(loader):\n"
    + "            scaler.step(optimizer)\n            scaler.update()\n"
    + END,
    "two in turn": HEAD
    + OTHERS
    + """\
for i, x in enumerate(loader):
    if i % 2:
        net, opt = second, two
    else:
        net, opt = model, optimizer
    opt.zero_grad()
    with torch.autocast("cuda"):
        loss = net(x).square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
""",
    "three in turn": HEAD
    + OTHERS
    + """\
for i, x in enumerate(loader):
    for opt in (optimizer, two, three):
        opt.zero_grad()
    with torch.autocast("cuda"):
        loss = model(x).mean() + second(x).mean() + third(x).mean()
    scaler.scale(loss).backward()
    if i % 3 == 0:
        scaler.step(optimizer)
    elif i % 3 == 1:
        scaler.step(two)
    else:
        scaler.step(three)
    scaler.update()
""",
    "pieces of a batch": HEAD
    + """\
for x in loader:
    optimizer.zero_grad()
    parts = x.chunk(4)
    for k, part in enumerate(parts):
        with torch.autocast("cuda"):
            loss = model(part).mean() / len(parts)
        scaler.scale(loss).backward()
        if k < len(parts) - 1:
            continue
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
""",
    "eight micro-batches": HEAD
    + "for step in range(2000):\n    for k in range(8):\n"
    + "        if k == 0:\n            optimizer.zero_grad()\n        x = torch.randn(4, 8)\n"
    + MICRO
    + "        if k == 7:\n            scaler.step(optimizer)\n            scaler.update()\n",
    "micro-batches from outside": HEAD
    + "turn = iter(loader)\nfor step in range(args.steps):\n    for k in range(args.size):\n"
    + "        last = k == args.size - 1\n        x = next(turn)\n"
    + MICRO
    + "        if last:\n            scaler.unscale_(optimizer)\n"
    + "            nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    + "".join("    " + line for line in STEP.splitlines(keepends=True)),
    "slices of a tensor": HEAD
    + """\
data = torch.randn(100, 8)
for epoch in range(9):
    for start in range(0, len(data), 32):
        end = min(start + 32, len(data))
        x = data[start:end]
"""
    + MICRO
    + "        if end == len(data) or (start // 32 + 1) % 4 == 0:\n"
    + "".join("    " + line for line in STEP.splitlines(keepends=True))
    + END,
    "a search before": HEAD
    + "for i, x in enumerate(loader):\n    if x is not None:\n"
    + MICRO
    + STEP
    + "    if i == 10:\n        break\n"
    + EPOCHS
    + "        if i % 4 == 0:\n            optimizer.zero_grad()\n"
    + MICRO
    + "        if (i + 1) % 4 == 0 or i + 1 == len(loader):\n"
    + "            scaler.step(optimizer)\n            scaler.update()\n"
    + END,
    "a test in a function": HEAD
    + "def is_full(i, n, size=4):\n    return (i + 1) % size == 0 or i + 1 == n\n\n\n"
    + EPOCHS
    + "        if i % 4 == 0:\n            optimizer.zero_grad()\n"
    + MICRO
    + "        if is_full(i, len(loader)):\n"
    + "            scaler.step(optimizer)\n            scaler.update()\n"
    + END,
}
