"""Plain data that users read, and the exception family. Imports the standard library only."""

from halfstep.records.comparison import Comparison, compare_steps
from halfstep.records.diagnosis import Diagnosis
from halfstep.records.errors import (
    BadTypeError,
    BadValueError,
    CallOrderError,
    HalfstepError,
    NonFiniteGradientError,
    RecipeError,
    ScaleCollapse,
)
from halfstep.records.run import RunRecord
from halfstep.records.step import StepRecord

__all__ = [
    "BadTypeError",
    "BadValueError",
    "CallOrderError",
    "Comparison",
    "Diagnosis",
    "HalfstepError",
    "NonFiniteGradientError",
    "RecipeError",
    "RunRecord",
    "ScaleCollapse",
    "StepRecord",
    "compare_steps",
]
