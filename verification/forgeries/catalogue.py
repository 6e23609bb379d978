"""Forgeries that agree with themselves: whoever makes one rewrites every file that follows from it,
as far as told.

Each function spoils a copy of the reported run: `place` holds `bars`, `corpus`, `seed17` (evaluated
on three splits, with another seed on Validation and a page) and `seed29`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from vaiom.codec import to_json
from vaiom.corpus.store import open_corpus
from vaiom.evaluation.evaluate import evaluate_run, judge
from vaiom.evaluation.horizon_scores import HorizonScore
from vaiom.evaluation.inference import compare_seeds
from vaiom.evaluation.scores import ScoredEvents, event_bits, read_events, write_events
from vaiom.files import canonical_json, sha256_of, write_json
from vaiom.model.checkpoint import load_checkpoint, save_checkpoint
from vaiom.model.vaiom import Vaiom as Network
from vaiom.report.contents import read_run
from vaiom.report.page import render, write_report
from vaiom.run import Run

SPLIT = "validation"
Forge = Callable[[Path], None]
Gain = Callable[[ScoredEvents], npt.NDArray[np.float64] | float]


def edit(file: Path, **changes: Any) -> None:
    """Change parts of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def edit_evaluation(place: Path, split: str = SPLIT, **changes: Any) -> None:
    edit(Run(place / "seed17").evaluation(split), **changes)


def write_page(place: Path) -> None:
    """The report of what the files say now."""
    write_report(place / "seed17", corpus=place / "corpus")


def changed(value: Any, path: str, paths: list[str]) -> Any:
    """The same with every number a little larger, and the paths of these."""
    if isinstance(value, dict):
        return {key: changed(each, f"{path}.{key}", paths) for key, each in value.items()}
    if isinstance(value, list):
        return [changed(each, f"{path}[{index}]", paths) for index, each in enumerate(value)]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    paths.append(path)
    return value + 1 if isinstance(value, int) else value + 1e-6


# Losses, forecasts and figures.


def restate(place: Path, change: Callable[[ScoredEvents], ScoredEvents], **more: Any) -> None:
    """Change the stored events, and every figure and the page that follow from them."""
    run, corpus = place / "seed17", open_corpus(place / "corpus")
    events = change(read_events(run, SPLIT))
    write_events(run, SPLIT, events)
    figures = to_json(judge(corpus, SPLIT, corpus.endpoints(SPLIT, 16), events))
    del figures["mixture"]
    edit_evaluation(place, **figures, seeds=None, **more)
    write_page(place)


def improve(place: Path, gain: Gain, **more: Any) -> None:
    """Forecasts that gave each outcome a higher probability, worth so many bits."""

    def change(events: ScoredEvents) -> ScoredEvents:
        assert events.probs is not None
        at = np.arange(len(events)), events.buckets.astype(int) - 1
        came = events.probs[at]
        better = np.minimum(came * 2 ** np.asarray(gain(events)), 0.9)
        probs = events.probs * ((1 - better) / (1 - came))[:, None]
        probs[at] = better
        bits = events.bits | {"model": event_bits(probs, events.buckets)}
        return replace(events, probs=probs, bits=bits)

    restate(place, change, **more)


def improve_most_losses(place: Path) -> None:
    """By 0.8 bits, but for the 64 events that everyone knows to be scored again."""

    def gain(events: ScoredEvents) -> npt.NDArray[np.float64]:
        gains = np.full(len(events), 0.8)
        gains[np.unique(np.linspace(0, len(events) - 1, 64).astype(int))] = 0
        return gains

    improve(place, gain)


def improve_all_losses_a_little(place: Path) -> None:
    improve(place, lambda events: 0.09)


def improve_all_losses_by_less_than_half_precision(place: Path) -> None:
    """Each by what FP16 may do to one event, all of them in the same direction."""
    improve(place, lambda events: 2e-3, precision="float16")


