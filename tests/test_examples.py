"""The examples run, without a warning, and show what they say."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_on(ranks: int, name: str) -> str:
    """By torchrun, on a CPU."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if sys.platform == "linux":
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [sys.executable, *torchrun, str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    missing = [p.name for p in EXAMPLES.glob("*.py") if f'"{p.name}")' not in text]
    assert missing == []


@pytest.mark.parametrize("ranks", [1, 2])
def test_ddp_counts_the_tokens_of_all_ranks(ranks: int) -> None:
    found = re.findall(r"epoch (\d): loss=(\S+) tokens=(\d+)", run_on(ranks, "ddp.py"))
    valid = 512 - 171  # every third label is missing
    assert [int(tokens) for _, _, tokens in found] == [valid * n for n in (1, 2, 3, 4)]
    assert float(found[-1][1]) < 0.1


def test_ddp_runs_in_one_process_too() -> None:
    assert run("ddp.py").count("tokens=") == 4


@pytest.mark.parametrize("ranks", [1, 2])
def test_fsdp_is_loaded_into_one_process(ranks: int) -> None:
    text = run_on(ranks, "fsdp.py")
    losses = [float(loss) for loss in re.findall(r"loss=(\S+)", text)]
    assert losses[-1] < 0.2 < losses[0]
    assert "loaded into one process: 60 updates, differs by 0.0e+00" in text


def test_three_micro_batches_are_exact_and_the_mean_of_means_is_not() -> None:
    text = run("three_micro_batches.py")
    dtypes = dict(re.findall(r"^  (.+?) {2,}(\w+)$", text, re.MULTILINE))
    assert dtypes["token ids"] == "int64"
    assert dtypes["head"] == dtypes["gradient of the logits"] == "bfloat16"
    assert dtypes["loss"] == dtypes["gradient of the parameters"] == "float32"
    errors = [float(e) for e in re.findall(r"gradient off by (\S+)", text)]
    assert errors[0] < 1e-6 < errors[1] < 1e-2 < 0.5 < errors[2]


def test_nan_at_step_200_has_the_log_and_the_cause() -> None:
    text = run("nan_at_step_200.py")
    steps = re.findall(r"\[step (\d+)\] loss=(\S+) scale=(\d+) skipped=(\w+)", text)
    good = [step for step in steps if int(step[0]) < 200]
    bad = [step for step in steps if int(step[0]) >= 200]
    assert {step[3] for step in good} == {"False"}
    assert float(good[-1][1]) < 0.5
    assert {step[3] for step in bad} == {"True"}
    assert {step[1] for step in bad} == {"nan"}
    scales = [int(step[2]) for step in bad]
    assert scales == [65536 >> n for n in range(len(scales))]  # halved with every skip
    assert "batch[0], sample 0, is not finite" in text  # its dead pixel
    # closed form: a clipped SGD step with lr 1 is 1 long; clipped while scaled, 1 / 1024
    assert re.findall(r": +(\d\.\d{6})", text) == ["1.000000", "0.000977"]


def test_sam_learns_in_fp16() -> None:
    losses = [float(loss) for loss in re.findall(r"loss=(\S+)", run("sam.py"))]
    assert losses[-1] < 0.1
    assert losses == sorted(losses, reverse=True)


def test_gan_finds_the_equilibrium_in_fp16() -> None:
    # oracle: at the optimum the discriminator's loss is 2 ln 2 and the samples have the data's mean
    text = run("gan.py")
    discriminator = [float(x) for x in re.findall(r"discriminator=(\S+)", text)]
    means = [float(x) for x in re.findall(r"mean of samples=(\S+)", text)]
    assert discriminator[-1] == pytest.approx(2 * math.log(2), abs=0.1)
    assert means[-1] == pytest.approx(3.0, abs=0.5)
    assert "discriminator, step 200: skipped, non_finite" in text
    assert "generator: 400 updates, 0 skipped" in text


@pytest.mark.parametrize("name", sorted(p.name for p in EXAMPLES.glob("*.py")))
def test_example_says_how_to_run_it(name: str) -> None:
    assert re.search(
        f"(python|-node 2) examples/{name}", (EXAMPLES / name).read_text(encoding="utf-8")
    )
