"""Correct trainings of the kinds people publish. None may give a finding."""

HEAD = """\
import copy
import torch
import torch.nn.functional as F
from torch import nn
from project import args, build, loader, valid_loader

model = build(args)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
"""
STEP = (
    "    scaler.step(optimizer)\n    scaler.update()\n    optimizer.zero_grad(set_to_none=True)\n"
)
LOSS = '    with torch.autocast("cuda"):\n        loss = F.cross_entropy(model(x), y)\n'
PLAIN = f"for x, y in loader:\n{LOSS}    scaler.scale(loss).backward()\n{STEP}"

TRAININGS = {
    "gradients projected while scaled": HEAD
    + """
for x, tasks in loader:
    projected = []
    with torch.autocast("cuda"):
        losses = [F.mse_loss(model(x), y) for y in tasks]
    for loss in losses:
        optimizer.zero_grad()
        scaler.scale(loss).backward(retain_graph=True)
        projected.append([p.grad.clone() for p in model.parameters()])
    for p, *grads in zip(model.parameters(), *projected):
        p.grad = torch.stack(grads).mean(0)
"""
    + STEP,
    "noise on true gradients": HEAD
    + f"""
for x, y in loader:
{LOSS}
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    for p in model.parameters():
        p.grad.add_(torch.randn_like(p.grad), alpha=1e-3)
        p.grad.nan_to_num_()
"""
    + STEP,
    "weight decay by hand on true gradients": HEAD
    + f"""
for x, y in loader:
{LOSS}
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    for p in model.parameters():
        p.grad.add_(p, alpha=1e-4)
"""
    + STEP,
    "gradients divided by the number of micro-batches": HEAD
    + f"""
for i, (x, y) in enumerate(loader):
{LOSS}
    scaler.scale(loss).backward()
    if (i + 1) % 4:
        continue
    for p in model.parameters():
        if p.grad is not None:
            p.grad /= 4
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""
    + STEP,
    "folds, each with objects of its own": """\
import torch
import torch.nn.functional as F
from project import build, folds


def train_fold(loader, epochs=3):
    model = build()
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return model


for loader in folds():
    train_fold(loader)
""",
    "another optimizer for the second stage": HEAD
    + PLAIN
    + """
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
scaler = torch.amp.GradScaler("cuda")
"""
    + PLAIN,
    "resumed": HEAD
    + """
if args.resume:
    checkpoint = torch.load(args.resume)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    if "scaler" in checkpoint:
        scaler.load_state_dict(checkpoint["scaler"])
for epoch in range(args.epochs):
    for x, y in loader:
        with torch.autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    torch.save(
        {
            "epoch": epoch,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict() if scaler is not None else None,
        },
        "last.pt",
    )
""",
    "the best weights alone": HEAD
    + PLAIN
    + """\
    if loss.item() < args.best:
        torch.save({"state_dict": model.state_dict(), "epoch": 3}, "best.pt")
""",
    "a checkpoint by a helper": HEAD
    + """
def checkpoint(path, **objects):
    torch.save({name: thing.state_dict() for name, thing in objects.items()}, path)


"""
    + PLAIN
    + '    checkpoint("last.pt", model=model, optimizer=optimizer, scaler=scaler)\n',
    "a checkpoint in pieces": HEAD
    + """
def state_of(epoch):
    state = {"epoch": epoch}
    for name, thing in (("model", model), ("optimizer", optimizer), ("scaler", scaler)):
        state[name] = thing.state_dict()
    return state


"""
    + PLAIN
    + '    torch.save(state_of(1), "last.pt")\n',
    "a list of what is saved": HEAD
    + """
saved = dict(model=model, optimizer=optimizer)
saved["amp"] = scaler
"""
    + PLAIN
    + '    torch.save({k: v.state_dict() for k, v in saved.items()}, "last.pt")\n',
    "a wasserstein critic": """\
import torch
from project import build, loader

generator, critic = build(), build()
opt_g = torch.optim.RMSprop(generator.parameters(), lr=5e-5)
opt_c = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
scaler_g, scaler_c = torch.amp.GradScaler("cuda"), torch.amp.GradScaler("cuda")
for i, (real, z) in enumerate(loader):
    opt_c.zero_grad()
    with torch.autocast("cuda"):
        loss_c = critic(generator(z).detach()).mean() - critic(real).mean()
    scaler_c.scale(loss_c).backward()
    scaler_c.step(opt_c)
    scaler_c.update()
    with torch.no_grad():
        for p in critic.parameters():
            p.clamp_(-0.01, 0.01)
    if i % 5 == 0:
        opt_g.zero_grad()
        with torch.autocast("cuda"):
            loss_g = -critic(generator(z)).mean()
        scaler_g.scale(loss_g).backward()
        scaler_g.step(opt_g)
        scaler_g.update()
""",
    "two losses, two backward passes, one step": HEAD
    + """
head = build(args)
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()])
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        features = model(x)
        first = F.cross_entropy(head(features), y)
        second = features.square().mean()
    scaler.scale(first).backward(retain_graph=True)
    scaler.scale(second).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_([*model.parameters(), *head.parameters()], 5.0)
    scaler.step(optimizer)
    scaler.update()
""",
}