def move_losses_between_months(place: Path) -> None:
    """By what FP16 may do to one event, down where the model lost and up elsewhere: the
    mean stays.
    """

    def gain(events: ScoredEvents) -> npt.NDArray[np.float64]:
        months = events.target_times.astype("datetime64[M]")
        first = months == months[0]
        return np.where(first, 8e-3, -8e-3 * first.sum() / (~first).sum())

    improve(place, gain, precision="float16")


def with_bits(place: Path, name: str, change: float, run: str = "seed17") -> None:
    """Move the stored losses of a predictor, and nothing that follows from them."""
    events = read_events(place / run, SPLIT)
    bits = events.bits | {name: events.bits[name] + change}
    write_events(place / run, SPLIT, replace(events, bits=bits))


def worsen_a_baseline(place: Path) -> None:
    def change(events: ScoredEvents) -> ScoredEvents:
        return replace(events, bits=events.bits | {"markov": events.bits["markov"] + 0.2})

    restate(place, change)


def improve_losses_alone(place: Path) -> None:
    with_bits(place, "model", -0.3)


def take_the_forecasts_out(place: Path) -> None:
    """As if the evaluation were an old one."""
    events = read_events(place / "seed17", SPLIT)
    write_events(place / "seed17", SPLIT, replace(events, probs=None))


def exchange_tails(place: Path) -> None:
    file = Run(place / "seed17").events(SPLIT)
    names = {"prob_1": "prob_16", "prob_16": "prob_1"}
    pl.read_parquet(file).rename(names).write_parquet(file)


def drop_hard_events(place: Path) -> None:
    file = Run(place / "seed17").events(SPLIT)
    pl.read_parquet(file).filter(pl.col("bits_model") < 4).write_parquet(file)


def move_events_in_time(place: Path) -> None:
    file = Run(place / "seed17").events(SPLIT)
    later = pl.col("target_time").dt.offset_by("13m")
    pl.read_parquet(file).with_columns(later).write_parquet(file)


def forge_risk_figures(place: Path) -> None:
    stored = json.loads(Run(place / "seed17").evaluation(SPLIT).read_text())
    for test in stored["backtests"]:
        test["exceedance_rate"], test["kupiec_p"] = test["level"], 1.0
    edit_evaluation(place, backtests=stored["backtests"])


def miscount_the_sample(place: Path) -> None:
    stored = json.loads(Run(place / "seed17").evaluation(SPLIT).read_text())
    edit_evaluation(place, sample=stored["sample"] | {"num_months": 4})


def add_a_predictor(place: Path) -> None:
    stored = json.loads(Run(place / "seed17").evaluation(SPLIT).read_text())
    edit_evaluation(place, bits=stored["bits"] | {"oracle": 3.0})


def add_a_breakdown(place: Path) -> None:
    by = json.loads(Run(place / "seed17").evaluation(SPLIT).read_text())["by"]
    edit_evaluation(place, by=by | {"weekday": by["asset"]})


def hide_the_caveats(place: Path) -> None:
    edit_evaluation(place, caveats=[])


def hide_the_sample(place: Path) -> None:
    edit_evaluation(place, sample=None)


def add_bits_alone(place: Path) -> None:
    edit_evaluation(place, bits_alone=3.0)


def add_horizons(place: Path) -> None:
    score = HorizonScore(
        bars=4,
        num_events=9,
        zero_share=0.0,
        bits={"model": 1.0},
        gains={},
        not_fitted=[],
        wider=1.0,
        variance_of_steps=1.0,
        variance_realised=1.0,
        quantiles={},
    )
    edit_evaluation(place, horizons=[to_json(score)])


def pass_validation_off_as_a_test(place: Path) -> None:
    edit(Run(place / "seed17").evaluation(SPLIT), split="test-h1")


def claim_another_seed(place: Path) -> None:
    edit_evaluation(place, seed=29)


def name_another_checkpoint(place: Path) -> None:
    edit_evaluation(place, checkpoint_sha256="0" * 64)


