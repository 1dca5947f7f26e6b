"""Data of real programs in `fit`: a resumed run sees what the straight run sees, bit for bit."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_sources import PASS, SIZE, SOURCES, Rows, disturb, loader, recipe_of, seeded
from small_recipes import SMALL, data, small
from torch import Tensor

import halfstep as hs
from halfstep.training.checkpoint.file import read_checkpoint
from halfstep.training.run.data.stream import DataStream
from halfstep.training.run.data.windows import one_batch

SETTINGS: dict[str, Any] = {"precision": "fp32", "device": "cpu"}


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return len(left) == len(right) and all(map(torch.equal, left, right))


def plain(run: hs.RunRecord) -> list[dict[str, Any]]:
    return [step.to_dict() for step in run.steps]


def check_resume(
    make: Callable[[], Callable[[], Any]],
    folder: Path,
    *,
    steps: int,
    accumulate: int = 1,
    at: list[int] | None = None,
) -> list[Tensor]:
    """Resume at every step in `at` (all of them by default); what the straight run saw."""
    settings: dict[str, Any] = {**SETTINGS, "accumulate": accumulate, "steps": steps}
    seen: list[Tensor] = []
    saves = hs.CheckpointFolder(folder, 1, keep=steps)
    straight = hs.fit(recipe_of(make(), seen), checkpoints=saves, checksums=True, **settings)
    for step in at or range(1, steps):
        disturb()
        again: list[Tensor] = []
        path = folder / f"step-{step:08d}.pt"
        resumed = hs.fit(recipe_of(make(), again), resume=path, checksums=True, **settings)
        assert same(again, seen[step * accumulate :]), f"other data after step {step}"
        assert plain(resumed) == plain(straight)
    return seen


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("name", SOURCES)
def test_resumed_run_sees_the_batches_of_the_straight_run(
    name: str, accumulate: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # passes of 4 batches: 10 steps end in the third pass, 5 windows of 3 span passes
    check_resume(SOURCES[name], tmp_path, steps=10 if accumulate == 1 else 5, accumulate=accumulate)
    assert "cannot be resumed" not in caplog.text


@pytest.mark.parametrize("name", ["shuffled", "generator inside", "own sampler", "weighted"])
def test_every_pass_over_a_shuffled_loader_has_an_order_of_its_own(name: str) -> None:
    seen: list[Tensor] = []
    hs.fit(recipe_of(SOURCES[name](), seen), steps=4 * PASS, **SETTINGS)
    rows = [torch.cat(seen[n : n + PASS])[:, 0].tolist() for n in range(0, len(seen), PASS)]
    assert len({tuple(order) for order in rows}) == 4
    if name != "weighted":  # which draws with replacement
        assert all(sorted(order) == list(range(SIZE)) for order in rows)


def test_set_epoch_of_a_distributed_sampler_is_called_for_every_pass() -> None:
    seen: list[Tensor] = []
    hs.fit(recipe_of(SOURCES["distributed"](), seen), steps=3 * PASS, **SETTINGS)
    expected = []
    for epoch in range(3):
        # torch's own formula: a permutation by seed + epoch, padded, every second one from rank 1
        order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(3 + epoch)).tolist()
        expected += [*order, order[0]][1::2]
    assert [int(batch[0, 0]) for batch in seen] == expected


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("noise", ["", "torch", "python", "numpy"])
def test_resumed_run_with_workers_sees_the_batches_of_the_straight_run(
    persistent: bool, noise: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"num_workers": 2, "persistent_workers": persistent}
    made = partial(loader, shuffle=True, noise=noise, **settings)
    seen = check_resume(lambda: made, tmp_path, steps=2 * PASS + 2, at=[2, PASS, PASS + 1])
    rows = [torch.cat(seen[n : n + PASS])[:, 0].tolist() for n in (0, PASS)]
    assert rows[0] != rows[1]
    assert all(sorted(order) == list(range(SIZE)) for order in rows)


def test_persistent_workers_are_said_to_have_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Tensor] = []
    batches = partial(loader, num_workers=1, persistent_workers=True)
    hs.fit(recipe_of(batches, seen), steps=1, **SETTINGS)
    assert "persistent_workers=True has no effect here: workers start afresh" in caplog.text


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11, torch 2.13
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_stateful_loader_goes_to_its_own_position(workers: int, tmp_path: Path) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata")
    if not hasattr(torch, "set_vital"):
        pytest.skip("torchdata 0.11 calls torch.set_vital, which this torch lacks")
    noise = "" if workers else "torch"
    asked: list[int] = []

    class Counted(Rows):
        def __getitem__(self, index: int) -> Tensor:
            asked.append(index)
            return super().__getitem__(index)

    def make() -> Callable[[], Any]:
        return lambda: stateful.StatefulDataLoader(
            Counted(noise),
            batch_size=2,
            shuffle=True,
            num_workers=workers,
        )

    every = list(range(1, 10)) if not workers else [2, PASS, PASS + 1]
    check_resume(make, tmp_path, steps=10, at=every)
    content = read_checkpoint(tmp_path / "step-00000007.pt")["extra"]["data"]
    assert content["source"] is not None
    if not workers:
        asked.clear()
        path = tmp_path / "step-00000007.pt"
        hs.fit(recipe_of(make(), []), resume=path, steps=8, **SETTINGS)
        assert len(asked) == 1  # the last row of the pass, and none of those before


class Position:
    """A loader that knows its position, as torchdata's does."""

    def __init__(self) -> None:
        self.position = 0
        self.note: object = None

    def state_dict(self) -> dict[str, object]:
        return {"position": self.position, "note": self.note}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]

    def __iter__(self) -> Iterator[Tensor]:
        while self.position < PASS:
            self.position += 1
            drawn.append(self.position)
            yield torch.full((1, 4), float(self.position))
        self.position = 0


