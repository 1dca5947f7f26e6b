"""A vision run that is fine until step 199 and NaN from step 200 on, and why.

    python examples/nan_at_step_200.py

Part 1: the log that people know. The loss is fine, then every step is skipped and the loss scale
halves with every skip. halfstep replays the first skipped window and names the cause: from step
200 on the loader yields images that were not normalised (0 to 255 and a few dead pixels that are
NaN).

Part 2: the explanation that is usually given, "gradients were clipped before they were unscaled",
cannot do that: a skipped step puts nothing into the optimizer. What it does is starve the update,
by the factor of the loss scale.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs

FIRST_BAD_STEP = 200
Batch = tuple[Tensor, Tensor]


def images(steps: int) -> Iterator[list[Batch]]:
    """Windows of one batch of 8 x 8 images whose bright quadrant is the class."""
    generator = torch.Generator().manual_seed(0)
    for step in range(1, steps + 1):
        labels = torch.randint(4, (16,), generator=generator)
        x = torch.rand(16, 1, 8, 8, generator=generator) * 0.2
        for image, label in zip(x, labels.tolist(), strict=True):
            row, column = divmod(label, 2)
            image[0, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 0.8
        if step >= FIRST_BAD_STEP:
            x *= 255
            x[0, 0, 3, 3] = float("nan")
        yield [(x, labels)]


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(32, 4),
    )


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]).float(), batch[1])


def run() -> None:
    model = make_model()
    engine = hs.Engine(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        precision="fp16",
        max_norm=1.0,
        diagnose="on_skip",
    )
    explained = False
    for window in images(FIRST_BAD_STEP + 6):
        outcome = engine.train_step(window, loss_fn)
        near = outcome.step in (1, 50, 100, 150) or outcome.step >= FIRST_BAD_STEP - 2
        if near:
            state = f"loss={outcome.loss:.3f} scale={outcome.loss_scale:.0f}"
            print(f"[step {outcome.step}] {state} skipped={outcome.skipped}")
        if outcome.step >= FIRST_BAD_STEP and outcome.diagnosis is not None and not explained:
            explained = True
            print(f"    {outcome.diagnosis}")


def update_length(clip_first: bool) -> float:
    """Length of one SGD step with lr 1 and max_norm 1, at loss scale 2^10."""
    model = make_model()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    batch = next(images(1))[0]
    scaler.scale(loss_fn(model, batch) * 100).backward()
    if clip_first:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # halfstep: ignore[HS101]
    else:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    moved = [a.detach() - b for a, b in zip(model.parameters(), before, strict=True)]
    return float(torch.cat([m.flatten() for m in moved]).norm())


def main() -> None:
    logging.getLogger("halfstep").setLevel(logging.ERROR)
    run()
    print("\nlength of an update that max_norm=1 should make 1 long, at loss scale 1024:")
    print(f"  unscaled, then clipped:   {update_length(clip_first=False):.6f}")
    print(f"  clipped while scaled:     {update_length(clip_first=True):.6f}")


if __name__ == "__main__":
    main()
