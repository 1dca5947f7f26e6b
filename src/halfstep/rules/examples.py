"""What the examples of the rules share: everything before the loop."""

SETUP = """\
import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
batches = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(4)]


def loss_of(x, y):
    with torch.autocast("cpu", dtype=torch.float16):
        return nn.functional.mse_loss(model(x), y)


"""
