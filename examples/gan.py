"""A GAN: two networks and two optimizers in one engine, alternating, with one loss scale.

    python examples/gan.py

The generator learns to draw from a normal distribution with mean 3. Its loss runs through the
discriminator; ``optimizers="generator"`` keeps that gradient out of the discriminator's parameters,
so that nothing has to be frozen. Halfway through, a batch with an inf in it arrives: the
discriminator's step is skipped, the generator goes on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs

MEAN, SPREAD = 3.0, 0.5


def judged(discriminator: nn.Module, samples: Tensor, real: bool) -> Tensor:
    logits = discriminator(samples).float()
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(real)))


def discriminator_loss(models: Mapping[str, nn.Module], real: Tensor) -> Tensor:
    with torch.no_grad():
        fake = models["generator"](torch.randn(len(real), 4))
    discriminator = models["discriminator"]
    return judged(discriminator, real, True) + judged(discriminator, fake, False)


def generator_loss(models: Mapping[str, nn.Module], noise: Tensor) -> Tensor:
    return judged(models["discriminator"], models["generator"](noise), True)


def main() -> None:
    torch.manual_seed(0)
    models = {
        "generator": nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)),
        "discriminator": nn.Sequential(nn.Linear(1, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)),
    }
    optimizers = {
        name: torch.optim.Adam(model.parameters(), lr=5e-3, betas=(0.5, 0.9))
        for name, model in models.items()
    }
    engine = hs.Engine(models, optimizers, precision="fp16", ema={"generator": 0.99})
    for step in range(1, 401):
        real = torch.randn(64, 1) * SPREAD + MEAN
        if step == 200:
            real[0] = math.inf
        first = engine.train_step([real], discriminator_loss, optimizers="discriminator")
        second = engine.train_step([torch.randn(64, 4)], generator_loss, optimizers="generator")
        if first.skipped:
            print(f"discriminator, step {step}: skipped, {first.reason}")
        if step % 100 == 0:
            average = engine.emas["generator"]
            assert average is not None
            with torch.no_grad():
                mean = float(average(torch.randn(2000, 4)).mean())
            print(
                f"[step {step}] discriminator={first.loss:.3f} generator={second.loss:.3f}"
                f" mean of samples={mean:.2f}"
            )
    for name, counters in engine.counters.items():
        print(f"{name}: {counters.num_updates} updates, {counters.num_skipped} skipped")


if __name__ == "__main__":
    main()
