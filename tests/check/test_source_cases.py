"""Mistakes from public trackers, read from source; what they do to training is tested elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from halfstep.check.linter import check_paths, check_text
from halfstep.rules import registry

RULES = registry.select(["HS1"])
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

FINE = {
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


def expected(text: str, path: str = "train.py") -> set[tuple[str, str, int]]:
    lines = enumerate(text.splitlines(), 1)
    found = ((re.search(r"# <- (HS\d+)$", line), number) for number, line in lines)
    return {(path, mark.group(1), number) for mark, number in found if mark}


@pytest.mark.parametrize("case", CASES)
def test_case_is_found_at_its_lines(case: str) -> None:
    found = check_text("train.py", CASES[case], RULES)
    strong = {(f.path, f.code, f.line) for f in found if f.severity != "note"}
    assert strong == expected(CASES[case])


@pytest.mark.parametrize("case", FINE)
def test_case_done_right_gives_no_finding(case: str) -> None:
    found = check_text("train.py", FINE[case], RULES)
    assert [str(f) for f in found if f.severity != "note"] == []


VALIDATE = """\
import torch


def run(loader, model, half=True):
    if half:
        model.half()  # <- HS124
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            model(x.half())
    model.float()
"""
AVERAGE = """\
import copy


class ModelEMA:
    def __init__(self, model):
        self.ema = copy.deepcopy(model).eval()

    def update(self, model):
        for a, b in zip(self.ema.parameters(), model.parameters()):
            a.data.lerp_(b.data, 0.01)
"""
TRAIN = HEAD + (
    "import val\nfrom average import ModelEMA\n\nema = ModelEMA(model)\nfor epoch in range(9):\n"
    "    for x, y in loader:\n        scaler.scale(loss_of(x, y)).backward()\n"
    "        scaler.step(optimizer)\n        scaler.update()\n        optimizer.zero_grad()\n"
    "        ema.update(model)\n    val.run(valid_loader, model=ema.ema)\n"
)


@pytest.mark.parametrize("of", ["ema.ema", "model"])
def test_evaluation_in_another_file_that_halves_live_weights_is_found_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"val.py": VALIDATE, "average.py": AVERAGE, "train.py": TRAIN}.items():
        (tmp_path / name).write_text(text.replace("model=ema.ema", f"model={of}"))
    found = check_paths(["train.py"], RULES).findings
    strong = {(f.path, f.code, f.line) for f in found if f.severity != "note"}
    assert strong == expected(VALIDATE, "val.py")


def test_evaluation_in_another_file_of_a_frozen_model_gives_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    teacher = TRAIN.replace("ema = ", "teacher = build()\nema = ").replace("ema.ema", "teacher")
    for name, text in {"val.py": VALIDATE, "average.py": AVERAGE, "train.py": teacher}.items():
        (tmp_path / name).write_text(text)
    found = check_paths(["train.py"], RULES).findings
    assert [str(f) for f in found if f.severity != "note"] == []
