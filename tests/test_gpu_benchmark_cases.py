"""The parts of `benchmarks/gpu.py` that decide: budget, order, rounds, report."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu_bench.cases import Budget, Case, LeftOut, Measured, OutOfTime, run_cases
from benchmarks.gpu_bench.device_time import Rounds, interleaved, sort_work
from benchmarks.gpu_bench.own_tests import read_summary
from benchmarks.gpu_bench.report import Report, as_text
from benchmarks.update import quartiles

FACTS = {
    "date": "2026-12-01", "device": "NVIDIA H200 (SXM)", "compute_capability": "9.0", "cpu": "EPYC",
    "memory_bytes": 2**37, "cuda": "12.8", "torch": "2.13.0", "python": "3.11.7",
    "command": "python benchmarks/gpu.py",
}  # fmt: skip


class FakeClock:
    """Seconds that pass only when somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: float) -> Measured:
        self.now += seconds
        return Measured({"way": {"ms": 1.0}})


def entries_of(cases: list[Case], budget: Budget | None = None) -> tuple[bool, dict[str, Any]]:
    found: list[dict[str, Any]] = []
    is_clean = run_cases(cases, budget or Budget(60), found.append)
    return is_clean, {entry["name"]: entry for entry in found}


def raising(error: BaseException) -> Callable[[], Measured]:
    def run() -> Measured:
        raise error

    return run


# ---------------------------------------------------------------------------------- the budget


def test_cases_run_in_turn_until_the_minutes_are_over() -> None:
    clock = FakeClock()
    cases = [Case("s", name, lambda: clock.work(50)) for name in "abcd"]
    is_clean, entries = entries_of(cases, Budget(2, clock))
    assert is_clean
    assert list(entries) == list("abcd")
    assert [name for name, entry in entries.items() if "rows" in entry] == ["a", "b", "c"]
    assert entries["d"]["left_out"] == "0 of 120 s are left"


def test_case_that_needs_longer_than_is_left_is_not_begun_and_a_shorter_one_is() -> None:
    clock = FakeClock()
    cases = [
        Case("s", "first", lambda: clock.work(40)),
        Case("s", "long", lambda: clock.work(90), needs_s=90),
        Case("s", "short", lambda: clock.work(5), needs_s=10),
    ]
    _, entries = entries_of(cases, Budget(2, clock))
    assert entries["long"]["left_out"] == "80 of 120 s are left, and it takes about 90"
    assert "rows" in entries["short"]
    assert clock.now == 45


def test_case_that_never_ends_is_stopped_and_those_after_it_are_named() -> None:
    def endless() -> Measured:
        while True:
            try:
                sum(range(1000))
            except Exception:
                raise AssertionError("the end of the minutes is no error to swallow") from None

    cases = [Case("s", "endless", endless), Case("s", "after", Measured)]
    is_clean, entries = entries_of(cases, Budget(0.002))
    assert is_clean
    assert entries["endless"]["left_out"] == "stopped when the 0.002 minutes were over"
    assert entries["after"]["left_out"].startswith("0 of 0 s are left")


def test_nothing_is_stopped_once_a_case_is_over() -> None:
    with Budget(0.001).enforced():
        pass
    sum(range(2_000_000))  # longer than the budget, and outside of it
    assert not issubclass(OutOfTime, Exception)


# ----------------------------------------------------------------------- what became of a case


def test_failing_case_is_recorded_and_the_others_run(capsys: pytest.CaptureFixture[str]) -> None:
    cases = [Case("s", "bad", raising(ValueError("no such shape"))), Case("s", "good", Measured)]
    is_clean, entries = entries_of(cases)
    assert not is_clean
    assert entries["bad"]["error"] == "ValueError: no such shape"
    assert "error" not in entries["good"]
    assert "no such shape" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (LeftOut("Triton is missing"), "Triton is missing"),
        (torch.OutOfMemoryError("CUDA out of memory.\nmore"), "out of memory: CUDA out of memory."),
    ],
)
def test_what_cannot_be_measured_here_is_no_failure(error: Exception, reason: str) -> None:
    is_clean, entries = entries_of([Case("s", "case", raising(error))])
    assert is_clean
    assert entries["case"]["left_out"] == reason


def test_measured_failure_makes_the_run_fail_and_keeps_its_figures() -> None:
    found = Measured({"way": {"waits": 1.0}}, failure="a fused step waited")
    is_clean, entries = entries_of([Case("s", "case", lambda: found)])
    assert not is_clean
    assert entries["case"]["failure"] == "a fused step waited"
    assert entries["case"]["rows"] == {"way": {"waits": 1.0}}


# --------------------------------------------------------------------------------- the rounds


@pytest.mark.parametrize(
    ("seconds_of_a_round", "expected"), [(1.0, 10), (3.0, 7), (50.0, 4), (0.0, 12)]
)
def test_rounds_end_with_the_seconds_but_not_below_the_least(
    seconds_of_a_round: float, expected: int
) -> None:
    # by hand: 20 s; the least is 4, the most 12; a round begins while there are seconds left
    clock, count = FakeClock(), 0
    most = 10 if seconds_of_a_round == 1.0 else 12
    for _ in Rounds(4, most, 20.0, clock):
        clock.now += seconds_of_a_round
        count += 1
    assert count == expected


