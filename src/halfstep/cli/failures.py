"""Errors as one line with the remedy; a traceback only from the user's own code."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import typer

from halfstep.records import HalfstepError

_PACKAGE = Path(__file__).parents[1]


@contextlib.contextmanager
def one_line_errors(debug: bool = False) -> Iterator[None]:
    """Turn exceptions into a message and exit code 2.

    Args:
        debug: Print the whole traceback instead.
    """
    try:
        yield
    except typer.Exit:
        raise
    except Exception as error:
        if debug:
            traceback.print_exc()
        elif isinstance(error, HalfstepError):
            print(f"halfstep: {error}", file=sys.stderr)
        else:
            _print_users_part(error)
        raise typer.Exit(2) from None


def _print_users_part(error: Exception) -> None:
    """The traceback from the first frame outside of halfstep on."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [_PACKAGE in Path(frame.filename).parents for frame in frames]
    first = ours.index(False) if False in ours else 0
    summary = traceback.TracebackException.from_exception(error)
    summary.stack = traceback.StackSummary.from_list(frames[first:])
    print("".join(summary.format()).rstrip(), file=sys.stderr)
