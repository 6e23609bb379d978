"""The page of the repository is what its records say, to the letter."""

from __future__ import annotations

from pathlib import Path

from vaiom.experiments.records import Records
from vaiom.report.reproduction import FIGURE_NAME, write_page

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_written_from_its_records(tmp_path: Path) -> None:
    write_page(Records.read(DOCS / "results" / "records"), tmp_path / "reproduction.md")
    assert (tmp_path / "reproduction.md").read_text() == (DOCS / "reproduction.md").read_text()
    assert (tmp_path / FIGURE_NAME).is_file() == (DOCS / FIGURE_NAME).is_file()
