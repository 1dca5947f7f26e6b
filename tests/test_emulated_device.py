"""The emulated device itself: CUDA's documented behaviour, and the CPU's numbers."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from emulated import Counts, DeviceTensor, emulated_device, inner, on_device


@pytest.fixture
def counts() -> Iterator[Counts]:
    with emulated_device() as found:
        yield found


# -------------------------------------------------------------------------------------- tensors


def test_tensor_moved_there_says_so_and_comes_back_unchanged(counts: Counts) -> None:
    x = torch.randn(3, 4)
    there = x.to("cuda")
    assert (there.device, there.is_cuda, there.is_cpu) == (torch.device("cuda:0"), True, False)
    assert torch.equal(there.cpu(), x)
    assert not torch.ones(1).is_cuda


def test_gradients_equal_those_of_the_cpu_bit_for_bit(counts: Counts) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))
    x = torch.randn(5, 4)
    there = copy.deepcopy(net).to("cuda")
    F.cross_entropy(net(x), torch.tensor([0, 1, 0, 1, 1])).backward()
    F.cross_entropy(there(x.cuda()), torch.tensor([0, 1, 0, 1, 1]).cuda()).backward()
    for p, q in zip(net.parameters(), there.parameters(), strict=True):
        assert isinstance(q, nn.Parameter)
        assert torch.equal(inner(q.grad), p.grad)


def test_view_and_its_base_share_their_values(counts: Counts) -> None:
    x = torch.zeros(2, 3, device="cuda")
    x[0].add_(1)
    x.data = torch.full((2, 3), 2.0, device="cuda")
    x.view(-1)[1:3].zero_()
    assert x.tolist() == [[2.0, 0.0, 0.0], [2.0, 2.0, 2.0]]


def test_host_tensor_beside_a_device_tensor_is_refused_and_a_number_is_not(counts: Counts) -> None:
    x = torch.ones(2, device="cuda")
    assert (x * torch.tensor(3.0)).tolist() == [3.0, 3.0]
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        x + torch.ones(2)


def test_default_device_makes_tensors_there_and_pins_none_of_them(counts: Counts) -> None:
    torch.set_default_device("cuda")
    assert torch.zeros(2).is_cuda
    assert torch.tensor([1.0]).is_cuda
    assert nn.Linear(2, 2).weight.is_cuda
    assert torch.empty(2, device="cpu", pin_memory=True).is_pinned()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(2, pin_memory=True)


def test_file_written_there_loads_on_the_cpu(counts: Counts, tmp_path: Path) -> None:
    net = nn.Linear(2, 2, device="cuda")
    torch.save(net.state_dict(), tmp_path / "a.pt")
    found = torch.load(tmp_path / "a.pt", map_location="cpu", weights_only=True)
    assert type(found["weight"]) is Tensor
    assert torch.equal(found["weight"], inner(net.weight))


def test_copies_share_no_memory(counts: Counts) -> None:
    net = nn.Linear(2, 2, device="cuda")
    for twin in (copy.deepcopy(net), copy.deepcopy(net).to(torch.float32)):
        with torch.no_grad():
            twin.weight.zero_()
        assert isinstance(twin.weight, nn.Parameter)
        assert bool((inner(net.weight) != 0).all())
    x = torch.ones(2, device="cuda")
    x.to("cuda", copy=True).zero_()
    assert x.tolist() == [1.0, 1.0]
    assert x.to("cuda") is x


def test_memory_format_is_that_which_was_asked_for(counts: Counts) -> None:
    # oracle: the strides on the CPU
    here = nn.Conv2d(3, 4, 3)
    there = copy.deepcopy(here).to("cuda")
    assert there.weight.stride() == here.weight.stride()
    for model in (here, there):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert there.weight.stride() == here.weight.stride() == (27, 1, 9, 3)
    assert torch.equal(inner(there.weight), here.weight)
    assert there.weight.to("cuda", memory_format=torch.channels_last) is there.weight


# ---------------------------------------------------------------------------------------- waits

WAITS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x[0].item(),
    "float": lambda x: float(x[0]),
    "bool": lambda x: bool(x[0] > 0),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "nonzero": lambda x: x.nonzero(),
    "equal": lambda x: torch.equal(x, x),
    "mask": lambda x: x[x > 0],
    "masked_select": lambda x: torch.masked_select(x, x > 0),
    "tensor": lambda x: torch.tensor(1.0, device="cuda"),
    "pageable": lambda x: torch.ones(2).to("cuda"),
    "copy_": lambda x: torch.empty(2).copy_(x),
    "stream": lambda x: torch.cuda.current_stream().synchronize(),
    "save": lambda x: torch.save(x, io.BytesIO()),
}
FREE: dict[str, Callable[[Tensor], Any]] = {
    "arithmetic": lambda x: (x * 2 + 1).sum(),
    "full": lambda x: torch.full((), 2.0, device="cuda"),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "to dtype": lambda x: x.double(),
    "pinned there": lambda x: torch.ones(2).pin_memory().to("cuda", non_blocking=True),
    "pinned back": lambda x: torch.empty(2, pin_memory=True).copy_(x, non_blocking=True),
    "masked_fill": lambda x: x.masked_fill(x > 0, 1.0),
    "event": lambda x: torch.cuda.Event().record(),
    "number": lambda x: x * torch.tensor(2.0),
}


@pytest.mark.parametrize("name", WAITS)
def test_operation_that_needs_the_device_is_a_wait(counts: Counts, name: str) -> None:
    # oracle: torch's notes on CUDA semantics ("Asynchronous execution") and c10's warn_or_error_on
    # _sync, which the copies, .item(), nonzero and the stream go through
    x = torch.ones(2, device="cuda")
    counts.clear()
    WAITS[name](x)
    assert len(counts.waits) == 1, counts.waits
    assert counts.waits[0].place.startswith("test_emulated_device.py:")


@pytest.mark.parametrize("name", FREE)
def test_operation_that_only_queues_is_none(counts: Counts, name: str) -> None:
    x = torch.ones(2, device="cuda")
    counts.clear()
    torch.cuda.set_sync_debug_mode("error")
    FREE[name](x)
    assert counts.waits == counts.events == []


def test_debug_mode_raises_or_warns_at_a_wait(counts: Counts) -> None:
    x = torch.ones((), device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
        x.item()
    torch.cuda.set_sync_debug_mode("warn")
    with pytest.warns(UserWarning, match="called a synchronizing CUDA operation"):
        x.item()
    torch.cuda.set_sync_debug_mode("default")
    assert x.item() == 1.0


def test_views_and_empty_memory_launch_nothing(counts: Counts) -> None:
    x = torch.ones(2, 3, device="cuda")
    counts.clear()
    x.t()
    x.view(-1)[1:].unsqueeze(0).detach()
    torch.empty_like(x)
    assert sum(counts.ops.values()) == 0
    torch._foreach_add_([x, x], 1.0)
    assert counts.ops == {"_foreach_add_": 1}


# ------------------------------------------------------------------------------ work in flight


@pytest.mark.parametrize("wait", ["event", "stream", "device", "item"])
def test_copy_into_pinned_memory_arrives_with_a_wait(counts: Counts, wait: str) -> None:
    x = torch.ones((), device="cuda")
    host = torch.zeros((), pin_memory=True)
    host.copy_(x, non_blocking=True)
    event = torch.Event("cuda:0")
    event.record(torch.cuda.current_stream())
    x.zero_()  # queued behind the copy
    assert math.isnan(host)
    {
        "event": event.synchronize,
        "stream": torch.cuda.current_stream().synchronize,
        "device": torch.cuda.synchronize,
        "item": x.item,
    }[wait]()
    assert host == 1.0


def test_event_waits_for_nothing_that_was_queued_after_it(counts: Counts) -> None:
    host = torch.zeros((), pin_memory=True)
    event = torch.cuda.Event()
    event.record()
    host.copy_(torch.ones((), device="cuda"), non_blocking=True)
    event.synchronize()
    assert math.isnan(host)
    assert (len(counts.events), counts.waits) == (1, [])


@pytest.mark.parametrize("read", ["synchronize", "query"])
def test_event_that_was_never_recorded_is_an_error(counts: Counts, read: str) -> None:
    with pytest.raises(RuntimeError, match="this event was never recorded"):
        getattr(torch.cuda.Event(), read)()


def test_stream_is_busy_until_its_work_is_over(counts: Counts) -> None:
    torch.cuda._sleep(1000)
    assert not torch.cuda.current_stream().query()
    assert torch.cuda.current_stream().query()


# ------------------------------------------------------------------------------- random numbers


def test_devices_random_numbers_are_its_own(counts: Counts) -> None:
    torch.manual_seed(3)
    host = torch.rand(2)
    torch.manual_seed(3)
    state = torch.cuda.get_rng_state_all()
    first = torch.rand(2, device="cuda")
    assert torch.equal(torch.rand(2), host)  # the device has drawn nothing from the host
    assert not torch.equal(inner(torch.rand(2, device="cuda")), inner(first))
    torch.cuda.set_rng_state_all(state)
    assert torch.equal(inner(torch.rand(2, device="cuda")), inner(first))


# ------------------------------------------------------------------------------------- demands


def adam(**changes: Any) -> None:
    made: dict[str, Any] = {
        name: [on_device(torch.ones(2, 2))] for name in ("params", "grads", "means", "squares")
    }
    made["steps"] = [on_device(torch.ones(()))]
    keywords: dict[str, Any] = {"grad_scale": None, "found_inf": None, "lr": 0.1}
    for name, value in changes.items():
        (made if name in made else keywords)[name] = value
    torch._fused_adamw_(
        made["params"], made["grads"], made["means"], made["squares"], [], made["steps"],
        beta1=0.9, beta2=0.99, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
        **keywords,
    )  # fmt: skip


def test_fused_kernel_takes_what_cuda_takes(counts: Counts) -> None:
    adam(found_inf=on_device(torch.zeros(())), lr=on_device(torch.tensor(0.1)))
    assert [kernel.get("grad_scale") for kernel in counts.kernels] == [None]


def test_fused_kernel_compares_no_stride_of_a_single_element(counts: Counts) -> None:
    # oracle: _check_tensors_share_sizes_and_strides of ForeachUtils.h
    row = torch.ones(1, 2)
    assert row.as_strided((1, 2), (7, 1)).stride() != row.stride()
    others = {name: [on_device(row)] for name in ("params", "means", "squares")}
    adam(**others, grads=[DeviceTensor(row.as_strided((1, 2), (7, 1)))])
    assert len(counts.kernels) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grads": [torch.ones(2, 2, dtype=torch.float64)]}, "same dtype, device, and layout"),
        ({"grads": [torch.ones(2, 2).t()]}, "same dtype, device, and layout"),
        ({"means": [torch.ones(2, 2), torch.ones(2, 2)]}, "1 parameters and 2 states"),
        ({"steps": [torch.ones((), dtype=torch.int64)]}, "state_steps must be one torch.float32"),
        ({"found_inf": torch.zeros((), dtype=torch.float64)}, "found_inf must be one"),
        ({"grad_scale": torch.ones(2)}, "grad_scale must be one"),
        ({"lr": torch.tensor(0.1, dtype=torch.float64)}, "lr must be one"),
    ],
)
def test_fused_kernel_refuses_what_cuda_refuses(
    counts: Counts, changes: dict[str, Any], message: str
) -> None:
    # oracle: check_fast_path_restrictions and the data_ptr<float>() of the CUDA kernels
    there = {
        name: on_device(value) if isinstance(value, Tensor) else [on_device(v) for v in value]
        for name, value in changes.items()
    }
    with pytest.raises(RuntimeError, match=message):
        adam(**there)


def test_step_counter_on_the_host_is_refused(counts: Counts) -> None:
    with pytest.raises(RuntimeError, match=r"state_steps must be one torch\.float32 on cuda:0"):
        adam(steps=[torch.ones(())])


# ------------------------------------------------------------------------------------- autocast


def test_autocast_follows_cudas_list_inside_of_composite_operations(counts: Counts) -> None:
    # oracle: torch's documentation of CUDA op-specific behaviour
    x = torch.randn(3, 4, device="cuda")
    net = nn.Linear(4, 2, device="cuda")
    with torch.autocast("cuda", torch.float16):
        y = net(x)
        found = [y, torch.softmax(y, -1), y.sum(), y + 1, y.double().exp()]
        loss = F.cross_entropy(y, torch.zeros(3, dtype=torch.int64, device="cuda"))
        with torch.autocast("cuda", enabled=False):
            assert net(x).dtype is torch.float32
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(torch.sigmoid(y.float()), torch.ones(3, 2, device="cuda"))
    half, single = torch.float16, torch.float32
    assert [t.dtype for t in found] == [half, single, single, half, torch.float64]
    assert loss.dtype is single
    loss.backward()
    assert net.weight.grad is not None
    assert net.weight.grad.dtype is single


@pytest.mark.parametrize("clears", [True, False])
def test_casts_of_weights_are_kept_until_autocast_ends(counts: Counts, clears: bool) -> None:
    net = nn.Linear(4, 2, bias=False, device="cuda")
    x = torch.ones(1, 4, device="cuda").half()
    with torch.autocast("cuda", torch.float16):
        net(x)
        counts.clear()
        net(x)
        assert counts.ops["_to_copy"] == 0
        with torch.no_grad():
            net.weight.zero_()
        if clears:
            torch.clear_autocast_cache()
        assert (net(x).tolist() == [[0.0, 0.0]]) == clears
    with torch.autocast("cuda", torch.float16):
        assert net(x).tolist() == [[0.0, 0.0]]


def test_nothing_is_replaced_afterwards() -> None:
    before = (torch.cuda.is_available(), Tensor.to, torch.Event, torch.tensor)
    with emulated_device():
        assert torch.cuda.is_available()
    assert (torch.cuda.is_available(), Tensor.to, torch.Event, torch.tensor) == before
    assert torch.ones(1).add(1).tolist() == [2.0]
