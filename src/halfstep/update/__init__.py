"""The transaction: loss scales, norm, multiplier, optimizer adapters, outcome."""

from halfstep.update import veto
from halfstep.update.clipping import Joint
from halfstep.update.counters import Counters, power_of_two_near
from halfstep.update.dynamic_scale import DynamicLossScale, as_loss_scale
from halfstep.update.grad_scaler import GradScaler
from halfstep.update.lane import Lane
from halfstep.update.loss_scale import LossScale, NoLossScale, StaticLossScale
from halfstep.update.outcome import StepOutcome
from halfstep.update.transaction import Update
from halfstep.update.window import Window, checked_divisor

__all__ = [
    "Counters",
    "DynamicLossScale",
    "GradScaler",
    "Joint",
    "Lane",
    "LossScale",
    "NoLossScale",
    "StaticLossScale",
    "StepOutcome",
    "Update",
    "Window",
    "as_loss_scale",
    "checked_divisor",
    "power_of_two_near",
    "veto",
]
