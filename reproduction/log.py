"""The log of the search for `best`.

Enters: single runs of the search in rounds, and the records of the three-seed ablations. Leaves:
Markdown, with no figure that does not stand there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reproduction.findings import Records, measure
from reproduction.paper import comparison
from vaiom.report.tables import NOTHING

LOG_NAME = "LOG.md"

INTRODUCTION = """\
# What was tried to beat the paper's model

Each run is `vaiom train CORPUS` on the real one-hour bars of [reproduction.md](reproduction.md), with the experiment
and settings of its round and its own. Its figure is its best Validation bits per event; no test split was used.
Seeds of one setting differ by a few thousandths of a bit, so single runs show only large effects. What was kept was
then removed again, part by part, over several seeds (last table). How `best` does on Test is in
[reproduction.md](reproduction.md). Written by `make reproduce` from [results](results).
"""

LESSONS = """\
## Findings

- **The problem is overfitting, not capacity.** Each step of the paper's run shows the network about 5% of all Train
  events, and Validation gets worse after about a hundred passes over them. Whatever keeps the network from memorising
  windows helps; more steps and larger rates do not.
- **Mirrored windows helped most among the ways to train.** The inverse of a price is a price too: signed fields change
  their sign, targets move to the bucket of the opposite move. The size of the next move hardly depends on direction,
  and the network can no longer recognise a stretch of history by its ups and downs.
- **Extra fields** are the other large part: range, activity, the coming slot of the week, the other assets.
- **Fewer windows in a step** reach a better point with a quarter of the work; still fewer do not.
- **The other parts of `best-512` are unresolved**: no auxiliary heads, layers left out, more weight decay and averaged
  weights make it simpler or no worse. Undoing one of them changes less than seeds do.
- **An attention window for each layer** makes a model that streams without loss: what happened a thousand bars ago
  reaches the output through the layers, and no position can be memorised.
- **Teachers** help: `best` takes three quarters of its loss from the mean distribution of three models like itself, and
  its best step is its last one. A student is better than the mean of its teachers.
- **Leaving other assets out at random** costs nothing and makes a forecast from one file alone nearly as good.
- **Not kept:** flags of summer time, a slot of the week on New York's clock, missing fields, RMSNorm, SwiGLU, normed
  keys, a shorter context, one categorical head, an embedding of the hour of the week, more than three teachers, a
  second generation of students.
"""


def render_log(rounds: Sequence[dict[str, Any]], records: Records) -> str:
    """The log as Markdown, from the rounds of the search and the records of ablations."""
    parts = [_round(number, each) for number, each in enumerate(rounds, start=1)]
    return "\n".join([INTRODUCTION, LESSONS, *parts, _ablations(records)])


def _round(number: int, found: dict[str, Any]) -> str:
    """One round: its experiment, and a table of its runs."""
    base = next(run for run in found["runs"] if run["what"] == found["base"])
    lines = [
        f"## Round {number}: {found['title'].lower()}\n",
        *(text + "\n" for text in found["text"]),
        f"Experiment of the round: "
        f"`{' '.join([found.get('experiment', 'main'), *found['common']])}`.\n",
        "| run | its own settings | seed | bits | at step | against the first |",
        "|:---|:---|---:|---:|---:|---:|",
    ]
    for run in found["runs"]:
        settings = f"`{' '.join(run['settings'])}`" if run["settings"] else ""
        against = "" if run is base else f"{run['bits'] - base['bits']:+.4f}"
        step = f"{run['step']:,}" if run["step"] else NOTHING
        lines.append(
            f"| {run['what']} | {settings} | {run['seed']} | {run['bits']:.4f} | {step} | "
            f"{against} |"
        )
    return "\n".join(lines) + "\n"


def _ablations(records: Records) -> str:
    """The table of what was removed again, over several seeds."""
    chosen = comparison("beyond")
    lines = [
        f"## {chosen.title}\n",
        "Means over the seeds that were run; a negative difference is better than the row it is "
        "held against, and ±\n"
        "is half the width of Student's interval over seeds.\n",
        "| row | against | bits | seeds | difference | ± | says |",
        "|:---|:---|---:|---:|---:|---:|:---|",
    ]
    for each in measure(chosen, records):
        if each.bits is None:
            continue
        delta = "" if each.delta_bits is None else f"{each.delta_bits:+.4f}"
        error = "" if each.delta_error is None else f"{each.delta_error:.4f}"
        lines.append(
            f"| {each.row.label} | {each.row.against or ''} | {each.bits:.4f} | {len(each.seeds)} "
            f"| {delta} | {error} "
            f"| {each.verdict} |"
        )
    return "\n".join(lines) + "\n"
