"""`vaiom audit`: the leakage and provenance proofs of a corpus or a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vaiom.audit.config import CUTS, QUICK_BASELINES, RESCORE, SEED, AuditConfig
from vaiom.cli.console import note, print_json

if TYPE_CHECKING:
    from vaiom.audit.proof import Proof


def audit(
    path: Annotated[Path, typer.Argument(metavar="CORPUS_OR_RUN", help="A corpus folder or a run folder.")],
    bars: Annotated[
        Path | None, typer.Option(help="The bars that the corpus was built from; without them less can be proven.")
    ] = None,
    corpus: Annotated[Path | None, typer.Option(help="The corpus of a run, if it was moved.")] = None,
    cuts: Annotated[int, typer.Option(min=1, help="Random moments after which the bars are damaged.")] = CUTS,
    seed: Annotated[int, typer.Option(min=0, help="Of the cuts and the damage.")] = SEED,
    context: Annotated[
        int | None, typer.Option(min=1, help="Rows of a window, for a corpus; a run has its own.")
    ] = None,
    baselines: Annotated[
        str, typer.Option(help="Which are fitted again, separated by commas; trees and GARCH take minutes.")
    ] = ",".join(QUICK_BASELINES),
    rescore: Annotated[
        int, typer.Option(min=0, help="Splits with up to so many events are scored again, for calibration and risk.")
    ] = RESCORE,
    repeat: Annotated[
        bool, typer.Option("--repeat", help="Train a run's first steps twice instead, and compare.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="With --repeat: all its steps.")] = False,
    device: Annotated[str, typer.Option(help="With --repeat: auto, cpu, cuda or cuda:N.")] = "cpu",
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else there.")] = False,
) -> None:
    """Prove that nothing leaked from the future and that every number has a known origin; exit 1 if a proof fails."""
    from vaiom.audit.audit import audit_path
    from vaiom.audit.proof import FAILED
    from vaiom.audit.repeat import prove_repeat
    from vaiom.baselines.registry import require_known
    from vaiom.events.corpus import open_corpus
    from vaiom.training.loop import corpus_of_run

    if repeat:
        proofs = [prove_repeat(path, open_corpus(corpus or corpus_of_run(path)), full=full, device=device)]
    else:
        names = require_known(baselines.split(","))
        config = AuditConfig(cuts=cuts, seed=seed, context=context, baselines=names, rescore=rescore)
        proofs = audit_path(path, bars=bars, corpus=corpus, config=config, say=lambda text: note(f"audit: {text}"))
    passed = all(proof.verdict != FAILED for proof in proofs)
    if json:
        print_json({"path": str(path), "passed": passed, "proofs": [proof.to_json() for proof in proofs]})
    else:
        _print_proofs(path, proofs)
    if not passed:
        raise typer.Exit(1)


def _print_proofs(path: Path, proofs: Sequence[Proof]) -> None:
    from vaiom.cli.tables import show, table

    rows = [
        [
            proof.name,
            proof.verdict,
            f"{proof.count:,}",
            f"{proof.seconds:.1f}",
            "\n".join([proof.about, *proof.notes, *proof.findings]),
        ]
        for proof in proofs
    ]
    columns = ["proof", "verdict", "checks", "seconds", "what, and what was found"]
    show(table(f"Audit of {path}", columns, rows, left=2, prose=True))
