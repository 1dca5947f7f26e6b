"""``halfstep policy``."""

from __future__ import annotations

import json as json_module
from typing import Annotated

import typer

from halfstep.cli.console import stdout
from halfstep.cli.failures import one_line_errors


def policy(
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda; default: both, side by side.")
    ] = None,
    op: Annotated[str | None, typer.Option(help="One op only, such as softmax.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show which op runs in which precision under autocast, and where CPU and CUDA differ."""
    with one_line_errors():
        from halfstep.precision import listed_ops
        from halfstep.report.op_table import one_op_text, op_lists_text

        rows = listed_ops(device, op)
        if json:
            typer.echo(json_module.dumps({"ops": [row.to_dict() for row in rows]}, indent=2))
        elif op is not None:
            typer.echo(one_op_text(rows))
        else:
            typer.echo(op_lists_text(rows, device, min(stdout().width, 100)))
