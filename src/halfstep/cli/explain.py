"""``halfstep explain``."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from typing import Annotated

import typer

from halfstep.cli.console import stdout
from halfstep.cli.failures import one_line_errors


def explain(
    values: Annotated[
        list[str],
        typer.Argument(help="2^-30, -1e-8, 0x1p-3, inf, nan.", metavar="VALUE..."),
    ],
    scale: Annotated[
        list[str] | None, typer.Option(help="Loss scale; may be given several times.")
    ] = None,
    format: Annotated[
        list[str] | None,
        typer.Option(help="fp32, tf32, bf16, fp16, e4m3 or e5m2; default: all."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Say what numbers become in each format, after multiplication by a loss scale."""
    with one_line_errors():
        from halfstep.numerics import FORMATS, classify, format_named, parse_number
        from halfstep.records import BadValueError
        from halfstep.records.floats import encode_floats
        from halfstep.report.tables import explain_table

        for text in values:
            if text.startswith("--"):
                raise BadValueError(f"no option {text}; see halfstep explain --help.")
        numbers = [parse_number(text) for text in values]
        scales = [parse_number(text) for text in scale or ["1"]]
        formats = [format_named(name) for name in format or FORMATS]
        rows = [
            (row.name, classify(number, row, factor)[0])
            for number in numbers
            for factor in scales
            for row in formats
        ]
        if json:
            plain = [{"format": name, **encode_floats(asdict(item))} for name, item in rows]
            typer.echo(json_module.dumps(plain, indent=2))
        else:
            stdout().print(explain_table(rows))
