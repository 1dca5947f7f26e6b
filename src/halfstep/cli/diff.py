"""``halfstep diff``."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from halfstep.cli.failures import one_line_errors


def diff(
    left: Annotated[Path, typer.Argument(help="A record of halfstep train --record.")],
    right: Annotated[Path, typer.Argument(help="Another one.")],
    noise: Annotated[
        Path | None, typer.Option(help="A third one, of another seed: is it more than noise?")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare two recorded runs and name the first step that differs, and by what.

    Exit code 0 when they are equal (with --noise: no more different than two seeds), 1 when not.
    """
    with one_line_errors():
        from halfstep.records import RunRecord
        from halfstep.tools.diff import diff_runs

        third = RunRecord.load(noise) if noise is not None else None
        found = diff_runs(RunRecord.load(left), RunRecord.load(right), third)
        if json:
            data = {**found.comparison.to_dict(), "noise": found.noise, "matters": found.matters}
            typer.echo(json_module.dumps(data))
        else:
            typer.echo(str(found))
        if found.matters:
            raise typer.Exit(1)
