"""``halfstep resume-check``."""

from __future__ import annotations

import json as json_module
from typing import Annotated

import typer

from halfstep.cli.console import show_log, stderr, stdout
from halfstep.cli.failures import one_line_errors


def resume_check(
    recipe: Annotated[
        str, typer.Argument(help="lm, digits, path/to/file.py:function or package.module:function.")
    ],
    at: Annotated[int, typer.Option(help="Take the checkpoint after this step.")] = 6,
    steps: Annotated[int, typer.Option(help="Steps to compare after it.")] = 5,
    precision: Annotated[str, typer.Option(help="auto, fp32, bf16 or fp16.")] = "auto",
    accumulate: Annotated[int, typer.Option(help="Micro-batches per update.")] = 1,
    max_norm: Annotated[float | None, typer.Option(help="As for train.")] = None,
    seed: Annotated[int, typer.Option(help="As for train.")] = 0,
    without: Annotated[
        list[str] | None,
        typer.Option(
            help="Leave out scaler, schedule, optimizer, rng, data, average or buffers; repeatable."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Prove that a resumed run equals the straight one, bit for bit.

    Exit code 0 when it does, 1 when it does not (the first difference is named).
    """
    with one_line_errors(debug):
        from halfstep.report.tables import resume_table
        from halfstep.tools.resume import verify_resume
        from halfstep.training import load_recipe

        show_log(stderr())
        check = verify_resume(
            load_recipe(recipe),
            at=at,
            steps=steps,
            precision=precision,
            accumulate=accumulate,
            max_norm=max_norm,
            seed=seed,
            without=without or (),
        )
        if json:
            typer.echo(json_module.dumps(check.to_dict()))
        else:
            stdout().print(resume_table(check.straight, check.resumed))
            typer.echo(f"straight against resumed: {check.comparison}")
            typer.echo(f"after the last step: {check.state or 'the whole state is equal'}")
        if not check.is_equal:
            raise typer.Exit(1)