drawn: list[int] = []


def test_object_with_a_state_dict_draws_nothing_twice_at_a_resume(tmp_path: Path) -> None:
    check_resume(lambda: Position, tmp_path, steps=10)
    drawn.clear()
    path = tmp_path / "step-00000006.pt"
    hs.fit(recipe_of(Position, []), resume=path, steps=8, **SETTINGS)
    assert drawn == [3, 4]


def test_state_that_is_no_plain_data_is_said_once_and_drawn_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(Position):
        def state_dict(self) -> dict[str, object]:
            return {**super().state_dict(), "note": Rows()}

        def __iter__(self) -> Iterator[Tensor]:
            for n in range(PASS):
                yield torch.full((1, 4), float(n))

    check_resume(lambda: Odd, tmp_path, steps=6)
    assert caplog.text.count("the state of Odd is not plain data") == 1


@pytest.mark.parametrize("name", SOURCES)
def test_two_runs_in_one_process_see_the_same_batches(name: str) -> None:
    batches = SOURCES[name]()
    first: list[Tensor] = []
    second: list[Tensor] = []
    hs.fit(recipe_of(batches, first), steps=6, **SETTINGS)
    disturb()
    hs.fit(recipe_of(batches, second), steps=6, **SETTINGS)
    assert same(first, second)


def test_shuffled_order_follows_the_seed_and_not_the_model() -> None:
    orders = []
    for seed, width in ((0, 8), (0, 9), (1, 8)):
        seen: list[Tensor] = []
        recipe = recipe_of(SOURCES["shuffled"](), seen)
        changed = small(
            model=lambda width=width: torch.nn.Sequential(
                torch.nn.Linear(4, width), torch.nn.Dropout(0.1), torch.nn.Linear(width, 1)
            ),
            loss_fn=recipe.loss_fn,
            batches=recipe.batches,
        )
        hs.fit(changed, steps=PASS, seed=seed, **SETTINGS)
        orders.append(torch.cat(seen)[:, 0].tolist())
    assert orders[0] == orders[1] != orders[2]


def test_data_that_draws_leaves_dropout_alone() -> None:
    def drawing() -> Iterator[Any]:
        for batch in data():
            torch.rand(3), random.random(), np.random.rand()
            yield batch

    settings: dict[str, Any] = {"steps": 5, **SETTINGS, "checksums": True}
    assert plain(hs.fit(small(batches=drawing), **settings)) == plain(hs.fit(SMALL, **settings))


OUTSIDE = (batch for batch in data())
LISTED = iter(data())
CYCLE = itertools.cycle(data())
ZIPPED = zip(data(), data(), strict=True)