def test_each_way_runs_once_in_each_round_in_orders_that_differ() -> None:
    calls: list[str] = []

    def way(name: str) -> Callable[[], int]:
        def run() -> int:
            calls.append(name)
            return len(calls)

        return run

    found = interleaved({name: way(name) for name in "abc"}, Rounds(8, 8, 0.0), warm_up=2)
    rounds = [calls[i : i + 3] for i in range(0, len(calls), 3)]
    assert len(rounds) == 2 + 8
    assert all(sorted(each) == ["a", "b", "c"] for each in rounds)
    assert len({tuple(each) for each in rounds[2:]}) > 1
    for name, results in found.items():  # of the eight, in their order, without the warm-up
        assert results == [i + 1 for i, called in enumerate(calls) if called == name][2:]


def test_quartiles_are_those_of_the_ratios_within_a_round() -> None:
    # by hand: ratios 1 to 5; a machine that is slow in one round changes none of them
    slow = [1.0, 1.0, 100.0, 1.0, 1.0]
    numerators = [ratio * factor for ratio, factor in zip([3, 1, 5, 2, 4], slow, strict=True)]
    assert quartiles(numerators, slow) == [1.5, 3.0, 4.5]


# --------------------------------------------------------------------------------- the report


def test_files_are_whole_after_every_case(tmp_path: Path) -> None:
    report = Report(FACTS, tmp_path / "new")
    for count, name in enumerate("ab", start=1):
        report.add({"section": "s", "name": name, "rows": {"way": {"ms": 1.0}}, "seconds": 0.1})
        assert report.path is not None
        assert report.path.name == "2026-12-01-gpu-nvidia-h200-sxm.json"
        read = json.loads(report.path.read_text())
        assert read == {**FACTS, "cases": report.entries}
        assert len(read["cases"]) == count
        assert f"s: {name} (0.1 s)" in report.path.with_suffix(".txt").read_text()
    assert len(list((tmp_path / "new").iterdir())) == 2


def test_report_without_a_folder_only_prints(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(FACTS, None)
    report.add({"section": "s", "name": "a", "left_out": "no Triton", "seconds": 0.0})
    assert capsys.readouterr().out == "\ns: a (0 s)\n  left out: no Triton\n"
    assert report.path is None


def test_table_shows_median_and_quartiles_units_and_what_is_missing() -> None:
    entry = {
        "section": "update",
        "name": "GPT-2",
        "seconds": 12.5,
        "rows": {
            "stock": {"ms": [1.5, 2.0, 250.25], "peak_bytes": 3 * 2**29, "against": None},
            "halfstep": {"ms": None, "kernels": 12345, "against": "stock"},
            "rest": {"places": ["a.py:1", "b.py:2"], "kernels": 0},
        },
        "notes": ["8 rounds"],
        "failure": "it waited",
    }
    assert as_text(entry).splitlines() == [
        "update: GPT-2 (12.5 s)",
        "                            ms  peak GiB  against  kernels          places",
        "  stock     2.000 [1.500, 250]      1.50        -        -               -",
        "  halfstep                   -         -    stock   12,345               -",
        "  rest                       -         -        -        0  a.py:1, b.py:2",
        "  8 rounds",
        "  FAILED: it waited",
    ]


# ---------------------------------------------------------------- what others' programs print


def test_work_of_the_device_is_sorted_by_the_names_that_cupti_gives() -> None:
    # names as torch's profiler prints them for a fused AdamW step
    found = sort_work([
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >",
        "Memcpy DtoH (Device -> Pinned)",
        "Memset (Device)",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdam>",
        "Optimizer.step#AdamW.step",
        "Memcpy DtoD (Device -> Device)",
    ])  # fmt: skip
    assert (found.kernels, found.copies, found.fills) == (2, 2, 1)
    assert found.names == ["Memcpy DtoD (Device -> Device)", "Memcpy DtoH (Device -> Pinned)"]


@pytest.mark.parametrize(
    ("code", "last", "expected"),
    [
        (0, "367 passed, 139 skipped in 12.67s", (367, 0, 0, 139)),
        (1, "1 failed, 3 passed, 2 errors in 0.10s", (3, 1, 2, 0)),
        (1, "3 passed, 1 error in 0.10s", (3, 0, 1, 0)),
        (5, "no tests ran in 0.01s", (0, 0, 0, 0)),
    ],
)
def test_summary_of_pytest_is_read(
    code: int, last: str, expected: tuple[int, int, int, int]
) -> None:
    failed = "FAILED tests/gpu/test_cuda.py::test_a - assert 1 == 2"
    found = read_summary("tests/gpu", code, f"...\n{failed if code == 1 else ''}\n{last}\n")
    assert tuple(found.rows["tests/gpu"].values()) == expected
    assert found.notes == ([failed] if code == 1 else [])
    wanted = f"pytest ended with exit code {code}: {last}" if code else None
    assert found.failure == wanted


def test_every_name_of_torch_cuda_that_is_used_is_one() -> None:
    # the emulated device would replace a name that torch does not have, too
    folder = Path(__file__).parents[1] / "benchmarks"
    used = set()
    for path in [folder / "gpu.py", *sorted((folder / "gpu_bench").glob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "torch.cuda":
                used.add(node.attr)
    assert {"Event", "_sleep", "max_memory_allocated", "set_sync_debug_mode"} <= used
    assert [name for name in sorted(used) if not hasattr(torch.cuda, name)] == []


def test_sections_that_the_documentation_names_are_those_that_there_are() -> None:
    folder = Path(__file__).parents[1] / "docs"
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md")))
    commands = " ".join(re.findall(r"benchmarks/gpu\.py[^`\n]*", text))
    named = set(re.findall(r"--only (\w+)", commands))
    assert {"kernels", "waits", "training"} <= named <= set(gpu.SECTIONS)
    _, _, page = (folder / "performance.md").read_text(encoding="utf-8").partition("## On a GPU")
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(gpu.SECTIONS)
