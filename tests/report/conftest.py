"""Pages in a real browser: Debian's Chromium, without a window."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Opened, OpenPage
from playwright.sync_api import Browser, Page, sync_playwright


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("no Chromium here; on Debian: apt-get install chromium")
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[OpenPage]:
    """Opens HTML as a file: ``open_page(html, width=390, scheme="dark")``."""
    pages: list[Page] = []

    def opened(html: str, width: int = 1280, scheme: Any = "light") -> Opened:
        file = tmp_path / f"page-{len(pages)}.html"
        file.write_text(html, encoding="utf-8")
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        pages.append(page)
        found = Opened(page, file.as_uri())
        found.listen()
        page.goto(found.address)
        return found

    yield opened
    for page in pages:
        page.close()
