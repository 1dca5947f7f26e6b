"""Rich consoles: results on stdout, progress and messages on stderr."""

from __future__ import annotations

import logging
import sys

from rich.console import Console

_WIDTH_WITHOUT_TERMINAL = 140


def stdout() -> Console:
    """For results. Wide where there is no terminal, so that no table is cut."""
    return _console(sys.stdout.isatty(), stderr=False)


def stderr() -> Console:
    """For progress and messages."""
    return _console(sys.stderr.isatty(), stderr=True)


def _console(terminal: bool, stderr: bool) -> Console:
    return Console(
        stderr=stderr, highlight=False, width=None if terminal else _WIDTH_WITHOUT_TERMINAL
    )


class ConsoleHandler(logging.Handler):
    """Log lines above a running progress bar."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line."""
        style = "yellow" if record.levelno >= logging.WARNING else "dim"
        self._console.print(
            f"halfstep: {record.getMessage()}", style=style, markup=False, soft_wrap=True
        )


def show_log(console: Console) -> None:
    """Send halfstep's log lines to `console`, once."""
    logger = logging.getLogger("halfstep")
    logger.setLevel(logging.INFO)
    logger.handlers = [ConsoleHandler(console)]
    logger.propagate = False
