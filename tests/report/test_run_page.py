"""The page of a run in Chromium: what a reader sees, and what must never happen."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from browser import OpenPage
from made_runs import FOREIGN, HOSTILE, diagnosis, made_run, made_step

from halfstep.records import BadValueError, RunRecord, Validation
from halfstep.report.run_charts import run_charts
from halfstep.report.run_page import run_page


def with_skips() -> RunRecord:
    causes = {
        1: diagnosis(),
        2: diagnosis(),
        90: diagnosis(HOSTILE),
        91: diagnosis(FOREIGN),
        150: diagnosis("", verdict="never_finite", finite_at_scale=None),
    }
    run = made_run(200, causes, recipe=f"{FOREIGN} {HOSTILE}")
    counted = [replace(step, zero_gradient_fraction=step.loss / 20) for step in run.steps]
    return replace(run, steps=counted)


def with_bad_numbers() -> RunRecord:
    bad = {5: math.inf, 6: -math.inf, 7: math.nan, 20: 0.0, 21: 1e-300, 22: 1e300}
    steps = [made_step(n, loss=bad.get(n, 1.0), grad_norm=bad.get(n, 1.0)) for n in range(1, 25)]
    return made_run(24, steps=steps, validation={"val": math.nan}, initial_validation={})


def in_three_formats() -> list[RunRecord]:
    fp32 = made_run(30, format="fp32", each={"loss_scale": 1.0, "next_loss_scale": 1.0})
    return [fp32, replace(fp32, format="bf16"), made_run(30, {3})]


RUNS: dict[str, Callable[[], RunRecord | list[RunRecord]]] = {
    "skips": with_skips,
    "bad numbers": with_bad_numbers,
    "three formats": in_three_formats,
    "no skip": lambda: made_run(50),
    "skips only": lambda: made_run(50, range(1, 51), status="collapsed"),
    "no step": lambda: made_run(0, status="interrupted", settings={}),
    "one step": lambda: made_run(1),
    "long": lambda: made_run(20_000, range(1, 20_000, 50)),
    "wide": lambda: made_run(
        3, recipe="w" * 300, unit="u" * 60, each={"lr": [1e-3] * 9, "metrics": {"m" * 90: 0.5}}
    ),
}


def page_of(name: str) -> str:
    made = RUNS[name]()
    return run_page(made if isinstance(made, list) else [made])


def charts_of(opened: Any) -> list[str]:
    titles: list[str] = opened.locator("figcaption .title").all_inner_texts()
    return titles


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("width", [390, 1280])
def test_page_fits_its_window_and_asks_for_nothing(
    open_page: OpenPage, name: str, width: int
) -> None:
    opened = open_page(page_of(name), width=width)
    opened.locator("details > summary").all()
    assert opened.evaluate("document.documentElement.scrollWidth") == width
    assert opened.requests == [opened.address]
    assert (opened.console, opened.dialogs) == ([], [])
    assert opened.locator("script").count() == 1  # the data; no other element was made
    assert opened.locator("path[d*=NaN], path[d*=inf], [x*=nan], [y*=nan]").count() == 0


def test_hostile_and_foreign_names_are_text(open_page: OpenPage) -> None:
    opened = open_page(page_of("skips"))
    assert opened.locator("h1").inner_text() == f"{FOREIGN} {HOSTILE} in fp16"
    assert opened.title() == f"{FOREIGN} {HOSTILE} in fp16 · halfstep"
    causes = opened.locator("td.long").all_inner_texts()
    assert f"in {HOSTILE} (backward" in causes[1]
    assert f"in {FOREIGN} (backward" in causes[2]
    assert opened.dialogs == []


def test_verdict_comes_first_and_is_not_told_by_colour_alone(open_page: OpenPage) -> None:
    opened = open_page(page_of("skips only"))
    lines = opened.locator("main").inner_text().split("\n\n")
    assert lines[:2] == ["Broken", "The run collapsed: its last 50 steps were skipped."]


def test_every_recorded_curve_has_a_chart_with_a_description(open_page: OpenPage) -> None:
    opened = open_page(page_of("skips"))
    titles = [
        "Loss",
        "Loss scale",
        "Gradient norm before clipping",
        "Gradients that are exactly 0",
    ]
    assert charts_of(opened) == titles
    images = opened.locator("svg.area[role=img]")
    assert images.count() == len(titles)
    for number, title in enumerate(titles):
        assert images.nth(number).get_attribute("aria-label").startswith(f"{title}: ")


def test_curve_that_was_not_recorded_is_left_out_and_said(open_page: OpenPage) -> None:
    opened = open_page(run_page([in_three_formats()[0]]))
    assert charts_of(opened) == ["Loss", "Gradient norm before clipping"]
    text = opened.inner_text("main")
    assert "No loss scale in fp32" in text
    assert "The share of zero gradients was not recorded" in text


def test_skips_are_marked_where_they_happened(open_page: OpenPage) -> None:
    opened = open_page(page_of("skips"))
    area = opened.locator("svg.area").first
    box = area.bounding_box()
    marks = [mark.bounding_box() for mark in area.locator("rect.skip").all()]
    places = [(mark["x"] + mark["width"] / 2 - box["x"]) / box["width"] for mark in marks]
    # steps 1 to 2, 90 to 91 and 150 of 200
    assert places == pytest.approx([1 / 200, 90 / 200, 149.5 / 200], abs=2 / box["width"])


def test_table_of_skips_has_the_diagnosis_of_each(open_page: OpenPage) -> None:
    opened = open_page(page_of("skips"))
    rows = opened.locator("table.stack tbody tr")
    assert rows.count() == 4
    assert rows.nth(0).locator("th, td").all_inner_texts()[:3] == [
        "1\N{EN DASH}2",
        "2",
        "65,536 → 16,384",
    ]
    assert "NaN or inf at any loss scale" in rows.nth(3).inner_text()


def test_several_runs_share_charts_and_a_table(open_page: OpenPage) -> None:
    opened = open_page(page_of("three formats"))
    assert opened.locator("h1").inner_text() == "lm in fp32, bf16 and fp16"
    table = opened.get_by_role("table", name="Runs side by side")
    assert table.locator("tbody th").all_inner_texts() == ["fp32", "bf16", "fp16"]
    loss, scale, *_ = opened.locator("svg.area").all()
    classes = [
        [path.get_attribute("class") for path in area.locator("path.line").all()]
        for area in (loss, scale)
    ]
    assert classes == [["line c1", "line c2", "line c3"], ["line c3"]]  # one colour, one run


def test_data_of_a_page_is_the_record(open_page: OpenPage) -> None:
    run = with_skips()
    opened = open_page(run_page([run]))
    text = opened.evaluate("document.getElementById('halfstep-data').textContent")
    assert [RunRecord.from_dict(data) for data in json.loads(text)["runs"]] == [run]


def test_page_of_a_long_run_stays_small_and_keeps_its_only_spike() -> None:
    run = made_run(100_000)
    run.steps[70_000] = replace(run.steps[70_000], loss=1000.0)
    html = run_page([run])
    assert len(html) < 250_000
    spike = re.search(r"between [\d.]+ and (\S+)</span>", html)
    assert spike is not None
    assert spike.group(1) == "1000"
    band = re.search(r'class="band c1" d="M([^z]+)z"', html)
    assert band is not None
    corners = [corner.split(",") for corner in band.group(1).split("L")]
    (place,) = {x for x, y in corners if float(y) < 30}
    assert float(place) == pytest.approx(700, abs=2)


def test_page_is_the_same_at_every_call() -> None:
    assert page_of("skips") == page_of("skips")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_the_page(open_page: OpenPage, scheme: str) -> None:
    opened = open_page(page_of("skips"), scheme=scheme)
    for selector in ("body", ".word", "dt", ".summary", "caption", ".gutter text", "footer"):
        ink, paper = opened.evaluate(
            """selector => {
                const style = getComputedStyle(document.querySelector(selector));
                const isSvg = document.querySelector(selector) instanceof SVGElement;
                return [isSvg ? style.fill : style.color,
                        getComputedStyle(document.body).backgroundColor];
            }""",
            selector,
        )
        assert contrast(ink, paper) >= 4.5, selector  # WCAG 2.2, AA


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two CSS colours, after WCAG 2.2."""
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_tables_that_scroll_can_be_reached_by_keyboard(open_page: OpenPage) -> None:
    opened = open_page(page_of("skips"), width=390)
    reached = []
    for _ in range(4):
        opened.keyboard.press("Tab")
        reached.append(
            opened.evaluate("document.activeElement.ariaLabel || document.activeElement.innerText")
        )
    assert reached[:2] == ["Skipped steps", "Steps as numbers"]
    opened.locator("summary").press("Enter")
    assert opened.get_by_role("table", name="40 of 200 steps").is_visible()


def test_number_of_runs_on_a_page_is_limited() -> None:
    for runs in ([], [made_run(1)] * 7):
        with pytest.raises(BadValueError, match=rf"a page shows 1 to 6 runs, got {len(runs)}"):
            run_page(runs)


def test_runs_of_one_name_are_numbered(open_page: OpenPage) -> None:
    opened = open_page(run_page([made_run(2), made_run(2)]))
    assert opened.locator("tbody th").all_inner_texts() == ["fp16", "fp16 (2)"]


def test_validations_of_a_run_have_a_chart_for_each_metric() -> None:
    found = [Validation(2, {"val_loss": 3.0, "accuracy": 0.1}), Validation(4, {"val_loss": 2.0})]
    run = replace(made_run(4), validations=found)
    charts = {chart.title: chart for chart in run_charts([("fp16", run)])}
    assert "3 at first, 2 at last" in charts["Validation: val_loss"].summary
    assert "0.1 throughout" in charts["Validation: accuracy"].summary
    assert not [one for one in run_charts([("a", made_run(4))]) if "Validation" in one.title]
