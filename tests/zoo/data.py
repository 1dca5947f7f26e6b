"""Inputs that look like real ones: images with edges and shapes, text by Zipf's law, speech.

Everything is made from a seed, is normalised as data loaders do it, and has targets that follow
from the inputs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_ZIPF = 1.1


def images(count: int, size: int, classes: int = 10, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Smooth backgrounds with a disc whose colour and size follow from the class.

    Args:
        count: Of images.
        size: Height and width.
        classes: Of discs.
        seed: Of the chance.

    Returns:
        Images of shape (count, 3, size, size), normalised to mean 0 and deviation 1 over all, and
        classes of shape (count,).
    """
    pictures, masks, labels = scenes(count, size, classes, seed)
    del masks
    return pictures, labels


def scenes(
    count: int, size: int, classes: int = 10, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """As `images`, with the disc as a mask.

    Args:
        count, size, classes, seed: As in `images`.

    Returns:
        Images, masks of shape (count, size, size) with 0 for the background and class + 1 for the
        disc, and classes.
    """
    chance = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=chance)
    grid = torch.linspace(-1, 1, size)
    y, x = grid[:, None], grid[None, :]
    pictures, masks = [], []
    for label in labels.tolist():
        background = _texture(size, chance)
        centre = torch.rand(2, generator=chance) - 0.5
        radius = 0.25 + 0.25 * (label + 1) / classes
        inside = ((x - centre[0]) ** 2 + (y - centre[1]) ** 2) < radius**2
        hue = 2 * math.pi * label / classes + torch.tensor([0.0, 2.1, 4.2])
        colour = (0.5 + 0.4 * torch.cos(hue))[:, None, None]
        pictures.append(torch.where(inside, colour * (1 + 0.1 * background), background))
        masks.append(inside.long() * (label + 1))
    stacked = torch.stack(pictures)
    stacked = stacked + 0.02 * torch.randn(stacked.shape, generator=chance)  # of the sensor
    return (stacked - stacked.mean()) / stacked.std(), torch.stack(masks), labels


def _texture(size: int, chance: torch.Generator) -> Tensor:
    """Low frequencies with more energy than high ones, as in photographs."""
    frequencies = torch.fft.fftfreq(size)
    distance = (frequencies[:, None] ** 2 + frequencies[None, :] ** 2).sqrt().clamp_min(1 / size)
    noise = torch.fft.fft2(torch.randn(3, size, size, generator=chance))
    texture = torch.fft.ifft2(noise / distance**1.5).real
    return 0.5 + 0.2 * texture / texture.std()


def boxes(masks: Tensor) -> list[Tensor]:
    """The box around each mask.

    Args:
        masks: As `scenes` returns them.

    Returns:
        Per image a tensor of shape (1, 4): left, top, right, bottom, in pixels.
    """
    found = []
    for mask in masks:
        rows, columns = mask.any(1).nonzero().flatten(), mask.any(0).nonzero().flatten()
        corners = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
        found.append(torch.stack(corners).float()[None])
    return found


def tokens(count: int, length: int, vocabulary: int, seed: int = 0, first: int = 5) -> Tensor:
    """Text: frequencies by Zipf's law, and each token makes some others more likely.

    Args:
        count: Of sequences.
        length: Of each.
        vocabulary: Number of different tokens.
        seed: Of the chance.
        first: Smaller ones are left for special tokens.

    Returns:
        Of shape (count, length), int64.
    """
    chance = torch.Generator().manual_seed(seed)
    words = vocabulary - first
    frequency = 1.0 / torch.arange(1, words + 1).float() ** _ZIPF
    drawn = torch.multinomial(frequency, count * length, replacement=True, generator=chance)
    drawn = drawn.view(count, length)
    follows = torch.rand(count, length, generator=chance) < 0.5
    for position in range(1, length):
        after = (drawn[:, position - 1] * 7 + 3) % words
        drawn[:, position] = torch.where(follows[:, position], after, drawn[:, position])
    return drawn + first


