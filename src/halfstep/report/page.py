"""The frame of every HTML page: one file, no script, no request, light and dark."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfstep.records import BadValueError
from halfstep.records.step import format_number
from halfstep.report.embedding import safe_json
from halfstep.report.run_facts import write_percent, write_scale

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, data: Any, **context: Any) -> str:
    """Fill one of the page templates.

    Args:
        template: File in ``report/templates``.
        data: What the page carries for machines, as plain data for JSON.
        context: What the template asks for.

    Raises:
        BadValueError: Jinja2 is not installed.
    """
    from markupsafe import Markup

    page = _environment().get_template(template)
    return page.render(data=Markup(safe_json(data)), **context)


@contextlib.contextmanager
def page_file(path: Path | None) -> Iterator[PageFile]:
    """A page to be written later: everything that could prevent it is found out now.

    Args:
        path: Where to, or ``None`` for no page.

    Raises:
        BadValueError: The place cannot be written to, or Jinja2 is not installed.
    """
    page = PageFile(path)
    if path is None:
        yield page
        return
    _environment()
    is_new = not path.exists()
    try:
        path.open("a", encoding="utf-8").close()
    except OSError as error:
        raise BadValueError(
            f"cannot write the page to {str(path)!r}: {error.strerror}; create the folder or choose"
            " another path."
        ) from error
    try:
        yield page
    finally:
        if is_new and not page.is_written:
            path.unlink(missing_ok=True)


class PageFile:
    """Where a page goes; what was there before stays until it comes."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.is_written = False

    def write(self, make: Callable[[], str]) -> None:
        """Make the page and write it, if there is a place for it."""
        if self._path is not None:
            self._path.write_text(make(), encoding="utf-8", errors="replace")
            self.is_written = True


def _dotted(name: str) -> str:
    """A name of a module or parameter that may be broken after its dots."""
    from markupsafe import Markup, escape  # comes with Jinja2

    return Markup("<wbr>").join(escape(part) for part in name.replace(".", ".\0").split("\0"))


@cache
def _environment() -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise BadValueError(
            f"an HTML page needs Jinja2 ({error}); install it with: pip install 'halfstep[cli]'"
        ) from error
    environment = Environment(
        loader=PackageLoader("halfstep.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: Mapping[str, Any] = {
        "number": format_number,
        "percent": write_percent,
        "scale": write_scale,
        "whole": "{:,}".format,
        "dotted": _dotted,
    }
    environment.filters.update(filters)
    return environment
