"""Correct programs that look like a mistake of scaling (HS202 to HS205)."""

from pattern_head import FORWARD, HEAD, PLAIN, SCALER, STEP

WITHOUT_SCALER = {
    "BF16": HEAD
    + """
for x, y in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(model(x), y)
"""
    + PLAIN,
    "BF16 by a table": HEAD
    + """
dtype = "bfloat16"
ptdtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
ctx = torch.amp.autocast(device_type="cuda", dtype=ptdtype)
for x, y in loader:
    with ctx:
        loss = criterion(model(x), y)
"""
    + PLAIN,
    "autocast for a CPU": HEAD
    + """
for x, y in loader:
    with torch.autocast("cpu"):
        loss = criterion(model(x), y)
"""
    + PLAIN,
    "off": HEAD
    + """
for x, y in loader:
    with torch.autocast("cuda", enabled=False):
        loss = criterion(model(x), y)
"""
    + PLAIN,
    "a framework scales": HEAD
    + """
from accelerate import Accelerator

accelerator = Accelerator(mixed_precision="fp16")
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
""",
    "a wrapper scales": HEAD
    + """
from utils import NativeScaler

loss_scaler = NativeScaler()
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = criterion(model(x), y)
    loss_scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
""",
    "features of a frozen model in FP16, the head in FP32": HEAD
    + """
backbone = nn.Linear(4, 4).eval()
for x, y in loader:
    with torch.no_grad(), torch.autocast("cuda"):
        features = backbone(x)
    loss = criterion(model(features.float()), y)
"""
    + PLAIN,
    "dtype from elsewhere": """\
import torch


def train_step(model, batch, optimizer, amp_dtype):
    with torch.autocast("cuda", dtype=amp_dtype):
        loss = model(batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
}

WITHOUT_FP16 = {
    "scaler on for FP16 alone": HEAD
    + """
dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
for x, y in loader:
    with torch.autocast("cuda", dtype=dtype):
        loss = criterion(model(x), y)
"""
    + STEP,
    "scaler off": HEAD
    + """
scaler = torch.amp.GradScaler("cuda", enabled=False)
for x, y in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(model(x), y)
"""
    + STEP,
    "dtype by an argument": """\
import torch


def fit(model, loader, optimizer, dtype=torch.bfloat16):
    scaler = torch.amp.GradScaler("cuda")
    for batch in loader:
        with torch.autocast("cuda", dtype=dtype):
            loss = model(batch).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    "FP16 forward, BF16 teacher": SCALER
    + """
teacher = nn.Linear(4, 1)
for x, y in loader:
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        target = teacher(x)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(x), target)
"""
    + STEP,
    "an FP32 island beside FP16": SCALER
    + """
for x, y in loader:
    with torch.autocast("cuda"):
        output = model(x)
    with torch.autocast("cuda", enabled=False):
        loss = criterion(output.float(), y)
"""
    + STEP,
    "autocast of a framework": SCALER
    + """
for x, y in loader:
    with fabric.autocast():
        loss = criterion(model(x), y)
"""
    + STEP,
}

ON_CPU = {
    "a choice of devices": HEAD.replace(
        'device = "cuda"', 'device = "cuda" if torch.cuda.is_available() else "cpu"'
    )
    + """
scaler = torch.amp.GradScaler(device)
for x, y in loader:
    with torch.autocast(device, dtype=torch.float16):
        loss = criterion(model(x), y)
"""
    + STEP,
    "the scaler says cpu": """\
import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for x, y in [(torch.randn(8, 4), torch.randn(8, 1))]:
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
"""
    + STEP,
    "BF16 on a CPU, the scaler off": """\
import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler(enabled=False)
for x, y in [(torch.randn(8, 4), torch.randn(8, 1))]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(x), y)
"""
    + STEP,
    "weights brought to a CPU": SCALER
    + FORWARD
    + STEP
    + """
torch.save({k: v.cpu() for k, v in model.state_dict().items()}, "model.pt")
""",
    "a checkpoint loaded on a CPU": SCALER
    + """
model.load_state_dict(torch.load("model.pt", map_location="cpu"))
"""
    + FORWARD
    + STEP,
    "evaluation on a CPU": SCALER
    + FORWARD
    + STEP
    + """
with torch.no_grad(), torch.autocast("cpu"):
    model(torch.randn(8, 4))
""",
}

BCE = {
    "with logits": SCALER
    + """
for x, y in loader:
    with torch.autocast("cuda"):
        loss = F.binary_cross_entropy_with_logits(model(x), y)
"""
    + STEP,
    "outside of autocast": SCALER
    + """
for x, y in loader:
    with torch.autocast("cuda"):
        output = model(x)
    loss = F.binary_cross_entropy(output.float().sigmoid(), y)
"""
    + STEP,
    "in an island": SCALER
    + """
for x, y in loader:
    with torch.autocast("cuda"):
        output = model(x)
        with torch.autocast("cuda", enabled=False):
            loss = F.binary_cross_entropy(output.float().sigmoid(), y)
"""
    + STEP,
    "on a CPU": HEAD
    + """
for x, y in loader:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.binary_cross_entropy(model(x).sigmoid(), y)
"""
    + PLAIN,
    "a criterion made by name": SCALER.replace("nn.MSELoss()", "nn.BCEWithLogitsLoss()")
    + FORWARD
    + STEP,
    "somebody else's function of that name": SCALER
    + """
from losses import binary_cross_entropy

for x, y in loader:
    with torch.autocast("cuda"):
        loss = binary_cross_entropy(model(x), y)
"""
    + STEP,
    "a loss class with an island of its own": """\
import torch
from torch import nn


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.bce = nn.BCELoss()

    def forward(self, prediction, target):
        with torch.autocast("cuda", enabled=False):
            return self.bce(prediction.float(), target.float())
""",
}

SILENT = {"HS202": WITHOUT_SCALER, "HS203": WITHOUT_FP16, "HS204": ON_CPU, "HS205": BCE}
