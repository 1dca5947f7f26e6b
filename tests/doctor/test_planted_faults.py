"""The doctor against faults whose place and cause the planter knows; and healthy networks."""

from __future__ import annotations

import pytest
from plantable_models import FAMILIES, healthy
from planted_faults import planted, right

import halfstep as hs

_MOST_WRONG = 1  # in 30


@pytest.mark.slow
def test_planted_faults_are_found_with_place_and_cause() -> None:
    wrong, count = [], 0
    for fault in planted():
        count += 1
        found = hs.diagnose(fault.recipe)
        if problem := right(found, fault.truth):
            wrong.append(f"{fault.name}: {problem}; it said: {found.headline}")
    assert count >= 30
    assert len(wrong) <= _MOST_WRONG * count / 30, "\n".join(wrong)


def test_judge_of_the_planted_faults_refuses_wrong_answers() -> None:
    # the oracle itself: the diagnosis of one fault is wrong for every other kind of truth
    faults = {fault.name.split("-")[0]: fault for fault in planted(share=1) if "-mlp" in fault.name}
    found = hs.diagnose(faults["squares_too_large"].recipe)
    accepted = [name for name, fault in faults.items() if not right(found, fault.truth)]
    assert accepted == ["squares_too_large"]
    assert right(hs.diagnose(healthy(FAMILIES[0])), faults["log_of_negative"].truth)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 3, 6])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_healthy_network_is_healthy(family: object, depth: int) -> None:
    found = hs.diagnose(healthy(family, depth))  # type: ignore[arg-type]
    assert found.is_healthy, found.headline
    assert found.headline.startswith("Healthy in FP32, BF16 and FP16")


@pytest.mark.parametrize("name", ["digits", "lm"])
def test_built_in_recipe_is_healthy(name: str) -> None:
    assert hs.diagnose(hs.load_recipe(name)).is_healthy