def uses_a_generator() -> Iterator[Any]:
    yield from OUTSIDE


@pytest.mark.parametrize(
    ("batches", "text"),
    [
        (lambda: OUTSIDE, "uses 'OUTSIDE', a generator that was made outside of it"),
        (lambda: ZIPPED, "uses 'ZIPPED', a zip that was made outside of it"),
        (uses_a_generator, "uses 'OUTSIDE', a generator"),
        (lambda: LISTED, "returns the same list_iterator at every call"),
        (lambda: CYCLE, "returns the same cycle at every call"),
        (lambda: 3, "must return something to iterate .*got int"),
    ],
    ids=["generator", "zip", "inside", "iterator", "cycle", "number"],
)
def test_data_that_can_be_read_once_is_refused_before_the_first_step(
    batches: Callable[[], Any], text: str
) -> None:
    seen: list[Tensor] = []
    with pytest.raises(hs.RecipeError, match=text):
        hs.fit(recipe_of(batches, seen, validate=seen.append), steps=1, **SETTINGS)
    assert not seen


def test_refusal_of_an_iterator_says_what_to_do() -> None:
    with pytest.raises(hs.RecipeError, match=r"can be read once; make it inside batches\(\)"):
        hs.fit(small(batches=lambda: OUTSIDE), steps=1, **SETTINGS)


def test_pass_that_finds_its_data_used_up_is_refused_with_the_remedy() -> None:
    class Held:
        rows = iter(data())

    held = Held()
    with pytest.raises(hs.RecipeError, match="yields nothing in pass 2: it uses up an iterator"):
        hs.fit(small(batches=lambda: (batch for batch in held.rows)), steps=4, **SETTINGS)


class Program:
    """An object of the user's, with a generator that is not the data."""

    def __init__(self) -> None:
        self.log = (str(n) for n in range(3))
        self.rows = zip(data(), data(), strict=True)

    def fine(self) -> list[Any]:
        return data()

    def single(self) -> Iterator[Any]:
        yield from self.rows


def test_method_is_judged_by_what_it_uses_of_its_object() -> None:
    assert hs.fit(small(batches=Program().fine), steps=4, **SETTINGS).status == "finished"
    with pytest.raises(hs.RecipeError, match="uses 'rows', a zip that was made outside"):
        hs.fit(small(batches=Program().single), steps=4, **SETTINGS)


def test_resume_check_of_a_shuffled_loader_is_equal() -> None:
    recipe = recipe_of(SOURCES["shuffled"](), [])
    found = hs.verify_resume(recipe, at=6, steps=5, precision="fp32")
    assert found.comparison.step is None
    forgotten = hs.verify_resume(recipe, at=6, steps=5, precision="fp32", without=("data",))
    assert forgotten.comparison.step == 7


@pytest.mark.parametrize("name", ["shuffled", "noise of torch", "generator from outside"])
def test_doctor_looks_at_the_batch_that_the_run_sees(name: str) -> None:
    batches = SOURCES[name]()
    seen: list[Tensor] = []
    hs.fit(recipe_of(batches, seen), steps=3, seed=4, **SETTINGS)
    disturb()
    assert torch.equal(one_batch(recipe_of(batches, []), 2, seed=4), seen[2])


def test_global_generators_are_where_they_were_after_a_draw() -> None:
    disturb()
    stream = DataStream(0)
    with stream.active():
        inside = (torch.rand(2).tolist(), random.random(), np.random.rand())
    outside = (torch.rand(2).tolist(), random.random(), np.random.rand())
    disturb()
    assert outside == (torch.rand(2).tolist(), random.random(), np.random.rand())
    with DataStream(0).active():
        assert inside == (torch.rand(2).tolist(), random.random(), np.random.rand())


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.random.default_rng(0),
        lambda: np.random.RandomState(0),
        lambda: np.random.Generator(np.random.Philox(0)),
        lambda: random.Random(0),
    ],
    ids=["PCG64", "RandomState", "Philox", "Random"],
)
def test_generator_of_any_kind_from_outside_goes_on_after_a_resume(
    make: Callable[[], Any], tmp_path: Path
) -> None:
    def program() -> Callable[[], Any]:
        dice = make()

        def batches() -> Iterator[Tensor]:
            for _ in range(PASS):
                draw = dice.gauss(0, 1) if isinstance(dice, random.Random) else dice.normal()
                yield torch.full((1, 4), float(draw))

        return batches

    check_resume(program, tmp_path, steps=7)


