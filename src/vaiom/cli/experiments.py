"""`vaiom experiments`: the named experiments, and what one of them resolves to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaiom.cli.console import print_json

if TYPE_CHECKING:
    from vaiom.training.experiment import Experiment


def experiments(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Show this one in full.")] = "",
    corpus: Annotated[
        Path | None, typer.Option(help="Count parameters for this corpus; else for the paper's vocabulary.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else there.")] = False,
) -> None:
    """List the named experiments; with a name, its configuration and exact number of parameters."""
    from vaiom.cli.tables import show, table
    from vaiom.experiments.registry import EXPERIMENTS, experiment

    if not name:
        rows = [[each.name, each.about] for each in EXPERIMENTS.values()]
        if json:
            print_json({"experiments": [{"name": name, "about": about} for name, about in rows]})
        else:
            show(table("Experiments", ["name", "about"], rows, left=2))
        return
    chosen = experiment(name)
    num_params = _count(chosen, corpus)
    if json:
        print_json({**chosen.to_json(), "about": chosen.about, "num_params": num_params})
        return
    counted = f"{corpus}" if corpus else "the paper's corpus"
    facts: list[list[Any]] = [
        ["about", chosen.about],
        ["num_params", f"{num_params:,} with the vocabulary of {counted}"],
    ]
    for part in ("model", "train"):
        facts += [[f"{part}.{key}", _plain(value)] for key, value in chosen.to_json()[part].items()]
    show(table(f"Experiment {name}", ["what", "value"], facts, left=2))


def _count(chosen: Experiment, corpus: Path | None) -> int:
    from vaiom.events.corpus import open_corpus
    from vaiom.model.config import PAPER_VOCABULARY, Vocabulary
    from vaiom.model.vaiom import count_parameters

    vocabulary = Vocabulary.of(open_corpus(corpus, verify=False).tokenizer) if corpus else PAPER_VOCABULARY
    return count_parameters(chosen.model, vocabulary)


def _plain(value: object) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)
