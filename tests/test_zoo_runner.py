"""The runner of the zoo: halves, judge, remedies that are followed, processes, figures.

The architectures themselves need packages of their own and run with `make zoo`.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

import halfstep as hs
from halfstep.records import Cause, Diagnosis
from zoo import halves
from zoo.__main__ import chosen, main
from zoo.case import EVERY, FP16, Case, Truth, all_cases
from zoo.judge import problem
from zoo.one_case import doctored, plain
from zoo.recipes import recipe, trained
from zoo.remedies import (
    NotLiteralError,
    instructions,
    policy_file,
    put_block,
    scale_problem,
)
from zoo.runner import Result, Settings, line_of, run_all
from zoo.summary import figures, lines

_TRUTH = Truth(("overflow",), ("blocks.*.fc", "head"), ("mul", "pow"), "forward", FP16)


def _recipe(factor: float = 1.0) -> hs.Recipe:
    def loss_fn(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x).float().square().mean() * factor

    batch = torch.linspace(-1, 1, 32).view(8, 4)
    return recipe("line", lambda: nn.Linear(4, 2), loss_fn, [batch])


def _case(name: str = "line", truth: Truth | None = None, needs: tuple[str, ...] = ()) -> Case:
    return Case(name, "made", _recipe, needs, truth)


@pytest.fixture(scope="module")
def healthy_diagnosis() -> Diagnosis:
    return hs.diagnose(_recipe())


@pytest.fixture(scope="module")
def overflow() -> Cause:
    """Of a product in a linear map, whose module and remedy the tests replace."""

    class Squares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            nn.init.constant_(self.fc.weight, 400.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.fc(x)
            return torch.as_tensor(y * y) * 1e-6

    def loss_fn(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x).float().mean()

    found = hs.diagnose(recipe("squares", Squares, loss_fn, [torch.ones(2, 4)]))
    return next(cause for cause in found.causes if cause.kind == "overflow")


def _found(base: Diagnosis, *causes: Cause) -> Diagnosis:
    return dataclasses.replace(base, health="precision", causes=causes)


# ---- halves and cases ---------------------------------------------------------------------------


def test_held_out_half_is_the_one_that_was_drawn() -> None:
    assert halves.draw(halves.HEALTHY) | halves.draw(halves.PLANTED) == halves.HELD_OUT


@pytest.mark.parametrize("names", [halves.HEALTHY, halves.PLANTED], ids=["healthy", "planted"])
def test_draw_takes_half_of_each_kind(names: dict[str, Sequence[str]]) -> None:
    drawn = halves.draw(names)
    for kind, cases in names.items():
        assert abs(2 * len(drawn & set(cases)) - len(cases)) <= 1, kind


def test_every_name_of_the_halves_has_a_case_and_the_other_way_round() -> None:
    named = [
        name for kinds in (halves.HEALTHY, halves.PLANTED) for k in kinds.values() for name in k
    ]
    assert sorted(all_cases()) == sorted(named)


def test_zoo_is_as_large_as_promised() -> None:
    cases = all_cases().values()
    assert sum(case.truth is None for case in cases) >= 60
    assert sum(case.truth is not None for case in cases) >= 40


def test_every_truth_says_why_and_names_kinds_that_exist() -> None:
    from halfstep.records.diagnosis import CAUSE_KINDS

    later = {"*", "loss_too_large"}  # any kind, and one that the doctor may learn
    for case in all_cases().values():
        if case.truth is not None:
            assert case.truth.why, case.name
            assert set(case.truth.kinds) <= {*CAUSE_KINDS, *later}, case.name


def test_case_of_the_other_half_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="bert is in the other half; give --half held-out too"):
        chosen("development", ["bert"])


def test_name_that_no_case_has_ends_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "no_such_case"]) == 2
    assert "no case is named no_such_case" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("timm", "vit_tiny"),
        ("transformers", "gpt2"),
        ("torch_geometric", "gcn"),
        ("diffusers", "unet2d_condition"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # of the packages
def test_case_trains_in_every_format_where_its_package_is_installed(
    package: str, name: str
) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed; make zoo installs it")
    result = plain(all_cases()[name])
    assert result["finite_after_step"]
    assert result["fp16"]["gradient_error"] < 16 * torch.finfo(torch.float16).eps


# ---- judge --------------------------------------------------------------------------------------


def test_judge_calls_a_healthy_case_with_an_error_a_false_alarm(
    healthy_diagnosis: Diagnosis, overflow: Cause
) -> None:
    assert problem(_case(), healthy_diagnosis) == ""
    assert problem(_case(), _found(healthy_diagnosis, overflow)) == "false alarm"


def test_judge_accepts_place_and_cause_by_pattern(
    healthy_diagnosis: Diagnosis, overflow: Cause
) -> None:
    right = dataclasses.replace(overflow, module="Net.blocks.3.fc")
    assert problem(_case(truth=_TRUTH), _found(healthy_diagnosis, right)) == ""


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"module": "Net.blocks.3"}, "module 'Net.blocks.3'"),
        ({"kind": "rounding"}, "kind rounding"),
        ({"passes": ("bf16", "fp16")}, "passes bf16, fp16"),
        ({"is_precision": False}, "said not to be precision"),
        ({"op": None}, "op ''"),
    ],
)
def test_judge_says_what_is_wrong(
    healthy_diagnosis: Diagnosis, overflow: Cause, change: dict[str, object], text: str
) -> None:
    base = dataclasses.replace(overflow, module="Net.blocks.3.fc")
    wrong = dataclasses.replace(base, **change)  # type: ignore[arg-type]
    assert text in problem(_case(truth=_TRUTH), _found(healthy_diagnosis, wrong))


def test_judge_of_a_planted_case_wants_something_found(healthy_diagnosis: Diagnosis) -> None:
    assert problem(_case(truth=_TRUTH), healthy_diagnosis) == "found nothing"


def test_judge_compares_the_named_thing(healthy_diagnosis: Diagnosis, overflow: Cause) -> None:
    truth = dataclasses.replace(
        _TRUTH, kinds=("bad_weights",), modules=("*",), ops=(), phase="", subject="fc.weight",
        passes=EVERY,
    )  # fmt: skip
    named = dataclasses.replace(overflow, kind="bad_weights", op=None, subject="fc.bias")
    assert problem(_case(truth=truth), _found(healthy_diagnosis, named)) == "subject 'fc.bias'"


# ---- remedies -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "islands", "blocks", "scales"),
    [
        ("Keep the module Net.fc in FP32 (with hs.fp32(): around it)", ("Net.fc",), (), ()),
        (
            'Keep a, b.*.c in FP32: modules={"a": "fp32", "b.*.c": "fp32"} in hs.Policy, or modules'
            ' = { "a" = "fp32", "b.*.c" = "fp32" } in precision.toml. Tried: healthy.',
            ("a", "b.*.c"),
            (),
            (),
        ),
        (
            "Put `with hs.fp32():` around the ops of the loss function at my/losses.py:12.",
            (),
            ("my/losses.py:12",),
            (),
        ),
        (
            "Start at DynamicLossScale(init_scale=2**20, max_scale=2**30).",
            (),
            (),
            ("DynamicLossScale(init_scale=2**20, max_scale=2**30)",),
        ),
        ("Clean the data (or leave such samples out).", (), (), ()),
    ],
)
def test_instructions_are_read_from_what_is_printed(
    healthy_diagnosis: Diagnosis,
    overflow: Cause,
    text: str,
    islands: tuple[str, ...],
    blocks: tuple[str, ...],
    scales: tuple[str, ...],
) -> None:
    told = instructions(_found(healthy_diagnosis, dataclasses.replace(overflow, remedy=text)))
    assert (told.islands, told.blocks, told.scales) == (islands, blocks, scales)


def test_instructions_of_a_note_are_its_scale_only(
    healthy_diagnosis: Diagnosis, overflow: Cause
) -> None:
    text = "Keep the module Net.fc in FP32, or start at DynamicLossScale(init_scale=64)."
    note = dataclasses.replace(overflow, severity="note", remedy=text)
    told = instructions(_found(healthy_diagnosis, note))
    assert (told.islands, told.scales) == ((), ("DynamicLossScale(init_scale=64)",))


def test_policy_file_is_one_that_halfstep_loads(
    healthy_diagnosis: Diagnosis, overflow: Cause, tmp_path: Path
) -> None:
    text = 'modules = { "blocks.*.fc" = "fp32" } in precision.toml'
    told = instructions(_found(healthy_diagnosis, dataclasses.replace(overflow, remedy=text)))
    policy = hs.Policy.load(policy_file(told, tmp_path / "precision.toml"))
    assert policy == hs.Policy("fp16", base="cuda", modules={"blocks.*.fc": "fp32"})


@pytest.mark.parametrize(
    ("factor", "call", "text"),
    [
        (1.0, "DynamicLossScale(init_scale=2**10)", ""),
        (1e9, "DynamicLossScale(init_scale=1024)", "is skipped"),
        (1e-13, "StaticLossScale(1.0)", "the gradient norm at"),
        (1.0, "DynamicLossScale(init_scale=2**40)", "cannot be pasted: init_scale"),
        (1.0, "DynamicLossScale(init_scale=)", "cannot be pasted"),
    ],
)
def test_printed_loss_scale_is_tried_in_a_step(factor: float, call: str, text: str) -> None:
    found = scale_problem(_recipe(factor), call, is_all=True)
    assert text in found
    assert bool(found) == bool(text)


_SOURCE = """
def forward(self, x):
    y = self.layer(x)
    mean = y.mean()
    z = y - mean
    if mean.ndim:
        return self.head(z)
    return z * z
