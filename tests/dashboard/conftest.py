"""One browser and one daemon for each module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from builders.dashboards import a_dashboard_workspace
from builders.http import Api, an_api

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from builders.browsers import Tab


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with an_api(a_dashboard_workspace(tmp_path_factory.mktemp("dashboard"))) as api:
        yield api


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from builders.browsers import a_browser  # noqa: PLC0415 - half a second, for the tests that need it

    with a_browser() as browser:
        yield browser


@pytest.fixture
def tab(browser: Browser, api: Api) -> Iterator[Tab]:
    from builders.browsers import a_tab  # noqa: PLC0415

    with a_tab(browser, api) as opened:
        yield opened