def name_another_corpus(place: Path) -> None:
    edit_evaluation(place, corpus_sha256="0" * 64)


def name_a_precision_of_ones_own(place: Path) -> None:
    edit_evaluation(place, precision="float128, audited")


def change_figures_of_all_tests(place: Path) -> None:
    stored = json.loads(Run(place / "seed17").evaluation("test-h2").read_text())
    stored["all_tests"][0]["gain"]["gain_bits"] += 1e-6
    edit_evaluation(place, "test-h2", all_tests=stored["all_tests"])


def leave_out_all_tests_together(place: Path) -> None:
    for split in ("test-h1", "test-h2"):
        edit_evaluation(place, split, all_tests=None)


# Other seeds of the experiment.


def state_seeds(place: Path) -> None:
    """The figures of all seeds together follow from the events that are there."""
    events = {run: read_events(place / run, SPLIT) for run in ("seed17", "seed29")}
    bits = {str(place / run): each.bits["model"] for run, each in events.items()}
    edit_evaluation(place, seeds=to_json(compare_seeds(events["seed17"], bits)))
    write_page(place)


def flatter_the_other_seed(place: Path) -> None:
    with_bits(place, "model", -0.1, run="seed29")
    state_seeds(place)


def count_one_model_as_two_seeds(place: Path) -> None:
    for file in (Run(place / "seed17").best, Run(place / "seed17").events(SPLIT)):
        shutil.copy(file, place / "seed29" / file.name)
    state_seeds(place)


def count_another_recipe_as_a_seed(place: Path) -> None:
    best = Run(place / "seed29").best
    model = load_checkpoint(best)
    recipe = model.provenance.train | {"learning_rate": 0.5}
    save_checkpoint(best, model.model, model.tokenizer, replace(model.provenance, train=recipe))
    state_seeds(place)


# The page.


def change_page(place: Path, change: Callable[[str], str]) -> None:
    page = Run(place / "seed17").report
    honest = page.read_text()
    changed = change(honest)
    assert changed != honest
    page.write_bytes(changed.encode(errors="surrogateescape"))


HEADLINE = '<section id="headline"'
NO_FIGURE = "<svg></svg>"
PAGES: dict[str, tuple[Callable[[str], str], str]] = {
    "a section twice": (
        lambda page: page.replace(HEADLINE, f"{HEADLINE}>Two bits!</section>{HEADLINE}"),
        "other sections or figures",
    ),
    "another top": (
        lambda page: f'<h1>Two bits!</h1><section id="top"{page}',
        "other sections or figures",
    ),
    "another sentence": (
        lambda page: re.sub(r"the model needs \d\.\d+", "the model needs 2.1000", page, count=1),
        "top: says",
    ),
    "another number in a table": (
        lambda page: re.sub(r">(\d)\.(\d{4})<", r">1.\2<", page, count=1),
        "headline: says",
    ),
    "a figure elsewhere": (
        lambda page: re.sub("(<svg.*?</svg>)(.*)(</section>)", r"\2\1\3", page, flags=re.DOTALL),
        "says",
    ),
    "a figure less": (lambda page: page.replace(NO_FIGURE, "", 1), "other sections or figures"),
    "other figures": (
        lambda page: page.replace("</svg>", "<text>two bits</text></svg>"),
        "figures: says",
    ),
    "a command": (
        lambda page: page.replace("<pre>vaiom train", "<pre>vaiom train GAINS TWO BITS"),
        "provenance: says",
    ),
    "a look that is hidden": (
        lambda page: re.sub("were scored .*? times", "were scored once", page),
        "provenance: says",
    ),
    "a line more": (lambda page: page + "\nTwo bits!", "says 'Two bits!', the files ''"),
    "other bytes": (lambda page: page + "\udcff", "says"),
    "no inputs": (lambda page: page.replace('id="inputs"', 'id="none"'), "is not of these files"),
    "inputs twice": (
        lambda page: page.replace(
            "</body>", '<script type="application/json" id="inputs">{}</script></body>'
        ),
        "is not of these files",
    ),
    "other inputs": (
        lambda page: page.replace('"corpus_problem": null', '"corpus_problem": 3'),
        "is not of these files",
    ),
}
"""What is changed in a page, and what is found."""


