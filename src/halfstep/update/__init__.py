"""The transaction: loss scales, norm, multiplier, optimizer adapters, outcome."""

from halfstep.update.dynamic_scale import DynamicLossScale, as_loss_scale
from halfstep.update.grad_scaler import GradScaler
from halfstep.update.loss_scale import LossScale, NoLossScale, StaticLossScale
from halfstep.update.outcome import StepOutcome
from halfstep.update.transaction import Counters, Update
from halfstep.update.window import Window, checked_divisor

__all__ = [
    "Counters",
    "DynamicLossScale",
    "GradScaler",
    "LossScale",
    "NoLossScale",
    "StaticLossScale",
    "StepOutcome",
    "Update",
    "Window",
    "as_loss_scale",
    "checked_divisor",
]
