"""Fixed seeds for every test."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
    torch.sparse.check_sparse_tensor_invariants.enable()  # torch warns where this is left open
