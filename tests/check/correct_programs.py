"""Correct programs of many shapes, written as people write them. None may give a finding."""

HEAD = """\
import torch
from torch import nn
from torch.nn import functional as F
from data import build_model, evaluate, get_args, loader, val_loader

args = get_args()
device = "cuda"
model = build_model(args).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
"""
SCALER = HEAD + 'scaler = torch.amp.GradScaler("cuda")\n'

CORRECT = {
    "accumulation with a last partial window": SCALER
    + """
for epoch in range(args.epochs):
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x), y) / args.accumulate
        scaler.scale(loss).backward()
        if (i + 1) % args.accumulate == 0 or i + 1 == len(loader):
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
""",
    "accumulation by continue": SCALER
    + """
optimizer.zero_grad()
for step, (x, y) in enumerate(loader, start=1):
    with torch.autocast("cuda"):
        loss = criterion(model(x), y)
    scaler.scale(loss / args.accumulate).backward()
    if step % args.accumulate != 0:
        continue
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
    "inner loop over micro-batches": SCALER
    + """
while True:
    for micro in range(args.accumulate):
        model.require_backward_grad_sync = micro == args.accumulate - 1
        with torch.autocast("cuda"):
            x, y = next(loader)
            loss = criterion(model(x), y) / args.accumulate
        scaler.scale(loss).backward()
    if args.grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if args.done:
        break
""",
    "two scalers of a GAN": HEAD.replace(
        "optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)", ""
    )
    + """
generator, discriminator = build_model(args), build_model(args)
opt_g = torch.optim.Adam(generator.parameters(), lr=2e-4)
opt_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4)
g_scaler = torch.cuda.amp.GradScaler()
d_scaler = torch.cuda.amp.GradScaler()
for real, z in loader:
    with torch.cuda.amp.autocast():
        fake = generator(z)
        d_loss = F.softplus(discriminator(fake.detach())).mean()
        d_loss = d_loss + F.softplus(-discriminator(real)).mean()
    opt_d.zero_grad()
    d_scaler.scale(d_loss).backward()
    d_scaler.step(opt_d)
    d_scaler.update()
    with torch.cuda.amp.autocast():
        g_loss = F.softplus(-discriminator(fake)).mean()
    opt_g.zero_grad()
    g_scaler.scale(g_loss).backward()
    g_scaler.step(opt_g)
    g_scaler.update()
""",
    "one scaler of a GAN, discriminator gradients left over": SCALER
    + """
netD = build_model(args)
optD = torch.optim.Adam(netD.parameters(), lr=2e-4)
for real, z in loader:
    optD.zero_grad()
    with torch.autocast("cuda"):
        loss_d = netD(model(z).detach()).mean() - netD(real).mean()
    scaler.scale(loss_d).backward()
    scaler.unscale_(optD)
    torch.nn.utils.clip_grad_norm_(netD.parameters(), 1.0)
    scaler.step(optD)
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss_g = -netD(model(z)).mean()
    scaler.scale(loss_g).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    "enabled by a setting": HEAD
    + """
use_amp = args.amp and device == "cuda"
scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
for x, y in loader:
    with torch.autocast("cuda", dtype=torch.float16, enabled=use_amp):
        loss = criterion(model(x), y)
    optimizer.zero_grad()
    if use_amp:
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
    else:
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if use_amp:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
""",
    "a scaler or none": HEAD
    + """
scaler = torch.cuda.amp.GradScaler() if args.amp else None
for x, y in loader:
    with torch.cuda.amp.autocast(enabled=scaler is not None):
        loss = criterion(model(x), y)
    optimizer.zero_grad()
    if scaler is not None:
        scaler.scale(loss).backward()
        if args.clip_grad_norm is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad_norm)
        scaler.step(optimizer)
        scaler.update()
    else:
        loss.backward()
        if args.clip_grad_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad_norm)
        optimizer.step()
""",
    "disabled for good": HEAD
    + """
scaler = torch.amp.GradScaler("cuda", enabled=False)
for x, y in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    "a dummy scaler": SCALER.replace('scaler = torch.amp.GradScaler("cuda")\n', "")
    + """
