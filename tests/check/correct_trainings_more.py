"""More correct trainings: averages, evaluation, containers, classes. None may give a finding."""

from correct_trainings import HEAD, LOSS, STEP

MORE_TRAININGS = {
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
