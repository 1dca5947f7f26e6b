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
    "a teacher in half precision": HEAD
    + """
teacher = build(args).eval().half()
for epoch in range(3):
    for x, y in loader:
        with torch.no_grad():
            target = teacher(x.half())
        with torch.autocast("cuda"):
            loss = F.kl_div(model(x), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    "an average, evaluated under autocast": HEAD
    + """
class EMA:
    def __init__(self, net, decay):
        self.net = copy.deepcopy(net).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, net):
        for mine, theirs in zip(self.net.parameters(), net.parameters()):
            mine.lerp_(theirs, 1 - self.decay)


@torch.no_grad()
def evaluate(net):
    net.eval()
    right = 0
    for x, y in valid_loader:
        with torch.autocast("cuda"):
            right += (net(x).argmax(-1) == y).sum().item()
    return right


ema = EMA(model, 0.999)
for epoch in range(args.epochs):
    model.train()
    for x, y in loader:
        with torch.autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scale = scaler.get_scale()
        scaler.update()
        optimizer.zero_grad()
        if scaler.get_scale() >= scale:
            ema.update(model)
    evaluate(ema.net)
    torch.save(copy.deepcopy(ema.net).half().state_dict(), "half.pt")
""",
    "the scale is logged and bounded by hand": HEAD
    + """
for step, (x, y) in enumerate(loader):
    with torch.autocast("cuda"):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if scaler.get_scale() < 128:
        scaler._scale = torch.tensor(128.0).to(scaler._scale)
    if step % 100 == 0:
        print(loss.item(), scaler.get_scale())
""",
    "a norm that is only looked at": HEAD
    + f"""
for x, y in loader:
{LOSS}
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in model.parameters()]))
    print(norm.item())
"""
    + STEP,
    "the norm of scaled gradients, divided": HEAD
    + f"""
for x, y in loader:
{LOSS}
    scaler.scale(loss).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), float("inf")) / scaler.get_scale()
"""
    + STEP,
    "second-order optimizer without a scaler, first-order with one": HEAD
    + """
head = build(args)
newton = torch.optim.LBFGS(head.parameters())
for x, y in loader:
    with torch.autocast("cuda"):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()

    def closure():
        newton.zero_grad()
        loss = F.mse_loss(head(x), y)
        loss.backward()
        return loss

    newton.step(closure)
""",
    "parts that are frozen and thawed": HEAD
    + """
for epoch in range(args.epochs):
    for p in model.backbone.parameters():
        p.requires_grad_(epoch >= args.frozen)
    for x, y in loader:
        with torch.autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    "epochs in a function, parts in a dict": """\
import torch
import torch.nn.functional as F
from project import build, loader


def make():
    model = build()
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "scaler": torch.amp.GradScaler("cuda"),
    }


def epoch(parts, loader):
    model, optimizer, scaler = parts["model"], parts["optimizer"], parts["scaler"]
    for x, y in loader:
        with torch.autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def main():
    parts = make()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(parts["optimizer"], 10)
    for _ in range(10):
        epoch(parts, loader)
        schedule.step()
        torch.save({name: part.state_dict() for name, part in parts.items()}, "last.pt")


main()
""",
    "one scaler, several optimizers in a loop": """\
import torch
import torch.nn.functional as F
from project import build, loader

nets = [build() for _ in range(3)]
optimizers = [torch.optim.Adam(net.parameters()) for net in nets]
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    for optimizer in optimizers:
        optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = sum(F.cross_entropy(net(x), y) for net in nets)
    scaler.scale(loss).backward()
    for net, optimizer in zip(nets, optimizers):
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
""",
    "optimizers named in a dict, filled in a loop": """\
import torch
import torch.nn.functional as F
from project import build, loader

nets, optimizers = {}, {}
for name in ("policy", "value"):
    nets[name] = build()
    optimizers[name] = torch.optim.Adam(nets[name].parameters())
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    with torch.autocast("cuda"):
        losses = {name: F.mse_loss(net(x), y) for name, net in nets.items()}
    for name, optimizer in optimizers.items():
        optimizer.zero_grad()
        scaler.scale(losses[name]).backward()
        scaler.step(optimizer)
    scaler.update()
""",
    "a warm-up by hand": HEAD
    + """
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
for step, (x, y) in enumerate(loader):
    if step < args.warmup:
        for group in optimizer.param_groups:
            group["lr"] = args.lr * step / args.warmup
    with torch.autocast("cuda"):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    before = scaler.get_scale()
    scaler.update()
    optimizer.zero_grad()
    if step >= args.warmup and before <= scaler.get_scale():
        schedule.step()
""",
    "evaluation inside the epoch": HEAD
    + """
def validate():
    model.eval()
    with torch.no_grad(), torch.autocast("cuda"):
        total = sum(F.cross_entropy(model(x), y).item() for x, y in valid_loader)
    model.train()
    return total


for step, (x, y) in enumerate(loader):
    with torch.autocast("cuda"):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if step % 500 == 0:
        validate()
""",
    "a step that is tried again with a smaller batch": HEAD
    + """
for x, y in loader:
    for part in (1, 2, 4):
        try:
            optimizer.zero_grad()
            for xs, ys in zip(x.chunk(part), y.chunk(part)):
                with torch.autocast("cuda"):
                    loss = F.cross_entropy(model(xs), ys) / part
                scaler.scale(loss).backward()
            break
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            optimizer.zero_grad()
    scaler.step(optimizer)
    scaler.update()
""",
    "the first forward compiles": HEAD
    + f"""
compiled = torch.compile(model)
for x, y in loader:
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(compiled(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(compiled.parameters(), 1.0)
{STEP}""",
    "autocast around one window": HEAD
    + """
for x, y in loader:
    with torch.autocast("cuda"):
        for xs, ys in zip(x.chunk(2), y.chunk(2)):
            loss = F.cross_entropy(model(xs), ys) / 2
            scaler.scale(loss).backward()
"""
    + STEP,
    "a trainer whose subclass steps": """\
import torch
import torch.nn.functional as F
from project import build


class Trainer:
    def __init__(self):
        self.model = build()
        self.optimizer = self.make_optimizer()
        self.scaler = torch.amp.GradScaler("cuda")

    def make_optimizer(self):
        raise NotImplementedError

    def step(self, loss):
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.before_step()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def before_step(self):
        pass

    def fit(self, loader):
        for x, y in loader:
            with torch.autocast("cuda"):
                loss = F.cross_entropy(self.model(x), y)
            self.step(loss)


class Clipped(Trainer):
    def make_optimizer(self):
        return torch.optim.Adam(self.model.parameters())

    def before_step(self):
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)


Clipped().fit([])
""",
}
