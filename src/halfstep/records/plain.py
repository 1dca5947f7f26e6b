"""JSON round trip of records that hold records: one way in, one way out, from the annotations."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any, Self

from halfstep.records.errors import BadValueError
from halfstep.records.floats import decode_floats, encode_floats


class PlainRecord:
    """A dataclass that is made of plain values, tuples, dicts and further such dataclasses."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; inf and NaN become the strings ``"inf"``, ``"-inf"``, ``"nan"``."""
        data: dict[str, Any] = encode_floats(dataclasses.asdict(self))  # type: ignore[call-overload]
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_dict`, after a journey through JSON too.

        Raises:
            BadValueError: A field is missing, or there is one that this version does not know.
        """
        hints = _hints(cls)  # type: ignore[arg-type]  # mypy holds no Self for hashable
        if unknown := sorted(set(data) - set(hints)):
            raise BadValueError(
                f"{cls.__name__} has no field {', '.join(map(repr, unknown))}; the file was"
                " written by another version of halfstep."
            )
        try:
            return cls(**{name: _decode(hints[name], value) for name, value in data.items()})
        except TypeError as error:
            raise BadValueError(
                f"this is no {cls.__name__}: {str(error).replace(f'{cls.__name__}.', '')}."
            ) from error


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _decode(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        (hint,) = (kind for kind in arguments if kind is not types.NoneType)
        return _decode(hint, value)
    if origin is tuple:
        return tuple(_decode(arguments[0], item) for item in value)
    if origin is dict:
        key, item = arguments
        return {key(name): _decode(item, content) for name, content in value.items()}
    if hint is float:
        return float(decode_floats(value))
    if isinstance(hint, type) and issubclass(hint, PlainRecord):
        return hint.from_dict(value)
    return value
