"""CUDA's autocast lists as torch's documentation gives them ("CUDA Op-Specific Behavior").

Written from the documentation of torch 2.13, by hand: the oracle for our reading of the header.
Names are those of the documentation; `CALLS` says how each is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_TO_FLOAT16 = """
    __matmul__ addbmm addmm addmv addr baddbmm bmm multi_dot conv1d conv2d conv3d
    conv_transpose1d conv_transpose2d conv_transpose3d GRUCell linear LSTMCell matmul mm mv
    prelu RNNCell
"""
TO_FLOAT16 = _TO_FLOAT16.split()
_TO_FLOAT32 = """
    __pow__ __rdiv__ __rpow__ __rtruediv__ acos asin binary_cross_entropy_with_logits cosh
    cosine_embedding_loss cdist cosine_similarity cross_entropy cumprod cumsum dist erfinv exp
    expm1 group_norm hinge_embedding_loss kl_div l1_loss layer_norm log log_softmax log10 log1p
    log2 margin_ranking_loss mse_loss multilabel_margin_loss multi_margin_loss nll_loss norm
    normalize pdist poisson_nll_loss pow prod reciprocal rsqrt sinh smooth_l1_loss
    soft_margin_loss softmax softmin softplus sum renorm tan triplet_margin_loss
"""
TO_FLOAT32 = _TO_FLOAT32.split()
_TO_WIDEST = """
    addcdiv addcmul atan2 bilinear cross dot grid_sample index_put scatter_add tensordot
