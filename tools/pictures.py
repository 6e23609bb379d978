"""The README's pictures, taken in a headless browser: `python tools/pictures.py RUN BARS [OUT]`.

Enters: a run with its report, as `vaiom demo` leaves it, and its bars. Leaves: PNG files of the
report and of the dashboard of a service that is started for the purpose.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

SIZE = {"width": 1180, "height": 880}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("bars", type=Path)
    parser.add_argument("out", type=Path, nargs="?", default=Path("docs/pictures"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    flags = ["--no-sandbox", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        report = (arguments.run / "report.html").resolve().as_uri()
        picture(browser, report, arguments.out / "report.png")
        picture(browser, report, arguments.out / "report-figures.png", scroll_to="figure")
        with tempfile.TemporaryDirectory() as state:
            command = [
                sys.executable,
                "-m",
                "vaiom",
                "serve",
                str(arguments.run),
                "--bars",
                str(arguments.bars),
            ]
            service = subprocess.Popen(
                [*command, "--port", "0", "--state", state], stderr=subprocess.PIPE, text=True
            )
            try:
                assert service.stderr is not None
                address = next(
                    word
                    for line in service.stderr
                    for word in line.split()
                    if word.startswith("http://")
                )
                for scheme in ("light", "dark"):
                    picture(
                        browser,
                        address,
                        arguments.out / f"dashboard-{scheme}.png",
                        scheme,
                        wait_seconds=20,
                    )
            finally:
                service.terminate()
                service.wait()
        browser.close()


def picture(
    browser: Browser,
    address: str,
    file: Path,
    scheme: str = "light",
    *,
    scroll_to: str = "",
    wait_seconds: float = 1,
) -> None:
    page = browser.new_page(viewport=SIZE, color_scheme=scheme)
    page.goto(address)
    page.wait_for_timeout(1000 * wait_seconds)
    if scroll_to:
        page.locator(scroll_to).first.scroll_into_view_if_needed()
    page.screenshot(path=file)
    page.close()


if __name__ == "__main__":
    main()
