"""The configuration of a model: input fields, size, context and heads.

Vocabulary sizes come from the tokenizer, so one configuration fits any corpus.
Paper: Methods, "VAIOM Backbone" and "Output Heads"; Appendix F, "Architecture Rungs and Tensor
Shapes".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from vaiom.codec import Interval, Share, check_fields
from vaiom.features import fields as event

AUXILIARIES = ("gap", "vol_regime", "ordinal")
"""Tasks beside the return."""
RUNGS = {
    "0.9M": {"num_layers": 4, "num_heads": 4, "width": 128},
    "5M": {"num_layers": 6, "num_heads": 4, "width": 256},
    "15M": {"num_layers": 8, "num_heads": 6, "width": 384},
}
"""The paper's sizes."""
FEED_FORWARD_FACTOR = 4
"""Width of the feed-forward network over the model's."""
SCORED_HISTORY = 512
"""The paper's context; models that look further back are scored on the same events as all others.
"""
INPUT_LIMIT = 32.0
"""Continuous inputs are clipped to this inside the model, and nowhere else."""
ROTARY_BASE = 10_000.0
"""Base of the rotation frequencies."""


def class_of(buckets: Any) -> Any:
    """Class ids 0..K-1 of bucket ids 1..K, of one id or an array; the array must be signed if 0 may
    occur.
    """
    return buckets - 1


PAPER_VOCABULARY = event.vocabulary_sizes(
    num_assets=11, num_classes=len(event.CLASSES), num_gap_buckets=14, num_vol_regimes=5
)
"""The vocabulary of the paper's corpus, for counting parameters without a corpus."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The defaults are the paper's selected model."""

    input: Literal["disc", "cont", "hybrid"] = "hybrid"
    fields: tuple[str, ...] = ()
    """The event fields that the model reads; if empty, all that the paper gives its input branch.
    """
    backbone: Literal["decoder", "gru"] = "decoder"
    # Larger values are a slip or a hostile file, and would waste time before failing.
    num_layers: Annotated[int, Interval("[1, 1000]")] = 4
    num_heads: Annotated[int, Interval("[1, 1000]")] = 4
    width: Annotated[int, Interval("[1, 100000]")] = 128
    context: Annotated[int, Interval("[1, 1000000]")] = 512
    dropout: Share = 0.1
    positions: Literal["learned", "rotary"] = "learned"
    attention_window: Annotated[int, Interval("[0, inf)")] = 0
    """Positions that each layer sees, its own included, at most the context; 0 is the whole
    context.
    """
    stochastic_depth: Share = 0.0
    """Probability of skipping the last layer in training; earlier layers proportionally less."""
    asset_dropout: Share = 0.0
    """Probability of hiding a window's asset in training."""
    cross_dropout: Share = 0.0
    """Probability of hiding other assets' bars from a window in training."""
    return_head: Literal["moms", "independent"] = "moms"
    num_states: Annotated[int, Interval("[1, 1000]")] = 4
    auxiliaries: tuple[str, ...] = AUXILIARIES

    def __post_init__(self) -> None:
        check_fields(self)
        known = event.DISC_FIELDS
        if self.input != "disc":
            known = (*event.CONT_FIELDS, *event.EXTRA_FIELDS)
        _require_choices("fields", self.fields, known)
        _require_choices("auxiliaries", self.auxiliaries, AUXILIARIES)
        head_size, remainder = divmod(self.width, self.num_heads)
        if remainder:
            raise ValueError(f"width {self.width} must be a multiple of {self.num_heads} heads")
        if self.positions == "rotary" and head_size % 2:
            raise ValueError("rotary positions need heads of an even width")
        if self.attention_window:
            if self.positions != "rotary":
                raise ValueError("an attention window needs rotary positions")
            if self.backbone != "decoder":
                raise ValueError("an attention window needs backbone=decoder")
        if self.context < self.receptive_field:
            raise ValueError(
                f"a context of {self.context} is less than the {self.receptive_field} rows that an "
                "output depends on"
            )
        if self.input != "hybrid":
            if self.asset_dropout:
                raise ValueError("asset_dropout needs input=hybrid")
            if self.cross_dropout:
                raise ValueError("cross_dropout needs input=hybrid")

    @property
    def input_fields(self) -> tuple[str, ...]:
        """The fields that the model reads, in input order."""
        if self.fields:
            return self.fields
        return event.DISC_FIELDS if self.input == "disc" else event.CONT_FIELDS

    @property
    def num_continuous(self) -> int:
        """Number of continuous fields."""
        return 0 if self.input == "disc" else len(self.input_fields)

    @property
    def embedded(self) -> tuple[str, ...]:
        """Embedded fields: all of them, or the metadata beside continuous ones, or none."""
        if self.input == "disc":
            return self.input_fields
        return event.META_FIELDS if self.input == "hybrid" else ()

    @property
    def window(self) -> int:
        """Positions that a layer sees at most."""
        if not self.attention_window:
            return self.context
        return min(self.attention_window, self.context)

    @property
    def receptive_field(self) -> int:
        """Rows that an output depends on."""
        if not self.attention_window:
            return self.context
        return 1 + self.num_layers * (self.window - 1)

    @property
    def history(self) -> int:
        """Rows that an event must have to be scored, its own included, whatever the attention
        window.
        """
        if not self.attention_window:
            return self.context
        return min(self.context, SCORED_HISTORY)

    def outputs(self, vocabulary: Mapping[str, int]) -> dict[str, int]:
        """Number of outputs of each head; index 0 of a target has none."""
        sizes = {"return": event.NUM_RETURN_BUCKETS}
        if self.return_head == "moms":
            sizes = {
                "state": self.num_states,
                "return": self.num_states * event.NUM_RETURN_BUCKETS,
            }
        auxiliary = {
            "gap": vocabulary["gap_bucket"] - 1,
            "vol_regime": vocabulary["vol_regime"] - 1,
            "ordinal": event.NUM_RETURN_BUCKETS - 1,
        }
        for task, size in auxiliary.items():
            if task in self.auxiliaries:
                sizes[task] = size
        return sizes


def _require_choices(name: str, values: tuple[str, ...], known: tuple[str, ...]) -> None:
    """Refuse values that are unknown or come twice."""
    unknown = [value for value in values if value not in known]
    if unknown:
        raise ValueError(f"{name} must be among {', '.join(known)}, not {', '.join(unknown)}")
    if len(set(values)) < len(values):
        raise ValueError(f"{name} must not repeat")
