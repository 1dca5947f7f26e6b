"""What numbers do: formats as rows, and what a value becomes in each."""

from halfstep.numerics.classify import Classified, classify
from halfstep.numerics.exponents import ExponentCounts, Magnitudes
from halfstep.numerics.formats import (
    BF16,
    E4M3,
    E5M2,
    FORMATS,
    FP16,
    FP32,
    TF32,
    Format,
    format_named,
)
from halfstep.numerics.literals import parse_number

__all__ = [
    "BF16",
    "E4M3",
    "E5M2",
    "FORMATS",
    "FP16",
    "FP32",
    "TF32",
    "Classified",
    "ExponentCounts",
    "Format",
    "Magnitudes",
    "classify",
    "format_named",
    "parse_number",
]
