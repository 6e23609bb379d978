"""The dashboard in a real browser: what it shows is what the service says, by keyboard, on a phone,
in the dark.
"""

from __future__ import annotations

import math
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from serve_runs import BACKFILL, HttpClient, TinyRun, as_json, subprocess_server

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
# A busy machine is no failure: the test's own limit ends what hangs.
PATIENCE_MS = 240_000
client = HttpClient()
playwright.expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine")
    with playwright.sync_playwright() as drivers:
        options = ["--no-sandbox", "--disable-background-networking"]
        browser = drivers.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(tiny: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    state, followed = tmp_path_factory.mktemp("dashboard"), tmp_path_factory.mktemp("followed")
    with subprocess_server(tiny, state, "--bars", str(tiny.bars), "--follow", str(followed)) as (
        address,
        _,
    ):
        for symbol, bars in tiny.later.items():
            for bar in bars[:12]:
                client.push(f"{address}/v1/assets/{symbol}/bars", bar)
        # The figures stand still when the forecasts before them have been made again.
        for symbol in tiny.later:
            while (
                len(client.read(f"{address}/v1/assets/{symbol}/history")["forecasts"])
                < BACKFILL + 12
            ):
                time.sleep(0.05)
        yield address


def opened(browser: Any, address: str, **options: Any) -> tuple[Any, list[str]]:
    page = browser.new_context(**options).new_page()
    page.set_default_timeout(PATIENCE_MS)
    problems: list[str] = []
    page.on(
        "console",
        lambda message: (
            problems.append(message.text) if message.type in ("error", "warning") else None
        ),
    )
    page.on("pageerror", lambda error: problems.append(str(error)))
    origin = address.partition("#")[0]
    page.on(
        "request",
        lambda request: None if request.url.startswith(origin) else problems.append(request.url),
    )
    page.goto(address)
    return page, problems


def value(page: Any, name: str) -> float:
    return float(page.locator(f"#{name}").get_attribute("data-value"))


def test_what_is_shown_is_what_the_service_says(browser: Any, address: str) -> None:
    page, problems = opened(browser, address)
    page.wait_for_selector("#prob-up")
    assert page.locator("#symbol").inner_text() == "EURUSD"
    # The asset list is the first stop after the link that skips it; an arrow key goes to the next
    # asset.
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.symbol") == "EURUSD"
    page.keyboard.press("ArrowDown")
    playwright.expect(page.locator("#symbol")).to_have_text("XAUUSD")
    assert page.evaluate("document.activeElement.dataset.symbol") == "XAUUSD"

    forecast = client.read(f"{address}/v1/assets/XAUUSD/forecast")
    assert value(page, "prob-up") == forecast["prob_up"]
    assert value(page, "median") == forecast["quantiles"]["0.5"]
    assert value(page, "var-long") == forecast["value_at_risk"]["long"]["0.99"]
    assert value(page, "prob-zero") == forecast["prob_zero"]
    assert page.locator("#prob-up").inner_text() == f"{100 * forecast['prob_up']:.1f}%"
    drift = client.read(f"{address}/v1/assets")["assets"][1]["drift"]
    assert value(page, "model-bits") == drift["model_bits"]
    assert value(page, "frequency-bits") == drift["frequency_bits"]

    for basis_points in ("3", "20"):
        page.locator("#beyond").fill(basis_points)
        shown = page.locator("#beyond").evaluate("each => each.valueAsNumber") / 1e4
        said = client.read(f"{address}/v1/assets/XAUUSD/forecast", params={"beyond": shown})[
            "prob_beyond"
        ]
        assert value(page, "prob-beyond") == pytest.approx(said, abs=1e-12)

    history = client.read(f"{address}/v1/assets/XAUUSD/history?last=512")
    stamps = {bar["datetime"] for bar in history["bars"]}
    drawn = sum({each["as_of"], each["target_time"]} <= stamps for each in history["forecasts"])
    assert page.locator("#candles rect.fan90").count() == drawn > 0
    assert page.locator("#strip rect").count() == len(history["bars"])
    page.locator("#candles").focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#readout").inner_text().startswith(history["bars"][-2]["datetime"][:10])
    began = forecast["as_of"].replace("T", " ")[:16]
    assert re.search(
        rf"{began} UTC and ended \d+ (minutes|hours|days) ago\.", page.locator("#when").inner_text()
    )
    assert page.locator("#median").inner_text().endswith(" bp")
    assert "gain over Frequency" in page.locator("nav").inner_text()
    gain = f"{drift['gain_bits']:+.3f} ± {1.96 * drift['gain_error']:.3f}".replace(
        "-", "\N{MINUS SIGN}"
    )
    for place in ("#asset-XAUUSD", "#drift"):
        assert gain in page.locator(place).inner_text()
    # Nothing of the list is cut off at its right edge.
    assert page.locator("#assets").evaluate("each => each.scrollWidth <= each.clientWidth")
    assert "nothing to import in this folder" in page.locator("#feed").inner_text()
    assert not page.locator("#hashes").is_visible()
    assert not page.locator("#portfolio").is_visible()
    page.locator("summary").click()
    assert client.read(f"{address}/v1/model")["sha256"] in page.locator("#hashes").inner_text()
    assert problems == []


def test_horizons_and_a_portfolio(browser: Any, tiny: TinyRun, tmp_path: Path) -> None:
    """The packaged model forecasts further bars and assets together; the page shows what the
    service says of both.
    """
    packaged = replace(tiny, run=Path("fx-1h"))
    with subprocess_server(packaged, tmp_path, "--bars", str(tiny.bars)) as (address, _):
        page, problems = opened(browser, address)
        page.wait_for_selector("#prob-up")
        # The density has one peak, wherever the edges of the buckets are.
        drawn = page.locator("#distribution path.mass").evaluate_all(
            "all => all.map(each => each.getAttribute('d')).join()"
        )
        line: dict[float, float] = {}
        for x, y in re.findall(r"([\d.]+),([\d.]+)", drawn):  # the outline, and the base below it
            line[round(float(x), 1)] = min(float(y), line.get(round(float(x), 1), math.inf))
        heights = [height for _, height in sorted(line.items())]
        falls = [after > before for before, after in pairwise(heights) if after != before]
        assert len(falls) > 100
        assert falls == sorted(falls)

        page.select_option("#horizon", "24")
        forecast = client.read(f"{address}/v1/assets/EURUSD/forecast?horizon=24")
        assert value(page, "median") == forecast["quantiles"]["0.5"]
        assert "the next 24 1h bars" in page.locator("#sentence").inner_text()

        page.get_by_label("amount, EURUSD").fill("1000000")
        page.get_by_label("amount, XAUUSD").fill("-200000")
        page.locator("#positions button").click()
        page.wait_for_selector("#portfolio-var")
        asked = {"positions": {"EURUSD": 1e6, "XAUUSD": -2e5}, "horizon": 24}
        said = client.post(f"{address}/v1/portfolio", json=asked).json()
        assert value(page, "portfolio-var") == said["value_at_risk"]
        assert value(page, "portfolio-es") == said["expected_shortfall"]
        # What if gold falls by a percent: it is no longer a position.
        page.get_by_label("given a move in percent, XAUUSD").fill("-1")
        page.locator("#positions button").click()
        playwright.expect(page.locator("#portfolio-var")).not_to_have_attribute(
            "data-value", str(said["value_at_risk"])
        )
        said = client.post(
            f"{address}/v1/portfolio", json={**asked, "given": {"XAUUSD": math.log1p(-0.01)}}
        ).json()
        assert value(page, "portfolio-var") == said["value_at_risk"]
        assert problems == []


def test_a_new_bar_reaches_an_open_page(browser: Any, address: str, tiny: TinyRun) -> None:
    page, problems = opened(browser, f"{address}/#EURUSD")
    page.wait_for_selector("#prob-up")
    before = page.locator("#when").inner_text()
    bar = tiny.later["EURUSD"][12]
    client.push(f"{address}/v1/assets/EURUSD/bars", bar)
    playwright.expect(page.locator("#when")).not_to_have_text(before)
    assert problems == []


def test_an_open_page_says_how_old_the_last_bar_is_now(browser: Any, address: str) -> None:
    context = browser.new_context()
    context.clock.install()
    page = context.new_page()
    page.goto(f"{address}/#XAUUSD")
    page.wait_for_selector("#prob-up")
    [days] = re.findall(r"ended (\d+) days ago", page.locator("#when").inner_text())
    page.clock.fast_forward(timedelta(days=4) // timedelta(milliseconds=1))
    # A day more if midday passes meanwhile.
    playwright.expect(page.locator("#when")).to_have_text(
        re.compile(f"ended ({int(days) + 4}|{int(days) + 5}) days ago")
    )


def test_an_open_page_meets_the_model_and_the_assets_of_a_service_started_again(
    browser: Any, tiny: TinyRun, tmp_path: Path
) -> None:
    with subprocess_server(tiny, tmp_path / "first", "--bars", str(tiny.bars)) as (address, _):
        page, _ = opened(browser, f"{address}/#EURUSD")
        page.wait_for_selector("#prob-up")
        assert page.locator("#horizon option").all_inner_texts() == ["1h bar"]
    port = ("--port", address.rpartition(":")[2])
    with subprocess_server(replace(tiny, run=Path("fx-1h")), tmp_path / "second", *port):
        playwright.expect(page.locator("#when")).to_have_text(
            "0 bars so far: too few for a forecast"
        )
        assert not page.locator("#portfolio").is_visible()
        client.push(f"{address}/v1/assets/EURUSD/bars", *as_json(tiny.history["EURUSD"])[-60:])
        page.wait_for_selector("#prob-up")
        assert page.locator("#portfolio").is_visible()
        assert page.locator("#amounts tbody tr td:first-child").all_inner_texts() == ["EURUSD"]
        model = client.read(f"{address}/v1/model")
        assert page.locator("#hashes dd").first.text_content() == model["sha256"]
        assert page.locator("#horizon option").count() == len(model["horizons"]) > 1
        assert page.locator("#horizon").input_value() == "1"


def test_a_page_of_bars_on_another_clock_says_so(
    browser: Any, tiny: TinyRun, tmp_path: Path
) -> None:
    options = ("--bars", str(tiny.bars), "--utc-offset=-5h")
    with subprocess_server(tiny, tmp_path, *options) as (address, _):
        page, problems = opened(browser, address)
        page.wait_for_selector("#prob-up")
        began = (
            client.get(f"{address}/v1/assets/EURUSD/forecast")
            .json()["as_of"]
            .replace("T", " ")[:16]
        )
        assert (
            f"The last one began {began} UTC\N{MINUS SIGN}5 and ended"
            in page.locator("#when").inner_text()
        )
        assert "Stamps are UTC\N{MINUS SIGN}5," in page.locator(".legend").inner_text()
        assert problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_follows_the_scheme(browser: Any, address: str, scheme: str) -> None:
    page, problems = opened(
        browser, address, viewport={"width": 390, "height": 844}, color_scheme=scheme
    )
    page.wait_for_selector("#prob-up")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    light = page.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0] > 128"
    )
    assert light == (scheme == "light")
    page.locator("#theme").click()
    light = page.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0] > 128"
    )
    assert light == (scheme == "dark")
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, input, [role]')].filter(each => "
        "!(each.textContent.trim() || each.ariaLabel || each.labels?.length || each.id === "
        "'status')).length"
    )
    assert unnamed == 0
    assert problems == []


def test_a_key_is_asked_for(browser: Any, tiny: TinyRun, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("secret\n")
    options = ("--bars", str(tiny.bars), "--api-key-file", str(tmp_path / "keys"))
    with subprocess_server(tiny, tmp_path / "state", *options) as (address, _):
        page, problems = opened(browser, address)
        page.wait_for_selector("#key-form:visible")
        page.locator("#key").fill("secret")
        page.keyboard.press("Enter")
        page.wait_for_selector("#prob-up")
        assert not page.locator("#key-form").is_visible()
        assert all("401" in problem for problem in problems)
