"""`vaiom report` of runs that were really trained and judged: what it says, what it needs, and what
it refuses.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judged_runs import Judged, Page

from vaiom.cli.main import main
from vaiom.corpus.store import open_corpus
from vaiom.errors import DataError
from vaiom.evaluation.access_ledger import ledger_heads
from vaiom.evaluation.record import Evaluation
from vaiom.model.checkpoint import load_model
from vaiom.model.vaiom import count_parameters
from vaiom.report.contents import read_run
from vaiom.report.data_tables import commands, looks_at_test, provenance
from vaiom.report.figures import calibration
from vaiom.report.page import render_card, write_report
from vaiom.report.results import headline_tables
from vaiom.report.tables import bits, count
from vaiom.report.verdict import headline
from vaiom.run import Run, packaged_models

SECTIONS = [
    "Bits per event, and how sure the gains are",
    "Gains with their intervals",
    "Asset by asset, month by month",
    "Gain over time",
    "Do the probabilities mean what they say?",
    "Latent states",
    "Seeds together",
    "Training, and the checkpoint that was chosen",
    "Data quality",
    "Where the figures come from",
    "What the figures do and do not mean",
]


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture
def vaiom(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["vaiom", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main()
        return Ran(int(caught.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes seconds, and some tests ask for nothing that is drawn."""
    monkeypatch.setattr(
        "vaiom.report.drawing.Drawing.to_svg", lambda drawing: f'<svg id="{drawing.name}"></svg>'
    )


