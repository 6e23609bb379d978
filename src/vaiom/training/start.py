"""Trained weights as the beginning of a run: the network, the buckets and the known assets stay.

Enters: a checkpoint, and the corpus that is to be learned. Leaves: a model whose known assets have their embeddings
and whose new ones begin as unknown.
Paper: none; the paper trains every model from nothing.
"""

from __future__ import annotations

from vaiom.errors import CheckpointError, ConfigError, DataError
from vaiom.events.corpus import Corpus
from vaiom.events.fit import Tokenizer
from vaiom.events.splits import SplitConfig
from vaiom.model.checkpoint import Checkpoint
from vaiom.model.vaiom import ASSET_TABLE, CLASS_TABLE, Vaiom
from vaiom.training.experiment import Experiment


def require_start(start: Checkpoint, corpus: Corpus, experiment: Experiment) -> None:
    """Refuse weights of another network or of other buckets, and weights that have learned what is held out."""
    if start.config != experiment.model:
        fix = "leave the settings of the model as they are"
        raise ConfigError("the weights are of another network than the experiment", fix=fix)
    if not corpus.tokenizer.has_buckets_of(start.tokenizer):
        raise CheckpointError(
            "the weights were trained with other buckets than the corpus has",
            where=corpus.path,
            fix="vaiom corpus build BARS_DIR --like the model, the same that --from names",
        )
    splits = SplitConfig.from_json(start.provenance.splits), corpus.splits
    known, own = ((each.train_end, each.validation[1]) for each in splits)
    if any(ours < theirs for ours, theirs in zip(own, known, strict=True)):
        raise DataError(
            "the weights have learned from, or were selected on, what this corpus holds out",
            where=corpus.path,
            expected="Train and Validation that end at {:%Y-%m-%d} and {:%Y-%m-%d} or later".format(*known),
            got="{:%Y-%m-%d} and {:%Y-%m-%d}".format(*own),
            fix="build the corpus with later boundaries, or begin with older weights (vaiom models lists some)",
        )


def load_weights(model: Vaiom, start: Checkpoint, tokenizer: Tokenizer) -> None:
    """Give a model of a corpus's tokenizer the weights of another; an asset that is new to them begins as unknown."""
    tensors, known = start.model.state_dict(), start.tokenizer
    rows = {
        ASSET_TABLE: [known.asset_id(symbol) for symbol in ("", *tokenizer.symbols)],
        # A new class begins as the one that its assets were read as.
        CLASS_TABLE: [
            known.class_names.index(name) if name in known.class_names else 0 for name in tokenizer.class_names
        ],
    }
    model.load_state_dict({name: each[rows[name]] if name in rows else each for name, each in tensors.items()})
