"""A user's recipe file, as text, and the type of the fixture that runs commands on it."""

from __future__ import annotations

from collections.abc import Callable

from typer.testing import Result

Invoke = Callable[..., Result]

RECIPES = '''
"""Recipes of a user."""
import torch
from torch import nn
import halfstep as hs

def mean_square(model, batch):
    return model(batch).square().mean()

def make(loss_fn=mean_square, batches=None, **rest):
    return hs.Recipe(
        name="mine",
        model=lambda: nn.Linear(4, 1),
        loss_fn=loss_fn,
        batches=batches or (lambda: [torch.full((2, 4), n) for n in (1.0, 2.0, 3.0)]),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
        unit="samples",
        **rest,
    )

def build():
    return make()

def sums():
    return make(lambda m, x: hs.LossSum(m(x).float().square().sum(), len(x)),
                validate=lambda m: {"error": m(torch.ones(1, 4)).item()})

def nans():
    return make(batches=lambda: [torch.full((2, 4), float("nan"))])

def empty():
    return make(batches=list)

def number():
    return 3

def raises():
    raise ValueError("the recipe's own")

def tuple_loss():
    return make(lambda m, x: (m(x).mean(), m(x)))

def dict_loss():
    return make(lambda m, x: {"loss": m(x).mean()})

def vector_loss():
    return make(lambda m, x: m(x))

def integer_loss():
    return make(lambda m, x: torch.tensor(3))

def detached_loss():
    return make(lambda m, x: m(x).mean().detach())

def interrupted():
    raise KeyboardInterrupt
'''
