"""A GAN with two optimizers: one engine per network, each with its own loss scale.

    python examples/gan.py

The generator learns to draw from a normal distribution with mean 3. Its backward pass runs through
the discriminator, whose parameters are frozen for that pass, so that no gradient of the
generator's loss ends up in them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs

MEAN, SPREAD = 3.0, 0.5


def judged(discriminator: nn.Module, samples: Tensor, real: bool) -> Tensor:
    logits = discriminator(samples).float()
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(real)))


def main() -> None:
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    discriminator = nn.Sequential(nn.Linear(1, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    generator_engine, discriminator_engine = (
        hs.Engine(
            network,
            torch.optim.Adam(network.parameters(), lr=5e-3, betas=(0.5, 0.9)),
            precision="fp16",
        )
        for network in (generator, discriminator)
    )

    def discriminator_loss(network: nn.Module, real: Tensor) -> Tensor:
        with torch.no_grad():
            fake = generator(torch.randn(len(real), 4))
        return judged(network, real, True) + judged(network, fake, False)

    def generator_loss(network: nn.Module, noise: Tensor) -> Tensor:
        return judged(discriminator, network(noise), True)

    for step in range(1, 401):
        real = torch.randn(64, 1) * SPREAD + MEAN
        first = discriminator_engine.train_step([real], discriminator_loss)
        discriminator.requires_grad_(False)
        second = generator_engine.train_step([torch.randn(64, 4)], generator_loss)
        discriminator.requires_grad_(True)
        if step % 100 == 0:
            with torch.no_grad():
                mean = float(generator(torch.randn(2000, 4)).mean())
            print(
                f"[step {step}] discriminator={first.loss:.3f} generator={second.loss:.3f}"
                f" mean of samples={mean:.2f}"
            )


if __name__ == "__main__":
    main()