"""


def test_block_goes_around_the_ops_of_a_line_and_around_no_module() -> None:
    tree = ast.parse(_SOURCE)
    put_block(tree, 5)
    expected = """
def forward(self, x):
    y = self.layer(x)
    with __import__('halfstep').fp32():
        mean = y.mean()
        z = y - mean
    if mean.ndim:
        return self.head(z)
    return z * z
"""
    assert ast.unparse(tree) == expected.strip()


@pytest.mark.parametrize("line", [3, 7])
def test_block_around_a_module_is_refused(line: int) -> None:
    with pytest.raises(NotLiteralError, match=f"line {line} calls a module in the same statement"):
        put_block(ast.parse(_SOURCE), line)


def test_block_outside_of_the_file_is_refused() -> None:
    with pytest.raises(NotLiteralError, match="there is no statement at line 99"):
        put_block(ast.parse(_SOURCE), 99)


def test_doctored_case_has_a_verdict_and_its_time(tmp_path: Path) -> None:
    result = doctored(_case(), tmp_path)
    assert (result["health"], result["problem"], result["errors"]) == ("healthy", "", [])
    assert result["seconds"] >= 0


def test_trained_recipe_starts_where_training_ended() -> None:
    base = _recipe()
    torch.manual_seed(0)
    made = trained(base, steps=3).model()
    torch.manual_seed(0)
    by_hand = base.model()
    optimizer = base.optimizer(by_hand)
    for _ in range(3):
        optimizer.zero_grad()
        base.loss_fn(by_hand, next(iter(base.batches()))).backward()
        torch.nn.utils.clip_grad_norm_(by_hand.parameters(), 1.0)
        optimizer.step()
    assert torch.equal(made.weight, by_hand.weight)
    assert made.weight.grad is None


# ---- processes ----------------------------------------------------------------------------------


def _writes(text: str) -> object:
    """A command that writes a result; the last argument is its file."""

    def command(case: Case, path: Path) -> Sequence[str]:
        program = f"import sys, pathlib; pathlib.Path(sys.argv[1]).write_text({text!r})"
        return [sys.executable, "-c", program, str(path)]

    return command


def _settings(tmp_path: Path, **changes: object) -> Settings:
    return Settings(**{"mode": "doctor", "folder": tmp_path, "code": "one", **changes})  # type: ignore[arg-type]


_RIGHT = json.dumps({"health": "healthy", "problem": "", "seconds": 1.0, "headline": "Healthy."})


def test_finished_case_is_not_run_again(tmp_path: Path) -> None:
    shown: list[str] = []
    first = run_all([_case()], _settings(tmp_path), shown.append, _writes(_RIGHT))
    again = run_all([_case()], _settings(tmp_path), shown.append, _writes("not even JSON"))
    assert again == first
    assert shown == ["line: right (1.0 s): Healthy."]


def test_result_of_other_code_is_made_anew(tmp_path: Path) -> None:
    shown: list[str] = []
    run_all([_case()], _settings(tmp_path), shown.append, _writes(_RIGHT))
    run_all([_case()], _settings(tmp_path, code="two"), shown.append, _writes(_RIGHT))
    assert len(shown) == 2


def test_case_that_raises_is_a_failure_with_its_last_line(tmp_path: Path) -> None:
    def command(case: Case, path: Path) -> Sequence[str]:
        return [sys.executable, "-c", "raise ValueError('no such model')", str(path)]

    results = run_all([_case()], _settings(tmp_path), lambda _: None, command)
    assert results["line"]["failed"] == "exit code 1: ValueError: no such model"


def test_case_runs_the_halfstep_of_the_runner(tmp_path: Path) -> None:
    def command(case: Case, path: Path) -> Sequence[str]:
        program = "import sys, json, halfstep"
        program += "; open(sys.argv[1], 'w').write(json.dumps({'failed': halfstep.__file__}))"
        return [sys.executable, "-c", program, str(path)]

    results = run_all([_case()], _settings(tmp_path), lambda _: None, command)
    assert results["line"]["failed"] == hs.__file__


def test_case_beyond_its_time_is_a_failure(tmp_path: Path) -> None:
    def command(case: Case, path: Path) -> Sequence[str]:
        return [sys.executable, "-c", "import threading; threading.Event().wait()", str(path)]

    results = run_all([_case()], _settings(tmp_path, limit_s=0.5), lambda _: None, command)
    assert results["line"]["failed"] == "took longer than 0.5 s"


def test_case_whose_package_is_missing_is_skipped_by_name(tmp_path: Path) -> None:
    case = _case(needs=("no_such_package", "torch"))
    results = run_all([case], _settings(tmp_path), lambda _: None, _writes(_RIGHT))
    assert results["line"] == {"skipped": "no_such_package not installed"}
    assert not list(tmp_path.iterdir())  # it is looked for again next time


# ---- figures ------------------------------------------------------------------------------------


def _result(problem: str = "", **more: object) -> Result:
    return {
        "health": "precision", "problem": problem, "seconds": 1.0, "headline": "It overflows.",
        "place_is_right": not problem, "cause_is_right": True, **more,
    }  # fmt: skip


def test_figures_count_alarms_faults_and_remedies() -> None:
    cases = {
        "calm": _case("calm"),
        "alarm": _case("alarm"),
        "found": _case("found", _TRUTH),
        "missed": _case("missed", _TRUTH),
        "broken": _case("broken"),
    }
    results: dict[str, Result] = {
        "calm": _result(),
        "alarm": _result("false alarm"),
        "found": _result(followed={"islands": "", "scales": ""}),
        "missed": _result("module 'Net'", followed={"islands": "not healthy then: It overflows."}),
        "broken": {"failed": "took longer than 1 s"},
    }
    count = figures(cases, results)
    assert count == {
        "healthy": 2, "false_alarms": 1, "planted": 2, "place_and_cause_right": 1,
        "place_right": 1, "cause_right": 2, "remedies_followed": 3, "remedies_that_heal": 2,
        "failed": 1, "skipped": 0,
    }  # fmt: skip
    assert list(lines(cases, results)) == [
        "1 false alarms of 2 healthy",
        "1 of 2 planted with place and cause right (place 1, cause 2)",
        "2 of 3 printed islands and scales leave the model healthy when followed to the letter",
        "  alarm: false alarm; it said: It overflows.",
        "  missed: module 'Net'; it said: It overflows.; islands followed: not healthy then: It"
        " overflows.",
        "  broken: took longer than 1 s",
        "1 failed: an error of the doctor or of the case, or out of time",
    ]


def test_line_of_a_plain_run_gives_the_errors_of_both_formats() -> None:
    result = {"bf16": {"gradient_error": 0.0123}, "fp16": {"error": "RuntimeError: no"}}
    assert line_of(result) == "runs, gradient error 0.012 in BF16, RuntimeError: no in FP16"
