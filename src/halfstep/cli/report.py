"""``halfstep report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from halfstep.cli.failures import one_line_errors


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Records of halfstep train --record.", metavar="RUN...")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")],
) -> None:
    """Write recorded runs as one HTML page: a single file without scripts or requests."""
    with one_line_errors():
        from halfstep.records import BadValueError, RunRecord
        from halfstep.report.page import page_file
        from halfstep.report.run_page import run_page

        if output.resolve() in [path.resolve() for path in runs]:
            raise BadValueError(
                f"--output {str(output)!r} is one of the records; it would be lost."
            )
        records = [RunRecord.load(path) for path in runs]
        formats = [run.format for run in records]
        names = formats if len({*formats}) == len(formats) else [path.stem for path in runs]
        with page_file(output) as page:
            page.write(lambda: run_page(records, names))
