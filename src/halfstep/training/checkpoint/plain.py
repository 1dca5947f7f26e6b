"""Whether what is written will load: with ``weights_only=True`` torch loads plain data alone.

It refuses everything else with a paragraph of its own, at the resume, when the run is over.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from halfstep.records import BadTypeError, BadValueError

_PLAIN = {type(None), bool, int, float, complex, str, bytes, Tensor, Parameter}
_REMEDIES = {  # by the name of the type or of one of its bases
    "ndarray": "torch.from_numpy(value)",
    "generic": "value.item()",  # numpy's scalars
    "Enum": "value.value",
    "Namespace": "vars(value)",
    "PurePath": "str(value)",
    "date": "value.isoformat()",
    "timedelta": "value.total_seconds()",
    "Decimal": "str(value)",
    "deque": "list(value)",
    "frozenset": "set(value)",
    "tuple": "tuple(value)",
    "dict": "dict(value)",
}


def refuse_unloadable(content: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that could be written and not be loaded again, naming the entry.

    Args:
        content: What is about to be written.

    Raises:
        BadTypeError: An entry is of a type that only running code from the file could make.
        BadValueError: A container holds itself.
    """
    for path, value in _leaves("", content, ()):
        if type(value) not in _PLAIN and (problem := _problem(value)) is not None:
            kind = type(value)
            name = kind.__qualname__ if kind.__module__ == "builtins" else _full_name(kind)
            raise BadTypeError(
                f"{path} is of the type {name}, which {problem}; save {_remedy(value)} instead."
                " Nothing was written."
            )


def _leaves(path: str, value: Any, above: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    if type(value) not in (dict, OrderedDict, list, tuple):
        yield path, value
        return
    if id(value) in above:
        raise BadValueError(f"{path} holds itself; save plain data. Nothing was written.")
    above = (*above, id(value))
    if not isinstance(value, dict):
        for index, item in enumerate(value):
            yield from _leaves(f"{path}[{index}]", item, above)
        return
    for key, item in value.items():
        yield f"the key {key!r} of {path}", key
        yield from _leaves(f"{path}[{key!r}]" if path else str(key), item, above)


def _problem(value: object) -> str | None:
    """What would go wrong, tried out on this value alone."""
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
    except Exception:
        return "cannot be written into a file"
    buffer.seek(0)
    try:
        torch.load(buffer, map_location="cpu", weights_only=True)
    except Exception:
        return "load_checkpoint would refuse, because it executes no code from a file"
    return None


def _remedy(value: object) -> str:
    if hasattr(value, "__dataclass_fields__"):
        return "dataclasses.asdict(value)"
    if hasattr(value, "state_dict"):
        return "value.state_dict()"
    names = [kind.__name__ for kind in type(value).__mro__]
    found = (_REMEDIES[name] for name in names if name in _REMEDIES)
    return next(found, "numbers, strings, lists, dicts and tensors")


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
