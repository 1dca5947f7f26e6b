"""All commands."""

from __future__ import annotations

import typer

from halfstep.cli.diff import diff
from halfstep.cli.doctor import doctor
from halfstep.cli.explain import explain
from halfstep.cli.policy import policy
from halfstep.cli.report import report
from halfstep.cli.resume_check import resume_check
from halfstep.cli.train import train

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Mixed-precision training for PyTorch that is safe, fast and explains itself.",
)
app.command()(train)
app.command()(doctor)
app.command()(resume_check)
app.command()(diff)
app.command()(policy)
app.command()(report)
app.command(context_settings={"ignore_unknown_options": True})(explain)


# `halfstep check` and `halfstep rules` never come here, see `halfstep.cli.main`; they stand in the
# list of commands, and work where the application is called from Python.
_PLAIN = {"ignore_unknown_options": True, "allow_extra_args": True}


@app.command(add_help_option=False, context_settings=_PLAIN)
def check(context: typer.Context) -> None:
    """Find mixed-precision mistakes in training scripts, without running them."""
    from halfstep.cli.plain import run

    raise typer.Exit(run("check", context.args))


@app.command(add_help_option=False, context_settings=_PLAIN)
def rules(context: typer.Context) -> None:
    """List the rules of a correct mixed-precision step."""
    from halfstep.cli.plain import run

    raise typer.Exit(run("rules", context.args))


@app.callback(invoke_without_command=True)
def _version(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        from halfstep import __version__

        typer.echo(f"halfstep {__version__}")
        raise typer.Exit
