"""Three micro-batches of different token counts make one update, and the dtype of every value.

    python examples/three_micro_batches.py

Prints, for one window: what autocast does to each value (activations in BF16, loss in FP32,
parameter gradients in FP32), and that the gradient of the window is that of all its tokens
together, where a mean of three means is not.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs

PADDING = -100


class Batch(NamedTuple):
    """Token ids and targets, (rows, tokens); targets of padding are -100."""

    x: Tensor
    y: Tensor


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 50)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.embed(x)))
        return logits


def make_batch(valid: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(50, (2, 12), generator=generator)
    y = torch.randint(50, (2, 12), generator=generator)
    y.view(-1)[valid:] = PADDING
    return Batch(x, y)


WINDOW = [make_batch(valid, seed) for seed, valid in enumerate((24, 9, 2))]


def loss_sum(model: nn.Module, batch: Batch) -> hs.LossSum:
    logits = model(batch.x)
    total = F.cross_entropy(
        logits.flatten(0, 1), batch.y.flatten(), ignore_index=PADDING, reduction="sum"
    )
    return hs.LossSum(total, (batch.y != PADDING).sum())


def show_dtypes(engine: hs.Engine, model: Tagger) -> None:
    """One line per value, as it passes."""

    def show(name: str, value: Tensor) -> None:
        print(f"  {name:28} {str(value.dtype).removeprefix('torch.')}")

    handles = [
        module.register_forward_hook(lambda m, args, out, name=name: show(name, out))
        for name, module in model.named_children()
    ]
    handles.append(
        model.head.register_full_backward_hook(
            lambda m, grad_in, grad_out: show("gradient of the logits", grad_out[0])
        )
    )
    print("one micro-batch:")
    show("token ids", WINDOW[0].x)
    show("parameters", model.head.weight)
    with engine.autocast():
        loss = loss_sum(model, WINDOW[0])
    show("loss", loss.total)
    engine.backward(loss)
    assert model.head.weight.grad is not None
    show("gradient of the parameters", model.head.weight.grad)
    engine.abort()
    for handle in handles:
        handle.remove()


def gradient_of(losses: list[Tensor], model: Tagger) -> Tensor:
    gradient = torch.autograd.grad(sum(losses[1:], losses[0]), model.head.weight)[0]
    return gradient.detach()


def main() -> None:
    torch.manual_seed(0)
    model = Tagger()
    engine = hs.Engine(model, torch.optim.SGD(model.parameters(), lr=1.0), precision="bf16")
    show_dtypes(engine, model)

    in_fp32 = [loss_sum(model, batch) for batch in WINDOW]
    tokens = sum(float(loss.divisor) for loss in in_fp32)
    exact = gradient_of([loss.total / tokens for loss in in_fp32], model)
    in_fp32 = [loss_sum(model, batch) for batch in WINDOW]
    means = gradient_of([loss.total / loss.divisor / 3 for loss in in_fp32], model)

    print(f"\nvalid tokens: {[int(loss.divisor) for loss in in_fp32]}")
    for name, precision in (("FP32", "fp32"), ("BF16", "bf16")):
        torch.manual_seed(0)
        fresh = Tagger()
        before = fresh.head.weight.detach().clone()
        optimizer = torch.optim.SGD(fresh.parameters(), lr=1.0)
        outcome = hs.Engine(fresh, optimizer, precision=precision).train_step(WINDOW, loss_sum)
        moved = before - fresh.head.weight.detach()
        error = float((moved - exact).norm() / exact.norm())
        print(f"halfstep in {name}: divisor {outcome.divisor:.0f}, gradient off by {error:.1e}")
    print(
        f"mean of three means: gradient off by {float((means - exact).norm() / exact.norm()):.1e}"
    )


if __name__ == "__main__":
    main()
