"""The pattern rules find what they are for, in the forms that people write."""

from __future__ import annotations

import re

import pytest
from pattern_head import FORWARD, HEAD, PLAIN, SCALER, STEP

from halfstep.check.linter import check_text
from halfstep.rules import registry
from halfstep.rules.rule import SourceRule

RULES = [rule for rule in registry.select(["HS2", "HS3"]) if issubclass(rule, SourceRule)]
_LOOP = "for x, y in loader:\n"
_AUTOCAST = _LOOP + '    with torch.autocast("cuda"):\n'

FOUND = {
    "HS201 model to float16": SCALER.replace(
        ".to(device)", ".to(device, dtype=torch.float16)  # <- HS201", 1
    )
    + FORWARD
    + STEP,
    "HS201 half as a statement": SCALER + "model.half()  # <- HS201\n" + FORWARD + STEP,
    "HS202 by the default of CUDA": HEAD
    + _AUTOCAST
    + "        loss = criterion(model(x), y)\n"
    + PLAIN.replace("backward()", "backward()  # <- HS202"),
    "HS202 where a setting may be FP16": HEAD
    + """
dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
for x, y in loader:
    with torch.autocast("cuda", dtype=dtype, enabled=bool(loader)):
        output = model(x)
    loss = criterion(output, y) / 4
    loss.backward()  # <- HS202
    optimizer.step()
    optimizer.zero_grad()
""",
    "HS202 by a function that returns the loss": HEAD
    + """
def loss_of(x, y):
    with torch.autocast("cuda"):
        return criterion(model(x), y)


for x, y in loader:
    loss_of(x, y).backward()  # <- HS202
    optimizer.step()
    optimizer.zero_grad()
""",
    "HS202 by a context in a variable": HEAD
    + """
from contextlib import nullcontext
ctx = nullcontext() if device == "cpu" else torch.autocast("cuda", dtype=torch.float16)
for x, y in loader:
    with ctx:
        loss = criterion(model(x), y)
    loss.backward()  # <- HS202
    optimizer.step()
    optimizer.zero_grad()
""",
    "HS202 on a device that is chosen elsewhere": """\
import torch


def train_one_epoch(model, optimizer, loader, device):
    for x, y in loader:
        with torch.autocast(device_type=device.type):
            losses = torch.nn.functional.l1_loss(model(x), y, reduction="none")
            loss: torch.Tensor = losses.mean()
        optimizer.zero_grad()
        loss.backward()  # <- HS202
        optimizer.step()
""",
    "HS203 scaler and autocast by one flag": HEAD
    + """
use_amp = bool(loader)
scaler = torch.amp.GradScaler("cuda", enabled=use_amp)  # <- HS203
for x, y in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=use_amp):
        loss = criterion(model(x), y)
"""
    + STEP,
    "HS204 in a script for a CPU": """\
import torch
from torch import nn

device = torch.device("cpu")
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")  # <- HS204
for x, y in [(torch.randn(8, 4), torch.randn(8, 1))]:
    with torch.autocast(device_type=device.type, dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
"""
    + STEP,
    "HS205 by a criterion": SCALER.replace("nn.MSELoss()", "nn.BCELoss()")
    + _AUTOCAST
    + "        loss = criterion(model(x).sigmoid(), y)  # <- HS205\n"
    + STEP,
    "HS205 by a criterion of a class": """\
import torch
from torch import nn


class Trainer:
    def __init__(self, model):
        self.model = model
        self.adversarial = nn.BCELoss()

    def loss(self, x, y):
        with torch.amp.autocast("cuda", dtype=torch.bfloat16):
            return self.adversarial(self.model(x), y)  # <- HS205
""",
    "HS205 in a function that is called under autocast": SCALER
    + """
def loss_of(output, y):
    return F.binary_cross_entropy(output.sigmoid(), y)  # <- HS205


for x, y in loader:
    with torch.autocast("cuda"):
        loss = loss_of(model(x), y)
"""
    + STEP,
    "HS206 log of a variable": SCALER
    + _AUTOCAST
    + """\
        p = model(x).softmax(dim=-1)
        loss = -(p * p.log()).sum(-1).mean()  # <- HS206
"""
    + STEP,
    "HS206 a softmax by hand": SCALER
    + _AUTOCAST
    + """\
        logits = model(x)
        e = torch.exp(logits)
        p = e / e.sum(-1, keepdim=True)  # <- HS206
        loss = p.mean()
"""
    + STEP,
    "HS206 a variance by difference": SCALER
    + _AUTOCAST
    + """\
        output = model(x)
        variance = (output**2).mean() - output.mean() ** 2  # <- HS206
        loss = variance
"""
    + STEP,
    "HS207 by where and a constant": SCALER
    + "NEG = -1e9\n"
    + _AUTOCAST
    + """\
        scores = torch.matmul(model(x), y.transpose(-2, -1)) / 2
        scores = torch.where(x == 0, scores, NEG)  # <- HS207
        loss = scores.softmax(-1).mean()
"""
    + STEP,
    "HS208 clamp": HEAD
    + """
half = torch.rand(8).to(torch.float16)
norm = half.norm().clamp(min=1e-8)  # <- HS208
for x, y in loader:
    loss = criterion(model(x), y) / norm.float()
"""
    + PLAIN,
    "HS208 Adam over FP16 parameters": HEAD.replace("AdamW(", "AdamW(", 1).replace(
        "lr=1e-3)", "lr=1e-3)  # <- HS208"
    )
    + "model.half()  # <- HS211\n"
    + _LOOP
    + "    loss = criterion(model(x.half()), y.half())\n"
    + PLAIN,
    "HS209 a compiled extension": SCALER
    + """
import render_cuda


class Render(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # <- HS209
        return render_cuda.forward(x)

    @staticmethod
    def backward(ctx, grad):
        return render_cuda.backward(grad)


for x, y in loader:
    with torch.autocast("cuda"):
        loss = Render.apply(model(x)).mean()
"""
    + STEP,
    "HS210 added up": SCALER
    + FORWARD
    + """
    scaled_loss = scaler.scale(loss)
    scaled_loss.backward()
    total = 0.0
    total += scaled_loss.item() * len(x)  # <- HS210
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
    "HS211 behind another call": HEAD.replace(
        ".to(device)", ".to(device).to(torch.bfloat16)  # <- HS211", 1
    )
    + _LOOP
    + "    loss = criterion(model(x.bfloat16()), y.bfloat16())\n"
    + PLAIN,
    "HS211 in a class": """\
import torch


class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.model.to(torch.bfloat16)  # <- HS211
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)

    def step(self, batch):
        self.model(batch).loss.backward()
        self.optimizer.step()
