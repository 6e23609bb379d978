"""The log of the search for `best`.

Enters: single runs of the search in rounds, and the records of the three-seed ablations. Leaves: Markdown, with no
figure that does not stand there.
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

Written by `make reproduce` from the files in [results](results). Every run is `vaiom train CORPUS` on the real one-hour
bars of [reproduction.md](reproduction.md) with the experiment and the settings of its round and its own settings; its
figure is its best Validation bits per event. No test split was touched. One run says little: seeds of one setting
differ by a few thousandths of a bit. So the search looked for large steps; what was kept was then taken out again, part
by part, over several seeds (last table). How `best` does on Test is in [reproduction.md](reproduction.md); train it
with `vaiom train CORPUS --experiment best --out RUN`.
"""

LESSONS = """\
## What it came to

- **The problem is memory, not capacity.** Each step of the paper's run shows the network some five hundredths of
  all Train events, and Validation turns for the worse after about a hundred passes over them. Whatever keeps the
  network from learning windows by heart helps; more steps and larger rates do not.
- **Mirrored windows helped most among the ways to train.** A price read the other way round is as good a price: signed
  fields change their sign, targets move to the bucket of the opposite move. The size of the next move hardly depends on
  direction, and the network can no longer recognise a stretch of history by its ups and downs.
- **Extra fields** are the other large part: range, activity, the coming slot of the week, the other assets.
- **Fewer windows in a step** reach a better point with a quarter of the work; still fewer do not.
- **The rest of `best-512` is not told apart by these runs.** Without auxiliary heads, with layers left out, more weight
  decay and averaged weights it is simpler or no worse. Taking one of them back changes less than seeds do.
- **A window for each layer** makes a model that streams, and no worse a one: what happened a thousand bars ago reaches
  the answer through the layers, and no position can be learned by heart.
- **Teachers** are worth as much as all of that: `best` learns three quarters of its loss from the mean distribution of
  three models like itself, and is better than that mean. Its last step is its best one, which its teachers' never is.
- **Other assets left out at random** cost nothing and make a forecast from one file alone nearly as good.
- **Not kept:** flags of summer time, a slot of the week on New York's clock, missing fields, RMSNorm, SwiGLU, normed
  keys, a shorter context, one categorical head, an embedding of the hour of the week, more than three teachers, a
  second generation of students.
"""


def render_log(rounds: Sequence[dict[str, Any]], records: Records) -> str:
    parts = [_round(number, each) for number, each in enumerate(rounds, start=1)]
    return "\n".join([INTRODUCTION, LESSONS, *parts, _ablations(records)])


def _round(number: int, found: dict[str, Any]) -> str:
    base = next(run for run in found["runs"] if run["what"] == found["base"])
    lines = [
        f"## Round {number}: {found['title'].lower()}\n",
        *(text + "\n" for text in found["text"]),
        f"Experiment of the round: `{' '.join([found.get('experiment', 'main'), *found['common']])}`.\n",
        "| run | its own settings | seed | bits | at step | against the first |",
        "|:---|:---|---:|---:|---:|---:|",
    ]
    for run in found["runs"]:
        settings = f"`{' '.join(run['settings'])}`" if run["settings"] else ""
        against = "" if run is base else f"{run['bits'] - base['bits']:+.4f}"
        step = f"{run['step']:,}" if run["step"] else NOTHING
        lines.append(f"| {run['what']} | {settings} | {run['seed']} | {run['bits']:.4f} | {step} | {against} |")
    return "\n".join(lines) + "\n"


def _ablations(records: Records) -> str:
    chosen = comparison("beyond")
    lines = [
        f"## {chosen.title}\n",
        "Means over the seeds that were run; a negative difference is better than the row it is held against, and ±\n"
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
            f"| {each.row.label} | {each.row.against or ''} | {each.bits:.4f} | {len(each.seeds)} | {delta} | {error} "
            f"| {each.verdict} |"
        )
    return "\n".join(lines) + "\n"
