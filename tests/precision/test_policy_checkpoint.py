"""Policies and islands where torch runs the forward again in backward, or differently at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import halfstep as hs
from halfstep.precision import compiler

X = torch.linspace(-2, 2, 32).reshape(4, 8)


class Block(nn.Module):
    """A block whose dtypes depend on the policy, checkpointed or not."""

    def __init__(self, use_reentrant: bool | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)
        self.use_reentrant = use_reentrant

    def inner(self, x: Tensor) -> Tensor:
        h = self.second(F.dropout(F.gelu(self.first(x)), 0.2))
        with hs.fp32():
            scores = torch.softmax(h, -1)
        result: Tensor = self.norm(scores * x)
        return result

    def forward(self, x: Tensor) -> Tensor:
        if self.use_reentrant is None:
            return self.inner(x)
        result: Tensor = checkpoint(self.inner, x, use_reentrant=self.use_reentrant)  # type: ignore[no-untyped-call]
        return result


POLICIES = {
    "islands": hs.Policy("fp16", modules={"second": "fp32", "norm": "fp32"}),
    "cuda": hs.Policy("fp16", base="cuda"),
    "both": hs.Policy("bf16", base="cuda", ops={"gelu": "fp32"}, modules={"second": "fp32"}),
}


def gradients(policy: hs.Policy, use_reentrant: bool | None) -> list[Tensor]:
    model, x = Block(use_reentrant), X.clone().requires_grad_()
    policy.attach(model)
    with policy.autocast("cpu"):
        loss = model(x).float().square().sum()
    with policy.recompute("cpu"):
        loss.backward()
    return [t.grad for t in (*model.parameters(), x) if t.grad is not None]


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("name", POLICIES)
def test_checkpoint_gradients_are_bit_equal_to_those_without(
    name: str, use_reentrant: bool
) -> None:
    expected = gradients(POLICIES[name], None)
    found = gradients(POLICIES[name], use_reentrant)
    assert len(found) == len(expected) == 7
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_engine_recomputes_under_the_policy(use_reentrant: bool) -> None:
    def trained(reentrant: bool | None) -> list[Tensor]:
        model = Block(reentrant)
        engine = hs.Engine(
            model, torch.optim.SGD(model.parameters(), lr=0.1), precision=POLICIES["both"]
        )
        x = X.clone().requires_grad_()
        for _ in range(3):
            engine.train_step([x], lambda model, x: model(x).square().mean())
        return [p.detach() for p in model.parameters()]

    assert all(map(torch.equal, trained(use_reentrant), trained(None)))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_always_island_needs_no_policy_in_backward(use_reentrant: bool) -> None:
    def run(reentrant: bool | None) -> list[Tensor]:
        model, x = Block(reentrant), X.clone().requires_grad_()
        hs.fp32(model.second)
        with torch.autocast("cpu", torch.float16):
            loss = model(x).float().square().sum()
        loss.backward()
        return [t.grad for t in (*model.parameters(), x) if t.grad is not None]

    assert all(map(torch.equal, run(use_reentrant), run(None)))


def test_backward_without_the_context_is_torchs_own_error() -> None:
    weight = torch.eye(8, requires_grad=True)
    with POLICIES["cuda"].autocast("cpu"):
        y = checkpoint(lambda w: torch.softmax(X @ w, -1) ** 2, weight, use_reentrant=False)  # type: ignore[no-untyped-call]
    with pytest.raises(torch.utils.checkpoint.CheckpointError, match="different metadata"):
        y.sum().backward()


@pytest.mark.parametrize("name", POLICIES)
def test_func_grad_is_bit_equal_to_backward(name: str) -> None:
    policy, model = POLICIES[name], Block().eval()
    model.inner = lambda x: model.norm(torch.softmax(model.second(F.gelu(model.first(x))), -1) * x)  # type: ignore[method-assign]
    policy.attach(model)
    weights = dict(model.named_parameters())

    def loss_fn(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        with policy.autocast("cpu"):  # inside, so that backward runs outside
            loss: Tensor = torch.func.functional_call(model, weights, (x,)).float().square().sum()
        return loss

    found = torch.func.grad(loss_fn)(weights, X)
    expected = torch.autograd.grad(loss_fn(weights, X), list(weights.values()))
    assert all(map(torch.equal, found.values(), expected))


def test_vmap_of_a_policy_gives_the_batch() -> None:
    # oracle: the whole batch, up to roundings of FP16 (torch takes a softmax apart before autocast
    # sees it, on CUDA as well)
    policy, model = POLICIES["cuda"], nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    with policy.autocast("cpu"):
        found, expected = torch.func.vmap(model)(X), model(X)
    assert found.dtype is expected.dtype is torch.float32
    assert torch.allclose(found, expected, atol=8 * torch.finfo(torch.float16).eps)


@pytest.fixture
def compiled() -> Any:
    torch._dynamo.reset()
    yield lambda f, **rest: torch.compile(f, backend="aot_eager", **rest)
    torch._dynamo.reset()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Softmax(-1), nn.LayerNorm(8))


pytestmark = [
    pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning"),
    # torch 2.10 where its compiler goes on after a stop
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


class OwnForward(nn.Module):
    """Compiled in parts where the compiler stops at the island; a Sequential is not at all then."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network()

    def forward(self, x: Tensor) -> Tensor:
        first, second, *rest = self.layers
        h = second(first(x).relu()).relu()
        return rest[1](rest[0](h))


