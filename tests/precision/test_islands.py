"""FP32 islands: modules, with every kind of argument, copies, threads and exceptions."""

from __future__ import annotations

import copy
import io
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import halfstep as hs

HALF = torch.ones(2, 4).half()
FP16 = hs.Policy("fp16")


class Pair(NamedTuple):
    left: Tensor
    right: Tensor | None


class Remember(nn.Module):
    """Keeps what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        self.seen = args, kwargs
        self.autocast = torch.is_autocast_enabled("cpu")
        result: Tensor = self.linear(torch.ones(2, 4))
        return result


def called(*args: Any, **kwargs: Any) -> Any:
    island = hs.fp32(Remember())
    with FP16.autocast("cpu"):
        assert island(*args, **kwargs).dtype is torch.float32
    assert not island.autocast
    return island.seen


def test_inputs_are_cast_in_every_structure() -> None:
    integers, double, flags = torch.arange(3), torch.ones(2).double(), torch.tensor([True])
    (pair, nested, nothing), keywords = called(
        Pair(HALF, None),
        (HALF, [HALF.bfloat16(), {"a": (HALF,), "b": "text"}]),
        None,
        mask=flags,
        ids=integers,
        more=OrderedDict(x=HALF, y=3),
        double=double,
    )
    assert isinstance(pair, Pair)
    assert (pair.left.dtype, pair.right) == (torch.float32, None)
    assert nested[0].dtype is nested[1][0].dtype is nested[1][1]["a"][0].dtype is torch.float32
    assert (nested[1][1]["b"], nothing) == ("text", None)
    assert keywords["ids"] is integers
    assert keywords["mask"] is flags
    assert keywords["double"] is double
    assert isinstance(keywords["more"], OrderedDict)
    assert keywords["more"]["x"].dtype is torch.float32


def test_structure_without_half_tensors_is_the_callers_own() -> None:
    cache: dict[str, list[Tensor]] = {"keys": []}
    (seen,), _ = called(cache)
    assert seen is cache


def test_mapping_with_a_constructor_of_its_own_keeps_its_kind() -> None:
    (seen,), _ = called(defaultdict(list, {"x": HALF}))
    assert isinstance(seen, defaultdict)
    assert seen.default_factory is list
    assert seen["x"].dtype is torch.float32


def test_packed_sequence_is_cast() -> None:
    packed = pack_sequence([torch.ones(3, 4).half(), torch.ones(2, 4).half()])
    island = hs.fp32(nn.LSTM(4, 4))
    with FP16.autocast("cpu"):
        output, _ = island(packed)
    assert isinstance(output, PackedSequence)
    assert output.data.dtype is torch.float32


def test_callers_tensors_are_not_changed() -> None:
    arguments = [HALF, {"x": HALF}]
    called(arguments)
    assert arguments[0] is HALF
    assert arguments[1]["x"] is HALF  # type: ignore[index,call-overload]


def test_gradient_flows_through_the_cast() -> None:
    # oracle: the same head, by hand in FP32
    head = nn.Linear(4, 4)
    x = HALF.clone().requires_grad_()
    with torch.autocast("cpu", torch.float16):
        y = hs.fp32(head)(x)
    y.sum().backward()
    by_hand = HALF.clone().requires_grad_()
    torch.nn.functional.linear(by_hand.float(), head.weight, head.bias).sum().backward()
    assert x.grad is not None
    assert by_hand.grad is not None
    assert torch.equal(x.grad, by_hand.grad)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Softmax(-1))


def dtypes(model: nn.Module, policy: hs.Policy | None = FP16) -> list[torch.dtype]:
    found: list[torch.dtype] = []
    handles = [
        module.register_forward_hook(lambda _m, _i, out: found.append(out.dtype))
        for module in model.children()
    ]
    context = policy.autocast("cpu") if policy else torch.autocast("cpu", torch.float16)
    with context:
        model(torch.ones(2, 4))
    for handle in handles:
        handle.remove()
    return found


pytestmark = pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")
F16, F32 = torch.float16, torch.float32


def test_pattern_makes_islands_of_what_it_matches() -> None:
    model = nn.Sequential(OrderedDict(encoder=net(), head=nn.Linear(4, 4)))
    policy = hs.Policy("fp16", modules={"encoder.*": "fp32", "head": "fp32"})
    assert policy.attach(model) == ["encoder.0", "encoder.1", "encoder.2", "head"]
    assert dtypes(model, policy) == [F32, F32]


def test_policys_islands_are_none_without_the_policy() -> None:
    model = net()
    first = hs.Policy("fp16", modules={"0": "fp32"})
    second = hs.Policy("fp16", modules={"1": "fp32"})
    for policy in (first, second, first):
        policy.attach(model)
    assert len(model[0]._forward_hooks) == 1
    assert dtypes(model, first) == [F32, F16, F16]
    assert dtypes(model, second) == [F16, F32, F32]
    assert dtypes(model) == dtypes(model, None) == [F16, F16, F16]


def test_detached_model_has_no_hooks_and_other_islands_stay() -> None:
    model = net()
    first, second = (hs.Policy("fp16", modules={name: "fp32"}) for name in "01")
    for policy in (first, second):
        policy.attach(model)
        hs.fp32(model[2])
    first.detach(model)
    second.detach(model[0])  # nothing there
    assert dtypes(model, first) == [F16, F16, F32]
    assert dtypes(model, second) == [F16, F32, F32]
    tables = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_always_called")
    assert not any(
        getattr(model[0], table) for table in (*tables, "_forward_pre_hooks_with_kwargs")
    )


def test_shared_module_is_found_under_each_of_its_names() -> None:
    model = nn.ModuleDict({"embed": nn.Linear(4, 4)})
    model["head"] = model["embed"]
    hs.Policy("fp16", modules={"head": "fp32"}).attach(model)
    assert len(model["embed"]._forward_hooks) == 1


def test_patterns_are_names_of_the_model_inside_its_wrappers() -> None:
    policy = hs.Policy("fp16", modules={"encoder.1": "fp32"})
    model = nn.Sequential(OrderedDict(encoder=net()))
    wrapped = nn.DataParallel(torch.compile(model, backend="eager"))
    assert policy.attach(wrapped) == ["encoder.1"]
    assert len(model.encoder[1]._forward_hooks) == 1


COPIES: dict[str, Callable[[nn.Module], Any]] = {
    "deepcopy": copy.deepcopy,
    "save": lambda m: _saved_and_loaded(m),
    "average": lambda m: torch.optim.swa_utils.AveragedModel(m).module,
}


def _saved_and_loaded(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("how", COPIES)
def test_copy_is_an_island_with_weights_of_its_own(how: str) -> None:
    model = net()
    hs.fp32(model[1])
    policy = hs.Policy("fp16", modules={"2": "fp32"})
    policy.attach(model)
    other = COPIES[how](model)
    with torch.no_grad():
        other[1].weight.zero_()
        other[1].bias.fill_(3.0)
    assert dtypes(other, policy) == dtypes(model, policy) == [F16, F32, F32]
    assert dtypes(other) == [F16, F32, F32]
    with FP16.autocast("cpu"):
        assert torch.equal(other[1](HALF), torch.full((2, 4), 3.0))
        assert not torch.equal(model[1](HALF), other[1](HALF))


class Fails(nn.Module):
    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        raise self.error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_exception_inside_leaves_nothing_behind(error: type[BaseException]) -> None:
    island = hs.fp32(Fails(error))
    with FP16.autocast("cpu"):
        for _ in range(2):
            with pytest.raises(error):
                island(HALF)
            if error is ValueError:
                assert torch.is_autocast_enabled("cpu")
        assert hs.fp32(nn.Linear(4, 4))(HALF).dtype is torch.float32
    assert not torch.is_autocast_enabled("cpu")
    assert dtypes(net()) == [F16, F16, F16]
    assert torch.autocast_increment_nesting() == 1
    torch.autocast_decrement_nesting()


def test_exception_of_an_earlier_hook_leaves_nothing_behind() -> None:
    def hook(module: nn.Module, args: Any) -> None:
        raise ValueError("the user's own")

    island = hs.fp32(nn.Linear(4, 4))
    island.register_forward_pre_hook(hook, prepend=True)
    with FP16.autocast("cpu"):
        with pytest.raises(ValueError, match="the user's own"):
            island(HALF)
        assert torch.is_autocast_enabled("cpu")


def test_island_within_an_island_and_in_itself() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = hs.fp32(nn.Linear(4, 4))

        def forward(self, x: Tensor, depth: int) -> Tensor:
            result: Tensor = self.inner(self(x, depth - 1) if depth else x)
            return result

    island = hs.fp32(Twice())
    with FP16.autocast("cpu"):
        assert island(HALF, 3).dtype is torch.float32
        assert torch.is_autocast_enabled("cpu")


def test_threads_share_a_module_and_not_its_state() -> None:
    island, meet = hs.fp32(nn.Linear(4, 4)), threading.Barrier(2)

    def both_are_inside(*_: Any) -> None:
        meet.wait()

    island.register_forward_pre_hook(both_are_inside)

    def run(with_autocast: bool) -> tuple[torch.dtype, bool]:
        with torch.autocast("cpu", torch.float16, enabled=with_autocast):
            return island(HALF).dtype, torch.is_autocast_enabled("cpu")

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, [True, False])) == [(F32, True), (F32, False)]


def test_making_an_island_twice_is_making_it_once() -> None:
    module = hs.fp32(hs.fp32(nn.Linear(4, 4)))
    assert len(module._forward_hooks) == len(module._forward_pre_hooks) == 1


def test_island_of_half_weights_is_refused() -> None:
    with pytest.raises(hs.BadValueError, match=r"FP32 weights, but 'weight' is torch.bfloat16"):
        hs.fp32(nn.Linear(4, 4).bfloat16())


def test_island_of_something_else_is_refused() -> None:
    with pytest.raises(hs.BadTypeError, match=r"takes a torch.nn.Module, or nothing for a block"):
        hs.fp32(torch.softmax)  # type: ignore[call-overload]