""",
    "HS212 by a view": SCALER
    + _AUTOCAST
    + """\
        loss = criterion(model(x), y).to(torch.float16)[None]
    scaler.scale(loss).backward()  # <- HS212
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
    "HS213 by a flag": """\
import torch


def train_one_epoch(model, criterion, optimizer, data_loader, scaler=None):
    for image, target in data_loader:
        output = model(image)  # <- HS213
        with torch.amp.autocast("cuda", enabled=scaler is not None):
            loss = criterion(output, target)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
""",
    "HS213 in one branch of a flag": """\
import time

import torch


def train_one_epoch(model, criterion, optimizer, batches, device, args, meters, scaler=None):
    model.train()
    for image, target in meters.log_every(batches, args.print_freq):
        start = time.time()
        image, target = image.to(device), target.to(device)
        output = model(image)  # <- HS213
        optimizer.zero_grad()
        if args.amp:
            with torch.amp.autocast("cuda"):
                loss = criterion(output, target)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss = criterion(output, target)
            loss.backward()
            optimizer.step()
        meters.update(loss=loss.item(), rate=len(image) / (time.time() - start))
""",
    "HS214 a criterion of torch": SCALER
    + _AUTOCAST
    + """\
        output = model(x)
        with torch.autocast("cuda", enabled=False):
            loss = criterion(output, y)  # <- HS214
"""
    + STEP,
    "HS215 in a method": """\
import torch


class Trainer:
    def step(self):
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(  # <- HS215
            self.model.parameters(), 1.0, error_if_nonfinite=True
        )
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return norm
""",
    "HS301 in the progress bar": SCALER
    + _AUTOCAST
    + "        loss = criterion(model(x), y)\n"
    + STEP
    + "    bar.set_postfix(scale=scaler.get_scale())  # <- HS301\n",
    "HS302 two readings": SCALER
    + """
import time

t0 = time.perf_counter()
for _ in range(10):
    with torch.autocast("cuda"):
        loss = criterion(model(torch.zeros(8, 4, device="cuda")), torch.zeros(8, 1, device="cuda"))
    scaler.scale(loss).backward()
t1 = time.perf_counter()  # <- HS302
print(t1 - t0)
""",
    "HS302 one step": SCALER
    + """
import time

start = time.time()
with torch.autocast("cuda"):
    loss = model(torch.randn(8, 4, device="cuda")).mean()
scaler.scale(loss).backward()
elapsed = time.time() - start  # <- HS302
""",
}


def marked(text: str) -> set[tuple[str, int]]:
    lines = enumerate(text.splitlines(), 1)
    return {(m.group(1), n) for n, line in lines if (m := re.search(r"# <- (HS\d+)", line))}


@pytest.mark.parametrize("name", FOUND)
def test_mistake_is_found_in_its_line_and_nothing_else(name: str) -> None:
    text = FOUND[name]
    assert marked(text)
    assert {(f.code, f.line) for f in check_text("train.py", text, RULES)} == marked(text)


def test_rule_is_not_asked_about_a_file_without_its_words() -> None:
    assert not any(
        rule.concerns("import torch\nloss.backward()\n")  # type: ignore[attr-defined]
        for rule in RULES
    )


def test_benchmark_file_may_train_in_fp16_without_a_scaler() -> None:
    text = FOUND["HS202 by the default of CUDA"]
    assert check_text("bench.py", text, RULES) == []
