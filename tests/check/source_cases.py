"""Mistakes from public trackers as source; a line that must be found says so."""

from __future__ import annotations

HEAD = """\
import torch
from torch import nn
from data import build, loader, valid_loader

model = build()
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")


def loss_of(x, y):
    with torch.autocast("cuda", dtype=torch.float16):
        return nn.functional.cross_entropy(model(x), y)


"""
STEP = "    scaler.step(optimizer)\n    scaler.update()\n    optimizer.zero_grad()\n"
PLAIN = "for x, y in loader:\n    scaler.scale(loss_of(x, y)).backward()\n" + STEP

CASES = {
    "a schedule at the top of each epoch": HEAD
    + """\
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
for epoch in range(9):
    schedule.step()  # <- HS110
    for x, y in loader:
        scaler.scale(loss_of(x, y)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    "cast to half between the optimizer and the loop": HEAD
    + """\
model.half()  # <- HS201
"""
    + PLAIN,
    "an update ahead of the step, one finding": HEAD
    + """\
for x, y in loader:
    scaler.scale(loss_of(x, y)).backward()
    scaler.update()  # <- HS104
    scaler.step(optimizer)
    optimizer.zero_grad()
""",
    "left with continue, cleared at the top": HEAD
    + """\
for x, y in loader:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not torch.isfinite(norm):
        continue  # <- HS112
    scaler.step(optimizer)
    scaler.update()
""",
    "a joint clip after one of each": HEAD
    + """\
head = nn.Linear(8, 2)
second = torch.optim.SGD(head.parameters(), lr=0.1)
for x, y in loader:
    scaler.scale(loss_of(head(x), y)).backward()
    scaler.unscale_(optimizer)
    scaler.unscale_(second)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    nn.utils.clip_grad_norm_(head.parameters(), 1.0)
    nn.utils.clip_grad_norm_([*model.parameters(), *head.parameters()], 1.0)  # <- HS120
    scaler.step(optimizer)
    scaler.step(second)
    scaler.update()
    optimizer.zero_grad()
    second.zero_grad()
""",
    "a step left over ahead of unscale and clip": HEAD
    + """\
for x, y in loader:
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)  # <- HS107
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""
    + STEP,
    "one of two windows cleared too early": HEAD
    + """\
for x, y in loader:
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    optimizer.zero_grad()  # <- HS126
    scaler.step(optimizer)
    scaler.update()
    scaler.scale(loss_of(x, y)).backward()
"""
    + STEP,
    "a plain backward and step on top of a scaled window": HEAD
    + """\
for x, y in loader:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scaler.update()
    loss_of(x, y).backward()  # <- HS127
    optimizer.step()
""",
    "unscale and update after each micro-batch": HEAD
    + """\
for i, (x, y) in enumerate(loader):
    scaler.scale(loss_of(x, y) / 2).backward()
    scaler.unscale_(optimizer)
    scaler.update()  # <- HS104
    if i % 2 == 1:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    "the scale is set by hand inside the window": HEAD
    + """\
for x, y in loader:
    scaler.scale(loss_of(x[:4], y[:4]) / 2).backward()
    scaler.update(256.0)  # <- HS104
    scaler.scale(loss_of(x[4:], y[4:]) / 2).backward()
"""
    + STEP,
    "autocast around the loop, BF16": """\
import torch
from data import build, loader

