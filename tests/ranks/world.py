"""Real processes: one group of them runs many cases, each of which returns what it saw.

A module of cases is started once for each size of world: ``python world.py MODULE RANK WORLD
FOLDER``. A case is a function of the rank that is marked by `case`.
"""

from __future__ import annotations

import datetime
import importlib
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

TIMEOUT = 60.0  # seconds that one rank waits for another


class Case(NamedTuple):
    """A function that every rank calls, and the sizes of worlds that it is for."""

    run: Callable[[int, int], Any]
    worlds: tuple[int, ...]


CASES: dict[str, dict[str, Case]] = {}  # by module


def add_case(module: str, name: str, run: Callable[[int, int], Any], *worlds: int) -> None:
    """Let every rank call ``run(rank, world)``; a name for each."""
    CASES.setdefault(module, {})[name] = Case(run, worlds)


def case(*worlds: int) -> Callable[[Callable[[int, int], Any]], Callable[[int, int], Any]]:
    """Marks a function of rank and size of the world as a case.

    Args:
        worlds: Sizes for which it is run.
    """

    def mark(run: Callable[[int, int], Any]) -> Callable[[int, int], Any]:
        add_case(run.__module__, run.__name__, run, *worlds)
        return run

    return mark


class Results:
    """What the cases of a module returned, by rank."""

    def __init__(self, found: list[dict[str, Any]]) -> None:
        self._found = found

    def __getitem__(self, name: str) -> list[Any]:
        """For each rank; fails with the traceback where it raised."""
        results = [each[name] for each in self._found]
        for rank, result in enumerate(results):
            failed = isinstance(result, str) and result.startswith("FAILED")
            assert not failed, f"rank {rank}: {result}"
        return results


def run_cases(
    module: str,
    world: int,
    folder: Path,
    *,
    only: str = "",
    within: float = 280.0,
    **variables: str,
) -> Results:
    """Start a group of processes, and wait for what its cases return.

    Args:
        module: Name of the module of cases, next to this file.
        world: Number of processes.
        folder: Empty.
        only: How the names of the cases begin.
        within: Seconds.
        variables: Of the environment.
    """
    environment = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        environment.pop(name, None)
    if sys.platform == "linux":
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")  # works without a network
    group = [
        subprocess.Popen(
            [sys.executable, __file__, module, str(rank), str(world), str(folder), only],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        texts = [process.communicate(timeout=within)[0] for process in group]
    finally:
        for process in group:
            process.kill()
    assert [process.returncode for process in group] == [0] * world, "\n".join(texts)
    return Results([torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(world)])


def _run(each: Case, rank: int, world: int) -> Any:
    try:
        return each.run(rank, world)
    except Exception:
        return f"FAILED: {traceback.format_exc()}"


def main(module: str, rank: int, world: int, folder: Path, only: str) -> None:
    """Run every case of a module for this size and write what they returned to ``<rank>.pt``."""
    torch.set_num_threads(1)
    importlib.import_module(module)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(folder / "store"), world),
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=TIMEOUT),
    )
    found = {}
    for name, each in sys.modules["world"].CASES[module].items():
        if world in each.worlds and name.startswith(only):
            found[name] = _run(each, rank, world)
            torch.save(found, folder / f"{rank}.pt")
            dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo may abort at the exit of a process whose models hold groups of their own


if __name__ == "__main__":
    import world as _this  # the cases register there and not in __main__

    _this.main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5])
