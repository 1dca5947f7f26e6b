"""Recurrent networks: a language model, a tagger, a forecast."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs
from zoo.case import healthy
from zoo.data import series, tokens
from zoo.recipes import recipe

VOCABULARY = 256
WIDTH = 64


class Language(nn.Module):
    """An LSTM of two layers whose embedding is its output matrix too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        self.head.weight = self.embed.weight

    def forward(self, text: Tensor) -> Tensor:
        states, _ = self.lstm(self.embed(text))
        return torch.as_tensor(self.head(states))


@healthy()
def lstm_language() -> hs.Recipe:
    def loss_fn(model: nn.Module, text: Tensor) -> Tensor:
        logits = model(text[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())

    batches = [tokens(8, 33, VOCABULARY, seed) for seed in range(4)]
    return recipe("lstm_language", Language, loss_fn, batches, lr=3e-3)


@healthy()
def gru_tagger() -> hs.Recipe:
    """A tag for each token, in both directions, by cells in a loop."""

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, WIDTH)
            self.forwards = nn.GRUCell(WIDTH, WIDTH)
            self.backwards = nn.GRUCell(WIDTH, WIDTH)
            self.head = nn.Linear(2 * WIDTH, 5)

        def forward(self, text: Tensor) -> Tensor:
            x = self.embed(text).unbind(1)
            right = self._run(self.forwards, list(x))
            left = self._run(self.backwards, list(x[::-1]))[::-1]
            both = [torch.cat(pair, -1) for pair in zip(right, left, strict=True)]
            return torch.as_tensor(self.head(torch.stack(both, 1)))

        def _run(self, cell: nn.Module, steps: list[Tensor]) -> list[Tensor]:
            state = steps[0].new_zeros(len(steps[0]), WIDTH)
            states = []
            for step in steps:
                state = cell(step, state)
                states.append(state)
            return states

    def loss_fn(model: nn.Module, text: Tensor) -> Tensor:
        tags = (text + text.roll(1, 1)) % 5
        return F.cross_entropy(model(text).flatten(0, 1), tags.flatten())

    batches = [tokens(8, 20, VOCABULARY, seed) for seed in range(4)]
    return recipe("gru_tagger", Tagger, loss_fn, batches, lr=3e-3)


@healthy()
def lstm_forecast() -> hs.Recipe:
    """Quantiles of the next day of a series."""

    class Forecast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(3, WIDTH, batch_first=True)
            self.head = nn.Linear(WIDTH, 24 * 3)

        def forward(self, x: Tensor) -> Tensor:
            states, _ = self.lstm(x)
            return torch.as_tensor(self.head(states[:, -1])).view(-1, 24, 3)

    def loss_fn(model: nn.Module, values: Tensor) -> Tensor:
        quantiles = torch.tensor([0.1, 0.5, 0.9])
        error = values[:, -24:, :1] - model(values[:, :-24]).float()
        return torch.maximum(quantiles * error, (quantiles - 1) * error).mean()

    batches = [series(8, 24 * 8, 3, seed) for seed in range(4)]
    return recipe("lstm_forecast", Forecast, loss_fn, batches, lr=1e-3)
