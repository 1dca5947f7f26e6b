"""Sharpness-aware minimisation: two backward passes per update, in FP16.

    python examples/sam.py

The first pass finds where the loss is highest nearby; the second one's gradient is applied at the
old weights. `abort()` ends the first window without a step, so that the second is a window of its
own with its own finite check; an overflow in either leaves the weights as they were.

Source: Foret et al. 2021, Sharpness-Aware Minimization, algorithm 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs

RADIUS = 0.05


def sam_step(engine: hs.Engine, model: nn.Module, batch: tuple[Tensor, Tensor]) -> hs.StepOutcome:
    x, y = batch
    with engine.autocast():
        loss = F.cross_entropy(model(x).float(), y)
    engine.backward(loss)
    with engine.gradients() as grads:
        norm = torch.cat([g.flatten() for g in grads.values()]).norm()
        climb = {name: g * (RADIUS / (norm + 1e-12)) for name, g in grads.items()}
    if not torch.isfinite(norm):
        return engine.step()  # an overflow in the first pass: a skip like any other
    engine.abort()

    weights = dict(model.named_parameters())
    old = {name: weights[name].detach().clone() for name in climb}
    with torch.no_grad():
        for name, step in climb.items():
            weights[name].add_(step)
    with engine.autocast():
        loss = F.cross_entropy(model(x).float(), y)
    engine.backward(loss)
    with torch.no_grad():
        for name, value in old.items():
            weights[name].copy_(value)
    return engine.step()


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = (x[:, 0] * x[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    engine = hs.Engine(model, optimizer, precision="fp16")
    for epoch in range(30):
        for batch in zip(x.split(64), y.split(64), strict=True):
            outcome = sam_step(engine, model, batch)
        if epoch % 10 == 9:
            print(outcome)


if __name__ == "__main__":
    main()
