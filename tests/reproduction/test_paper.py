"""Every published figure is one of the paper, in the table that it is said to be from."""

from __future__ import annotations

import re

import pytest

from reproduction import paper as published
from reproduction.paper import COMPARISONS, SEEDS, Comparison
from vaiom.experiments.registry import experiment
from vaiom.model.config import RUNGS

PRINTED = [each for each in COMPARISONS if each.label]
PERIODS = {"test-h1": "2025H1", "test-h2": "2025H2", "all": "2025 full year"}
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?K?(?![\w])")


def number(text: str) -> float:
    value = text.replace(",", "").lstrip("+")
    return round(float(value[:-1]) * 1000) if value.endswith("K") else float(value)


def numbers(text: str) -> set[float]:
    return {number(found) for found in _NUMBER.findall(text.replace(r"\%", " "))}


def table_of(paper: str, label: str) -> list[list[str]]:
    """The cells of a labelled table, line by line."""
    _, _, rest = paper.partition(rf"\label{{{label}}}")
    assert rest, label
    body = rest[: rest.index(r"\end{table}")]
    return [[cell.strip() for cell in line.split("&")] for line in body.split(r"\\") if "&" in line]


def line_of(table: list[list[str]], *starts: object) -> set[float]:
    """The numbers of the first line that starts with these cells, after whatever rule stands before
    it.
    """
    for cells in table:
        head = [cells[0].splitlines()[-1].strip(), *cells[1:]]
        if head[: len(starts)] == [str(start) for start in starts]:
            return numbers(" & ".join(cells[len(starts) :]))
    raise AssertionError(f"no line {starts}")


@pytest.mark.parametrize("comparison", PRINTED, ids=lambda each: each.name)
def test_validation_figures_and_their_steps(paper_text: str, comparison: Comparison) -> None:
    cells = {
        value
        for label in comparison.label.split(", ")
        for row in table_of(paper_text, label)
        for value in row
    }
    found = numbers(" & ".join(cells))
    for row in comparison.rows:
        assert row.bits in found, row.label
        if comparison.name != "metadata":  # whose table has no column of steps
            assert row.steps in found, row.label


def test_every_figure_of_appendix_a_is_a_row_whose_experiment_is_what_it_says(
    paper_text: str,
) -> None:
    rows = {(row.timeframe, row.steps, row.bits): row for each in PRINTED for row in each.rows}
    seen = 0
    for cells in table_of(paper_text, "tab:app_validation_matrix"):
        _, timeframe, what, aux, rung, steps, bits, role = cells
        if not re.fullmatch(r"\d\.\d{4}", bits):
            continue
        seen += 1
        if "Robustness" in role:
            assert published.VALIDATION_SEEDS[int(role.split()[-1])] == float(bits)
            continue
        chosen = experiment(rows[timeframe.lower(), int(number(steps)), float(bits)].experiment)
        model = chosen.model
        train = chosen.train
        branch, head = what.split(" / ")
        names, scope = aux.split(" / ")
        heads = {"Gap": "gap", "VolReg": "vol_regime", "Ord": "ordinal"}
        assert (
            model.input
            == {"DiscIn": "disc", "Pure ContIn": "cont", "HybridContIn": "hybrid"}[branch]
        ), cells
        assert model.return_head == head.lower(), cells
        assert model.auxiliaries == tuple(
            heads[name] for name in names.split("/") if name != "None"
        ), cells
        assert train.scope == ("full" if scope == "FullSeq" else scope), cells
        assert {key: getattr(model, key) for key in RUNGS[rung]} == RUNGS[rung], cells
        assert train.steps >= number(steps), cells
    assert seen == 20


def test_every_comparison_of_the_paper_is_there(paper_text: str) -> None:
    named = {label for each in PRINTED for label in each.label.split(", ")}
    bits = {row.bits for each in PRINTED for row in each.rows}
    for label in named:
        for cells in table_of(paper_text, label):
            figures = {
                value
                for value in numbers(" & ".join(cells))
                if 3 < value < 10 and value != round(value)
            }
            assert figures <= bits, label


def test_seeds(paper_text: str) -> None:
    table = table_of(paper_text, "tab:app_seed_validation")
    assert tuple(published.VALIDATION_SEEDS) == SEEDS
    for seed, bits in published.VALIDATION_SEEDS.items():
        assert {bits, published.VALIDATION_LIGHTGBM} <= line_of(table, seed)


def test_test_figures(paper_text: str) -> None:
    main = table_of(paper_text, "tab:main_test")
    names = {"frequency": "Frequency", "markov": "Markov", "lightgbm": "LightGBM"}
    for (split, bits), lines in zip(
        published.TEST_BITS.items(), (main[1:5], main[5:9]), strict=True
    ):
        for name, value in bits.items():
            start = f"{names[name]} baseline" if name in names else "VAIOM main model"
            assert value in line_of(lines, start), (split, name)
    seeds = table_of(paper_text, "tab:app_multiseed_test")
    for split, by_seed in published.TEST_SEEDS.items():
        for seed, gain in by_seed.items():
            figures = {
                gain["bits"],
                gain["gain_bits"],
                *gain["interval"],
                round(100 * gain["win_rate"], 4),
            }
            assert figures <= line_of(seeds, PERIODS[split], seed), (split, seed)


def test_tails_and_blocks(paper_text: str) -> None:
    tails, blocks = (
        table_of(paper_text, f"tab:app_{name}")
        for name in ("tail_decomposition", "bootstrap_details")
    )
    for split, figures in published.TAILS.items():
        assert set(figures.values()) <= line_of(tails, PERIODS[split]), split
    for split, each in published.BOOTSTRAP.items():
        rates = {round(100 * rate, 4) for rate in (each["win_rate"], *each["win_rate_interval"])}
        assert {each["events"], each["blocks"], *each["interval"], *rates} <= line_of(
            blocks, PERIODS[split]
        ), split


def test_corpus_and_rungs(paper_text: str) -> None:
    splits = numbers(
        " & ".join(cell for row in table_of(paper_text, "tab:app_split_counts") for cell in row)
    )
    assert set(published.SPLIT_EVENTS.values()) <= splits
    coverage = table_of(paper_text, "tab:asset_coverage")
    for symbol, counts in published.ASSETS.items():
        assert set(counts) <= line_of(coverage, symbol), symbol
    assert len(published.ASSETS) == len(coverage) - 2  # the header and the total
    rungs = table_of(paper_text, "tab:app_architecture_rungs")
    for rung, counts in published.RUNG_PARAMETERS.items():
        assert set(counts) <= line_of(rungs, rung), rung
    for name, edges in published.EDGES.items():
        inside = ",".join(f"{edge:.4f}" if edge else "0" for edge in edges)
        assert f"-2,{inside},2" in re.sub(r"\s", "", paper_text), name
    for targets in published.TARGET_EXPOSURE.values():
        assert rf"{targets / 1e6:g}\text{{M}}" in paper_text
