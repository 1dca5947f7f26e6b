"""``ema=``: an average of the weights that moves on committed updates only."""

from __future__ import annotations

from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from halfstep.records import BadTypeError, BadValueError


def as_averaged(ema: AveragedModel | float | None, model: nn.Module) -> AveragedModel | None:
    """The averaged model that a setting asks for.

    Args:
        ema: ``None``, a decay between 0 and 1 (makes an exponential moving average of parameters
            and buffers), or an `AveragedModel` of `model`, which is used as it is.
        model: What is averaged.

    Raises:
        BadValueError: A decay that is not between 0 and 1.
        BadTypeError: Something else.
    """
    if ema is None or isinstance(ema, AveragedModel):
        return ema
    if isinstance(ema, bool) or not isinstance(ema, (int, float)):
        raise BadTypeError(
            "ema must be a decay such as 0.999 or a torch.optim.swa_utils.AveragedModel, got"
            f" {type(ema).__name__}."
        )
    if not 0 < ema < 1:
        raise BadValueError(f"ema must be a decay between 0 and 1, got {ema}.")
    average = get_ema_multi_avg_fn(ema)  # type: ignore[no-untyped-call]
    return AveragedModel(model, multi_avg_fn=average, use_buffers=True)
