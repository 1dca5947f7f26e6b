"""Numbers as people type them: ``2^-30``, ``-1e-8``, ``0x1p-3``, ``inf``."""

from __future__ import annotations

import math
import re

from halfstep.records import BadValueError

_POWER = re.compile(r"(?P<sign>[+-]?)(?P<base>\d+(?:\.\d*)?|\.\d+)(?:\^|\*\*)(?P<exp>[+-]?\d{1,6})")


def parse_number(text: str) -> float:
    """Read one number.

    Args:
        text: A decimal (``-1e-8``), a power (``2^-30`` or ``2**-30``, with ``-2^3 = -8``), a
            hexadecimal float (``0x1p-3``), ``inf`` or ``nan``.

    Raises:
        BadValueError: It is none of these, or the power is beyond float64.

    Example:
        >>> parse_number("2^-30") == 2.0**-30, parse_number("0x1p-3")
        (True, 0.125)
    """
    cleaned = text.strip()
    try:
        if power := _POWER.fullmatch(cleaned):
            value = float(power["base"]) ** int(power["exp"])
            return -value if power["sign"] == "-" else value
        if "0x" in cleaned.lower():
            return float.fromhex(cleaned)
        value = float(cleaned)
        if math.isinf(value) and "inf" not in cleaned.lower():
            raise OverflowError
        return value
    except ZeroDivisionError:
        raise BadValueError(f"{text!r} is 0 to a negative power, which has no value.") from None
    except OverflowError:
        raise BadValueError(f"{text!r} is beyond float64 (largest: about 1.8e308).") from None
    except ValueError:
        raise BadValueError(
            f"expected a number such as 2^-30, -1e-8, 0x1p-3, inf or nan, got {text!r}."
        ) from None
