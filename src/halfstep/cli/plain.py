"""Commands that start without Typer and Rich."""

from __future__ import annotations

import os
import sys

from halfstep.records.errors import HalfstepError


def run(command: str, arguments: list[str]) -> int:
    """Run ``check`` or ``rules``; returns the exit code, 2 where it could not run."""
    try:
        code = _command(command, arguments)
        sys.stdout.flush()
    except HalfstepError as error:
        print(f"halfstep: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _command(command: str, arguments: list[str]) -> int:
    if command == "check":
        from halfstep.cli.check import check

        return check(arguments)
    from halfstep.cli.rules import rules

    return rules(arguments)
