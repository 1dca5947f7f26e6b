"""The tests of this folder run on a CUDA device where there is one, else on the emulated one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from emulated import emulated_device

HAS_DEVICE = torch.cuda.is_available()


@pytest.fixture(autouse=True)
def device(request: pytest.FixtureRequest, _seeded: None) -> Iterator[None]:
    mark = request.node.get_closest_marker("real_device")
    if HAS_DEVICE:
        yield
    elif mark is not None:
        pytest.skip(f"only a CUDA device can show it: {mark.kwargs['shows']}")
    else:
        with emulated_device():
            yield
