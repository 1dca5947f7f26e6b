"""Mixed-precision training for PyTorch that is safe, fast and explains itself.

Every public name is imported on first use, so ``import halfstep`` costs nothing and does not
import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halfstep.numerics import BF16 as BF16
    from halfstep.numerics import E4M3 as E4M3
    from halfstep.numerics import E5M2 as E5M2
    from halfstep.numerics import FP16 as FP16
    from halfstep.numerics import FP32 as FP32
    from halfstep.numerics import TF32 as TF32
    from halfstep.numerics import Format as Format
    from halfstep.numerics import classify as classify
    from halfstep.precision import Policy as Policy
    from halfstep.precision import fp32 as fp32
    from halfstep.records import BadTypeError as BadTypeError
    from halfstep.records import BadValueError as BadValueError
    from halfstep.records import CallOrderError as CallOrderError
    from halfstep.records import Cause as Cause
    from halfstep.records import Diagnosis as Diagnosis
    from halfstep.records import Finding as Finding
    from halfstep.records import HalfstepError as HalfstepError
    from halfstep.records import NonFiniteGradientError as NonFiniteGradientError
    from halfstep.records import PeerFailed as PeerFailed
    from halfstep.records import RecipeError as RecipeError
    from halfstep.records import RefusedOpError as RefusedOpError
    from halfstep.records import RunRecord as RunRecord
    from halfstep.records import ScaleCollapse as ScaleCollapse
    from halfstep.records import StepRecord as StepRecord
    from halfstep.records import TraceRecord as TraceRecord
    from halfstep.records import WindowDiagnosis as WindowDiagnosis
    from halfstep.tools import diagnose as diagnose
    from halfstep.tools import verify_resume as verify_resume
    from halfstep.tracing import Trace as Trace
    from halfstep.tracing import Watch as Watch
    from halfstep.tracing import trace as trace
    from halfstep.tracing import watch as watch
    from halfstep.training import Best as Best
    from halfstep.training import CheckpointFolder as CheckpointFolder
    from halfstep.training import Engine as Engine
    from halfstep.training import LossSum as LossSum
    from halfstep.training import Recipe as Recipe
    from halfstep.training import TokenSchedule as TokenSchedule
    from halfstep.training import Window as Window
    from halfstep.training import fit as fit
    from halfstep.training import load_checkpoint as load_checkpoint
    from halfstep.training import load_recipe as load_recipe
    from halfstep.training import micro_batches as micro_batches
    from halfstep.training import patience as patience
    from halfstep.training import save_checkpoint as save_checkpoint
    from halfstep.training import warmup_cosine as warmup_cosine
    from halfstep.update import DynamicLossScale as DynamicLossScale
    from halfstep.update import GradScaler as GradScaler
    from halfstep.update import Joint as Joint
    from halfstep.update import LossScale as LossScale
    from halfstep.update import NoLossScale as NoLossScale
    from halfstep.update import StaticLossScale as StaticLossScale
    from halfstep.update import StepOutcome as StepOutcome
    from halfstep.update import veto as veto

__version__ = "0.1.0"

_HOMES = {
    "numerics": "BF16 E4M3 E5M2 FP16 FP32 TF32 Format classify",
    "precision": "Policy fp32",
    "records": (
        "BadTypeError BadValueError CallOrderError Cause Diagnosis Finding HalfstepError"
        " NonFiniteGradientError PeerFailed RecipeError RefusedOpError RunRecord ScaleCollapse"
        " StepRecord TraceRecord WindowDiagnosis"
    ),
    "tools": "diagnose verify_resume",
    "tracing": "Trace Watch trace watch",
    "training": (
        "Best CheckpointFolder Engine LossSum Recipe TokenSchedule Window fit load_checkpoint"
        " load_recipe micro_batches patience save_checkpoint warmup_cosine"
    ),
    "update": (
        "DynamicLossScale GradScaler Joint LossScale NoLossScale StaticLossScale StepOutcome veto"
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = ["__version__", *sorted(_HOME_OF)]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'halfstep' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"halfstep.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
