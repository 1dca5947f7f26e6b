"""Data inside a page: safe in HTML, readable by any JSON parser."""

from __future__ import annotations

import json
from typing import Any

# < > & could end the element or start another; the two separators end a line in JavaScript
_ESCAPES = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def safe_json(data: Any) -> str:
    """Strict JSON in which no sign means anything to an HTML parser.

    Example:
        >>> safe_json("</script>")
        '"\\\\u003c/script\\\\u003e"'
    """
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.translate(_ESCAPES)
