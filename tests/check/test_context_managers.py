"""Generator functions as context managers: what the block does stands where they yield."""

from __future__ import annotations

import pytest
from pattern_head import HEAD, SCALER

from halfstep.check.linter import check_text
from halfstep.rules import registry

IMPORT = "import contextlib\nfrom contextlib import contextmanager\n"
MANY = "from data import loader\n"
MANAGERS = {
    "plain": "@contextmanager\ndef low():\n    with torch.autocast('cuda'):\n        yield\n",
    "guarded": """\
@contextlib.contextmanager
def low():
    start()
    try:
        with torch.autocast("cuda"):
            yield
    finally:
        stop()
""",
    "with a value": """\
@contextmanager
def low(note="x"):
    context = torch.autocast("cuda")
    with open(note) as file, context:
        yield file
""",
    "one inside the other": """\
@contextmanager
def inner():
    with torch.autocast("cuda"):
        yield


@contextmanager
def low():
    with inner():
        yield
""",
    "of several": """\
@contextmanager
def low(on=True):
    if on:
        with torch.autocast("cuda"):
            yield
    else:
        yield
""",
}
LOOP = """
for x, y in loader:
    with low():
        loss = criterion(model(x), y)
"""
# A second forward after an update, in the same block.
WHOLE = """
with low():
    for x, y in loader:
        loss = criterion(model(x), y)  # <- HS115
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
STEP = """
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
ORDER = registry.select(["HS1"])


def codes(text: str) -> list[str]:
    return [f.code for f in check_text("train.py", text, ORDER)]


@pytest.mark.parametrize("name", MANAGERS)
def test_step_outside_of_a_manager_gives_no_finding(name: str) -> None:
    assert codes(IMPORT + SCALER + MANAGERS[name] + LOOP + STEP) == []


@pytest.mark.parametrize("name", MANAGERS)
def test_updates_inside_of_a_manager_with_autocast_are_found(name: str) -> None:
    text = IMPORT + SCALER + MANY + MANAGERS[name] + WHOLE
    assert set(codes(text)) == {"HS115"}


@pytest.mark.parametrize("name", MANAGERS)
def test_unscaled_loss_of_a_manager_is_found(name: str) -> None:
    text = IMPORT + HEAD + MANAGERS[name] + LOOP + "    loss.backward()\n    optimizer.step()\n"
    found = check_text("train.py", text, registry.select(["HS202"]))
    assert [f.code for f in found] == ["HS202"]


TIMED = """
@contextmanager
def timed(name):
    start = clock()
    yield
    print(name, clock() - start)


def train():
    for x, y in loader:
        with timed("step"):
            with torch.autocast("cuda"):
                loss = criterion(model(x), y)
            if loss > 100:
                break
            scaler.scale(loss).backward()
        with timed("update"):
            CLIP
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if done():
                return loss
            continue


train()
"""
CLIP = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"


def test_block_in_a_manager_that_does_nothing_to_it_is_read() -> None:
    text = IMPORT + "from time import time as clock\n" + SCALER + TIMED
    assert codes(text.replace("CLIP", "pass")) == []
    assert codes(text.replace("CLIP", CLIP)) == ["HS101"]
