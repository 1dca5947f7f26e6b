"""``precision.toml``: reading needs the standard library only, keeping comments needs tomlkit."""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any, Final

from halfstep.precision.nearest import did_you_mean
from halfstep.records import BadValueError

VERSION: Final = 1
_KEYS = ("version", "format", "base", "init_scale", "reason", "ops", "modules")
_TYPES: dict[str, tuple[type, ...]] = {
    "format": (str,),
    "base": (str,),
    "init_scale": (int, float),
    "reason": (str,),
    "ops": (dict,),
    "modules": (dict,),
}


def read(path: Path) -> dict[str, Any]:
    """The arguments of a `Policy`.

    Raises:
        BadValueError: One sentence with the path.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadValueError(f"cannot read the policy {str(path)!r}: {reason}.") from error
    return _checked(_parsed(text, path), path)


def write(path: Path, values: dict[str, Any]) -> None:
    """Write a policy; a file that is there keeps its comments and the order of its lines.

    Args:
        path: Replaced as a whole.
        values: What differs from a policy's defaults, and its format and base.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    values = {"version": VERSION, **values}
    if text:
        _checked(_parsed(text, path), path)
    _replace(path, _edited(text, values, path) if "#" in text else _fresh(values))


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        if "overwrite" in str(error):
            raise BadValueError(
                f"{str(path)!r} gives one name twice, such as two rules for one op. Keep one."
            ) from error
        raise BadValueError(f"{str(path)!r} is no valid TOML: {error}.") from error


def _checked(found: dict[str, Any], path: Path) -> dict[str, Any]:
    for key in found:
        if key not in _KEYS:
            raise BadValueError(
                f"{str(path)!r} has an unknown key {key!r}{did_you_mean(key, _KEYS)}"
            )
    version = found.pop("version", VERSION)
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise BadValueError(f"{str(path)!r}: version must be a whole number, got {version!r}.")
    if version > VERSION:
        raise BadValueError(
            f"{str(path)!r} is of version {version}; this halfstep reads version {VERSION}."
            " Upgrade halfstep."
        )
    if "format" not in found:
        raise BadValueError(f"{str(path)!r} has no format; add a line such as format = 'fp16'.")
    for key, value in found.items():
        if not isinstance(value, _TYPES[key]):
            raise BadValueError(
                f"{str(path)!r}: {key} must be a {_TYPES[key][-1].__name__}, got {value!r}."
            )
    return found


def _fresh(values: dict[str, Any]) -> str:
    plain = {k: v for k, v in values.items() if not isinstance(v, dict)}
    lines = [f"{key} = {_literal(value)}" for key, value in plain.items()]
    for key in ("ops", "modules"):
        if table := values.get(key):
            lines += ["", f"[{key}]"]
            lines += [f"{_key(name)} = {_literal(rule)}" for name, rule in table.items()]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _literal(name)


def _literal(value: Any) -> str:
    # A JSON string is a TOML basic string, up to the escape of DEL that JSON leaves out.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _edited(text: str, values: dict[str, Any], path: Path) -> str:
    try:
        import tomlkit
    except ImportError as error:
        raise BadValueError(
            f"{str(path)!r} has comments, and only tomlkit can keep them:"
            " pip install 'halfstep[policy]', or save to another file."
        ) from error
    document = tomlkit.parse(text)
    _update(document, values)
    return tomlkit.dumps(document)


def _update(table: Any, values: dict[str, Any]) -> None:
    for key in [key for key in table if key not in values]:
        del table[key]
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(table.get(key), dict):
            _update(table[key], value)
        elif table.get(key) != value:
            table[key] = value


def _replace(path: Path, text: str) -> None:
    """Never half a file: written beside its place and renamed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise BadValueError(f"cannot write {str(path)!r}: {error.strerror}.") from error
    finally:
        beside.unlink(missing_ok=True)
