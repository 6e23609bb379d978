"""The named experiments, each a few lines over its parent.

Names say what differs: the input branch (`disc`, `cont`; `main` is hybrid), the rung, what is left out, the supervision
scope where it is the last position, and the length where it is not the usual one. The timeframe is the corpus's.
Paper: Appendix A, "Full Experimental Configuration"; `best`, the ablations of `main` and of `best`, and the matched
pair are additions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vaiom.errors import ConfigError
from vaiom.events.schema import CONT_FIELDS, DISC_FIELDS, EXTRA_FIELDS, MASK_NAMES, META_FIELDS
from vaiom.model.config import AUXILIARIES, RUNGS
from vaiom.training.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {}


def experiment(name: str) -> Experiment:
    """A named experiment; an unknown name is an error that lists the known ones."""
    if name not in EXPERIMENTS:
        raise ConfigError("unknown experiment", expected=", ".join(EXPERIMENTS), got=name)
    return EXPERIMENTS[name]


def _add(name: str, parent: Experiment, about: str, **changes: Any) -> Experiment:
    EXPERIMENTS[name] = replace(parent, name=name, about=about).with_changes(**changes)
    return EXPERIMENTS[name]


# Runs over the last position alone are long: they are looked at less often, and only their best state is kept.
_LAST = {"scope": "last", "validate_every": 2_500, "keep_last": 1}
_HISTORICAL = _LAST | {"num_micro_batches": 1, "validate_every": 5_000}

_MAIN = _add(
    "main", Experiment(name="main"), "The paper's selected model: 0.9M HybridContIn, MoMS, all auxiliaries, FullSeq."
)
for _rung, _shape in RUNGS.items():
    if _rung != "0.9M":
        _add(f"main-{_rung.lower()}", _MAIN, f"The main model at the paper's {_rung} rung.", **_shape)
_add(
    "demo",
    Experiment(name="demo"),
    "A small model that learns the simulated market on a CPU in minutes.",
    num_layers=2,
    num_heads=2,
    width=64,
    context=64,
    dropout=0.0,
    num_micro_batches=3,
    learning_rate=4e-3,
    schedule="cosine",
    warmup_steps=50,
    average=0.98,
    steps=1_200,
    validate_every=100,
)

# Inputs, metadata, supervision, checkpoint sweep, heads.
_CONT = _add("cont", _MAIN, "Pure ContIn: the main model without metadata.", input="cont")
_add("cont-20k", _CONT, "The checkpoint sweep of pure ContIn.", steps=20_000)
_add("cont-independent-10k", _CONT, "One categorical head instead of MoMS.", return_head="independent", steps=10_000)
_CONT_LAST = _add("cont-last-50k", _CONT, "Pure ContIn supervised at the last position.", steps=50_000, **_LAST)
_DISC_LAST = _add("disc-last-50k", _CONT_LAST, "DiscIn supervised at the last position.", input="disc")
for _rung, _shape in RUNGS.items():
    _add(
        f"cont-{_rung.lower()}-last-300k",
        _CONT,
        f"The {_rung} rung of the corpus-support comparison, without accumulation.",
        steps=300_000,
        **_shape,
        **_HISTORICAL,
    )

# Auxiliary heads, over DiscIn.
for _names in ((), ("gap",), ("vol_regime",)):
    _suffix = "-".join(_names).replace("_", "-") or "no-aux"
    _add(
        f"disc-{_suffix}-last-45k",
        _DISC_LAST,
        f"DiscIn with {'the ' + _names[0] if _names else 'no'} auxiliary head.",
        auxiliaries=_names,
        steps=45_000,
    )
_DISC_5M = _add(
    "disc-5m-last-180k",
    _DISC_LAST,
    "The 5M DiscIn reference of the state-count and ordinal panels.",
    steps=180_000,
    **RUNGS["5M"],
    **_HISTORICAL,
)
_add("disc-5m-ordinal-0.05-last-180k", _DISC_5M, "Half the ordinal weight.", ordinal_weight=0.05)
for _states in (8, 16):
    _add(f"disc-5m-states-{_states}-last-180k", _DISC_5M, f"{_states} latent states.", num_states=_states)
_GAP_VOL = {"auxiliaries": ("gap", "vol_regime")}
_DISC_GV = _add(
    "disc-5m-gap-vol-last-400k", _DISC_5M, "Without the ordinal head: the long trajectory.", steps=400_000, **_GAP_VOL
)
_add("disc-5m-gap-vol-1024-last-300k", _DISC_GV, "Twice the context.", context=1_024, steps=300_000)

# Other timeframes.
_DISC_30K = _add(
    "disc-5m-gap-vol-last-30k", _DISC_GV, "The 4H reference of the head comparison.", steps=30_000, validate_every=1_000
)
_add("disc-5m-gap-vol-independent-last-30k", _DISC_30K, "Its independent head.", return_head="independent")
_NO_AUX_10K: dict[str, Any] = {"auxiliaries": (), "steps": 10_000, "validate_every": 500}
_add("disc-no-aux-last-10k", _DISC_LAST, "The Daily DiscIn run.", **_NO_AUX_10K)
_add("cont-no-aux-last-10k", _CONT_LAST, "The Daily pure ContIn run.", **_NO_AUX_10K)
for _head in ("moms", "independent"):
    _add(
        f"disc-5m-gap-vol-{_head}-last-200k",
        _DISC_GV,
        "The Daily repeated-exposure stress.",
        return_head=_head,
        steps=200_000,
    )
for _rung in ("0.9M", "5M"):
    _add(f"cont-{_rung.lower()}-last-100k", _CONT_LAST, "The 10-minute rows.", steps=100_000, **RUNGS[_rung])

# Ablations of the main model, one component each, under its own supervision.
for _name in AUXILIARIES:
    _kept = tuple(name for name in AUXILIARIES if name != _name)
    _add(f"main-no-{_name.replace('_', '-')}", _MAIN, f"Without the {_name} head.", auxiliaries=_kept)
_add("main-no-aux", _MAIN, "Without any auxiliary head.", auxiliaries=())
_add("main-independent", _MAIN, "One categorical head instead of MoMS.", return_head="independent")

# The same fields, once as numbers and once as buckets: continuity alone. DiscIn has no scale and one mask for all.
_NOT_DISC = ("sigma_through_t", *(f"mask_{name}" for name in MASK_NAMES))
_add(
    "matched-cont",
    _CONT,
    "Pure ContIn over the fields that DiscIn has too.",
    fields=tuple(name for name in CONT_FIELDS if name not in _NOT_DISC),
)
_add(
    "matched-disc",
    _CONT,
    "DiscIn over the fields that ContIn has too.",
    input="disc",
    fields=tuple(name for name in DISC_FIELDS if name not in META_FIELDS),
)

# Beyond the paper: the same network, shown more and kept from learning its Train by heart. `docs/LOG.md` says why.
_DATES = ("years_since_2000_norm", *(f"{name}_{wave}" for name in ("month", "day_of_year") for wave in ("sin", "cos")))
_UNDATED = tuple(name for name in CONT_FIELDS if name not in _DATES)
_BEST = _add(
    "best",
    _MAIN,
    "The main model with extra fields and without dates, mirrored windows, averaged weights and small steps.",
    fields=(*_UNDATED, *EXTRA_FIELDS),
    auxiliaries=(),
    dropout=0.2,
    drop_layer=0.2,
    mirror=0.5,
    average=0.998,
    weight_decay=0.1,
    learning_rate=1e-3,
    schedule="cosine",
    warmup_steps=100,
    num_micro_batches=1,
    steps=6_000,
    validate_every=1_000,
)
for _suffix, _about, _changes in (
    ("no-mirror", "Every window the right way up.", {"mirror": 0.0}),
    ("no-extra", "Without the extra fields.", {"fields": _UNDATED}),
    ("dates", "With the year and the day of the year.", {"fields": (*CONT_FIELDS, *EXTRA_FIELDS)}),
    ("aux", "With the paper's auxiliary heads.", {"auxiliaries": AUXILIARIES}),
    ("no-drop-layer", "No layer is left out.", {"drop_layer": 0.0}),
    ("decay-0.01", "The paper's weight decay.", {"weight_decay": 0.01}),
    ("no-average", "The last weights instead of their average.", {"average": 0.0}),
):
    _add(f"best-{_suffix}", _BEST, _about, **_changes)
