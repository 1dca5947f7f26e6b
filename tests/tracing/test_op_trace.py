"""Every op of a pass with its place; largest magnitudes as torch itself finds them."""

from __future__ import annotations

import gc
import inspect
import math
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import halfstep as hs
from halfstep.records import OpRecord, TraceRecord

HERE = Path(__file__).name


def line_of(text: str, function: Any) -> int:
    lines, start = inspect.getsourcelines(function)
    return start + next(i for i, line in enumerate(lines) if text in line)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.fc(x))
        return x + self.norm(y)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.head(self.blocks(x)))


def traced(model: nn.Module, x: Tensor, **settings: Any) -> TraceRecord:
    with hs.trace(model, **settings) as trace:
        F.cross_entropy(model(x), torch.tensor([0, 1, 1])).backward()
    return trace.record


def find(record: TraceRecord, op: str, module: str, phase: str = "forward") -> list[OpRecord]:
    return [o for o in record.ops if (o.op, o.module, o.phase) == (op, module, phase)]


def test_forward_op_has_module_line_dtypes_shape_and_largest_magnitude() -> None:
    model, x = Net(), torch.randn(3, 4)
    seen: list[Tensor] = []
    model.blocks[1].register_forward_hook(lambda m, a, result: seen.append(result))
    record = traced(model, x)
    (op,) = find(record, "aten.add", "Net.blocks.1")
    assert op.source.endswith(f"{HERE}:{line_of('x + self.norm', Block.forward)}")
    assert (op.dtype, op.shape, op.inputs) == ("float32", (3, 4), ("float32", "float32"))
    assert op.largest == seen[0].abs().max().item()  # oracle: the module's own result
    assert (op.finite_fraction, op.largest_finite) == (1.0, op.largest)


def test_backward_op_has_module_and_line_of_its_forward_op() -> None:
    record = traced(Net(), torch.randn(3, 4))
    (op,) = find(record, "aten.tanh_backward", "Net.blocks.0", "backward")
    assert op.gradient_of == "TanhBackward0"
    assert op.source.endswith(f"{HERE}:{line_of('torch.tanh', Block.forward)}")
    (loss,) = [o for o in record.ops if o.op == "aten.nll_loss_backward"]
    assert (loss.module, loss.phase) == ("", "backward")
    assert loss.source.endswith(f"{HERE}:{line_of('cross_entropy', traced)}")


def test_gradients_of_parameters_are_results_of_the_backward_pass() -> None:
    model = Net()
    record = traced(model, torch.randn(3, 4))
    products = find(record, "aten.mm", "Net.head", "backward")
    assert model.head.weight.grad is not None
    expected = model.head.weight.grad.abs().max().item()
    assert expected in [op.largest for op in products]
    assert [op.occurrence for op in products] == list(range(len(products)))


def test_autocast_shows_its_casts_and_the_dtypes_that_really_ran() -> None:
    model = Net()
    with hs.trace(model) as trace, torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.randn(3, 4))
    names = [(op.op, op.dtype) for op in trace.record.ops if op.module == "Net.head"]
    assert ("aten._to_copy", "bfloat16") in names
    assert names[-1] == ("aten.addmm", "bfloat16")