def backward_pass_autocast(value: str) -> Any:
    import torch._functorch.config as config

    return config.patch(backward_pass_autocast=value)


def with_gradients(model: nn.Module, run: Callable[[Tensor], Tensor]) -> list[Tensor]:
    y = run(X)
    with torch.autocast("cpu", enabled=False):
        return [y, *torch.autograd.grad(y.float().square().sum(), list(model.parameters()))]


# what an island does is traced by torch 2.13, and not by torch 2.10
IN_ONE_GRAPH = compiler.TRACES_AUTOCAST_SWITCH
MODELS = pytest.mark.parametrize("make", [network, OwnForward])


def test_compiler_of_torch_2_13_traces_an_island() -> None:
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    assert IN_ONE_GRAPH or version < (2, 13)
    assert not IN_ONE_GRAPH or version > (2, 10)


@MODELS
@pytest.mark.parametrize("fullgraph", [True, False] if IN_ONE_GRAPH else [False])
def test_compiled_module_runs_under_a_policy(compiled: Any, make: Any, fullgraph: bool) -> None:
    policy, model = hs.Policy("fp16", base="cuda", modules={"*1": "fp32"}), make()
    assert len(policy.attach(model)) == 1
    with policy.autocast("cpu"):
        found, expected = compiled(model, fullgraph=fullgraph)(X), model(X)
    assert torch.equal(found, expected)


@MODELS
@pytest.mark.parametrize("fullgraph", [True, False] if IN_ONE_GRAPH else [False])
def test_island_inside_a_compiled_module(compiled: Any, make: Any, fullgraph: bool) -> None:
    model = make()
    hs.fp32(model.get_submodule("1" if make is network else "layers.1"))
    with backward_pass_autocast("off"), torch.autocast("cpu", torch.float16):
        found = with_gradients(model, compiled(model, fullgraph=fullgraph))
        expected = with_gradients(model, model)
        assert torch.is_autocast_enabled("cpu")
    assert [torch.equal(*pair) for pair in zip(found, expected, strict=True)] == [True] * 7


class StockIsland(OwnForward):
    """The same with torch's own means."""

    def forward(self, x: Tensor) -> Tensor:
        first, second, *rest = self.layers
        h = first(x).relu()
        with torch.autocast("cpu", enabled=False):
            h = second(h.float())
        return rest[1](rest[0](h.relu()))


@pytest.mark.skipif(not IN_ONE_GRAPH, reason="this torch compiles no island")
def test_backward_of_a_compiled_island_is_what_torchs_own_is(compiled: Any) -> None:
    # documented: torch compiles backward under the autocast around forward unless told otherwise
    model, stock = OwnForward(), StockIsland()
    hs.fp32(model.layers[1])
    with torch.autocast("cpu", torch.float16):
        found = with_gradients(model, compiled(model))
        expected = with_gradients(stock, compiled(stock))
        plain = with_gradients(stock, stock)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    assert not all(torch.equal(*pair) for pair in zip(found, plain, strict=True))


@MODELS
@pytest.mark.skipif(IN_ONE_GRAPH, reason="this torch compiles an island in one graph")
def test_island_in_one_graph_is_refused_by_a_torch_that_cannot(compiled: Any, make: Any) -> None:
    model = make()
    hs.fp32(model.get_submodule("1" if make is network else "layers.1"))
    refused = pytest.raises(
        torch._dynamo.exc.Unsupported, match=r"cannot trace; torch 2\.13 can\. Leave fullgraph=True"
    )
    with torch.autocast("cpu", torch.float16), refused:
        compiled(model, fullgraph=True)(X)
    assert not torch.is_autocast_enabled("cpu")


def test_policy_and_block_inside_a_compiled_function(compiled: Any) -> None:
    policy, model = POLICIES["cuda"], network()

    def run(x: Tensor) -> Tensor:
        with policy.autocast("cpu"):
            y = model(x)
        with hs.fp32():
            return torch.softmax(y.half(), -1)

    assert torch.equal(compiled(run)(X), run(X))
    assert not torch.is_autocast_enabled("cpu")


def test_function_keeps_the_policy_it_was_compiled_under(compiled: Any) -> None:
    # documented: torch's guards do not see a policy, so one compiled function per policy
    def softmax(x: Tensor) -> Tensor:
        return torch.softmax(x, -1)

    function = compiled(softmax)
    with POLICIES["cuda"].autocast("cpu"):
        assert function(X.half()).dtype is torch.float32
    with torch.autocast("cpu", torch.float16):
        assert function(X.half()).dtype is torch.float32
        assert softmax(X.half()).dtype is torch.float16
