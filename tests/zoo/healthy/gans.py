"""Two networks against each other, trained together as one recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs
from zoo.case import healthy
from zoo.data import images

SIZE = 32
NOISE = 32
Batch = tuple[Tensor, Tensor]


def _generator() -> nn.Module:
    return nn.Sequential(
        nn.ConvTranspose2d(NOISE, 64, 4, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.ConvTranspose2d(64, 48, 4, 2, 1, bias=False),
        nn.BatchNorm2d(48),
        nn.ReLU(),
        nn.ConvTranspose2d(48, 32, 4, 2, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 3, 4, 2, 1),
        nn.Tanh(),
    )


def _critic(norm: Callable[[int], nn.Module]) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(32, 48, 4, 2, 1),
        norm(48),
        nn.LeakyReLU(0.2),
        nn.Conv2d(48, 64, 4, 2, 1),
        norm(64),
        nn.LeakyReLU(0.2),
        nn.Conv2d(64, 1, 4),
    )


def _initialised(model: nn.Module) -> nn.Module:
    """Weights of deviation 0.02, as this kind of network is started."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(module.weight, std=0.02)
    return model


def _recipe(name: str, norm: Callable[[int], nn.Module], loss_fn: Any) -> hs.Recipe:
    def model() -> dict[str, nn.Module]:
        return {"generator": _initialised(_generator()), "critic": _initialised(_critic(norm))}

    def batches() -> list[Batch]:
        made = []
        for seed in range(4):
            noise = torch.randn(16, NOISE, 1, 1, generator=torch.Generator().manual_seed(seed))
            made.append((images(16, SIZE, seed=seed)[0].clamp(-3, 3) / 3, noise))
        return made

    def optimizer(models: dict[str, nn.Module]) -> dict[str, torch.optim.Optimizer]:
        return {
            name: torch.optim.Adam(m.parameters(), lr=2e-4, betas=(0.5, 0.999))
            for name, m in models.items()
        }

    return hs.Recipe(name, model, loss_fn, batches, optimizer, unit="samples")


@healthy()
def dcgan() -> hs.Recipe:
    """BCE with logits for both; the generator's own loss with the critic's view of its images."""

    def loss_fn(models: dict[str, nn.Module], batch: Batch) -> Tensor:
        real, noise = batch
        made = models["generator"](noise)
        of_real = models["critic"](real).flatten()
        of_made = models["critic"](made.detach()).flatten()
        fooled = models["critic"](made).flatten()
        bce = F.binary_cross_entropy_with_logits
        critic = bce(of_real, torch.ones_like(of_real)) + bce(of_made, torch.zeros_like(of_made))
        return critic + bce(fooled, torch.ones_like(fooled))

    return _recipe("dcgan", nn.BatchNorm2d, loss_fn)


@healthy()
def wgan_penalty() -> hs.Recipe:
    """Wasserstein, with a penalty on the norm of the critic's gradient: backward of a backward."""

    def loss_fn(models: dict[str, nn.Module], batch: Batch) -> Tensor:
        real, noise = batch
        made = models["generator"](noise)
        share = torch.linspace(0.05, 0.95, len(real))[:, None, None, None]
        between = (share * real + (1 - share) * made.detach()).float().requires_grad_()
        score = models["critic"](between)
        (slope,) = torch.autograd.grad(score.float().sum(), between, create_graph=True)
        penalty = (slope.float().flatten(1).norm(dim=1) - 1).square().mean()
        critic = (
            models["critic"](made.detach()).float().mean() - models["critic"](real).float().mean()
        )
        return critic + 10.0 * penalty - models["critic"](made).float().mean()

    return _recipe("wgan_penalty", lambda width: nn.GroupNorm(1, width), loss_fn)
