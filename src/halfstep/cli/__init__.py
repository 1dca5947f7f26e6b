"""The command line: arguments, one library call, a renderer, an exit code."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of ``halfstep``."""
    if sys.argv[1:2] in (["check"], ["rules"]):  # they start in a fraction of Typer's time
        from halfstep.cli.plain import run

        sys.exit(run(sys.argv[1], sys.argv[2:]))
    try:
        from halfstep.cli.app import app
    except ImportError as error:
        print(
            f"halfstep: the command line needs Typer and Rich ({error});"
            " install them with: pip install 'halfstep[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    app()