try:
    from torch.cuda.amp import GradScaler
except ImportError:
    class GradScaler:
        def __init__(self):
            pass
        def scale(self, loss):
            return loss
        def unscale_(self, optimizer):
            pass
        def step(self, optimizer):
            optimizer.step()
        def update(self):
            pass

scaler = GradScaler()
for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    "BF16 without a scaler": HEAD
    + """
for x, y in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
""",
    "a schedule per epoch": SCALER
    + """
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
for epoch in range(args.epochs):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    scheduler.step()
    evaluate(model, val_loader)
""",
    "a schedule that asks the scale": SCALER
    + """
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scale = scaler.get_scale()
    scaler.update()
    skipped = scale > scaler.get_scale()
    if not skipped:
        scheduler.step()
""",
    "a skip that goes on with the next batch": SCALER
    + """
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scale = scaler.get_scale()
    scaler.update()
    if scaler.get_scale() < scale:
        continue
    scheduler.step()
""",
    "losses of NaN are left out": SCALER
    + """
for x, y in loader:
    with torch.autocast("cuda"):
        loss = criterion(model(x), y)
    if not torch.isfinite(loss):
        optimizer.zero_grad()
        continue
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
    "exact token normalisation after unscale": SCALER
    + """
for window in loader:
    tokens = sum((y != -100).sum() for _, y in window)
    for x, y in window:
        with torch.autocast("cuda"):
            loss = F.cross_entropy(model(x), y, reduction="sum")
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    for p in model.parameters():
        if p.grad is not None:
            p.grad.div_(tokens)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
""",
    "unscaled by hand": SCALER
    + """
for x, y in loader:
    scaler.scale(criterion(model(x), y)).backward()
    inverse = 1.0 / scaler.get_scale()
    for p in model.parameters():
        p.grad.mul_(inverse)
    optimizer.step()
    scaler.update(1024.0)
    optimizer.zero_grad()
""",
    "a penalty on gradients": SCALER
    + """
for x, y in loader:
    with torch.autocast("cuda"):
        loss = criterion(model(x), y)
    scaled = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
    gradients = [g * (1.0 / scaler.get_scale()) for g in scaled]
    with torch.autocast("cuda"):
        loss = loss + sum(g.pow(2).sum() for g in gradients).sqrt()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
    "several models and optimizers in lists": SCALER
    + """
optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in args.models]
for x, y in loader:
    with torch.autocast("cuda"):
        loss = sum(criterion(m(x), y) for m in args.models)
    scaler.scale(loss).backward()
    for opt in optimizers:
        scaler.unscale_(opt)
    for opt in optimizers:
        scaler.step(opt)
    scaler.update()
    for opt in optimizers:
        opt.zero_grad()
""",
    "an FP32 optimizer beside a scaled one": SCALER
    + """
head = nn.Linear(8, 1)
head_optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
for x, y in loader:
    with torch.autocast("cuda"):
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    aside = head(x).square().mean()
    aside.backward()
    head_optimizer.step()
    head_optimizer.zero_grad()
""",
    "out of memory is tried again": SCALER
    + """
for x, y in loader:
    try:
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
    except torch.cuda.OutOfMemoryError:
        optimizer.zero_grad()
        torch.cuda.empty_cache()
        continue
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
    "YOLO's warm-up accumulation": SCALER
    + """
last_opt_step = -1
for epoch in range(args.epochs):
    optimizer.zero_grad()
    for i, (imgs, targets) in enumerate(loader):
        ni = i + len(loader) * epoch
        with torch.cuda.amp.autocast(args.amp):
            loss = criterion(model(imgs), targets)
        scaler.scale(loss).backward()
        if ni - last_opt_step >= args.accumulate:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=10.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            last_opt_step = ni
""",
}
