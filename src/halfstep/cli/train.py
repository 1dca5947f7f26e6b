"""``halfstep train``."""

from __future__ import annotations

import json as json_module
import logging
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from halfstep.cli.console import show_log, stderr, stdout
from halfstep.cli.failures import one_line_errors
from halfstep.cli.progress import TrainingProgress

logger = logging.getLogger("halfstep")


def train(
    recipe: Annotated[
        str, typer.Argument(help="lm, digits, path/to/file.py:function or package.module:function.")
    ] = "lm",
    precision: Annotated[
        str, typer.Option(help="auto, fp32, bf16 or fp16; auto asks the hardware.")
    ] = "auto",
    policy: Annotated[
        str | None,
        typer.Option(
            help="A precision.toml, or cuda: CUDA's op list on any device (in fp16, unless"
            " --precision says bf16)."
        ),
    ] = None,
    steps: Annotated[int, typer.Option(help="Attempted updates.")] = 300,
    accumulate: Annotated[int, typer.Option(help="Micro-batches per update.")] = 1,
    max_norm: Annotated[
        float | None, typer.Option(help="Clip the true gradient norm to this.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of initialisation and dropout.")] = 0,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1; default: the accelerator if any.")
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="FP32, BF16 and FP16 one after the other.")
    ] = False,
    log_every: Annotated[
        int | None,
        typer.Option(help="Steps per log line; default: ten lines in all, no line with a bar."),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            help="Write the run as JSON Lines; --compare writes NAME.fp32.jsonl and so on."
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Write the run (with --compare: all runs) as one HTML page."),
    ] = None,
    save_every: Annotated[
        int | None, typer.Option(help="Steps between two checkpoints; default: none.")
    ] = None,
    save_to: Annotated[
        Path | None,
        typer.Option(help="Folder of the checkpoints; default: --resume's, or runs/RECIPE."),
    ] = None,
    keep: Annotated[int, typer.Option(help="Checkpoints to keep.")] = 3,
    resume: Annotated[
        Path | None,
        typer.Option(help="Go on from a checkpoint, or from the newest one in a folder."),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Where a run lies in the folder already, save into a new one beside it."
        ),
    ] = False,
    validate_every: Annotated[
        int | None,
        typer.Option(help="Steps between two validations; default: before and after the run."),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(help="Stop after this many validations without a better one."),
    ] = None,
    keep_best: Annotated[
        bool, typer.Option("--keep-best", help="Keep the best validation's weights as best.pt.")
    ] = False,
    metric: Annotated[
        str, typer.Option(help="What --patience and --keep-best go by: NAME, or NAME:max.")
    ] = "validation",
    diagnose: Annotated[
        str, typer.Option(help="never, on_skip (replay and name the op) or raise.")
    ] = "never",
    checksums: Annotated[
        bool, typer.Option("--checksums", help="Record a checksum of the parameters per step.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the runs as JSON on stdout.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Train a recipe in mixed precision.

    Exit code 0 when all steps were made or --patience ended the run, 1 when the loss scale
    collapsed, 2 when the run could not start, 130 after Ctrl-C (the steps made are shown and
    recorded).
    """
    with one_line_errors(debug):
        from halfstep.precision import Policy, policy_from
        from halfstep.records import BadValueError, RunRecord
        from halfstep.report.page import page_file
        from halfstep.report.run_file import RunFiles
        from halfstep.report.run_page import run_page
        from halfstep.report.tables import run_table
        from halfstep.tools.compare import FORMATS
        from halfstep.tools.compare import compare as run_each
        from halfstep.training import Best, CheckpointFolder, fit, load_recipe
        from halfstep.training import patience as early_stop
        from halfstep.training.checkpoint.folder import newest_checkpoint
        from halfstep.training.processes.one_process import check_one_process

        check_one_process()
        console = stderr()
        show_log(console)
        loaded = load_recipe(recipe)
        progress = TrainingProgress(console, log_every)
        formats = FORMATS if compare else (precision,)
        chosen = policy_from(policy, precision) if policy is not None else None
        if compare and precision != "auto":
            logger.warning("--precision %s has no effect with --compare", precision)

        if log_every is not None and log_every < 1:
            raise BadValueError(f"--log-every must be at least 1, got {log_every}.")
        if compare and (resume is not None or save_every is not None):
            raise BadValueError(
                "--compare makes three runs; save and resume one at a time, with --precision."
            )
        if report is not None and report == record:
            raise BadValueError("--report and --record need a file each; the record would be lost.")
        if save_to is not None and save_every is None:
            raise BadValueError("--save-to has no effect without --save-every.")
        best = Best.parse(metric)
        if keep_best and save_every is None:
            raise BadValueError("--keep-best needs --save-every, whose folder best.pt lies in.")
        if fresh and (save_every is None or resume is not None):
            raise BadValueError(
                "--fresh starts a new run where --save-every saves; it has no effect without"
                " --save-every or with --resume."
            )
        checkpoints = None
        if save_every is not None:
            folder = save_to or Path("runs") / loaded.name
            if save_to is None and resume is not None:
                folder = newest_checkpoint(resume).parent
            checkpoints = CheckpointFolder(folder, save_every, keep, fresh)
        with page_file(report) as page, RunFiles(record, formats) as files, progress.running():

            def fit_in(name: str) -> RunRecord:
                def on_step(run: RunRecord, step: object) -> None:
                    files.note(name, run)
                    progress.on_step(run, run.steps[-1])

                setting: str | Policy = name
                if chosen is not None:
                    setting = replace(chosen, format=name) if compare else chosen
                run = fit(
                    loaded,
                    precision=setting,
                    steps=steps,
                    accumulate=accumulate,
                    max_norm=max_norm,
                    seed=seed,
                    device=device,
                    checkpoints=checkpoints,
                    resume=resume,
                    validate_every=validate_every,
                    keep_best=best if keep_best else None,
                    stop=early_stop(patience, best.metric, best.direction)
                    if patience is not None
                    else None,
                    checksums=checksums,
                    diagnose=diagnose,
                    zero_gradients=report is not None,
                    on_step=on_step,
                )
                files.close(name, run)
                return run

            runs = list(run_each(fit_in, formats))
            page.write(lambda: run_page(runs))
        if json:
            typer.echo(json_module.dumps({"runs": [run.to_dict() for run in runs]}))
        else:
            stdout().print(run_table(runs))
        statuses = {run.status for run in runs}
        if "interrupted" in statuses:
            raise typer.Exit(130)
        if "collapsed" in statuses:
            raise typer.Exit(1)
