"""Correct programs that enter AMP by old or new names (HS303), alone or with others (HS217)."""

from pattern_head import FORWARD, SCALER, STEP

CURRENT = {
    "the new names": SCALER + FORWARD + STEP,
    "imported from torch.amp": """\
from torch.amp import GradScaler, autocast, custom_bwd, custom_fwd

scaler = GradScaler("cuda")
with autocast("cuda"):
    pass
""",
    "new, else old": """\
try:
    from torch.amp import GradScaler, autocast
except ImportError:
    from torch.cuda.amp import GradScaler, autocast

scaler = GradScaler()
""",
    "by version": """\
import torch
from packaging import version

if version.parse(torch.__version__) >= version.parse("2.4"):
    scaler = torch.amp.GradScaler("cuda")
else:
    scaler = torch.cuda.amp.GradScaler()
""",
    "by a flag, in one function": """\
import torch


def autocast(enabled, device="cuda"):
    if TORCH_1_13:
        return torch.amp.autocast(device, enabled=enabled)
    return torch.cuda.amp.autocast(enabled)
""",
    "by what torch has": """\
import torch

GradScaler = torch.amp.GradScaler if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler
""",
    "as a type": """\
import torch


def step(loss, scaler: torch.cuda.amp.GradScaler | None = None) -> torch.cuda.amp.GradScaler:
    assert isinstance(scaler, torch.cuda.amp.GradScaler)
    return scaler
""",
    "tables and comparisons": """\
import torch

CONTEXTS = [torch.amp.autocast, torch.cuda.amp.autocast, torch.cpu.amp.autocast]


def device_of(context):
    if context is torch.cuda.amp.autocast:
        return "cuda"
    return "cpu" if context in (torch.cpu.amp.autocast, torch.autocast) else None
""",
    "a module that is not torch's": """\
from apex import amp
from mylib.cuda.amp import autocast

model, optimizer = amp.initialize(model, optimizer)
with autocast():
    pass
""",
    "a function of that name": """\
import torch


def autocast():
    return torch.autocast("cuda")


with autocast():
    pass
""",
}

_JOINED = SCALER + "for x, y in loader:\n    with {}:\n        loss = loss_of(x, y)\n" + STEP
JOINED = {
    name: _JOINED.format(context)
    for name, context in {
        "a comma": 'torch.autocast("cuda"), torch.enable_grad()',
        "in brackets": '(torch.autocast("cuda"), torch.enable_grad())',
        "autocast or none": 'amp and torch.autocast("cuda") or nullcontext()',
        "the last of two": 'amp and torch.autocast("cuda")',
        "a choice": 'torch.autocast("cuda") if amp else nullcontext()',
        "a condition inside": 'torch.autocast("cuda", enabled=amp and not evaluates)',
    }.items()
}

SILENT = {"HS217": JOINED, "HS303": CURRENT}