def test_results_and_gradients_are_the_same_to_the_bit() -> None:
    def run(trace: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
        x = torch.randn(3, 4)
        if trace:
            traced(model, x)
        else:
            F.cross_entropy(model(x), torch.tensor([0, 1, 1])).backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        return [*grads, *model.buffers(), torch.get_rng_state()]

    pairs = list(zip(run(True), run(False), strict=True))
    assert len(pairs) == 10
    assert all(torch.equal(a, b) for a, b in pairs)


def test_first_bad_op_is_seen_though_nothing_is_read_in_between() -> None:
    x = torch.randn(3, 4)
    x[1, 2] = math.inf
    bad = traced(Net(), x).first_bad
    assert bad is not None
    assert (bad.op, bad.module) == ("aten.addmm", "Net.blocks.0.fc")
    assert traced(Net(), torch.randn(3, 4)).first_bad is None


def test_exception_leaves_no_hook_and_no_mode() -> None:
    model = Net()
    with pytest.raises(RuntimeError, match="shape"), hs.trace(model):
        model(torch.randn(3, 5))
    hooks = [m._forward_hooks or m._forward_pre_hooks for m in model.modules()]
    assert not any(hooks)
    with hs.trace(model) as trace:
        model(torch.randn(3, 4))
    assert trace.record.ops[-1].module == "Net.head"


def test_exception_that_the_user_catches_inside_does_not_shift_the_paths() -> None:
    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fails = nn.Linear(5, 5)
            self.works = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            try:
                x = self.fails(x)
            except RuntimeError:
                x = x * 2
            return torch.as_tensor(self.works(x))

    model = Careful()
    with hs.trace(model) as trace:
        model(torch.randn(3, 4))
    assert [(op.op, op.module) for op in trace.record.ops] == [
        ("aten.randn", ""),
        ("aten.mul", "Careful"),
        ("aten.addmm", "Careful.works"),
    ]


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_forward_ops_are_forward_ops_of_their_module(reentrant: bool) -> None:
    model = Block()
    x = torch.randn(3, 4, requires_grad=True)
    with hs.trace(model) as trace:
        torch.as_tensor(checkpoint(model, x, use_reentrant=reentrant)).sum().backward()
    tanhs = find(trace.record, "aten.tanh", "Block")
    assert len(tanhs) == 2  # once, and once more in the backward pass
    assert len(find(trace.record, "aten.tanh_backward", "Block", "backward")) == 1


def test_full_level_counts_shares_as_classify_does() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    values = [0.0, 1e-9, 3e-8, 1e-5, 1.0, 70000.0]
    with hs.trace(model, level="full", format="fp16") as trace:
        model(torch.tensor(values).reshape(-1, 1))
    (op,) = [op for op in trace.record.ops if op.module == "Linear"]
    assert op.range is not None
    categories = [c.category for c in hs.classify(torch.tensor(values), hs.FP16)]
    shares = {name: categories.count(name) / len(values) for name in set(categories)}
    assert op.range.zero_fraction == shares["zero"]
    assert op.range.underflow_fraction == shares["underflow"]
    assert op.range.subnormal_fraction == shares["subnormal"]
    assert op.range.overflow_fraction == shares["overflow"]
    assert sum(op.range.histogram.values()) == 5


def test_trace_is_written_as_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    record = traced(Net(), torch.randn(3, 4), path=path)
    assert TraceRecord.load(path) == record


def test_unknown_level_and_second_use_are_errors() -> None:
    with pytest.raises(hs.BadValueError, match="level must be 'standard' or 'full', got 'deep'"):
        hs.trace(Net(), level="deep")  # type: ignore[arg-type]
    trace = hs.trace(Net())
    with trace:
        pass
    with pytest.raises(hs.CallOrderError, match="this trace is over"), trace:
        pass


def test_transposed_and_strided_results_are_read_right() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.empty_strided((3, 4), (1, 8)).copy_(x)

    x = torch.randn(3, 4)
    model = Odd()
    with hs.trace(model) as trace:
        model(x.t().contiguous().t())
    assert trace.record.ops[-1].largest == x.abs().max().item()


def test_record_of_an_op_takes_less_than_a_kilobyte() -> None:
    model = nn.Sequential(*(Block() for _ in range(20)))
    x = torch.randn(3, 4)

    def run() -> TraceRecord:
        with hs.trace(model) as trace:
            model(x).sum().backward()
        for p in model.parameters():
            p.grad = None
        return trace.record

    run()  # fills the caches of names and lines
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    record = run()
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(record.ops) > 150
    assert taken / len(record.ops) < 1000


def test_each_result_is_read_once_and_nothing_else_runs() -> None:
    # oracle: ops counted by another mode outside of the tracer: twice the ops, twice the reads
    class Count(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    def names(layers: int, trace: bool) -> tuple[list[str], int]:
        model = nn.Sequential(*(Block() for _ in range(layers)))
        x = torch.randn(3, 4)
        counter = Count()
        if not trace:
            with counter:
                model(x).sum().backward()
            return counter.names, 0
        with counter, hs.trace(model) as traced:
            model(x).sum().backward()
        return counter.names, len(traced.record.ops)

    for layers in (2, 4):
        plain, _ = names(layers, trace=False)
        seen, ops = names(layers, trace=True)
        extra = [name for name in seen if name == "aten.aminmax.default"]
        assert len(extra) == ops
        assert len([n for n in seen if n in plain]) >= len(plain)
