"""Fixed seeds for every test, and fused kernels on a CPU that decide as on an accelerator."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from emulated.autocast import register_kernels

if not torch.cuda.is_available():
    register_kernels()  # before any test uses a policy on "cuda"


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
    torch.sparse.check_sparse_tensor_invariants.enable()  # torch warns where this is left open


@pytest.fixture
def kernel_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms as tensors, as on an accelerator: a kernel that can skip then decides by itself."""
    from halfstep.update.optimizers.norm import GradientNorm, _device_norm

    def norm(
        self: GradientNorm, grads: Sequence[Tensor], key: object = None, *, are_dense: bool = False
    ) -> Tensor:
        return _device_norm(grads)

    monkeypatch.setattr(GradientNorm, "__call__", norm)


@pytest.fixture(params=["host", "kernel"])
def either_decides(request: pytest.FixtureRequest) -> None:
    """Once as on a CPU, once as in `kernel_decides`."""
    if request.param == "kernel":
        request.getfixturevalue("kernel_decides")
