"""Clips that programs write themselves, and factors that are none."""

HEAD = """\
import math

import torch
from torch import nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

model = nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
limit, world_size = 1.0, 4
params = list(model.parameters())
for x in torch.randn(12, 5, 8).cuda():
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = model(x).square().mean()
    scaler.scale(loss).backward()
UNSCALE
"""
END = """\
    scaler.step(optimizer)
    scaler.update()
"""
NORM = "norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()\n"
SUMMED = """\
total = 0.0
for p in params:
    total += p.grad.detach().data.norm(2).item() ** 2
total = total**0.5
"""
EACH = "for p in model.parameters():\n    "
# The last line is the clip.
CLIPS = {
    "of torch in two steps": "norm = get_total_norm([p.grad for p in params])\n"
    "clip_grads_with_norm_(params, limit, norm)\n",
    "coefficient": NORM
    + "coefficient = (limit / (norm + 1e-6)).clamp(max=1.0)\n"
    + EACH
    + "p.grad.mul_(coefficient)\n",
    "only if it is large": NORM
    + "if norm > limit:\n    "
    + EACH.replace("    ", "        ")
    + "p.grad.mul_(limit / norm)\n",
    "summed": SUMMED
    + "coefficient = min(1.0, limit / (total + 1e-6))\n"
    + EACH
    + "p.grad.data.mul_(coefficient)\n",
    "root of a sum": "norm = math.sqrt(sum(p.grad.pow(2).sum().item() for p in params))\n"
    "coefficient = torch.clamp(limit / torch.tensor(norm), max=1.0)\n"
    + EACH
    + "p.grad *= coefficient\n",
    "all at once": "norms = torch._foreach_norm([p.grad for p in params])\n"
    "norm = torch.linalg.vector_norm(torch.stack(norms))\n"
    "torch._foreach_mul_([p.grad for p in params], torch.clamp(limit / norm, max=1.0))\n",
    "divided": NORM + EACH + "p.grad.div_(norm.clamp(min=limit))\n",
    "divided in place": NORM + EACH + "p.grad /= max(norm, 1.0)\n",
    "a new gradient": NORM
    + "coefficient = limit / max(norm, limit)\n"
    + EACH
    + "p.grad = p.grad * coefficient\n",
    "each by its own norm": EACH + "p.grad.mul_(limit / (p.grad.norm() + 1e-6))\n",
    "clamped": EACH + "p.grad = p.grad.clamp(-1, 1)\n",
    "clamped by torch": EACH + "torch.clamp_(p.grad, -1.0, 1.0)\n",
    "clamped anew": "for name, p in model.named_parameters():\n    "
    "p.grad = torch.clamp(p.grad, min=-limit, max=limit)\n",
}
NO_CLIPS = {
    "a number": EACH + "p.grad.mul_(0.25)\n",
    "processes": EACH + "p.grad.div_(world_size)\n",
    "micro-batches": "parts = 4\n" + EACH + "p.grad = p.grad / parts\n",
    "one side at 0": EACH + "p.grad.clamp_(min=0)\n",
    "shown": NORM + "print(limit / norm, norm.item())\n",
    "limit times scale": NORM
    + "coefficient = (limit * scaler.get_scale() / (norm + 1e-6)).clamp(max=1.0)\n"
    + EACH
    + "p.grad.mul_(coefficient)\n",
    "norm by scale": NORM
    + "norm = norm / scaler.get_scale()\ncoefficient = (limit / norm).clamp(max=1.0)\n"
    + EACH
    + "p.grad.mul_(coefficient)\n",
    "norm by scale in place": NORM
    + "norm.div_(scaler.get_scale())\ncoefficient = (limit / norm).clamp(max=1.0)\n"
    + EACH
    + "p.grad.mul_(coefficient)\n",
    "true norm for torch": "norm = get_total_norm([p.grad for p in params]) / scaler.get_scale()\n"
    "clip_grads_with_norm_(params, limit, norm)\n",
    "norm by the scale's tensor": NORM
    + "norm = norm / scaler._scale\n"
    + EACH
    + "p.grad.mul_((limit / norm).clamp(max=1.0))\n",
    "limits by scale": "top = limit * scaler.get_scale()\n" + EACH + "p.grad.clamp_(-top, top)\n",
    "all equally long": "norms = torch.stack([p.grad.norm() for p in model.parameters()])\n"
    + EACH
    + "p.grad.mul_(norms.mean() / p.grad.norm())\n",
    "a step along the gradient": NORM
    + "steps = [p.grad * (0.05 / (norm + 1e-12)) for p in params]\n",
}


def program(lines: str, unscale: str = "") -> str:
    """A training with `lines` between its backward and its step."""
    inner = "".join(f"    {line}\n" for line in lines.splitlines())
    return HEAD.replace("UNSCALE\n", unscale) + inner + END
