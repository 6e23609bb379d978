"""Training that starts from trained weights: which weights may be taken, and how they fit.

Enters: a checkpoint, a corpus and an experiment. Leaves: a model with the checkpoint's weights, its
rows of assets and classes in the order of the corpus.
"""

from __future__ import annotations

from vaiom.corpus.splits import SplitConfig
from vaiom.corpus.store import Corpus
from vaiom.corpus.tokenizer import Tokenizer
from vaiom.errors import CheckpointError, ConfigError, DataError
from vaiom.model.checkpoint import Checkpoint
from vaiom.model.vaiom import ASSET_TABLE, CLASS_TABLE, Vaiom
from vaiom.training.experiment import Experiment


def require_start(start: Checkpoint, corpus: Corpus, experiment: Experiment) -> None:
    """Refuse weights of another network or other buckets, and weights that have seen held-out
    events.
    """
    if start.config != experiment.model:
        raise ConfigError(
            "the weights are of another network than the experiment",
            fix="leave the settings of the model as they are",
        )
    if not corpus.tokenizer.has_buckets_of(start.tokenizer):
        raise CheckpointError(
            "the weights are of other buckets than the corpus has",
            where=corpus.path,
            fix="vaiom corpus build BARS_DIR --like the model, the same that --from names",
        )
    seen = SplitConfig.from_json(start.provenance.splits)
    own = corpus.splits
    if own.train_end < seen.train_end or own.validation[1] < seen.validation[1]:
        raise DataError(
            "the weights have learned from, or were selected on, what this corpus holds out",
            where=corpus.path,
            expected=f"Train and Validation that end at {_ends(seen)} or later",
            got=_ends(own),
            fix="build the corpus with later boundaries, or begin with older weights (vaiom models "
            "lists some)",
        )


def load_weights(model: Vaiom, start: Checkpoint, tokenizer: Tokenizer) -> None:
    """Copy weights into a model with another tokenizer.

    An asset that the weights do not know starts as their unknown asset, and a class as the class
    that its assets were read as.
    """
    tensors = start.model.state_dict()
    known = start.tokenizer.class_names
    assets = [start.tokenizer.asset_id(symbol) for symbol in ("", *tokenizer.symbols)]
    classes = [known.index(name) if name in known else 0 for name in tokenizer.class_names]
    for table, rows in ((ASSET_TABLE, assets), (CLASS_TABLE, classes)):
        if table in tensors:
            tensors[table] = tensors[table][rows]
    model.load_state_dict(tensors)


def _ends(splits: SplitConfig) -> str:
    """Where Train and Validation end, in words."""
    return f"{splits.train_end:%Y-%m-%d} and {splits.validation[1]:%Y-%m-%d}"