def hide_looks_from_the_page(place: Path) -> None:
    """A page that was written as if nobody had looked yet."""
    contents = read_run(place / "seed17", place / "corpus")
    inputs = replace(contents.inputs, ledger_sha256=hashlib.sha256().hexdigest())
    Run(place / "seed17").report.write_text(render(replace(contents, inputs=inputs)))


def leave_nothing_to_write_a_page_from(place: Path) -> None:
    stored = json.loads(Run(place / "seed17").evaluation("test-h2").read_text())
    edit_evaluation(place, "test-h2", calibration=stored["calibration"] | {"tails": []})


# Training, selection and checkpoints.


def rewrite_log(run: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    lines = [change(json.loads(line)) for line in Run(run).metrics.read_text().splitlines()]
    Run(run).metrics.write_text("".join(json.dumps(line) + "\n" for line in lines if line))


def claim_bits(file: Path, bits: float) -> None:
    checkpoint = load_checkpoint(file)
    provenance = replace(checkpoint.provenance, validation_bits=bits)
    save_checkpoint(file, checkpoint.model, checkpoint.tokenizer, provenance)


def claim_a_better_validation(place: Path) -> None:
    run = place / "seed29"
    bits = Run(run).validation_bits()
    rewrite_log(
        run, lambda line: {k: v - 0.5 if k == "validation_bits" else v for k, v in line.items()}
    )
    for file in (Run(run).best, *map(Run(run).checkpoint, bits)):
        claim_bits(file, bits[load_checkpoint(file).provenance.step] - 0.5)


def worse_step(run: Path) -> int:
    bits = Run(run).validation_bits()
    return max(bits, key=lambda step: bits[step])


def take_the_last_step(place: Path) -> None:
    """Another checkpoint of the run than the one with the fewest Validation bits."""
    run = Run(place / "seed29")
    shutil.copy(run.checkpoint(worse_step(run.path)), run.best)


def select_on_test(place: Path) -> None:
    """The step that does better on Test, with its Test bits in the place of its Validation bits."""
    run = place / "seed29"
    step, bits = worse_step(run), min(Run(run).validation_bits().values()) - 0.01
    rewrite_log(
        run, lambda line: line | ({"validation_bits": bits} if line["step"] == step else {})
    )
    claim_bits(Run(run).checkpoint(step), bits)
    Run(run).best.write_bytes(Run(run).checkpoint(step).read_bytes())


def keep_only(run: Path, step: int) -> None:
    """Another step than the selected one, without what beat it."""
    Run(run).best.write_bytes(Run(run).checkpoint(step).read_bytes())
    for other in set(Run(run).validation_bits()) - {step}:
        Run(run).checkpoint(other).unlink()
        Run(run).state(other).unlink()


def remove_what_was_better(place: Path) -> None:
    run = place / "seed29"
    step = worse_step(run)
    keep_only(run, step)
    rewrite_log(
        run, lambda line: line if line["step"] == step or "validation_bits" not in line else None
    )


def blur_what_was_better(place: Path) -> None:
    """Not a number is not fewer bits, if it comes last."""
    run = place / "seed29"
    step = worse_step(run)
    keep_only(run, step)
    lines = [json.loads(line) for line in Run(run).metrics.read_text().splitlines()]
    lines = [
        line if line["step"] == step else line | {"validation_bits": math.nan} for line in lines
    ]
    lines.sort(key=lambda line: line["step"] != step)
    Run(run).metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))


