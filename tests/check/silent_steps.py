"""Correct programs that look like a mistake in the step (HS213, HS215, HS301, HS302)."""

from pattern_head import FORWARD, HEAD, SCALER, STEP

FORWARDS = {
    "forward and loss": SCALER
    + """
for x, y in loader:
    with torch.autocast("cuda"):
        output = model(x)
        loss = criterion(output, y)
"""
    + STEP,
    "autocast twice": SCALER
    + """
for x, y in loader:
    with torch.autocast("cuda"):
        output = model(x)
    with torch.autocast("cuda"):
        loss = criterion(output, y)
"""
    + STEP,
    "autocast inside of the model": """\
import torch
from torch import nn


class Net(nn.Module):
    def forward(self, x):
        with torch.autocast("cuda"):
            return self.body(x)


def train(model, loader, criterion, optimizer, scaler):
    for x, y in loader:
        output = model(x)
        with torch.autocast("cuda"):
            loss = criterion(output, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    "a decorated forward": """\
import torch
from torch import nn


class Net(nn.Module):
    @torch.autocast("cuda")
    def forward(self, x):
        return self.body(x)


def train(model, x, y, criterion):
    output = model(x)
    with torch.autocast("cuda"):
        return criterion(output, y)
""",
    "the loss alone in FP32": SCALER
    + """
for x, y in loader:
    with torch.autocast("cuda"):
        output = model(x)
    with torch.autocast("cuda", enabled=False):
        loss = criterion(output.float(), y)
"""
    + STEP,
    "frozen features before": SCALER
    + """
backbone = nn.Linear(4, 4).eval()
for x, y in loader:
    with torch.no_grad():
        features = backbone(x)
    with torch.autocast("cuda"):
        loss = criterion(model(features), y)
"""
    + STEP,
    "a function called under autocast": """\
import torch


def loss_of(model, criterion, x, y):
    output = model(x)
    with torch.autocast("cuda"):
        return criterion(output, y)


def train(model, criterion, loader, optimizer, scaler):
    for x, y in loader:
        with torch.autocast("cuda"):
            loss = loss_of(model, criterion, x, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    "a transform before, the model inside the loss": SCALER
    + """
for x, y in loader:
    features = preprocess(x)
    with torch.autocast("cuda"):
        loss = compute_loss(model, features, y)
"""
    + STEP,
}

_CLIP = """\
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    {clip}
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
_RAISING = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)"

NONFINITE = {
    "the flag off": SCALER + FORWARD + _CLIP.format(clip=_RAISING.replace("True", "False")),
    "the flag by a variable": SCALER
    + "strict = bool(loader)\n"
    + FORWARD
    + _CLIP.format(clip=_RAISING.replace("True", "strict")),
    "FP32 training": HEAD
    + f"""
scaler = None
for x, y in loader:
    loss = criterion(model(x), y)
    loss.backward()
    {_RAISING}
    optimizer.step()
    optimizer.zero_grad()
""",
    "the other branch": SCALER
    + FORWARD
    + f"""
    if device == "cuda":
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    else:
        loss.backward()
        {_RAISING}
        optimizer.step()
    optimizer.zero_grad()
""",
    "caught": SCALER
    + FORWARD
    + _CLIP.format(
        clip=f"""try:
        {_RAISING}
    except RuntimeError:
        print("overflow")"""
    ),
    "a fixed scale": SCALER.replace(
        'GradScaler("cuda")', 'GradScaler("cuda", init_scale=1.0, growth_interval=1000000)'
    )
    + FORWARD
    + _CLIP.format(clip=_RAISING),
    "scaler off": SCALER.replace('GradScaler("cuda")', 'GradScaler("cuda", enabled=False)')
    + FORWARD
    + _CLIP.format(clip=_RAISING),
}

READS = {
    "every hundred steps": SCALER
    + FORWARD
    + STEP
    + """
    if step % 100 == 0:
        print(scaler.get_scale())
""",
    "once an epoch": SCALER
    + "for epoch in range(3):\n"
    + "".join(f"    {line}\n" for line in (FORWARD + STEP).splitlines())
    + "    print(scaler.get_scale())\n",
    "to tell a skip": SCALER
    + FORWARD
    + """
    before = scaler.get_scale()
"""
    + STEP
    + """
    if scaler.get_scale() >= before:
        scheduler.step()
""",
    "compared at once": SCALER
    + FORWARD
    + STEP
    + """
    if scaler.get_scale() < 1:
        raise RuntimeError("the scale collapsed")
""",
    "in a function of the checkpoint": SCALER
    + FORWARD
    + STEP
    + """

def save(path):
    torch.save({"scale": scaler.get_scale(), "scaler": scaler.state_dict()}, path)
""",
    "on the first rank, when a line is due": SCALER
    + FORWARD
    + STEP
    + """
    if rank == 0 and step % args.log_interval == 0:
        writer.add_scalar("scale", scaler.get_scale(), step)
""",
    "after training": SCALER + FORWARD + STEP + "\nprint(scaler.get_scale())\n",
}

_TIMED = """
import time

start = time.perf_counter()
for _ in range(10):
    with torch.autocast("cuda"):
        loss = model(torch.randn(8, 4, device="cuda")).mean()
    scaler.scale(loss).backward()
{wait}print(time.perf_counter() - start)
"""

TIMES = {
    "synchronized": SCALER + _TIMED.format(wait="torch.cuda.synchronize()\n"),
    "the loss is read": SCALER + _TIMED.format(wait="print(loss.item())\n"),
    "brought to the host": SCALER + _TIMED.format(wait="loss = loss.cpu()\n"),
    "the scaler steps": SCALER + _TIMED.format(wait="scaler.step(optimizer)\n"),
    "an epoch over a loader": SCALER
    + """
import time

for epoch in range(3):
    start = time.time()
"""
    + "".join(f"    {line}\n" for line in (FORWARD + STEP).splitlines())
    + '    print(f"{time.time() - start:.1f} s")\n',
    "the average over iterations": SCALER
    + """
import time

t0 = time.time()
"""
    + FORWARD
    + STEP
    + """
    t1 = time.time()
    dt = t1 - t0
    t0 = t1
""",
    "data alone": SCALER
    + """
import time

end = time.time()
"""
    + FORWARD
    + """
    data_time = time.time() - end
"""
    + STEP
    + "    end = time.time()\n",
    "events": SCALER
    + """
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record()
"""
    + FORWARD
    + STEP
    + "end.record()\ntorch.cuda.synchronize()\nprint(start.elapsed_time(end))\n",
    "a callee that may wait": SCALER
    + """
import time

start = time.time()
for _ in range(10):
    train_step(model, optimizer)
    loss.backward()
print(time.time() - start)
""",
}

SILENT = {"HS213": FORWARDS, "HS215": NONFINITE, "HS301": READS, "HS302": TIMES}
