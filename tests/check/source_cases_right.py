"""The cases of `source_cases` done right, and what resembles them."""

from __future__ import annotations

from source_cases import HEAD, PLAIN, STEP

FINE = {
    "a schedule per epoch behind steps by a number of tokens": HEAD
    + """\
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
for epoch in range(9):
    seen = 0
    for x, y in loader:
        seen += y.numel()
        scaler.scale(loss_of(x, y)).backward()
        if seen >= 4096:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            seen = 0
    schedule.step()
""",
    "a schedule per epoch behind steps that a function decides": HEAD
    + """\
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
for epoch in range(9):
    for i, (x, y) in enumerate(loader):
        scaler.scale(loss_of(x, y)).backward()
        if build(i):
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    schedule.step()
""",
    "left with continue, closed by an update": HEAD
    + """\
for x, y in loader:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not torch.isfinite(norm):
        scaler.update()
        continue
    scaler.step(optimizer)
    scaler.update()
""",
    "clipped to look at, then dropped": HEAD
    + """\
optimizer.zero_grad()
for x, y in loader:
    scaler.scale(loss_of(x, y)).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    print(norm)
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
"""
    + STEP,
    "a plain loss whose gradients are cleared": HEAD
    + """\
for x, y in loader:
    loss_of(x, y).backward()
    saliency = [p.grad.abs().sum() for p in model.parameters()]
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
"""
    + STEP,
    "gradients that are never stepped on": HEAD
    + """\
for x, y in loader:
    scaler.scale(loss_of(x, y)).backward()
    print(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
""",
    "the scaler in a file of its own": HEAD
    + PLAIN
    + 'torch.save(optimizer.state_dict(), "o.pt")\ntorch.save(scaler.state_dict(), "s.pt")\n',
    "weights alone": HEAD + PLAIN + 'torch.save(model.state_dict(), "model.pt")\n',
    "the scaler added later, if there is one": HEAD
    + PLAIN
    + """\
    state = dict(model=model.state_dict(), optimizer=optimizer.state_dict())
    if scaler is not None:
        state["scaler"] = scaler.state_dict()
    torch.save(state, "last.pt")
""",
    "the scaler from a base class": """\
import torch


class Base:
    def state_dict(self):
        return {"model": self.model.state_dict(), "scaler": self.scaler.state_dict()}


class Trainer(Base):
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")

    def state_dict(self):
        return {**super().state_dict(), "optimizer": self.optimizer.state_dict()}

    def fit(self, loader):
        for x in loader:
            self.scaler.scale(self.model(x).mean()).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            torch.save(self.state_dict(), "last.pt")
""",
    "a decorated step": HEAD
    + """\
@torch.autocast("cuda", dtype=torch.bfloat16)
def step(x, y):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


for x, y in loader:
    step(x, y)
""",
    "a cache that is cleared by hand": HEAD
    + """\
with torch.autocast("cuda"):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        with torch.autocast("cuda", enabled=False):
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            torch.clear_autocast_cache()
""",
    "a scaler per fold, with all that belongs to it": HEAD
    + """\
for fold in range(5):
    model = build()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        scaler.scale(loss_of(x, y)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    "a scaler that is restored per epoch": HEAD
    + """\
state = scaler.state_dict()
for epoch in range(5):
    scaler = torch.amp.GradScaler("cuda")
    scaler.load_state_dict(state)
    for x, y in loader:
        scaler.scale(loss_of(x, y)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    state = scaler.state_dict()
""",
    "no_sync on all but the last micro-batch": HEAD
    + """\
from contextlib import nullcontext

model = nn.parallel.DistributedDataParallel(model)
for i, (x, y) in enumerate(loader):
    context = model.no_sync if (i + 1) % 4 != 0 else nullcontext
    with context():
        scaler.scale(loss_of(x, y)).backward()
    if (i + 1) % 4 == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    "no_sync below a number of micro-batches": HEAD
    + """\
from data import accumulate

model = nn.parallel.DistributedDataParallel(model)
while True:
    for i in range(1, accumulate + 1):
        x, y = next(loader)
        if i < accumulate:
            with model.no_sync():
                scaler.scale(loss_of(x, y)).backward()
        else:
            scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
    "an average over ranks while scaled": HEAD
    + """\
for x, y in loader:
    scaler.scale(loss_of(x, y)).backward()
    for p in model.parameters():
        torch.distributed.all_reduce(p.grad)
        p.grad.div_(torch.distributed.get_world_size())
"""
    + STEP,
    "a limit times the scale while scaled": HEAD
    + """\
for x, y in loader:
    scaler.scale(loss_of(x, y)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0 * scaler.get_scale())
"""
    + STEP,
    "gradients of one layer are dropped": HEAD
    + """\
for epoch in range(3):
    for x, y in loader:
        scaler.scale(loss_of(x, y)).backward()
        if epoch < 1:
            for name, p in model.named_parameters():
                if "last_layer" in name:
                    p.grad = None
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    "half precision in evaluation, of a copy": HEAD
    + "import copy\n"
    + PLAIN
    + """\
    with torch.no_grad():
        half = copy.deepcopy(model).half()
        for x, _ in valid_loader:
            half(x.half())
""",
    "half precision after the training": HEAD
    + PLAIN
    + "model.half()\ntorch.save(model.state_dict(), 'half.pt')\n",
    "inputs in half precision": HEAD + PLAIN.replace("loss_of(x, y)", "loss_of(x.half(), y)"),
    "a discriminator that is trained more often": HEAD
    + """\
critic = build()
second = torch.optim.SGD(critic.parameters(), lr=0.1)
for x, y in loader:
    for _ in range(5):
        second.zero_grad()
        scaler.scale(critic(x).mean()).backward()
        scaler.step(second)
        scaler.update()
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scaler.update()
""",
}