model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.autocast("cuda", dtype=torch.bfloat16):  # <- HS115
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    "autocast around the call of an epoch": HEAD
    + """\
def epoch(net, criterion):
    for x, y in loader:
        loss = criterion(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


with torch.amp.autocast("cuda"):  # <- HS115
    epoch(model, nn.CrossEntropyLoss())
""",
    "the scaler is not in the checkpoint": HEAD
    + PLAIN
    + """\
    torch.save({"model": model.state_dict(), "opt": optimizer.state_dict()}, "c.pt")  # <- HS117
""",
    "each state in its own file, one forgotten": HEAD
    + PLAIN
    + """\
torch.save(model.state_dict(), "model.pt")
torch.save(optimizer.state_dict(), "optimizer.pt")  # <- HS117
""",
    "a dataclass as a checkpoint": HEAD
    + """\
from dataclasses import asdict, dataclass

@dataclass
class Snapshot:
    model: dict
    optimizer: dict
    epoch: int

"""
    + PLAIN
    + """\
    snapshot = Snapshot(model.state_dict(), optimizer=optimizer.state_dict(), epoch=1)
    torch.save(asdict(snapshot), "snapshot.pt")  # <- HS117
""",
    "a base class saves, and no class the scaler": """\
import torch


class Base:
    def state_dict(self):
        return {"model": self.model.state_dict()}


class Trainer(Base):
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")

    def state_dict(self):
        state = super().state_dict()
        state["optimizer"] = self.optimizer.state_dict()
        return state

    def fit(self, loader):
        for x in loader:
            self.scaler.scale(self.model(x).mean()).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            torch.save(self.state_dict(), "last.pt")  # <- HS117
""",
    "one clip over two optimizers, one unscaled": HEAD
    + """\
head = build()
second = torch.optim.SGD(head.parameters(), lr=0.1)
for x, y in loader:
    with torch.autocast("cuda"):
        loss = nn.functional.cross_entropy(head(model(x)), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_([*model.parameters(), *head.parameters()], 1.0)  # <- HS120
    scaler.step(optimizer)
    scaler.step(second)
    scaler.update()
    optimizer.zero_grad()
    second.zero_grad()
""",
    "one scaler updated after each optimizer": HEAD
    + """\
head = build()
second = torch.optim.SGD(head.parameters(), lr=0.1)
for x, y in loader:
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scaler.update()  # <- HS106
    optimizer.zero_grad()
    scaler.scale(head(x).mean()).backward()
    scaler.step(second)
    scaler.update()
    second.zero_grad()
""",
    "a step before the clip, and another": HEAD
    + """\
for x, y in loader:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- HS103
    optimizer.step()  # <- HS107
    scaler.update()
""",
    "a reference with two steps, and a checkpoint without the scaler": """\
import torch
from torch import nn
from project import build, criterion, loader, save_on_master


def train_one_epoch(model, optimizer, args, scaler=None):
    for image, target in loader:
        output = model(image)
        with torch.cuda.amp.autocast(enabled=args.amp):
            loss = criterion(output, target)
        optimizer.zero_grad()
        if args.amp:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
        if args.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)  # <- HS103
        optimizer.step()  # <- HS107


def main(args):
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.cuda.amp.GradScaler() if args.amp else None
    for epoch in range(args.epochs):
        train_one_epoch(model, optimizer, args, scaler)
        checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        save_on_master(checkpoint, "checkpoint.pth")  # <- HS117
""",
    "a new scaler per epoch": HEAD
    + """\
def epoch():
    scaler = torch.amp.GradScaler("cuda")  # <- HS111
    for x, y in loader:
        scaler.scale(loss_of(x, y)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


for _ in range(10):
    epoch()
""",
    "the scale compared for equality": HEAD
    + """\
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 30)
for x, y in loader:
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scale = scaler.get_scale()
    scaler.update()
    optimizer.zero_grad()
    if scale == scaler.get_scale():  # <- HS113
        schedule.step()
""",
    "the scale compared above a floor": HEAD.replace(
        'torch.amp.GradScaler("cuda")', "halfstep.GradScaler(min_scale=128.0)"
    ).replace("import torch\n", "import halfstep\nimport torch\n", 1)
    + """\
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 30)
for x, y in loader:
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scale = scaler.get_scale()
    scaler.update()
    optimizer.zero_grad()
    if scale <= scaler.get_scale():  # <- HS113
        schedule.step()
""",
    "a closure by name": HEAD
    + """\
for x, y in loader:
    def closure():
        optimizer.zero_grad()
        loss = loss_of(x, y)
        scaler.scale(loss).backward()
        return loss
    scaler.step(optimizer, closure=closure)  # <- HS116
    scaler.update()
""",
    "no_sync on the last micro-batch": HEAD
    + """\
from contextlib import nullcontext

model = nn.parallel.DistributedDataParallel(model)
for i, (x, y) in enumerate(loader):
    with model.no_sync() if i % 4 != 0 else nullcontext():  # <- HS122
        scaler.scale(loss_of(x, y)).backward()
    if (i + 1) % 4 == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    "NaN becomes zero while it is scaled": HEAD
    + """\
for x, y in loader:
    scaler.scale(loss_of(x, y)).backward()
    for p in model.parameters():
        p.grad[torch.isnan(p.grad)] = 0  # <- HS125
"""
    + STEP,
    "NaN becomes zero with out=": HEAD
    + """\
for x, y in loader:
    scaler.scale(loss_of(x, y)).backward()
    for p in model.parameters():
        if p.grad is not None:
            torch.nan_to_num(p.grad, nan=0, posinf=1e5, neginf=-1e5, out=p.grad)  # <- HS125
"""
    + STEP,
    "weight decay by hand while scaled": HEAD
    + """\
for x, y in loader:
    scaler.scale(loss_of(x, y)).backward()
    for p in model.parameters():
        p.grad.add_(p, alpha=1e-4)  # <- HS125
"""
    + STEP,
    "a limit times the scale": HEAD
    + """\
for x, y in loader:
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    limit = 1.0 * scaler.get_scale()
    nn.utils.clip_grad_norm_(model.parameters(), limit)  # <- HS128
"""
    + STEP,
    "a limit over the scale, gradients still scaled": HEAD
    + """\
for x, y in loader:
    scaler.scale(loss_of(x, y)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0 / scaler.get_scale())  # <- HS101
"""
    + STEP,
}
