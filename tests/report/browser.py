"""A page in Chromium, and what happened while it was loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Page


@dataclass
class Opened:
    """A page; everything that is not here is Playwright's ``Page``."""

    page: Page
    address: str
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def listen(self) -> None:
        """Note down messages, errors, requests and dialogs from now on."""
        self.page.on("console", lambda message: self.console.append(message.text))
        self.page.on("pageerror", lambda error: self.console.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", self._dismiss)

    def _dismiss(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.page, name)


OpenPage = Callable[..., Opened]
