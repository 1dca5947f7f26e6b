"""A rank that fails, dies, is late or stays away: the others end soon, and know why."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import failing_rank
import pytest
import torch
import torch.distributed as dist

from snapshots import differences

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed"),
    pytest.mark.slow,
]
WITHIN = 30.0  # seconds


def run(what: str, folder: Path) -> tuple[list[Any], list[str], float]:
    """Results, outputs, and seconds until both had ended."""
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if sys.platform == "linux":
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    pair = [
        subprocess.Popen(
            [sys.executable, failing_rank.__file__, what, str(rank), str(store.port), str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    begin = time.monotonic()
    try:
        first = pair[0].communicate(timeout=WITHIN + 20)[0]
        seconds = time.monotonic() - begin
        if what == "stays away":
            pair[1].kill()
        texts = [first, pair[1].communicate(timeout=WITHIN)[0]]
    finally:
        for process in pair:
            process.kill()
    paths = [folder / f"{rank}.pt" for rank in range(2)]
    results = [torch.load(p, weights_only=True) if p.exists() else None for p in paths]
    return results, texts, seconds


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("raises", "rank 1 failed, and this one cannot.* ValueError: this batch is odd"),
        ("raises under fsdp", "rank 1 failed, and this one cannot.* ValueError: this batch is odd"),
        ("raises outside", "rank 1 failed, and this one cannot.* KeyError: 'a column is missing'"),
        ("swallows", "rank 1 failed, and this one cannot.* ValueError: this batch is odd"),
        ("is killed", "another rank of the process group is gone.*may have been killed"),
        ("stays away", "another rank .* did not answer in time"),
    ],
)
def test_the_other_rank_ends_and_knows_why(tmp_path: Path, what: str, message: str) -> None:
    results, texts, seconds = run(what, tmp_path)
    assert seconds <= WITHIN
    assert isinstance(results[0], str), texts
    assert re.search(f"PeerFailed: {message}", results[0]), results[0]


def test_rank_that_swallows_its_error_is_refused_the_next_step(tmp_path: Path) -> None:
    results, _, _ = run("swallows", tmp_path)
    assert re.search("CallOrderError: this engine has failed before .ValueError", results[1])


def test_rank_that_is_late_is_waited_for(tmp_path: Path) -> None:
    results, texts, _ = run("is late", tmp_path)
    assert isinstance(results[0], list), texts
    assert differences(results[0], results[1]) == []