"""
TO_WIDEST = _TO_WIDEST.split()

N = 4
LABELS = torch.tensor([0, 1, 2, 3])
SIGNS = torch.tensor([1.0, -1.0, 1.0, -1.0])


def cell(make: Callable[[int, int], nn.Module]) -> Callable[[Tensor], Any]:
    def call(x: Tensor) -> Any:
        torch.manual_seed(1)
        result = make(N, N)(x)
        return result[0] if isinstance(result, tuple) else result

    return call


def _convolution(op: Callable[..., Tensor], dims: int) -> Callable[[Tensor], Tensor]:
    shape = (1, 1, *[N] * dims)
    weight = torch.linspace(-1, 1, 2**dims).reshape(1, 1, *[2] * dims)
    # any number of elements in, the shape that the op needs out
    return lambda x: op(x.flatten()[:1].expand(shape) * 1, weight)


CUBE = torch.linspace(-1, 1, N**3).reshape(N, N, N)
MATRIX = torch.linspace(-1, 1, N * N).reshape(N, N)
VECTOR = torch.linspace(-1, 1, N)

_UNARY = "acos asin cosh erfinv exp expm1 log log10 log1p log2 reciprocal rsqrt sinh tan"

# name -> call with one (4, 4) matrix of values in (0, 1); other operands are FP32
CALLS: dict[str, Callable[[Tensor], Any]] = {
    "__matmul__": lambda x: x @ MATRIX,
    "addbmm": lambda x: torch.addbmm(x, CUBE, CUBE),
    "addmm": lambda x: torch.addmm(x, MATRIX, MATRIX),
    "addmv": lambda x: torch.addmv(VECTOR, x, VECTOR),
    "addr": lambda x: torch.addr(x, VECTOR, VECTOR),
    "baddbmm": lambda x: torch.baddbmm(x, CUBE, CUBE),
    "bmm": lambda x: torch.bmm(x[None], MATRIX[None]),
    "multi_dot": lambda x: torch.linalg.multi_dot([x, MATRIX, MATRIX]),
    "conv1d": _convolution(F.conv1d, 1),
    "conv2d": _convolution(F.conv2d, 2),
    "conv3d": _convolution(F.conv3d, 3),
    "conv_transpose1d": _convolution(F.conv_transpose1d, 1),
    "conv_transpose2d": _convolution(F.conv_transpose2d, 2),
    "conv_transpose3d": _convolution(F.conv_transpose3d, 3),
    "GRUCell": cell(nn.GRUCell),
    "linear": lambda x: F.linear(x, MATRIX, VECTOR),
    "LSTMCell": cell(nn.LSTMCell),
    "matmul": lambda x: torch.matmul(x, MATRIX),
    "mm": lambda x: torch.mm(x, MATRIX),
    "mv": lambda x: torch.mv(x, VECTOR),
    "prelu": lambda x: F.prelu(x, VECTOR[:1]),
    "RNNCell": cell(nn.RNNCell),
    "__pow__": lambda x: x**1.5,
    "__rdiv__": lambda x: 2.0 / x,
    "__rpow__": lambda x: 2.0**x,
    "__rtruediv__": lambda x: x.__rtruediv__(2.0),
    "binary_cross_entropy_with_logits": lambda x: F.binary_cross_entropy_with_logits(x, x.detach()),
    "cosine_embedding_loss": lambda x: F.cosine_embedding_loss(x, MATRIX.to(x.dtype), SIGNS),
    "cdist": lambda x: torch.cdist(x, MATRIX),
    "cosine_similarity": lambda x: F.cosine_similarity(x, MATRIX),
    "cross_entropy": lambda x: F.cross_entropy(x, LABELS),
    "cumprod": lambda x: x.cumprod(0),
    "cumsum": lambda x: x.cumsum(0),
    "dist": lambda x: torch.dist(x, MATRIX),
    "group_norm": lambda x: F.group_norm(x, 2),
    "hinge_embedding_loss": lambda x: F.hinge_embedding_loss(x, SIGNS),
    "kl_div": lambda x: F.kl_div(x, x.detach(), reduction="batchmean"),
    "l1_loss": lambda x: F.l1_loss(x, MATRIX),
    "layer_norm": lambda x: F.layer_norm(x, (N,)),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "margin_ranking_loss": lambda x: F.margin_ranking_loss(x[0], x[1], SIGNS),
    "mse_loss": lambda x: F.mse_loss(x, MATRIX),
    "multilabel_margin_loss": lambda x: F.multilabel_margin_loss(x, LABELS.expand(N, N) * 1),
    "multi_margin_loss": lambda x: F.multi_margin_loss(x, LABELS),
    "nll_loss": lambda x: F.nll_loss(x, LABELS),
    "norm": lambda x: x.norm(),
    "normalize": lambda x: F.normalize(x) * 1,
    "pdist": lambda x: torch.pdist(x),
    "poisson_nll_loss": lambda x: F.poisson_nll_loss(x, x.detach()),
    "pow": lambda x: torch.pow(x, x),
    "prod": lambda x: x.prod(),
    "renorm": lambda x: torch.renorm(x, 2, 0, 1.0),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, MATRIX),
    "soft_margin_loss": lambda x: F.soft_margin_loss(x, SIGNS.expand(N, N)),
    "softmax": lambda x: F.softmax(x, -1),
    "softmin": lambda x: F.softmin(x, -1),
    "softplus": F.softplus,
    "sum": lambda x: x.sum(),
    "triplet_margin_loss": lambda x: F.triplet_margin_loss(x, MATRIX, MATRIX.flip(0)),
    **{name: (lambda x, name=name: getattr(torch, name)(x)) for name in _UNARY.split()},
}

# name -> call with the dtypes of two operands
PROMOTING: dict[str, Callable[[torch.dtype, torch.dtype], Tensor]] = {
    "addcdiv": lambda a, b: torch.addcdiv(VECTOR.to(a), VECTOR.to(b), VECTOR.to(b) + 2),
    "addcmul": lambda a, b: torch.addcmul(VECTOR.to(a), VECTOR.to(b), VECTOR.to(a)),
    "atan2": lambda a, b: torch.atan2(VECTOR.to(a), VECTOR.to(b)),
    "bilinear": lambda a, b: F.bilinear(MATRIX.to(a), MATRIX.to(b), CUBE.to(a)),
    "cross": lambda a, b: torch.cross(VECTOR[:3].to(a), VECTOR[:3].to(b), dim=0),
    "dot": lambda a, b: torch.dot(VECTOR.to(a), VECTOR.to(b)),
    "grid_sample": lambda a, b: F.grid_sample(
        MATRIX.to(a)[None, None], torch.zeros(1, 2, 2, 2).to(b), align_corners=False
    ),
    "index_put": lambda a, b: torch.index_put(VECTOR.to(a), (torch.tensor([1]),), VECTOR[:1].to(b)),
    "scatter_add": lambda a, b: torch.scatter_add(VECTOR.to(a), 0, LABELS, VECTOR.to(b)),
    "tensordot": lambda a, b: torch.tensordot(MATRIX.to(a), MATRIX.to(b)),
}
