"""What a device makes of the formats; the table of GPUs is NVIDIA's own."""

from __future__ import annotations

import pytest
import torch

import halfstep as hs
from halfstep.precision import choose_format, hardware
from halfstep.precision import probe as probe_module
from halfstep.precision.device_formats import Hardware, cuda_formats

# NVIDIA, "CUDA GPUs" and the whitepapers of Pascal to Hopper: compute capability, FP16 and BF16
# tensor cores. TU116 and TU117 have none, though their capability is that of the RTX 20 series.
GPUS = {
    "NVIDIA H200": ((9, 0), "native", "native", "bf16"),
    "NVIDIA A100-SXM4-80GB": ((8, 0), "native", "native", "bf16"),
    "NVIDIA GeForce RTX 3060": ((8, 6), "native", "native", "bf16"),
    "NVIDIA GeForce RTX 2080 Ti": ((7, 5), "native", "emulated", "fp16"),
    "Tesla T4": ((7, 5), "native", "emulated", "fp16"),
    "Tesla V100-SXM2-16GB": ((7, 0), "native", "emulated", "fp16"),
    "NVIDIA GeForce GTX 1660 Ti": ((7, 5), "broken", "emulated", "fp32"),
    "NVIDIA GeForce GTX 1650": ((7, 5), "broken", "emulated", "fp32"),
    "NVIDIA T1000": ((7, 5), "broken", "emulated", "fp32"),
    "NVIDIA GeForce GTX 1080 Ti": ((6, 1), "emulated", "emulated", "fp32"),
}


@pytest.mark.parametrize("name", GPUS)
def test_gpu_formats_are_those_of_its_chip(name: str) -> None:
    capability, fp16, bf16, best = GPUS[name]
    formats = cuda_formats(name, capability, torch_takes_bf16=True)
    assert (formats["fp16"].state, formats["bf16"].state) == (fp16, bf16)
    assert formats["tf32"].state == ("native" if capability >= (8, 0) else "refused")
    chosen, reason = Hardware("cuda:0", name, formats).best
    assert chosen == best
    assert name in reason


def test_gtx_16_reason_names_the_fault() -> None:
    formats = cuda_formats("NVIDIA GeForce GTX 1660", (7, 5), torch_takes_bf16=True)
    assert "NaN in FP16 convolutions" in Hardware("cuda:0", "", formats).best[1]


def test_bf16_that_torch_refuses_is_refused() -> None:
    assert cuda_formats("Tesla K80", (3, 7), torch_takes_bf16=False)["bf16"].state == "refused"


def test_auto_is_the_best_format_of_the_device() -> None:
    best, reason = hardware("cpu").best
    assert choose_format(torch.device("cpu")) == (best, reason)
    model = torch.nn.Linear(2, 2)
    engine = hs.Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), precision="auto")
    assert (engine.policy.format, engine.policy.reason) == (best, reason)


def test_cpu_states_agree_with_what_torch_finds() -> None:
    formats = hardware("cpu").formats
    has_bf16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    assert (formats["bf16"].state == "native") == has_bf16
    assert formats["tf32"].state == "refused"


def test_probe_runs_two_ops_in_two_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe_module._BUDGET_S * 8 == 2.0  # two ops, two formats, each against FP32
    monkeypatch.setattr(probe_module, "_BUDGET_S", 0.02)
    formats = hardware("cpu", probe=True).formats
    for name in ("bf16", "fp16"):
        probe = formats[name].probe
        assert probe is not None
        assert probe.fault == ""
        assert min(probe.product_speed, probe.convolution_speed) > 0
    assert formats["fp32"].probe is None


@pytest.mark.parametrize(
    ("spoil", "message"),
    [(float("nan"), "convolution in fp16 of finite numbers is not finite"), (9.0, "is wrong here")],
)
def test_probe_finds_a_format_broken_by_its_results(
    monkeypatch: pytest.MonkeyPatch, spoil: float, message: str
) -> None:
    true_convolution = torch.conv2d

    def convolution(*args: torch.Tensor) -> torch.Tensor:
        result = true_convolution(*args)
        return result + spoil if result.dtype is torch.float16 else result

    monkeypatch.setattr(probe_module, "_BUDGET_S", 0.0)
    monkeypatch.setattr(torch, "conv2d", convolution)
    found = hardware("cpu", probe=True)
    assert found.formats["fp16"].state == "broken"
    assert message in found.formats["fp16"].why
    assert found.formats["bf16"].state != "broken"


def test_unknown_device_is_refused() -> None:
    with pytest.raises(hs.BadValueError, match="cannot use device 'cdua'"):
        hardware("cdua")