def unseeded() -> Iterator[Tensor]:
    order = np.random.default_rng()
    for _ in range(PASS):
        yield torch.full((1, 4), float(order.random()))


class FailsTheSecondTime:
    calls = 0

    def __call__(self) -> list[Tensor]:
        self.calls += 1
        if self.calls == 2:
            raise OSError("the file is in use")
        return [torch.ones(1, 4)]


def from_the_system() -> Callable[[], Iterator[Tensor]]:
    dice = random.SystemRandom()

    def batches() -> Iterator[Tensor]:
        for _ in range(PASS):
            yield torch.full((1, 4), dice.random())

    return batches


@pytest.mark.parametrize(
    ("batches", "text"),
    [
        (unseeded, r"a second call of batches\(\) gave another first batch"),
        (FailsTheSecondTime(), r"a second call of batches\(\) failed \(OSError: the file is in"),
        (from_the_system(), "batches.dice draws from the operating system"),
    ],
    ids=["unseeded", "fails", "system"],
)
def test_data_that_cannot_be_resumed_is_said_once_at_the_first_save(
    batches: Callable[[], Any], text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = hs.CheckpointFolder(tmp_path, 2)
    run = hs.fit(recipe_of(batches, []), steps=5, checkpoints=folder, **SETTINGS)
    assert run.status == "finished"
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    (said,) = [one for one in warnings if one.startswith("the data of this run cannot be resumed")]
    assert said.startswith("the data of this run cannot be resumed: ")
    assert text.replace("\\", "") in said
    caplog.clear()
    hs.fit(recipe_of(batches, []), steps=3, **SETTINGS)  # saves nothing
    assert "cannot be resumed" not in caplog.text


def test_look_at_the_first_batch_again_changes_nothing(tmp_path: Path) -> None:
    runs = []
    for folder in (None, hs.CheckpointFolder(tmp_path, 1)):
        seen: list[Tensor] = []
        recipe = recipe_of(SOURCES["noise of torch"](), seen)
        run = hs.fit(recipe, steps=9, checkpoints=folder, checksums=True, **SETTINGS)
        runs.append((plain(run), seen))
    assert runs[0][0] == runs[1][0]
    assert same(runs[0][1], runs[1][1])


def test_resume_with_a_shorter_pass_is_refused(tmp_path: Path) -> None:
    folder = hs.CheckpointFolder(tmp_path, 3)
    hs.fit(recipe_of(SOURCES["list"](), []), steps=3, checkpoints=folder, **SETTINGS)
    shorter = recipe_of(lambda: [torch.ones(1, 4)], [])
    with pytest.raises(hs.BadValueError, match="ends after 1, the checkpoint was saved after 3"):
        hs.fit(shorter, steps=5, resume=tmp_path, **SETTINGS)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_checkpoint_without_a_data_state_resumes_as_it_did(tmp_path: Path, accumulate: int) -> None:
    """Checkpoints of earlier versions hold the number of windows only."""
    settings: dict[str, Any] = {**SETTINGS, "accumulate": accumulate}

    def batches() -> Any:
        return loader(shuffle=True, generator=seeded())

    folder = hs.CheckpointFolder(tmp_path, 2)
    hs.fit(recipe_of(batches, []), steps=2, checkpoints=folder, **settings)
    path = tmp_path / "step-00000002.pt"
    content = read_checkpoint(path)
    del content["extra"]["data"]
    torch.save(content, path)
    seen: list[Tensor] = []
    hs.fit(recipe_of(batches, seen), steps=6, resume=path, checkpoints=folder, **settings)
    # batches() was called for every pass, and its generator began with its seed again
    expected = list(itertools.islice(itertools.cycle(list(batches())), 6 * accumulate))
    assert same(seen, expected[2 * accumulate :])
    last = read_checkpoint(tmp_path / "step-00000006.pt")["extra"]
    assert (last["position"], "data" in last) == (6, False)
