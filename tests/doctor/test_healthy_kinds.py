"""Kinds of healthy models that look sick when ops are judged instead of results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import halfstep as hs


def seeded(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def recipe(
    model: Callable[[], Any],
    loss_fn: Callable[[Any, Any], Any],
    batch: Any,
    optimizer: Callable[[Any], Any] | None = None,
) -> hs.Recipe:
    adam = lambda m: torch.optim.AdamW(  # noqa: E731
        [p for p in m.parameters() if p.requires_grad], lr=1e-3
    )
    return hs.Recipe(
        name="kind",
        model=model,
        loss_fn=loss_fn,
        batches=lambda: [batch],
        optimizer=optimizer or adam,
    )


def square(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).float().square().mean()


def saved_statistics_near_zero() -> hs.Recipe:
    """Depthwise convolutions and squeeze-excitation at 2 x 2: saved means are near 0."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.expand = nn.Conv2d(8, 32, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(32)
            self.depthwise = nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False)
            self.bn2 = nn.BatchNorm2d(32)
            self.squeeze, self.excite = nn.Conv2d(32, 4, 1), nn.Conv2d(4, 32, 1)
            self.project = nn.Conv2d(32, 8, 1, bias=False)
            self.bn3 = nn.BatchNorm2d(8)

        def forward(self, x: Tensor) -> Tensor:
            h = F.silu(self.bn2(self.depthwise(F.silu(self.bn1(self.expand(x))))))
            gate = torch.sigmoid(self.excite(F.silu(self.squeeze(h.mean((2, 3), keepdim=True)))))
            return x + self.bn3(self.project(h * gate))

    model = lambda: nn.Sequential(  # noqa: E731
        nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), *[Block() for _ in range(6)],
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip
    batch = (seeded(4, 3, 8, 8), torch.tensor([0, 1, 2, 3]))
    return recipe(model, lambda m, b: F.cross_entropy(m(b[0]).float(), b[1]), batch)


class Attention(nn.Module):
    """With a mask that is made of the dtype's own limit."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) / 4
        keep = torch.ones(x.shape[1], x.shape[1]).tril()
        mask = (1.0 - keep) * torch.finfo(scores.dtype).min
        weights = (scores.float() + mask).softmax(-1).to(scores.dtype)
        return x + self.out(weights @ v)


def mask_of_the_dtypes_limit() -> hs.Recipe:
    return recipe(
        lambda: nn.Sequential(nn.Linear(8, 16), Attention(), Attention(), nn.Linear(16, 4)),
        square,
        seeded(2, 6, 8),
    )


def checkpointing(use_reentrant: bool) -> Callable[[], hs.Recipe]:
    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 16)
            self.blocks = nn.ModuleList(Attention() for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            for block in self.blocks:
                x = checkpoint(
                    lambda h, block=block: torch.tanh(block(h) * 2) + h * 0.5,
                    x,
                    use_reentrant=use_reentrant,
                )
            return x

    return lambda: recipe(Recomputed, square, seeded(2, 6, 8))


def gan() -> hs.Recipe:
    def models() -> dict[str, nn.Module]:
        return {
            "generator": nn.Sequential(
                nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16)
            ),
            "critic": nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)),
        }

    def loss(models: Any, x: Tensor) -> Tensor:
        fake = models["generator"](torch.randn(len(x), 8))
        critic, bce = models["critic"], F.binary_cross_entropy_with_logits
        real, made = critic(x).float(), critic(fake).float()
        return bce(real, torch.ones_like(real)) + bce(made, torch.zeros_like(made))

    adam = lambda ms: {name: torch.optim.Adam(m.parameters()) for name, m in ms.items()}  # noqa: E731
    return recipe(models, loss, seeded(16, 16), adam)


def vae() -> hs.Recipe:
    class Vae(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
            self.decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            mean, log_variance = self.encoder(x).chunk(2, -1)
            z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
            return self.decoder(z), mean, log_variance

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        logits, mean, log_variance = model(x)
        fit = F.binary_cross_entropy_with_logits(logits.float(), x, reduction="sum") / len(x)
        return fit - 0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(1).mean()

    return recipe(Vae, loss, torch.rand(16, 32, generator=torch.Generator().manual_seed(0)))


def wasserstein_loss_near_zero() -> hs.Recipe:
    model = lambda: nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))  # noqa: E731

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        return m(x[:32]).float().mean() - m(x[32:]).float().mean()

    return recipe(model, loss, seeded(64, 16))


class LowRank(nn.Module):
    """A frozen layer beside a low-rank one whose second factor starts at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(16, 16).requires_grad_(False)
        self.a, self.b = nn.Linear(16, 4, bias=False), nn.Linear(4, 16, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.base(x) + self.b(self.a(x)))


