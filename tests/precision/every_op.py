"""Kernels on every op that torch has, and none of them active: nothing may change.

Run as a process of its own, since kernels last as long as the process.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import halfstep as hs
from halfstep.precision.op_names import _ARRIVE_AT, _all_names

H = (torch.linspace(0.1, 0.9, 16).reshape(4, 4)).half()
I = torch.arange(16).reshape(4, 4)  # noqa: E741
BINARY = """
    add sub mul div true_divide floor_divide remainder fmod pow eq ne lt le gt ge xlogy float_power
    copysign rsub hypot multiply divide subtract ldexp atan2 maximum fmin heaviside logaddexp
    bitwise_and special.xlog1py special.zeta
"""
OPERANDS: dict[str, tuple[Any, Any]] = {
    "number": (H, 0.5),
    "whole number": (H, 2),
    "number first": (0.5, H),
    "0-d and number": (H[0, 0], 0.5),
    "integers": (I, 0.5),
    "two": (H, H),
    "mixed": (H, H.float()),
    "0-d": (H, torch.tensor(0.5)),
}
OTHERS: dict[str, Callable[[], Any]] = {
    "operators": lambda: (1 - H) / 2 + 3 * H**2 - 2**H + H // 0.3 + H % 0.3,
    "where": lambda: torch.where(H > 0.5, H, 0.0) + torch.where(H > 0.5, 1.0, 0.0),
    "lerp": lambda: torch.lerp(H, H * 2, 0.3),
    "clamp": lambda: H.clamp(0.2, 0.5),
    "masked_fill": lambda: H.masked_fill(H > 0.5, 0.0),
    "add, alpha": lambda: torch.add(H, H, alpha=2) + torch.add(H, 2, alpha=2),
    "in place": lambda: H.clone().add_(1).mul_(0.5),
    "out": lambda: torch.mul(H, H, out=torch.empty(4, 4).half()),
    "dtype given": lambda: H.sum(dtype=torch.float64) + torch.softmax(H, -1, dtype=torch.float16),
    "reductions": lambda: H.mean() + H.var() + H.amax(0) + H.std(0) + H.logsumexp(0) + H.norm(),
    "batch_norm": lambda: F.batch_norm(H, None, None, training=True),
    "embedding": lambda: F.embedding(I[0] % 4, H),
    "cat": lambda: torch.cat([H, H.float()], 1),
    "interpolate": lambda: F.interpolate(H[None, None], scale_factor=2.0, mode="bilinear"),
    "attention": lambda: F.scaled_dot_product_attention(H[None], H[None], H[None]),
    "dropout": lambda: (torch.manual_seed(0), F.dropout(H, 0.5))[1],
    "norms": lambda: F.layer_norm(H, (4,)) + F.group_norm(H, 2) + F.normalize(H),
    "index_put": lambda: H.index_put((I[0] % 4,), H[0]),
    "losses": lambda: F.cross_entropy(H, I[0] % 4) + F.mse_loss(H, H * 2),
    "products": lambda: H @ H + torch.einsum("ij,kj->ik", H, H) + F.linear(H, H.float()),
    "spectrum": lambda: torch.stft(H.flatten(), 4, return_complex=True, window=torch.ones(4)).abs(),
    "topk": lambda: H.topk(2)[0],
}


def _binary(name: str) -> Callable[..., Any]:
    found: Any = torch
    for part in name.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def all_results() -> dict[str, object]:
    found: dict[str, object] = {}
    calls = dict(OTHERS)
    for name in BINARY.split():
        for kind, operands in OPERANDS.items():
            calls[f"{name}, {kind}"] = lambda name=name, operands=operands: _binary(name)(*operands)
    for name, call in calls.items():
        try:
            found[name] = call()
        except (RuntimeError, TypeError) as error:
            found[name] = type(error)
    return found


def differences(found: dict[str, object], expected: dict[str, object]) -> list[str]:
    return [name for name, value in found.items() if not _same(value, expected[name])]


def _same(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype is b.dtype and bool(
            torch.isclose(a, b, rtol=0, atol=0, equal_nan=True).all()
        )
    return a is b


def castable() -> dict[str, str]:
    rules = {}
    for name in set(_all_names()) - set(_ARRIVE_AT):
        try:
            hs.Policy("fp16", ops={name: "fp32"})
        except hs.BadValueError:
            continue
        rules[name] = "fp32"
    return rules


def main() -> None:
    warnings.simplefilter("ignore")
    plain = all_results()
    with torch.autocast("cpu", torch.float16):
        stock = all_results()
    rules = castable()
    policy = hs.Policy("fp16", ops=rules)
    with policy.autocast("cpu"):
        active = all_results()
    with torch.autocast("cpu", torch.float16):
        print(differences(all_results(), stock))
    print(differences(all_results(), plain))
    failed = {n for n, v in active.items() if isinstance(v, type) and v is not plain[n]}
    print(sorted(failed))
    print(len(rules))


if __name__ == "__main__":
    main()