@pytest.fixture(scope="module")
def text(judged: Judged, tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("page") / "page.html"
    write_report(judged.run, out=file)
    return file.read_text()


def test_the_pit_is_that_of_the_served_distribution_and_no_draw(text: str) -> None:
    assert "PIT uniform (Kuiper)" in text
    assert "randomised" not in text


def test_the_page_has_its_parts_in_order(text: str, judged: Judged) -> None:
    page = Page(text)
    assert page.texts["h2"] == SECTIONS
    keys = [attributes["id"] for attributes in page.attributes("section")]
    assert [attributes["href"] for attributes in page.attributes("a")] == [
        f"#{key}" for key in keys
    ]
    assert "tiny, seed 17" in text
    num_splits = len(judged.evaluations)
    assert len(page.attributes("figure")) == 1 + 3 * num_splits + 1
    for name in (
        "calibration by asset",
        "by hour",
        "by volatility regime",
        "seeds together",
        "All test splits",
    ):
        assert any(name in caption for caption in page.texts["caption"]), name
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_the_page_shows_the_tables_of_what_evaluate_found(text: str, judged: Judged) -> None:
    contents = read_run(judged.run)
    assert f"<h1>{headline(contents)}</h1>" in text
    for table in headline_tables(contents):
        assert table.to_html() in text
    for each in (looks_at_test(contents.looks, contents.checkpoint.sha256), provenance(contents)):
        assert each.to_html() in text
    assert "scored 2 times" in text
    for command in commands(contents):
        assert command in html.unescape(text)


def test_every_figure_says_in_words_what_it_shows(text: str, judged: Judged) -> None:
    page = Page(text)
    pictures = {attributes["id"]: attributes for attributes in page.attributes("svg")}
    kinds = ("assets", "cumulative", "calibration")
    own = {f"{kind}-{split}" for kind in kinds for split in judged.evaluations}
    assert pictures.keys() == {"gains-figure", "training-figure", *own}
    for attributes in pictures.values():
        assert attributes["role"] == "img"
        assert attributes["aria-label"] in page.texts["title"]


def test_the_band_of_the_histogram_holds_what_chance_does(judged: Judged) -> None:
    """Of a calibrated model's bins, 95 in 100 lie in it."""
    split = read_run(judged.run).splits[0]
    found = split.evaluation.calibration
    band: Any = calibration(split).figure.axes[0].patches[0]
    bins, events = len(found.pit_histogram), found.pit.num_events
    shares = (
        np.random.default_rng(0).multinomial(events, np.full(bins, 1 / bins), 5_000) * bins / events
    )
    inside = (shares >= band.get_y()) & (shares <= band.get_y() + band.get_height())
    assert inside.mean() == pytest.approx(0.95, abs=0.01)


def test_nothing_comes_from_outside(text: str) -> None:
    assert not re.search(r"https?://|//\w|@import|url\((?!#)", text)
    page = Page(text)
    assert not {tag for tag, _ in page.tags} & {
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "base",
        "image",
    }
    for _, attributes in page.tags:
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
        assert not [name for name in attributes if name.startswith("on")]


def test_figures_take_every_colour_from_the_page(text: str) -> None:
    for picture in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        assert "var(--" in picture
        assert not re.search(
            r"#[0-9a-fA-F]{6}\b(?!-)", re.sub(r'(href="|url\()#[^")]*', "", picture)
        )


def test_the_same_run_gives_the_same_bytes(judged: Judged, text: str, tmp_path: Path) -> None:
    import matplotlib as mpl

    with mpl.rc_context({"font.size": 30, "axes.grid": True}):
        write_report(judged.run, out=tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text() == text


def test_evaluations_are_read_back_as_they_were(judged: Judged) -> None:
    contents = read_run(judged.run)
    assert [split.name for split in contents.splits] == list(judged.evaluations)
    for split in contents.splits:
        assert split.evaluation == judged.evaluations[split.name]


def test_the_command_writes_all_formats(
    vaiom: Any, judged: Judged, tmp_path: Path, undrawn: None
) -> None:
    here = judged.copy_to(tmp_path)
    tables = {"--markdown": tmp_path / "t.md", "--latex": tmp_path / "t.tex"}
    words = [word for pair in tables.items() for word in pair]
    ran = vaiom("report", here.run, "--corpus", here.corpus, *words)
    assert ran.code == 0, ran.err
    assert Run(here.run).report.is_file()
    headline = headline_tables(read_run(here.run, here.corpus))
    assert len(headline) == 2 * 3 + 1
    assert tables["--markdown"].read_text() == "\n".join(table.to_markdown() for table in headline)
    assert tables["--latex"].read_text() == "\n".join(table.to_latex() for table in headline)
    assert "the model needs" in ran.out
    said = json.loads(vaiom("report", here.run, "--out", tmp_path / "x.html", "--json").out)
    assert said["files"] == {"report": str(tmp_path / "x.html")}
    assert said["splits"] == ["validation", "test-h1", "test-h2"]
    assert said["verdict"][0] in ran.out


def test_one_asset_in_one_month_is_reported_with_what_cannot_be_said(
    lonely: Judged, tmp_path: Path
) -> None:
    write_report(lonely.run, out=tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "there is a single block, so no interval can be given" in text
    for caveat in lonely.evaluations["test-h1"].caveats:
        assert caveat in text
    assert "simplest baselines only: <code>vaiom baselines</code> fits stronger ones" in text
    assert "a uniform guess over 16 buckets costs 4." in text
    assert "thick bar: 95% interval over asset-months" in text
    page = Page(text)
    assert "undefined" in page.texts["td"]
    assert page.texts["h2"] == [title for title in SECTIONS if title != "Seeds together"]


def test_without_its_corpus_a_run_is_reported_without_the_data(
    vaiom: Any, judged: Judged, tmp_path: Path, undrawn: None
) -> None:
    here = judged.copy_to(tmp_path)
    config = here.run / "config.toml"
    config.write_text(config.read_text().replace(str(judged.corpus), str(tmp_path / "gone")))
    ran = vaiom("report", here.run)
    assert ran.code == 0, ran.err
    assert "not a corpus" in ran.err
    text = Run(here.run).report.read_text()
    assert "The corpus could not be read, so this part is missing" in text
    assert "How often Test was looked at is recorded in the corpus" in text
    assert Page(text).texts["h2"] == SECTIONS
    named = vaiom("report", here.run, "--corpus", tmp_path / "gone")
    assert (named.code, "not a corpus" in named.err) == (2, True)


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_what_cannot_be_trusted_is_refused(
    vaiom: Any, judged: Judged, lonely: Judged, tmp_path: Path
) -> None:
    def refused(run: Path, *says: str, corpus: Path | None = None) -> None:
        ran = vaiom("report", run, *(["--corpus", corpus] if corpus else []))
        assert ran.code == 2, ran.err
        assert ran.out == ""
        for words in says:
            assert words in ran.err
        assert not Run(run).report.exists()

    refused(tmp_path / "nowhere", "no such checkpoint")
    here = judged.copy_to(tmp_path)
    refused(here.run, "trained with another tokenizer than the corpus has", corpus=lonely.corpus)
    file = here.run / "evaluation-test-h1.json"
    before = file.read_text()
    change(file, checkpoint_sha256="0" * 64)
    refused(here.run, "another checkpoint", f"vaiom evaluate {here.run} --split test-h1")
    file.write_text(before)
    change(file, bits="none")
    refused(here.run, "not an evaluation of this version", str(file))
    file.write_text("{")
    refused(here.run, "not readable as JSON", str(file))
    file.write_text(before)
    change(file, num_events=3)
    refused(here.run, "scored events are not those of the evaluation", "3 events")
    (here.run / "metrics.jsonl").write_text("{\n")
    file.write_text(before)
    refused(here.run, "training log is damaged")
    for each in here.run.glob("evaluation-*.json"):
        each.unlink()
    (here.run / "metrics.jsonl").unlink()
    refused(here.run, "not evaluated yet", f"vaiom evaluate {here.run} --split validation")


def test_a_run_without_its_log_has_no_training_curve(
    judged: Judged, tmp_path: Path, undrawn: None
) -> None:
    here = judged.copy_to(tmp_path)
    (here.run / "metrics.jsonl").unlink()
    shutil.rmtree(here.run / "checkpoints")
    write_report(here.run)
    assert "training" not in [
        a["id"] for a in Page(Run(here.run).report.read_text()).attributes("section")
    ]


def test_forecasts_that_were_scored_against_the_run_have_a_part_of_their_own(
    judged: Judged, tmp_path: Path, undrawn: None
) -> None:
    here = judged.copy_to(tmp_path)
    evaluated = json.loads(Run(here.run).evaluation("validation").read_text())
    more = {
        "form": "samples",
        "num_missing": 3,
        "run_sha256": evaluated["checkpoint_sha256"],
        "experiment": "b",
    }
    for name in ("b", "a"):
        folder = Run(here.run).forecasts / name
        folder.mkdir(parents=True)
        Run(folder).evaluation("validation").write_text(json.dumps(evaluated | more))
    contents = read_run(here.run)
    assert [[*split.forecasts] for split in contents.splits] == [["a", "b"], [], []]
    write_report(here.run)
    text = Run(here.run).report.read_text()
    assert "Forecasts of others on the same events" in Page(text).texts["h2"]
    assert "events) a needs " in text
    change(Run(Run(here.run).forecasts / "a").evaluation("validation"), run_sha256="of another")
    with pytest.raises(DataError, match="scored against another model"):
        read_run(here.run)


def test_what_the_report_was_made_from_is_named(judged: Judged, tmp_path: Path) -> None:
    found = read_run(judged.run).inputs
    assert (found.run, found.corpus, found.corpus_problem) == (
        str(judged.run),
        str(judged.corpus),
        None,
    )
    assert (found.ledger_sha256, found.matplotlib) == (
        ledger_heads(open_corpus(judged.corpus))[-1],
        version("matplotlib"),
    )
    here = judged.copy_to(tmp_path)
    config = here.run / "config.toml"
    config.write_text(config.read_text().replace(str(judged.corpus), str(tmp_path / "gone")))
    lost = read_run(here.run)
    assert (lost.corpus, lost.inputs.corpus, lost.inputs.ledger_sha256) == (None, None, None)
    assert lost.inputs.corpus_problem is not None
    assert str(tmp_path / "gone") in lost.inputs.corpus_problem


def test_a_card_has_the_origin_and_the_figures_of_the_model(judged: Judged, tmp_path: Path) -> None:
    card = render_card(judged.run)
    model, seconds = load_model(judged.run), Run(judged.run).read_metrics()[-1]["seconds"]
    assert card.startswith("\n# run\n") or card.startswith("# run\n")
    assert "| purpose | evidence |" in card
    assert (
        f"| parameters | "
        f"{count(count_parameters(model.config, model.tokenizer.vocabulary_sizes))} |" in card
    )
    assert f"| cost of training | {seconds:,.0f} s, teachers and compilation apart |" in card
    assert f"| weights | sha256 {model.sha256} |" in card
    assert "The figures are those of" not in card
    own = open_corpus(judged.corpus).manifest["series"]["EURUSD"]
    first, last = (own[end].replace("T", " ").removesuffix(":00") for end in ("first", "last"))
    assert f"| EURUSD | {count(own['rows'])} rows, {first} to {last}, sha256 " in card
    assert "- test-h1: models had looked at these events once, this evaluation included." in card
    for split, found in judged.evaluations.items():
        assert f"| **model** | **{bits(found.bits['model'])}** |" in card
        assert (
            f"## {split}, {count(found.num_events)} events: bits per event and paired gain" in card
        )
    file = tmp_path / "other.safetensors"
    shutil.copy(Run(judged.run).best, file)
    bare = render_card(file)
    assert "# other\n" in bare
    assert "- No evaluation lies beside the model: no figure is claimed." in bare
    assert "cost of training" not in bare
    assert f"| EURUSD | {count(own['rows'])} rows, sha256 " in bare


def test_the_card_of_a_model_for_use_has_the_figures_of_its_evidence() -> None:
    use, evidence = packaged_models()["fx-1h"], packaged_models()["fx-1h-evidence"]
    card, about = render_card(use), json.loads(Run(use).about.read_text())
    assert (
        "- The figures are those of `fx-1h-evidence`: the same settings, trained and selected on "
        "less." in card
    )
    assert "| purpose | for use: nothing is left to judge it on |" in card
    assert f"| weights | sha256 {load_model(use).sha256} |" in card
    assert f"| cost of training | {about['cost']} |" in card
    for split in Run(evidence).evaluated_splits():
        found = Evaluation.read(evidence, split)
        assert (
            f"## {split}, {count(found.num_events)} events: bits per event and paired gain" in card
        )
    assert "The figures are those of" not in render_card(evidence)