def swap_checkpoints(place: Path) -> None:
    one, two = (Run(place / "seed29").checkpoint(step) for step in (4, 8))
    contents = one.read_bytes(), two.read_bytes()
    two.write_bytes(contents[0])
    one.write_bytes(contents[1])


def take_another_model(place: Path) -> None:
    """A model that this configuration does not give."""
    Run(place / "seed17").best.write_bytes(Run(place / "seed29").best.read_bytes())


def change_weights_of_the_best(place: Path) -> None:
    """Its header says the right step and bits."""
    run = Run(place / "seed29")
    checkpoint = load_checkpoint(run.best)
    with torch.no_grad():
        next(checkpoint.model.parameters()).mul_(1.01)
    save_checkpoint(run.best, checkpoint.model, checkpoint.tokenizer, checkpoint.provenance)


def claim_another_corpus(place: Path) -> None:
    file = Run(place / "seed17").config
    file.write_text(file.read_text().replace('sha256 = "', 'sha256 = "0'))


def start_from_a_model_that_saw_a_test(place: Path) -> None:
    run, later = Run(place / "seed17"), load_checkpoint(Run(place / "seed29").best)
    splits = later.provenance.splits
    seen = splits | {"validation": [splits["train_end"], splits["seal"]], "tests": []}
    origin = replace(later.provenance, splits=seen)
    save_checkpoint(run.start, later.model, later.tokenizer, origin)
    own = load_checkpoint(run.best)
    origin = replace(own.provenance, start_sha256=later.sha256)
    save_checkpoint(run.best, own.model, own.tokenizer, origin)


def learn_from_a_teacher_elsewhere(place: Path) -> None:
    """A teacher that knows other bars."""
    run, own = Run(place / "seed17"), load_checkpoint(Run(place / "seed17").best)
    config = replace(own.model.config, attention_window=8, positions="rotary")
    settings = own.provenance.train | {"teachers": 1, "teacher_share": 0.5}
    torch.manual_seed(1)
    taught = Network(config, own.tokenizer.vocabulary_sizes)
    save_checkpoint(run.best, taught, own.tokenizer, replace(own.provenance, train=settings))
    (run.teachers / "1").mkdir(parents=True)
    elsewhere = replace(own.provenance, corpus_sha256="0" * 64)
    save_checkpoint(Run(run.teachers / "1").best, own.model, own.tokenizer, elsewhere)


# The ledger and the corpus.


def ledger_of(place: Path) -> Path:
    return place / "corpus/ledger.jsonl"


def remove_an_evaluation(place: Path) -> None:
    Run(place / "seed17").evaluation("test-h2").unlink()
    Run(place / "seed17").events("test-h2").unlink()


def forget_the_looks(place: Path) -> None:
    ledger_of(place).unlink()


def forget_the_last_look(place: Path) -> None:
    lines = ledger_of(place).read_text().splitlines(True)
    ledger_of(place).write_text("".join(lines[:-1]))


def claim_fewer_looks(place: Path) -> None:
    edit_evaluation(place, "test-h1", looks=0)


def name_no_ledger(place: Path) -> None:
    edit_evaluation(place, "test-h1", ledger_sha256=None)


def forget_a_rejected_seed(place: Path) -> None:
    """Both seeds were scored on a test, this one was kept, and the line of the other goes."""
    corpus = open_corpus(place / "corpus")
    evaluate_run(place / "seed29", corpus, "test-h1", device="cpu")
    evaluate_run(place / "seed17", corpus, "test-h2", device="cpu")
    lines = ledger_of(place).read_text().splitlines(True)
    ledger_of(place).write_text("".join(line for line in lines if '"seed29"' not in line))


def forget_it_and_mend_the_chain(place: Path) -> None:
    forget_a_rejected_seed(place)
    mended = b""
    for line in ledger_of(place).read_bytes().splitlines():
        look = json.loads(line) | {"previous": hashlib.sha256(mended).hexdigest()}
        mended += json.dumps(look).encode() + b"\n"
    ledger_of(place).write_bytes(mended)


