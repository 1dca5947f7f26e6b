"""``halfstep doctor``."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from halfstep.cli.console import show_log, stderr, stdout
from halfstep.cli.failures import one_line_errors


def doctor(
    recipe: Annotated[
        str, typer.Argument(help="lm, digits, path/to/file.py:function or package.module:function.")
    ],
    policy: Annotated[
        str,
        typer.Option(help="Whose op lists: cuda (on any device) or device; or a precision.toml."),
    ] = "cuda",
    batch: Annotated[int, typer.Option(help="Which batch of the recipe, from 0.")] = 0,
    steps: Annotated[
        int, typer.Option(help="Train so many steps in each format too, and compare.")
    ] = 0,
    symptom: Annotated[
        list[str] | None,
        typer.Option(help="Check this one (or all), with runs of its own; may be repeated."),
    ] = None,
    max_norm: Annotated[float | None, typer.Option(help="To what you clip gradients.")] = None,
    max_seconds: Annotated[
        float, typer.Option(help="Begin no further run after so many seconds.")
    ] = 600.0,
    seed: Annotated[int, typer.Option(help="As for train.")] = 0,
    device: Annotated[str | None, typer.Option(help="As for train.")] = None,
    layers: Annotated[
        bool, typer.Option("--layers", help="Show every module's largest magnitude.")
    ] = False,
    dtypes: Annotated[
        bool, typer.Option("--dtypes", help="Show the dtype of everything in a step.")
    ] = False,
    repro: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the failing op's inputs and a script that needs torch alone."
        ),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="Write a profiler trace of a step in every format (.json).")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the diagnosis as one HTML page.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Run one batch in FP32, BF16 and FP16; say what breaks, where, why and what to do.

    Exit code 0 when the recipe is healthy, 1 when something was found, 2 when it could not run.
    """
    with one_line_errors(debug):
        from halfstep.report.doctor_page import doctor_page
        from halfstep.report.doctor_text import (
            diagnosis_text,
            dtypes_table,
            layers_table,
            symptoms_table,
        )
        from halfstep.report.page import page_file
        from halfstep.tools.doctor import diagnose
        from halfstep.training import load_recipe

        show_log(stderr())
        with page_file(html) as page:
            found = diagnose(
                load_recipe(recipe),
                policy=policy,
                batch=batch,
                seed=seed,
                device=device,
                steps=steps,
                symptoms=tuple(symptom or ()),
                max_norm=max_norm,
                max_seconds=max_seconds,
                repro=repro,
                profile=profile,
            )
            page.write(lambda: doctor_page(found))
        is_found = not found.is_healthy
        asked = set(symptom or ()) - {"all"}
        if asked:
            chosen = [s for s in found.symptoms if s.name in asked]
            is_found = any(s.found for s in chosen)
        if json:
            typer.echo(json_module.dumps(found.to_dict()))
        elif asked:
            stdout().print(symptoms_table(chosen))
        elif dtypes:
            stdout().print(dtypes_table(found.dtypes))
        else:
            for part in diagnosis_text(found):
                stdout().print(part)
            if layers:
                stdout().print(layers_table(found))
        if repro is not None and not json:
            written = (repro / "repro.py").exists()
            typer.echo(f"written: {repro / 'repro.py'}" if written else "no op to reproduce")
        if is_found:
            raise typer.Exit(1)
