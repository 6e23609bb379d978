"""The report in a real browser: it draws, sorts, turns dark, and asks nothing of the network."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from judged_runs import Judged, Page

from vaiom.report.contents import read_run
from vaiom.report.page import write_report

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this system")


@pytest.fixture(scope="module")
def file(judged: Judged, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("browser") / "report.html"
    write_report(judged.run, out=out)
    return out


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-background-networking"],
            headless=True,
        )
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Any, file: Path) -> Iterator[Any]:
    """The page in a light browser; ends with the proof that nothing went wrong and nothing was
    asked for.
    """
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
    page.set_default_timeout(240_000)  # a busy machine is no failure
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request",
        lambda request: None if request.url.startswith("file:") else problems.append(request.url),
    )
    page.goto(file.as_uri())
    yield page
    assert problems == []
    page.close()


def test_every_table_and_figure_is_drawn(opened: Any, file: Path) -> None:
    page = Page(file.read_text())
    opened.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    opened.evaluate(
        "document.querySelectorAll('[data-split]').forEach(part => part.hidden = false)"
    )
    for selector, number in (
        ("table", len(page.attributes("table"))),
        ("figure svg", len(page.attributes("figure"))),
    ):
        found = opened.locator(selector)
        assert found.count() == number > 0
        for index in range(number):
            box = found.nth(index).bounding_box()
            assert box is not None
            assert box["width"] > 100
            assert box["height"] > 20
    assert opened.get_by_role("img").count() == len(page.attributes("figure"))
    assert opened.get_by_role("navigation").is_visible()


def test_a_header_sorts_by_mouse_and_by_key(opened: Any) -> None:
    table = opened.locator("#headline [data-split]:not([hidden]) table").first
    names = table.locator("tbody th")
    header = table.get_by_role("columnheader", name="bits/event")

    def order() -> list[float]:
        return [float(text) for text in table.locator("tbody td:nth-child(2)").all_inner_texts()]

    before = names.all_inner_texts()
    header.get_by_role("button").click()
    assert header.get_attribute("aria-sort") == "ascending"
    assert order() == sorted(order())
    header.get_by_role("button").press("Enter")
    assert header.get_attribute("aria-sort") == "descending"
    assert order() == sorted(order(), reverse=True)
    assert sorted(names.all_inner_texts()) == sorted(before)
    words = table.get_by_role("columnheader", name="predictor")
    words.get_by_role("button").press("Space")
    assert names.all_inner_texts() == sorted(before)
    assert header.get_attribute("aria-sort") == "none"
    gains = table.locator("thead button", has_text=re.compile("^gain$"))
    for _ in range(2):  # what is missing stays last whichever way the others go
        gains.click()
        assert names.all_inner_texts()[-1] == "model"


def test_splits_are_tabs(opened: Any, judged: Judged) -> None:
    names = [split.name for split in read_run(judged.run).splits]
    tabs = opened.get_by_role("tab")

    def shown() -> set[str]:
        parts = opened.locator("#headline [data-split]")
        return {
            parts.nth(at).get_attribute("data-split")
            for at in range(parts.count())
            if parts.nth(at).is_visible()
        }

    assert tabs.count() == len(names) > 1
    assert shown() == {names[-1]}
    tabs.first.click()
    assert shown() == {names[0]}
    tabs.first.press("ArrowRight")
    assert shown() == {names[1]}
    assert opened.locator("[aria-selected=true]").get_attribute("data-shows") == names[1]
    opened.emulate_media(media="print")
    assert shown() == set(names)


def test_on_a_phone_the_verdict_comes_before_the_contents(opened: Any) -> None:
    opened.set_viewport_size({"width": 390, "height": 844})
    tops = [
        opened.locator(each).bounding_box()["y"] for each in ("h1", ".verdict", "nav", "#headline")
    ]
    assert tops == sorted(tops)


def test_the_page_turns_dark_and_back(opened: Any) -> None:
    def colours() -> tuple[str, str]:
        return (
            opened.evaluate("getComputedStyle(document.body).backgroundColor"),
            opened.evaluate("getComputedStyle(document.querySelector('figure svg text')).fill"),
        )

    light = colours()
    button = opened.get_by_role("button", name="Dark page")
    button.click()
    dark = colours()
    assert all(a != b for a, b in zip(light, dark, strict=True))
    opened.get_by_role("button", name="Light page").click()
    assert colours() == light
    opened.emulate_media(color_scheme="dark")
    assert colours() == light, "the reader's choice goes before the system's"
    opened.reload()
    assert colours() == dark


@pytest.mark.parametrize("width", [390, 820, 1600])
def test_it_fits_any_width(opened: Any, width: int) -> None:
    opened.set_viewport_size({"width": width, "height": 844})
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