def rewrite_manifest(place: Path, **changes: Any) -> None:
    file = place / "corpus/manifest.json"
    manifest = json.loads(file.read_text()) | changes
    del manifest["manifest_sha256"]
    write_json(file, manifest | {"manifest_sha256": sha256_of(canonical_json(manifest))})


def claim_more_events(place: Path) -> None:
    events = json.loads((place / "corpus/manifest.json").read_text())["events"]
    rewrite_manifest(place, events=events | {"test-h1": 10**6})


def claim_more_bars(place: Path) -> None:
    first, *others = json.loads((place / "corpus/manifest.json").read_text())["inputs"]
    rewrite_manifest(place, inputs=[first | {"rows_taken": 10**6}, *others])


@dataclass(frozen=True)
class Forgery:
    """What is spoiled, what is audited then, and words of what must be found."""

    forge: Forge
    says: str
    audited: str = "seed17"
    options: tuple[object, ...] = ()

    @property
    def name(self) -> str:
        return self.forge.__name__


NOT_ITS_OWN = "losses that are not the checkpoint's"
FORGERIES = (
    Forgery(improve_most_losses, NOT_ITS_OWN),
    Forgery(improve_all_losses_a_little, NOT_ITS_OWN),
    Forgery(improve_all_losses_by_less_than_half_precision, "-2.0e-03 in the mean"),
    Forgery(move_losses_between_months, NOT_ITS_OWN),
    Forgery(improve_losses_alone, "losses and probabilities of the events disagree"),
    Forgery(take_the_forecasts_out, "the forecasts were taken out of the events file"),
    Forgery(exchange_tails, "a probability differs"),
    Forgery(worsen_a_baseline, "markov gives an event 2.0e-01 bits"),
    Forgery(drop_hard_events, "other events than the corpus has"),
    Forgery(move_events_in_time, "does not hold every valid target"),
    Forgery(forge_risk_figures, "kupiec_p: the file says 1.0", options=("--rescore", 10)),
    Forgery(miscount_the_sample, "validation.sample.num_months: the file says 4"),
    Forgery(add_a_predictor, "validation.bits: the file has oracle"),
    Forgery(add_a_breakdown, "validation.by: the file has weekday"),
    Forgery(hide_the_caveats, "caveats: 1 entries"),
    Forgery(hide_the_sample, "sample.num_assets: the file says None"),
    Forgery(add_bits_alone, "bits_alone: the file says 3.0"),
    Forgery(add_horizons, "validation.horizons: the file says"),
    Forgery(pass_validation_off_as_a_test, "validation.split: the file says test-h1"),
    Forgery(claim_another_seed, "validation.seed: the file says 29"),
    Forgery(name_another_checkpoint, "validation.checkpoint_sha256: the file says 000"),
    Forgery(name_another_corpus, "evaluated on another corpus"),
    Forgery(name_a_precision_of_ones_own, "an unknown precision, float128, audited"),
    Forgery(change_figures_of_all_tests, "test-h2.all_tests[0].gain.gain_bits"),
    Forgery(leave_out_all_tests_together, "no evaluation has the figures of all of them together"),
    Forgery(flatter_the_other_seed, "are not its checkpoint's"),
    Forgery(count_one_model_as_two_seeds, "not different seeds of one experiment"),
    Forgery(count_another_recipe_as_a_seed, "not different seeds of one experiment"),
    Forgery(hide_looks_from_the_page, "leaves out looks"),
    Forgery(leave_nothing_to_write_a_page_from, "cannot be made from these files"),
    Forgery(claim_a_better_validation, "its events cost", "seed29"),
    Forgery(select_on_test, "its events cost", "seed29"),
    Forgery(take_the_last_step, "the fewest Validation bits came at", "seed29"),
    Forgery(remove_what_was_better, "metrics.jsonl", "seed29"),
    Forgery(blur_what_was_better, "a Validation twice, out of order or without", "seed29"),
    Forgery(swap_checkpoints, "step-0000008.safetensors is the checkpoint of step 4", "seed29"),
    Forgery(change_weights_of_the_best, "is not the checkpoint step-", "seed29"),
    Forgery(take_another_model, "config.toml describes another experiment"),
    Forgery(
        take_another_model,
        "the run's own best.safetensors is another",
        options=("--repeat", "--full"),
    ),
    Forgery(claim_another_corpus, "config.toml names another corpus"),
    Forgery(start_from_a_model_that_saw_a_test, "start.safetensors: the weights have learned from"),
    Forgery(learn_from_a_teacher_elsewhere, "teacher 1 is of another corpus"),
    Forgery(remove_an_evaluation, "its evaluation is gone"),
    Forgery(forget_the_looks, "the look is not in the corpus's ledger"),
    Forgery(forget_the_last_look, "the look is not in the corpus's ledger"),
    Forgery(claim_fewer_looks, "scored 0 times by then, the ledger says otherwise"),
    Forgery(name_no_ledger, "the evaluation names no ledger"),
    Forgery(
        forget_a_rejected_seed, "ledger, line 3: lines before it were changed or removed", "corpus"
    ),
    Forgery(forget_it_and_mend_the_chain, "evaluated on another ledger"),
    Forgery(claim_more_events, "the manifest lists other events", "corpus"),
    Forgery(claim_more_bars, "the manifest lists inputs of other rows", "corpus"),
)


