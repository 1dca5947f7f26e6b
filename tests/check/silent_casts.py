"""Correct programs that look like a wrong cast (HS201, HS210 to HS212)."""

from pattern_head import FORWARD, HEAD, PLAIN, SCALER, STEP

HALF = {
    "frozen encoder in FP16": SCALER
    + """
encoder = nn.Linear(4, 4).half().eval()
encoder.requires_grad_(False)
"""
    + FORWARD
    + STEP,
    "copy of the model saved in FP16": SCALER
    + """
from copy import deepcopy
"""
    + FORWARD
    + STEP
    + """
torch.save({"model": deepcopy(model).half().state_dict()}, "best.pt")
""",
    "inputs of a frozen tower cast to its dtype": SCALER
    + """
weight_dtype = torch.float16
vae = nn.Linear(4, 4).to(device, dtype=weight_dtype)
for x, y in loader:
    with torch.no_grad():
        latents = vae(x.to(weight_dtype)).float()
    with torch.autocast("cuda"):
        loss = criterion(model(latents), y)
"""
    + STEP,
    "adapters in FP32 beside a model in FP16": HEAD
    + """
scaler = torch.amp.GradScaler("cuda")
base = nn.Linear(4, 4).half()
base.requires_grad_(False)
lora_layers = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(lora_layers, lr=1e-4)
"""
    + FORWARD
    + STEP,
    "evaluation in FP16": SCALER
    + """
def evaluate(model, loader):
    model = model.half()
    with torch.no_grad():
        for x, y in loader:
            criterion(model(x.half()), y.half())
    model.float()
"""
    + FORWARD
    + STEP,
    "one of several precisions by setting, the scaler off with it": HEAD
    + """
import sys
pure_half = "--half" in sys.argv
if pure_half:
    model.half()
    from apex.fp16_utils import FP16_Optimizer
    optimizer = FP16_Optimizer(optimizer)
scaler = torch.amp.GradScaler("cuda", enabled=not pure_half)
"""
    + FORWARD
    + STEP,
    "export in half once training is over": SCALER
    + FORWARD
    + STEP
    + """
model = model.half()
torch.save(model.state_dict(), "half.pt")
""",
    "export in half at the end of a function": """\
import torch
from torch import nn


def main(loader):
    model = nn.Linear(4, 1).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    model.eval().half()
    with torch.no_grad():
        print(model(torch.ones(1, 4, dtype=torch.float16, device="cuda")))
""",
    "a fresh model per fold, saved in half": """\
import torch
from torch import nn

for fold in range(5):
    model = nn.Linear(4, 1).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader(fold):
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    model.half()
    torch.save(model.state_dict(), f"fold{fold}.pt")
""",
    "export at the end, without an optimizer": """\
import torch
from torch import nn

model = nn.Linear(4, 1)
model.load_state_dict(torch.load("model.pt"))
model.half().eval()
torch.onnx.export(model, torch.randn(1, 4).half(), "model.onnx")
""",
}

LOGGED = {
    "the loss before it is scaled": SCALER
    + FORWARD
    + STEP
    + """
    print(loss.item())
""",
    "the scaled loss under another name": SCALER
    + FORWARD
    + """
    scaled = scaler.scale(loss)
    scaled.backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(f"{loss.item():.3f}")
""",
    "divided again": SCALER
    + FORWARD
    + """
    scaled = scaler.scale(loss)
    scaled.backward()
    if step % 100 == 0:
        print(scaled.item() / scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
    "a feature scaler": """\
from sklearn.preprocessing import StandardScaler

scaler = StandardScaler()
x = scaler.fit_transform([[1.0], [2.0]])
y = scaler.scale(x)
print(y.item())
""",
    "the name is used again": SCALER
    + FORWARD
    + """
    loss_value = scaler.scale(loss)
    loss_value.backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    loss_value = loss.detach()
    print(loss_value.item())
""",
    "a transform that scales": SCALER
    + FORWARD
    + STEP
    + """
    image = transform.scale(x)
    print(image.item())
""",
}

LOW_WEIGHTS = {
    "BF16 autocast, FP32 parameters": HEAD
    + """
for x, y in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(model(x), y)
"""
    + PLAIN,
    "inference in BF16": """\
import torch
from torch import nn

model = nn.Linear(4, 1).to(torch.bfloat16)
with torch.no_grad():
    print(model(torch.randn(8, 4, dtype=torch.bfloat16)))
""",
    "an optimizer with FP32 copies": """\
import torch
from torch import nn
from optimi import AdamW

model = nn.Linear(4, 1).to(torch.bfloat16)
optimizer = AdamW(model.parameters(), lr=1e-3)
for x, y in [(torch.randn(8, 4).bfloat16(), torch.randn(8, 1).bfloat16())]:
    loss = nn.functional.mse_loss(model(x), y)
"""
    + PLAIN,
    "FP32 by a variable": HEAD
    + """
weight_dtype = torch.float32
model.to(device, dtype=weight_dtype)
for x, y in loader:
    loss = criterion(model(x), y)
"""
    + PLAIN,
    "an exporter of a class": """\
import torch


class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)

    def step(self, batch):
        self.model(batch).loss.backward()
        self.optimizer.step()

    def finish(self, path):
        torch.save(self.model.half().state_dict(), path)
""",
    "a BF16 teacher, never stepped": HEAD
    + """
teacher = nn.Linear(4, 1).bfloat16().requires_grad_(False)
for x, y in loader:
    loss = criterion(model(x), teacher(x.bfloat16()).float())
"""
    + PLAIN,
    "back in FP32 before training": HEAD
    + """
model.half()
model.load_state_dict(torch.load("half.pt"))
model.float()
for x, y in loader:
    loss = criterion(model(x), y)
"""
    + PLAIN,
    "master copies by hand": HEAD
    + """
model.half()
master = [p.detach().clone().float() for p in model.parameters()]
optimizer = torch.optim.SGD(master, lr=0.1)
""",
    "a dtype that nobody knows": """\
import torch
from torch import nn


def build(args, model, dtype):
    model.to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loss = model(1).backward()
    return optimizer
""",
}

ONE_ELEMENT = {
    "no dimensions": SCALER
    + """
for x, y in loader:
    with torch.autocast("cuda"):
        loss = criterion(model(x), y).half()
"""
    + STEP,
    "FP32 with one element": SCALER
    + """
for x, y in loader:
    with torch.autocast("cuda"):
        loss = criterion(model(x), y).reshape(1)
"""
    + STEP,
    "cast back": SCALER
    + """
for x, y in loader:
    with torch.autocast("cuda"):
        loss = criterion(model(x), y).half().reshape(1)
    loss = loss.float()
"""
    + STEP,
    "losses summed": SCALER
    + """
for x, y in loader:
    with torch.autocast("cuda"):
        losses = criterion(model(x), y).unsqueeze(0)
        loss = losses.sum()
"""
    + STEP,
    "an input of one element in FP16": SCALER
    + """
weight = torch.ones(1).half()
for x, y in loader:
    with torch.autocast("cuda"):
        loss = criterion(model(x), y)
"""
    + STEP,
    "gathered from several devices": SCALER
    + """
for x, y in loader:
    with torch.autocast("cuda"):
        loss = model(x, y).mean()
"""
    + STEP,
}

SILENT = {"HS201": HALF, "HS210": LOGGED, "HS211": LOW_WEIGHTS, "HS212": ONE_ELEMENT}