def masked(text: Tensor, mask_token: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Text with 15 % of its tokens masked, and the labels: -100 where nothing is asked.

    Args:
        text: As `tokens` returns it.
        mask_token: What stands for a masked one.
        seed: Of the chance.
    """
    chance = torch.Generator().manual_seed(seed)
    hidden = torch.rand(text.shape, generator=chance) < 0.15
    hidden[:, 1] = True  # every row has one
    return text.masked_fill(hidden, mask_token), text.masked_fill(~hidden, -100)


def padding(count: int, length: int, seed: int = 0) -> Tensor:
    """Attention masks of sequences that are padded at the end.

    Args:
        count, length, seed: As in `tokens`.

    Returns:
        Of shape (count, length), 1 for a token and 0 for padding; the first row is full.
    """
    chance = torch.Generator().manual_seed(seed)
    lengths = torch.randint(length // 2, length + 1, (count,), generator=chance)
    lengths[0] = length
    return (torch.arange(length) < lengths[:, None]).long()


def speech(count: int, samples: int, rate: int = 16000, seed: int = 0) -> Tensor:
    """Voiced sounds: harmonics of a gliding pitch under a slow envelope, and some noise.

    Args:
        count: Of recordings.
        samples: Of each.
        rate: Samples per second.
        seed: Of the chance.

    Returns:
        Of shape (count, samples), each normalised to mean 0 and deviation 1.
    """
    chance = torch.Generator().manual_seed(seed)
    time = torch.arange(samples) / rate
    pitch = 90 + 120 * torch.rand(count, 1, generator=chance)
    glide = 1 + 0.1 * torch.sin(2 * math.pi * 3 * time)
    phase = 2 * math.pi * torch.cumsum(pitch * glide / rate, 1)
    sound = sum(torch.sin(k * phase) / k for k in range(1, 12))
    envelope = 0.1 + torch.sin(2 * math.pi * 4 * time + pitch).clamp_min(0)
    noise = torch.randn(count, samples, generator=chance)
    wave = torch.as_tensor(sound) * envelope + 0.02 * noise
    return (wave - wave.mean(1, keepdim=True)) / wave.std(1, keepdim=True)


def log_mel(wave: Tensor, bins: int, hop: int = 160) -> Tensor:
    """Logarithm of the energy in bands whose width grows with the frequency.

    Args:
        wave: As `speech` returns it.
        bins: Of the bands.
        hop: Samples between frames.

    Returns:
        Of shape (count, bins, frames), about -1 to 1.
    """
    size = 400
    window = torch.hann_window(size)
    spectrum = torch.stft(wave, size, hop, window=window, return_complex=True).abs() ** 2
    edges = (torch.linspace(0, 1, bins + 2) ** 1.7 * (spectrum.shape[1] - 1)).long()
    bands = [
        spectrum[:, int(low) : int(high) + 1].mean(1)
        for low, high in zip(edges[:-2], edges[2:], strict=True)
    ]
    level = torch.stack(bands, 1).clamp_min(1e-10).log10()
    level = torch.maximum(level, level.amax((1, 2), keepdim=True) - 8.0)
    return (level + 4.0) / 4.0


def series(count: int, length: int, channels: int, seed: int = 0) -> Tensor:
    """Days and weeks with a trend and some noise, as in measurements of a power grid.

    Args:
        count: Of series.
        length: Of each.
        channels: Of each.
        seed: Of the chance.

    Returns:
        Of shape (count, length, channels), normalised over time.
    """
    chance = torch.Generator().manual_seed(seed)
    time = torch.arange(length).float()[None, :, None]
    phase = 2 * math.pi * torch.rand(count, 1, channels, generator=chance)
    trend = (torch.rand(count, 1, channels, generator=chance) - 0.5) * time / length
    wave = torch.sin(2 * math.pi * time / 24 + phase) + 0.5 * torch.sin(
        2 * math.pi * time / 168 + phase
    )
    noise = 0.1 * torch.randn(count, length, channels, generator=chance)
    values = wave + trend + noise
    return (values - values.mean(1, keepdim=True)) / values.std(1, keepdim=True)