def lora() -> hs.Recipe:
    return recipe(lambda: nn.Sequential(LowRank(), nn.Tanh(), LowRank()), square, seeded(8, 16))


def dict_of_losses() -> hs.Recipe:
    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.box = nn.Linear(16, 16), nn.Linear(16, 4)

        def forward(self, images: list[Tensor], targets: list[dict[str, Tensor]]) -> Any:
            h = torch.tanh(self.body(torch.stack(images)))
            wanted = torch.stack([target["box"] for target in targets])
            return {
                "box": F.l1_loss(self.box(h).float(), wanted),
                "size": h.float().square().mean(),
            }

    batch = ([seeded(16), seeded(16) + 1], [{"box": torch.zeros(4)}, {"box": torch.ones(4)}])
    return recipe(Detector, lambda m, b: sum(m(*b).values()), batch)


def bias_before_batch_norm() -> hs.Recipe:
    model = lambda: nn.Sequential(  # noqa: E731
        nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4), nn.BatchNorm1d(4)
    )
    return recipe(model, lambda m, x: m(x).float().tanh().pow(3).mean(), seeded(32, 16))


def key_bias_of_attention() -> hs.Recipe:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
            nn.init.normal_(self.attention.in_proj_bias)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x, need_weights=False)[0]  # type: ignore[no-any-return]

    return recipe(Mixed, square, seeded(2, 6, 16))


def vanishing_but_there() -> hs.Recipe:
    blocks = [module for _ in range(8) for module in (nn.Linear(8, 8), nn.Sigmoid())]
    return recipe(lambda: nn.Sequential(*blocks, nn.Linear(8, 1)), square, seeded(16, 8))


def penalty_on_slopes() -> hs.Recipe:
    """A second backward through the first, which leaves some outputs out."""

    def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
        between = x.detach().requires_grad_()
        score = model(between).float().sum()
        (slope,) = torch.autograd.grad(score, between, create_graph=True)
        return model(x).float().mean() + (slope.float().flatten(1).norm(dim=1) - 1).square().mean()

    model = lambda: nn.Sequential(  # noqa: E731
        nn.Conv2d(3, 8, 3, stride=2), nn.GroupNorm(1, 8), nn.LeakyReLU(0.2),
        nn.Conv2d(8, 8, 3, stride=2), nn.Flatten(), nn.Linear(72, 1),
    )  # fmt: skip
    return recipe(model, loss_fn, seeded(4, 3, 16, 16))


KINDS: dict[str, Callable[[], hs.Recipe]] = {
    "saved statistics": saved_statistics_near_zero,
    "finfo.min mask": mask_of_the_dtypes_limit,
    "checkpointing": checkpointing(use_reentrant=False),
    "reentrant checkpointing": checkpointing(use_reentrant=True),
    "gan": gan,
    "vae": vae,
    "loss near 0": wasserstein_loss_near_zero,
    "lora": lora,
    "penalty on slopes": penalty_on_slopes,
    "dict of losses": dict_of_losses,
    "bias before batch norm": bias_before_batch_norm,
    "key bias": key_bias_of_attention,
    "vanishing gradients": vanishing_but_there,
}


@pytest.mark.parametrize("kind", KINDS)
def test_healthy_kind_is_called_healthy(kind: str) -> None:
    found = hs.diagnose(KINDS[kind]())
    assert found.is_healthy, [cause.explanation for cause in found.causes]
    assert [p.name for p in found.passes] == ["fp32", "bf16", "fp16", "fp16 scaled"]
    assert not next(s for s in found.symptoms if s.name == "activations-overflow").found


