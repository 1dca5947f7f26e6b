"""What the programs of the pattern tests share."""

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn

device = "cuda"
model = nn.Linear(4, 1).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
criterion = nn.MSELoss()
loader = [(torch.randn(8, 4, device=device), torch.randn(8, 1, device=device))]
"""
SCALER = HEAD + 'scaler = torch.amp.GradScaler("cuda")\n'
# The rest of a step, inside a loop.
STEP = """\
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
PLAIN = """\
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
FORWARD = """\
for x, y in loader:
    with torch.autocast("cuda"):
        loss = criterion(model(x), y)
"""
