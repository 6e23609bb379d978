"""Models whose layers see a window of rows: attention against a plain mask, chunks against windows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from training.tiny_runs import CPU
from vaiom.corpus.store import Corpus
from vaiom.model.config import ModelConfig
from vaiom.model.decoder import causal_attention
from vaiom.model.heads import return_log_probs
from vaiom.model.vaiom import Vaiom
from vaiom.training.windows import DeviceCorpus, Scorer, plan_chunks

CONFIG = ModelConfig(
    positions="rotary", attention_window=8, num_layers=3, num_heads=2, width=16, context=64
)


@pytest.mark.parametrize("window", [1, 7, 128, 200, 300])
@pytest.mark.parametrize("rate", [0.0, 1e-12])
def test_attention_is_that_of_a_band(window: int, rate: float) -> None:
    torch.manual_seed(0)
    qkv = torch.randn(2, 300, 3, 2, 8)
    q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
    seen = torch.ones(300, 300, dtype=torch.bool).tril().triu(1 - window)
    scores = (q @ k.transpose(-1, -2) * 8**-0.5).masked_fill(~seen, float("-inf"))
    expected = (scores.softmax(-1) @ v).transpose(1, 2)
    torch.testing.assert_close(causal_attention(qkv, rate, window), expected, atol=1e-5, rtol=1e-5)


def make_model(corpus: Corpus) -> Vaiom:
    torch.manual_seed(1)
    return Vaiom(CONFIG, corpus.tokenizer.vocabulary_sizes).eval()


def test_an_answer_depends_on_its_receptive_field_alone(corpus: Corpus) -> None:
    """Rows before it change nothing, the first row of it does."""
    model = make_model(corpus)
    x = torch.randn(1, 60, len(CONFIG.input_fields))
    meta = torch.from_numpy(corpus.meta[:1].astype(np.int64))
    field = CONFIG.receptive_field
    assert field == 22
    before = x.clone()
    inside = x.clone()
    before[:, : 60 - field] += 1
    inside[:, 60 - field] += 1
    with torch.no_grad():
        answer, same, other = (model.log_probs(each, meta) for each in (x, before, inside))
        every = model(x, meta)
    torch.testing.assert_close(answer, same, atol=1e-6, rtol=0)
    assert (answer - other).abs().max() > 1e-6
    last = {name: values[:, -1:] for name, values in every.items()}
    torch.testing.assert_close(return_log_probs(last)[:, -1], answer, atol=1e-6, rtol=0)


def test_chunks_predict_like_windows(corpus: Corpus) -> None:
    """From the first row of an asset on, in any order, over several chunks."""
    model = make_model(corpus)
    data = DeviceCorpus(corpus, CONFIG, CPU)
    scorer = Scorer(model, data, torch.float32, chunk_rows=64)
    second = list(corpus.asset_slices.values())[1].start
    rows = np.random.default_rng(0).permutation(
        np.concatenate([np.arange(150), np.arange(second, second + 150)])
    )
    found = scorer.predict(rows)
    x = torch.from_numpy(corpus.inputs(CONFIG))
    meta = torch.from_numpy(corpus.meta.astype(np.int64))
    with torch.no_grad():
        for row, answer in zip(rows.tolist(), found, strict=True):
            first = max(0 if row < second else second, row - CONFIG.receptive_field + 1)
            expected = model.log_probs(x[None, first : row + 1], meta[row : row + 1])[0]
            torch.testing.assert_close(answer, expected, atol=2e-6, rtol=0)


def test_a_chunk_has_its_warmup_or_starts_with_its_asset() -> None:
    bounds = np.array([[0, 100], [100, 250]])
    rows = np.array([3, 40, 99, 100, 120, 249])
    firsts = plan_chunks(rows, bounds, warmup=10, length=30)
    assert firsts.tolist() == [0, 30, 89, 100, 100, 239]
