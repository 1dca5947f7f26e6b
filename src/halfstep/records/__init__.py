"""Plain data that users read, and the exception family. Imports the standard library only.

Names are imported on first use: the linter needs one of them and starts in a few milliseconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halfstep.records.comparison import Comparison as Comparison
    from halfstep.records.comparison import compare_steps as compare_steps
    from halfstep.records.diagnosis import Cause as Cause
    from halfstep.records.diagnosis import Diagnosis as Diagnosis
    from halfstep.records.diagnosis import DiagnosisCost as DiagnosisCost
    from halfstep.records.diagnosis import DtypeRow as DtypeRow
    from halfstep.records.diagnosis import PassRecord as PassRecord
    from halfstep.records.diagnosis import PathStep as PathStep
    from halfstep.records.diagnosis import Symptom as Symptom
    from halfstep.records.equality import Equality as Equality
    from halfstep.records.equality import GradientError as GradientError
    from halfstep.records.equality import PassError as PassError
    from halfstep.records.equality import TrainingCurve as TrainingCurve
    from halfstep.records.errors import BadTypeError as BadTypeError
    from halfstep.records.errors import BadValueError as BadValueError
    from halfstep.records.errors import CallOrderError as CallOrderError
    from halfstep.records.errors import HalfstepError as HalfstepError
    from halfstep.records.errors import NonFiniteGradientError as NonFiniteGradientError
    from halfstep.records.errors import PeerFailed as PeerFailed
    from halfstep.records.errors import RecipeError as RecipeError
    from halfstep.records.errors import RefusedOpError as RefusedOpError
    from halfstep.records.errors import ScaleCollapse as ScaleCollapse
    from halfstep.records.errors import UnsupportedTorchError as UnsupportedTorchError
    from halfstep.records.finding import Finding as Finding
    from halfstep.records.gradient_range import GradientRange as GradientRange
    from halfstep.records.gradient_range import GradientRow as GradientRow
    from halfstep.records.gradient_range import LostUpdates as LostUpdates
    from halfstep.records.gradient_range import ScaleWindow as ScaleWindow
    from halfstep.records.rule_text import RuleText as RuleText
    from halfstep.records.run import RunRecord as RunRecord
    from halfstep.records.run import Validation as Validation
    from halfstep.records.source_finding import Replacement as Replacement
    from halfstep.records.source_finding import SourceFinding as SourceFinding
    from halfstep.records.step import StepRecord as StepRecord
    from halfstep.records.trace import LayerRecord as LayerRecord
    from halfstep.records.trace import OpRecord as OpRecord
    from halfstep.records.trace import RangeRecord as RangeRecord
    from halfstep.records.trace import TraceRecord as TraceRecord
    from halfstep.records.window_diagnosis import WindowDiagnosis as WindowDiagnosis

_HOMES = {
    "comparison": "Comparison compare_steps",
    "errors": (
        "BadTypeError BadValueError CallOrderError HalfstepError NonFiniteGradientError"
        " PeerFailed RecipeError RefusedOpError ScaleCollapse UnsupportedTorchError"
    ),
    "finding": "Finding",
    "rule_text": "RuleText",
    "run": "RunRecord Validation",
    "source_finding": "Replacement SourceFinding",
    "step": "StepRecord",
    "diagnosis": "Cause Diagnosis DiagnosisCost DtypeRow PassRecord PathStep Symptom",
    "equality": "Equality GradientError PassError TrainingCurve",
    "gradient_range": "GradientRange GradientRow LostUpdates ScaleWindow",
    "trace": "LayerRecord OpRecord RangeRecord TraceRecord",
    "window_diagnosis": "WindowDiagnosis",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'halfstep.records' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"halfstep.records.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value
