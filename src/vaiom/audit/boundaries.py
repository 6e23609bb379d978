"""A run whose boundaries are not those of its corpus folder: a refit through the newest bars.

Enters: an open corpus, a checkpoint. Leaves: the corpus as the checkpoint saw it, and the pipeline that makes it from
bars: rows as they are stored, everything that Train fits fitted anew on what is stored of them.
Paper: Methods, "Corpus Construction and Split Protocol", shifted.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from vaiom.audit.pipeline import Bars, ProductPipeline
from vaiom.events.corpus import Corpus, under_splits
from vaiom.events.fields import INVALID
from vaiom.events.fit import Tokenizer, bucket_of
from vaiom.events.splits import SplitConfig
from vaiom.model.checkpoint import Checkpoint

STORED_ROUNDED = {"gap_bucket": ("gap", "gap_z"), "vol_regime": ("vol_regime", "relative_log_vol")}
"""Buckets that moved boundaries take from values of the corpus's own precision: their edges and their column."""


def seen_by(checkpoint: Checkpoint, corpus: Corpus) -> Corpus:
    """The corpus under the boundaries that the checkpoint was trained with; it still says where its folder is."""
    splits = SplitConfig.from_json(checkpoint.provenance.splits)
    return corpus if splits == corpus.splits else replace(under_splits(corpus, splits), path=corpus.path)


class MovedPipeline(ProductPipeline):
    """From bars to what `under_splits` makes of the corpus that they were built into."""

    def tokenizer(self, bars: Bars) -> Tokenizer:
        built = super().corpus(bars, super().tokenizer(bars))
        return under_splits(replace(built, manifest={"arrays": {}}), self.config.splits).tokenizer

    def corpus(self, bars: Bars, tokenizer: Tokenizer) -> Corpus:
        built = super().corpus(bars, tokenizer)
        again = {
            bucket: bucket_of(
                tokenizer.edges[edges], np.where(built.columns[bucket] == INVALID, math.nan, built.columns[values])
            )
            for bucket, (edges, values) in STORED_ROUNDED.items()
        }
        return replace(built, columns={**built.columns, **again})
