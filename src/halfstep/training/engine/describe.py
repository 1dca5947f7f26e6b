"""An engine in one line, its learning rates, and why it is not copied."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from halfstep.precision import Policy
from halfstep.update import Counters, LossScale, NoLossScale

Rates = float | list[float]

NO_COPY = (
    "an Engine cannot be copied or pickled, because its hooks and its place in an open step belong"
    " to this model and this process: copy the model, make an optimizer for the copy, build a new"
    " Engine and load engine.state_dict() into it (to a file: hs.save_checkpoint)."
)


def rates_of(optimizer: Optimizer) -> Rates:
    """The learning rate of an optimizer; a list with several parameter groups.

    Args:
        optimizer: Any of torch's; its rates are numbers or tensors.
    """
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    return rates[0] if len(rates) == 1 else rates


def describe(
    models: Mapping[str, nn.Module],
    optimizers: Mapping[str, Optimizer],
    policy: Policy,
    loss_scales: Mapping[str, LossScale],
    counters: Counters,
) -> str:
    """An engine in one line.

    It changes nothing and waits for nothing, because tracebacks and debuggers ask for it at any
    moment: the counts are of the steps that the host knows of, and a loss scale on an accelerator
    is named without its value.

    Args:
        models, optimizers, loss_scales: By name.
        policy: Of the run.
        counters: Of the run.
    """
    found = (p for model in models.values() for p in model.parameters())
    parameters = {id(p): p.numel() for p in found if not is_lazy(p)}
    scales = {id(scale): _scale_text(scale) for scale in loss_scales.values()}
    return (
        f"Engine({_named(models)} with {sum(parameters.values()):,} parameters,"
        f" {_named(optimizers)}, {policy.format}, {', '.join(scales.values())},"
        f" {counters.num_updates} updates, {counters.num_skipped} skipped)"
    )


def _named(parts: Mapping[str, object]) -> str:
    kinds = [type(part).__name__ for part in parts.values()]
    if len(kinds) == 1:
        return kinds[0]
    pairs = zip(parts, kinds, strict=True)
    return "{" + ", ".join(f"{name}: {kind}" for name, kind in pairs) + "}"


def _scale_text(scale: LossScale) -> str:
    if isinstance(scale, NoLossScale):
        return "no loss scale"
    value = scale.value
    return f"loss scale {float(value):.10g}" if value.is_cpu else f"loss scale on {value.device}"
