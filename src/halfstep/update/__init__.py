"""The transaction: loss scales, norm, multiplier, optimizer adapters, outcome."""

from halfstep.update.decision import veto
from halfstep.update.decision.clipping import Joint
from halfstep.update.grad_scaler.scaler import GradScaler
from halfstep.update.loss_scale.base import LossScale, NoLossScale, StaticLossScale
from halfstep.update.loss_scale.dynamic import DynamicLossScale
from halfstep.update.loss_scale.setting import as_loss_scale
from halfstep.update.step.counters import Counters, power_of_two_near
from halfstep.update.step.optimizer_slot import OptimizerSlot
from halfstep.update.step.outcome import StepOutcome
from halfstep.update.step.transaction import Update
from halfstep.update.step.window import Window, checked_divisor

__all__ = [
    "Counters",
    "DynamicLossScale",
    "GradScaler",
    "Joint",
    "LossScale",
    "NoLossScale",
    "OptimizerSlot",
    "StaticLossScale",
    "StepOutcome",
    "Update",
    "Window",
    "as_loss_scale",
    "checked_divisor",
    "power_of_two_near",
    "veto",
]
