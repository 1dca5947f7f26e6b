"""The first ten minutes on a CUDA device: is it right, what does it launch, how fast is it.

    python benchmarks/gpu.py                    # everything that ten minutes hold
    python benchmarks/gpu.py --minutes 30       # also what is slow to compile
    python benchmarks/gpu.py --only update      # one section; may be given several times
    python benchmarks/gpu.py --quick            # few rounds, nothing written
    python benchmarks/gpu.py --tiny             # tiny sizes, nothing written: tests this script

Sections, in order of value: the tests of `tests/gpu`; kernels and memory copies of one step, by the
profiler; waits of the host; the update alone at 300 x 64, GPT-2's and ResNet-50's shapes; the norm;
whole training steps of GPT-2 124M and ResNet-50; the drop-in, averages and rollback. Tables show
medians and quartiles, ratios are taken within a round. The results go to `benchmarks/results`, as
JSON and as text, and are rewritten after every case: a run that is killed keeps what it had.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gpu_bench import own_tests, steps, training, updates
from benchmarks.gpu_bench.cases import Budget, Case, run_cases
from benchmarks.gpu_bench.report import Report, facts_as_text, facts_of
from benchmarks.gpu_bench.setup import Setup, release, setup_for

RESULTS = Path(__file__).parent / "results"
SECTIONS: dict[str, Callable[[Setup], Iterator[Case]]] = {
    "tests": own_tests.cases,
    "kernels": steps.kernel_cases,
    "waits": steps.wait_cases,
    "update": updates.update_cases,
    "norm": updates.norm_cases,
    "training": training.training_cases,
    "followers": training.follower_cases,
}


def cases_for(setup: Setup, only: Sequence[str] | None) -> list[Case]:
    """Cases of the chosen sections, in order of value."""
    cases = list(chain.from_iterable(SECTIONS[name](setup) for name in only or SECTIONS))
    return sorted(cases, key=_rank)


def _rank(case: Case) -> int:
    # followers tell more than the same trainings once more with other windows and compiled
    late = case.section == "training" and ("window of 4" in case.name or "compiled" in case.name)
    return 1 if late else 0


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/gpu.py", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="for everything (10)")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="section; repeatable")
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing written")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, nothing written")
    parser.add_argument("--out", type=Path, help="folder for the results; writes them always")
    options = parser.parse_args(arguments)
    if not 0 < options.minutes < math.inf:
        parser.error(f"--minutes must be positive and finite, got {options.minutes:g}")
    if options.only:
        options.only = [name for name in SECTIONS if name in options.only]
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_options(arguments)
    if not torch.cuda.is_available():
        print(
            "benchmarks/gpu.py needs a CUDA device, and torch finds none; `make test` runs it on"
            " an emulated one.",
            file=sys.stderr,
        )
        return 2
    budget = Budget(options.minutes)
    device = torch.device("cuda", torch.cuda.current_device())
    given = sys.argv[1:] if arguments is None else arguments
    command = " ".join(["python benchmarks/gpu.py", *given])
    folder: Path | None = options.out
    if folder is None and not (options.quick or options.tiny):
        folder = RESULTS
    try:
        report = Report(facts_of(device, command, options.minutes), folder, options.only)
    except OSError as error:
        print(f"cannot write results to {folder}: {error.strerror}.", file=sys.stderr)
        return 2
    print(facts_as_text(report.facts))
    setup = setup_for(device, is_tiny=options.tiny, is_quick=options.quick)

    def add(entry: dict[str, object]) -> None:
        report.add(entry)
        release()

    cudnn = torch.backends.cudnn
    settings = {"enabled": cudnn.enabled, "deterministic": cudnn.deterministic}
    gc.freeze()  # what is there by now is never garbage: collections look at the rest alone
    try:
        # Kernels are searched for, as tuned loops have it.
        with cudnn.flags(benchmark=True, allow_tf32=cudnn.allow_tf32, **settings):
            is_clean = run_cases(cases_for(setup, options.only), budget, add)
    finally:
        gc.unfreeze()
    if report.path is not None:
        print(f"\nwritten to {os.path.relpath(report.path)} and .txt")
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
