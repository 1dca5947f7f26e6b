"""What is said by a torch without one of the private names that policies stand on."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from halfstep.precision.torch_internals import torch_internal
from halfstep.records import UnsupportedTorchError


def test_internal_is_the_attribute_of_torch() -> None:
    assert torch_internal("DispatchKey.AutocastCPU") is torch._C.DispatchKey.AutocastCPU


@pytest.mark.parametrize("name", ["_no_such_name", "DispatchKey.AutocastNowhere"])
def test_missing_internal_is_named_with_the_versions_that_have_it(name: str) -> None:
    said = rf"^torch \S+ has no torch\._C\.{name}, .* run on torch 2\.10 to 2\.14\. Install"
    with pytest.raises(UnsupportedTorchError, match=said):
        torch_internal(name)


def test_policy_on_a_torch_without_its_storage_is_refused_in_a_sentence() -> None:
    code = "import torch; del torch._C._is_key_in_tls; import halfstep as hs; hs.Policy('fp16')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "has no torch._C._is_key_in_tls" in run.stderr.splitlines()[-1]