# What cannot be told from honest work is named.


def compare_with_a_rival(place: Path) -> None:
    """Which nobody can run, under a name like those of runs."""

    def change(events: ScoredEvents) -> ScoredEvents:
        return replace(events, bits=events.bits | {"run rival": events.bits["model"] + 1})

    restate(place, change)


def stop_where_a_test_was_best(place: Path) -> None:
    """The log ends there, and `config.toml` says that it should."""
    run = Run(place / "seed29")
    run.best.write_bytes(run.checkpoint(4).read_bytes())
    run.checkpoint(8).unlink()
    run.state(8).unlink()
    rewrite_log(run.path, lambda line: line if line["step"] <= 4 else None)
    run.config.write_text(run.config.read_text().replace("steps = 8", "steps = 4"))


def rename_and_remove_an_evaluation(place: Path) -> None:
    remove_an_evaluation(place)
    for split in (SPLIT, "test-h1"):
        edit_evaluation(place, split, run="other")
    (place / "seed17").rename(place / "other")


def count_the_first_look_again(place: Path) -> None:
    for run in ("seed29", "seed17"):
        evaluate_run(place / run, open_corpus(place / "corpus"), "test-h1", device="cpu")
    edit_evaluation(place, "test-h1", looks=1)


def lose_what_it_started_from(place: Path) -> None:
    start_from_a_model_that_saw_a_test(place)
    Run(place / "seed17").start.unlink()


def lose_the_other_seed(place: Path) -> None:
    shutil.rmtree(place / "seed29")
    stored = Run(place / "seed17").evaluation(SPLIT)
    stored.write_text(re.sub(r'"[^"]*/seed29"', '"/nowhere/seed29"', stored.read_text()))


NOTED = (
    Forgery(compare_with_a_rival, "validation: run rival was not computed again"),
    Forgery(stop_where_a_test_was_best, "config.toml says steps 4, best.safetensors 8", "seed29"),
    Forgery(
        rename_and_remove_an_evaluation,
        "test-h2: looked at with this checkpoint as seed17",
        "other",
    ),
    Forgery(
        count_the_first_look_again,
        "test-h1: counts 1 looks, and look 3 by then was of the same checkpoint",
    ),
    Forgery(
        lose_what_it_started_from, "start.safetensors, the weights that it started from, is gone"
    ),
    Forgery(lose_the_other_seed, "validation: not recomputed: seeds (this split of the run has"),
)
