"""Correct programs that keep gradients of representations, which carry the scale."""

HEAD = """\
import torch
from torch import nn
from torch.nn import functional as F

encoder = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)).cuda()
optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
pairs = torch.randn(96, 8).cuda()
for step in range(20):
    optimizer.zero_grad()
    with torch.no_grad(), torch.autocast("cuda"):
        kept = torch.cat([encoder(piece) for piece in pairs.chunk(6)]).float()
    kept.requires_grad_()
    loss = F.cross_entropy(kept @ kept.T, torch.arange(96, device="cuda"))
"""
PIECES = """\
    for piece, gradient in zip(pairs.chunk(6), KEPT):
        with torch.autocast("cuda"):
            again = encoder(piece)
        BACKWARD
"""
END = """\
    scaler.step(optimizer)
    scaler.update()
"""
FIRST = "    scaler.scale(loss).backward()\n"
PRODUCT = "(again.float() * gradient).sum().backward()"


def pieces(kept: str = "kept.grad.chunk(6)", backward: str = PRODUCT, first: str = FIRST) -> str:
    """The whole program."""
    second = PIECES.replace("KEPT", kept).replace("BACKWARD", backward)
    return HEAD + first + second + END


REPRESENTATIONS = {
    "a product": pieces(),
    "a product, the other way round": pieces(backward="torch.sum(gradient * again).backward()"),
    "a dot product": pieces(
        backward="torch.dot(again.flatten(), gradient.detach().flatten()).backward()"
    ),
    "einsum": pieces(backward='torch.einsum("nd,nd->", again, gradient).backward()'),
    "given to backward": pieces(backward="again.backward(gradient=gradient)"),
    "given to autograd": pieces(backward="torch.autograd.backward(again, gradient)"),
    "split and kept": pieces(
        kept="cache", first=FIRST + "    cache = [g.clone() for g in kept.grad.split(16)]\n"
    ),
    "from autograd": pieces(
        kept="cache.chunk(6)",
        first="    (cache,) = torch.autograd.grad(scaler.scale(loss), kept)\n",
    ),
    "by index": pieces(
        kept="range(6)",
        first=FIRST + "    cache = kept.grad.chunk(6)\n",
        backward="(again * cache[gradient]).sum().backward()",
    ),
}
