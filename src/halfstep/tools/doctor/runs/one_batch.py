"""A recipe's model on one batch, as often as one likes, with nothing moved."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

from halfstep.precision import Policy
from halfstep.records import BadValueError
from halfstep.tools.doctor.runs.products import gpu_products
from halfstep.tracing.lineage import memory_of
from halfstep.tracing.module_paths import parameter_path
from halfstep.tracing.op_walk import tensors_in
from halfstep.training import LossSum, Recipe
from halfstep.training.followers.buffers import BufferRollback
from halfstep.training.rng import rng_state, set_rng_state
from halfstep.training.run.build import made_model
from halfstep.training.run.data.windows import one_batch, to_device
from halfstep.training.window.loss import check_loss
from halfstep.update import power_of_two_near
from halfstep.update.loss_scale.base import promote

_NOTHING = contextlib.nullcontext()


def _eagerly() -> contextlib.AbstractContextManager[Any]:
    """Compiled code runs op by op, so that each is seen; what is not loaded compiled nothing."""
    if "torch._dynamo" not in sys.modules:
        return _NOTHING
    stance: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


@dataclass(frozen=True)
class Ends:
    """What a pass ends with.

    Attributes:
        loss: As the loss function returned it.
        divisor: Of a `LossSum`, else 1.
        nominal: What the loss was divided by in backward.
        outputs: Floating-point tensors of the model's result.
    """

    loss: Tensor
    divisor: float
    nominal: float
    outputs: tuple[Tensor, ...]


class OneBatch:
    """Model, batch and generators of a recipe, fixed.

    Args:
        recipe: Whose model and batch.
        index: Which of its batches, from 0.
        seed: Seeds torch before the model is made.
        device: Where to run.
    """

    def __init__(self, recipe: Recipe, index: int, seed: int, device: torch.device) -> None:
        self.recipe = recipe
        self.device = device
        self.index = index
        torch.manual_seed(seed)
        made = made_model(recipe, device)
        # several models are looked at as one, which still answers by name
        self.model = nn.ModuleDict(made) if isinstance(made, dict) else made
        optimizer = recipe.optimizer(made)
        self.optimizers = (
            list(optimizer.values()) if isinstance(optimizer, Mapping) else [optimizer]
        )
        self._argument = made
        self.batch = to_device(one_batch(recipe, index, seed), device)
        self._rng = rng_state()
        self._was_training = {m: m.training for m in self.model.modules()}
        self._gradients = {p: p.grad for p in self.model.parameters()}
        self._buffers = BufferRollback(self.model)
        self._buffers.remember()
        for each in made.values() if isinstance(made, dict) else [made]:
            if not each.training:
                each.train()  # else what the factory froze stays in eval mode

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Trainable parameters by name."""
        return {n: p for n, p in self.model.named_parameters() if p.requires_grad}

    def leaves(self) -> dict[int, str]:
        """Names of the weights, buffers and parts of the batch, by the memory they lie in."""
        found = {memory_of(t): name for name, t in self.batch_parts().items()}
        found |= {memory_of(b): name for name, b in self.model.named_buffers()}
        return found | {memory_of(p): name for name, p in self.model.named_parameters()}

    def batch_parts(self) -> dict[str, Tensor]:
        """Floating-point tensors of the batch by a name such as ``batch.x`` or ``batch[0]``."""
        parts, _ = pytree.tree_flatten_with_path(self.batch)
        return {
            f"batch{pytree.keystr(path)}": leaf
            for path, leaf in parts
            if isinstance(leaf, Tensor) and leaf.is_floating_point()
        }

    def run(
        self,
        policy: Policy,
        loss_scale: float = 1.0,
        on_seed: Callable[[Tensor], None] | None = None,
        inside: contextlib.AbstractContextManager[Any] | None = None,
    ) -> Ends:
        """Forward and backward from the same state; the gradients lie in ``.grad``.

        Args:
            policy: Of the forward.
            loss_scale: Multiplies the loss.
            on_seed: Given the gradient of the loss, before backward.
            inside: A context for the forward, below the policy.
        """
        self.reset()
        is_traced = _get_current_dispatch_mode() is not None  # which brings them along, below it
        with _NOTHING if is_traced else gpu_products(policy, self.device), _eagerly():
            return self._run(policy, loss_scale, on_seed, inside or _NOTHING)

    def _run(
        self,
        policy: Policy,
        loss_scale: float,
        on_seed: Callable[[Tensor], None] | None,
        inside: contextlib.AbstractContextManager[Any],
    ) -> Ends:
        outputs: list[Tensor] = []
        with (
            self._catching_output(outputs),
            policy.autocast(self.device.type),
            inside,
        ):
            loss = self.recipe.loss_fn(self._argument, self.batch)
        total = loss.total if isinstance(loss, LossSum) else loss
        check_loss(total)
        divisor = float(loss.divisor) if isinstance(loss, LossSum) else 1.0
        if not divisor > 0:
            raise BadValueError(
                f"batch {self.index} has the divisor {divisor:g}, so it trains nothing; choose"
                " another one."
            )
        nominal = (power_of_two_near(divisor) or 1.0) if isinstance(loss, LossSum) else 1.0
        with policy.recompute(self.device.type):
            scalar = promote(total).reshape(())
            with _disable_current_modes():  # no op of ours belongs into a trace
                seed = torch.full_like(scalar.detach(), loss_scale / nominal)
            if on_seed is not None:
                on_seed(seed)
            torch.autograd.backward(scalar, seed)
        return Ends(total.detach(), divisor, nominal, tuple(outputs))

    def reset(self) -> None:
        """Buffers and generators as at the start, no gradients."""
        for p in self.model.parameters():
            p.grad = None
        self._buffers.restore()
        set_rng_state(self._rng)

    def close(self) -> None:
        """Leave the model as it came: buffers, gradients, training mode."""
        self.reset()
        for p, gradient in self._gradients.items():
            p.grad = gradient
        for module, training in self._was_training.items():
            module.training = training

    def owner(self, name: str) -> str:
        """Path of the module that a parameter or buffer belongs to.

        Args:
            name: As in ``named_parameters``.
        """
        return parameter_path(self.model, name)

    @contextlib.contextmanager
    def _catching_output(self, outputs: list[Tensor]) -> Iterator[None]:
        def keep(module: nn.Module, args: Any, result: Any) -> None:
            outputs[:] = [tensor.detach() for tensor in tensors_in(result)]

        handle = self.model.register_forward_hook(keep)
        try:
            yield
        finally:
            handle.remove()