def test_low_rank_factor_that_starts_at_0_is_not_frozen() -> None:
    found = hs.diagnose(lora())
    (symptom,) = [s for s in found.symptoms if s.name == "frozen-parameters"]
    assert symptom.found is False
    assert "see above" not in symptom.remedy
    assert "above" not in symptom.remedy


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_recomputed_values_are_not_divided_by_the_loss_scale(use_reentrant: bool) -> None:
    # oracle: the same model without checkpointing has the same window of safe scales
    plain = hs.diagnose(recipe(_Plain, square, seeded(2, 6, 8)))
    again = hs.diagnose(checkpointing(use_reentrant)())
    assert plain.gradient_range is not None
    assert again.gradient_range is not None
    wanted, got = plain.gradient_range.window("fp16"), again.gradient_range.window("fp16")
    assert (got.lowest, got.highest) == (wanted.lowest, wanted.highest)


class _Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.blocks = nn.ModuleList(Attention() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = torch.tanh(block(x) * 2) + x * 0.5
        return x


class _Wrapped(Tensor):
    """A value and its scale, as FP8 libraries keep them; knows products and refuses all else."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Any:
        made = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *rest: Any) -> _Wrapped:
        return _Wrapped(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [a.inner if isinstance(a, _Wrapped) else a for a in args]
        if func is torch.ops.aten.detach.default:
            return _Wrapped(plain[0])
        if func in (torch.ops.aten.mm.default, torch.ops.aten.t.default):
            result = func(*plain)
            return result if func is torch.ops.aten.mm.default else _Wrapped(result)
        raise NotImplementedError(f"attempting to run {func}, this is not supported")


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.mm(_Wrapped(x.detach()), _Wrapped(weight.detach()).t())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradient @ weight.to(gradient.dtype), gradient.t() @ x.to(gradient.dtype)


def test_tensors_that_wrap_others_are_left_alone() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.weight = nn.Linear(8, 8), nn.Parameter(seeded(4, 8))

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            return torch.as_tensor(_Product.apply(h, self.weight.to(h.dtype)))

    found = hs.diagnose(recipe(Layer, square, seeded(6, 8)))
    assert found.is_healthy
    assert [p.name for p in found.passes] == ["fp32", "bf16", "fp16", "fp16 scaled"]


def test_remedy_of_a_compiled_model_has_the_names_of_the_model_itself() -> None:
    class Squares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)
            nn.init.constant_(self.fc.weight, 100.0)

        def forward(self, x: Tensor) -> Tensor:
            y = self.fc(x)
            return y * y * 1e-6

    def model() -> nn.Module:
        plain = nn.Sequential(nn.Linear(8, 8), Squares(), nn.Linear(8, 1))
        nn.init.constant_(plain[0].bias, 1.0)  # type: ignore[arg-type]
        return torch.compile(plain, backend="eager")  # type: ignore[return-value]

    sick = recipe(model, square, torch.ones(4, 8))
    (cause,) = [c for c in hs.diagnose(sick).causes if c.severity == "error"]
    assert cause.islands == ("1",)
    policy = hs.Policy("fp16", base="cuda", modules={"1": "fp32"})
    assert hs.diagnose(sick, policy=policy).is_healthy


def test_compiled_model_is_diagnosed_as_it_is() -> None:
    model = lambda: torch.compile(  # noqa: E731
        nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)), backend="eager"
    )
    assert hs.diagnose(recipe(model, square, seeded(4, 8))).is_healthy


def test_healthy_model_costs_five_forward_passes_and_runs_nothing_again() -> None:
    calls = []

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        calls.append(1)
        return square(model, x)

    model = lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))  # noqa: E731
    assert hs.diagnose(recipe(model, loss, seeded(32, 8))).is_healthy
    # FP32 twice (the first without a tracer), BF16, FP16, FP16 scaled
    assert len(calls) == 5
