"""The page of a diagnosis in Chromium."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from browser import Opened, OpenPage
from made_diagnoses import healthy, made_cause, made_diagnosis, made_equality, modules
from made_runs import FOREIGN, HOSTILE

from halfstep.records import Diagnosis, PathStep
from halfstep.report.doctor_page import doctor_page

NOTHING: dict[str, object] = {
    "causes": (),
    "passes": (),
    "gradient_range": None,
    "lost_updates": (),
    "equality": None,
    "symptoms": (),
    "dtypes": (),
}


def with_bad_numbers() -> Diagnosis:
    found = made_diagnosis()
    assert found.equality is not None
    passes = tuple(
        replace(one, output_error=math.nan, cosine=math.nan, loss_error=math.inf)
        for one in found.equality.passes
    )
    curve = replace(found.equality.curves[0], losses=(math.inf, math.nan, 1e300, 0.0))
    empty = replace(curve, name="empty", losses=(), status="collapsed")
    equality = replace(found.equality, passes=passes, curves=(curve, empty))
    return replace(found, equality=equality)


DIAGNOSES: dict[str, Callable[[], Diagnosis]] = {
    "broken": lambda: made_diagnosis(last=HOSTILE, recipe=f"{FOREIGN} {HOSTILE}"),
    "healthy": healthy,
    "nothing": lambda: made_diagnosis(**NOTHING, health="not_precision", headline="No run."),
    "large": lambda: made_diagnosis(150, last="w" * 200),
    "bad numbers": with_bad_numbers,
    "without training": lambda: made_diagnosis(equality=made_equality(modules(), steps=0)),
}


def headings(opened: Opened) -> list[str]:
    texts: list[str] = opened.locator("h2").all_inner_texts()
    return texts


@pytest.mark.parametrize("name", DIAGNOSES)
@pytest.mark.parametrize("width", [390, 1280])
def test_page_fits_its_window_and_asks_for_nothing(
    open_page: OpenPage, name: str, width: int
) -> None:
    opened = open_page(doctor_page(DIAGNOSES[name]()), width=width)
    opened.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert opened.evaluate("document.documentElement.scrollWidth") == width
    assert opened.requests == [opened.address]
    assert (opened.console, opened.dialogs) == ([], [])
    assert opened.locator("script").count() == 1
    assert opened.locator("path[d*=nan], path[d*=inf]").count() == 0


def test_tables_need_no_scrolling_on_a_phone(open_page: OpenPage) -> None:
    opened = open_page(doctor_page(made_diagnosis()), width=390)
    wide = opened.evaluate(
        """[...document.querySelectorAll('.scroll')].filter(
               one => one.scrollWidth > one.clientWidth).map(one => one.ariaLabel)"""
    )
    assert wide == []


def test_hostile_and_foreign_names_are_text(open_page: OpenPage) -> None:
    opened = open_page(doctor_page(DIAGNOSES["broken"]()))
    assert opened.locator("h1").inner_text() == f"{FOREIGN} {HOSTILE}"
    names = opened.locator("th.name").all_inner_texts()
    assert f"{HOSTILE} Linear" in names
    assert opened.locator("article h3").first.inner_text() == (
        f"overflow aten.mm in Net.{HOSTILE} (forward, float16, model.py:42)"
    )


def test_sections_come_in_the_order_in_which_they_are_read(open_page: OpenPage) -> None:
    opened = open_page(doctor_page(made_diagnosis()))
    assert headings(opened) == [
        "What is wrong, and what to do",
        "One batch, 4 runs",
        "Layer by layer",
        "Gradient range",
        "Equal to FP32?",
        "Lost updates",
        "Symptoms",
    ]


def test_sections_without_content_are_left_out(open_page: OpenPage) -> None:
    opened = open_page(doctor_page(DIAGNOSES["nothing"]()))
    assert headings(opened) == ["One batch, 0 runs"]
    assert "Broken in FP32 too" in opened.locator(".verdict").inner_text()


def test_healthy_verdict_says_so_and_whose_policy_ran(open_page: OpenPage) -> None:
    text = open_page(doctor_page(healthy())).locator(".verdict").inner_text().split("\n\n")
    assert text[0] == "Healthy"
    assert text[2] == "One batch on cpu with CUDA's op lists, torch 2.13.0."


def test_layer_that_breaks_is_named_in_words(open_page: OpenPage) -> None:
    opened = open_page(doctor_page(made_diagnosis()))
    row = opened.locator("tr", has_text="head Linear").first
    texts = [text.split("\n")[0] for text in row.locator("td").all_inner_texts()]
    assert texts == ["forward", "4096", "4096", "inf, first", "inf, first"]


def test_run_that_differs_more_than_two_seeds_is_told_apart(open_page: OpenPage) -> None:
    opened = open_page(doctor_page(made_diagnosis()))
    table = opened.get_by_role("region", name="Ends of the training runs")
    verdicts = table.locator("td.long").all_inner_texts()
    assert verdicts == ["no more than another seed"] * 2 + ["more than another seed"]


def test_symptom_that_was_not_looked_for_is_neither_yes_nor_no(open_page: OpenPage) -> None:
    table = open_page(doctor_page(made_diagnosis())).get_by_role("region", name="Symptoms")
    answers = table.locator("tbody tr td:nth-child(2)").all_inner_texts()
    assert answers == ["no", "yes", "not looked for"]


def test_data_of_a_page_is_the_diagnosis(open_page: OpenPage) -> None:
    found = DIAGNOSES["broken"]()
    opened = open_page(doctor_page(found))
    text = opened.evaluate("document.getElementById('halfstep-data').textContent")
    assert Diagnosis.from_dict(json.loads(text)["diagnosis"]) == found


@pytest.mark.parametrize("count", [40, 2000])
def test_page_stays_below_120_kilobytes_however_large_the_network_is(count: int) -> None:
    assert len(doctor_page(made_diagnosis(count)).encode()) < 120_000


def test_data_of_a_large_page_leave_out_tables_and_say_so(open_page: OpenPage) -> None:
    found = made_diagnosis(150)
    opened = open_page(doctor_page(found))
    text = opened.evaluate("document.getElementById('halfstep-data').textContent")
    kept = Diagnosis.from_dict(json.loads(text)["diagnosis"])
    assert kept.causes == found.causes
    assert kept.passes[0].layers == ()
    assert "halfstep doctor --json prints all of them" in opened.locator("main").inner_text()


def test_way_of_a_fault_is_shown_from_its_source_to_the_loss(open_page: OpenPage) -> None:
    way = (
        PathStep("Net.blocks.0.fc", "aten.mm", 0.0005),
        PathStep("Net.head", "aten.sub", math.inf),
        PathStep("", "aten.mean", math.nan),
    )
    found = made_diagnosis(causes=(made_cause("Net.head", path=way),))
    steps = open_page(doctor_page(found)).locator("ol.way li").all_inner_texts()
    assert [step.split("\n") for step in steps] == [
        ["blocks.0.fc: aten.mm", "error 0.0005"],
        ["head: aten.sub", "not finite"],
        ["the loss function: aten.mean", "no partner in FP32"],
    ]


def test_fp8_is_folded_away_and_names_break_after_dots_only(open_page: OpenPage) -> None:
    opened = open_page(doctor_page(made_diagnosis()))
    folded = opened.locator("details", has_text="The same for FP8").first
    assert folded.get_attribute("open") is None
    assert folded.locator("tbody th").all_text_contents() == ["e4m3", "e5m2"]
    name = opened.locator("th.name", has_text="blocks.0.fc").first
    assert name.inner_html().startswith("blocks.<wbr>0.<wbr>fc ")
