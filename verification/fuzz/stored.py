"""Files that vaiom itself wrote and somebody may have changed since: bars, corpora, checkpoints,
losses, records.

Where a checksum guards a file, one target spoils the file as it is and another seals the spoiled
contents with a checksum that fits: whoever can write the file can do that too.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from vaiom.baselines.stored_losses import load_losses
from vaiom.corpus.manifest import LEDGER_NAME, MANIFEST_NAME, STATE_NAME, TOKENIZER_NAME
from vaiom.corpus.pack import unpack
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.evaluation.access_ledger import read_ledger
from vaiom.files import sha256_of
from vaiom.forecast.ledger import ForecastLedger, Settlement
from verification.fuzz.materials import CONTEXT, SPLIT
from verification.fuzz.mutations import Mutate, spoil_bytes, spoil_json, spoil_text

Entry = tuple[Sequence[bytes], Mutate, Callable[[bytes], object], int]


def targets(materials: Path, scratch: Path) -> dict[str, Entry]:
    corpus, run = materials / "corpus", materials / "run"
    manifest = json.loads((corpus / MANIFEST_NAME).read_bytes())
    rows = corpus / manifest["folder"]
    bars = [(materials / "bars" / "EURUSD.parquet").read_bytes()]
    arrays = [(rows / name).read_bytes() for name in ("flags.npy", "ret_z.npy")]
    checkpoint = [(run / "best.safetensors").read_bytes()]
    header = [_metadata(run / "best.safetensors")["vaiom"].encode()]
    return {
        "bar file": (bars, spoil_bytes, _bars(scratch / "one" / "EURUSD.parquet"), 10),
        "corpus manifest": (
            _seed(corpus / MANIFEST_NAME),
            spoil_json,
            _Folder(corpus, scratch / "c1").manifest,
            5,
        ),
        "corpus manifest, sealed": (
            _seed(corpus / MANIFEST_NAME),
            spoil_json,
            _Folder(corpus, scratch / "c2").seal,
            8,
        ),
        "tokenizer, sealed": (
            _seed(corpus / TOKENIZER_NAME),
            spoil_json,
            _Folder(corpus, scratch / "c3").tokenizer,
            8,
        ),
        "corpus state, sealed": (
            _seed(rows / STATE_NAME),
            spoil_json,
            _Folder(corpus, scratch / "c4").state,
            4,
        ),
        "corpus column": (arrays, spoil_bytes, _Folder(corpus, scratch / "c5").column, 10),
        "corpus look ledger": (
            _seed(corpus / LEDGER_NAME),
            spoil_text,
            _looks(scratch / "looks"),
            15,
        ),
        "forecast ledger": (
            _forecasts(scratch / "seed.jsonl"),
            spoil_text,
            _on_record(scratch / "f" / "a.jsonl"),
            15,
        ),
        "forecast ledger, sealed": (
            _forecasts(scratch / "seed.jsonl")[0].splitlines(),
            spoil_json,
            _sealed_line(scratch / "f" / "b.jsonl"),
            15,
        ),
        "packed corpus": (
            _seed(materials / "corpus.zip"),
            spoil_bytes,
            _unpack(scratch / "packed"),
            2,
        ),
        "checkpoint": (checkpoint, spoil_bytes, _checkpoint(scratch / "a.safetensors"), 4),
        "checkpoint header, sealed": (
            header,
            spoil_json,
            _header(run, scratch / "b.safetensors"),
            3,
        ),
        "horizons": (
            _seed(run / "horizons.safetensors"),
            spoil_bytes,
            _horizons(run, scratch / "h1.safetensors"),
            4,
        ),
        "horizons header, sealed": (
            [_metadata(run / "horizons.safetensors")["vaiom"].encode()],
            spoil_json,
            _sealed_horizons(run, scratch / "h2.safetensors"),
            4,
        ),
        "dependence": (
            _seed(run / "dependence.json"),
            spoil_json,
            _dependence(run, scratch / "d.json"),
            8,
        ),
        "training state": (_state_seed(run), spoil_bytes, _state(scratch / "s.safetensors"), 3),
        "run config": (_seed(run / "config.toml"), spoil_text, _config(scratch / "run"), 12),
        "run metrics": (
            _seed(run / "metrics.jsonl"),
            spoil_text,
            _metrics(scratch / "log" / "metrics.jsonl"),
            15,
        ),
        "stored losses": (
            _seed(materials / "losses" / f"{SPLIT}.npz"),
            spoil_bytes,
            _losses(corpus, scratch / "l"),
            5,
        ),
        "events parquet": (
            _seed(run / f"events-{SPLIT}.parquet"),
            spoil_bytes,
            _events(scratch / "e1", "parquet"),
            8,
        ),
        "events npz": (
            _seed(materials / f"events-{SPLIT}.npz"),
            spoil_bytes,
            _events(scratch / "e2", "npz"),
            8,
        ),
        "evaluation": (
            _seed(run / f"evaluation-{SPLIT}.json"),
            spoil_json,
            _evaluation(scratch / "ev", run),
            3,
        ),
        "record": (
            _seed(materials / "record.json"),
            spoil_json,
            _record(scratch / "record.json"),
            12,
        ),
        "truth": (_seed(materials / "truth.npz"), spoil_bytes, _truth(scratch / "truth.npz"), 5),
    }


def _seed(*files: Path) -> list[bytes]:
    return [file.read_bytes() for file in files]


def _bars(file: Path) -> Callable[[bytes], object]:
    from vaiom.market.folder import read_bars

    return _written(file, read_bars)


def _written(file: Path, parse: Callable[[Path], object]) -> Callable[[bytes], object]:
    file.parent.mkdir(parents=True, exist_ok=True)

    def write_and_parse(data: bytes) -> object:
        file.write_bytes(data)
        return parse(file)

    return write_and_parse


class _Folder:
    """A copy of the corpus in which one file is spoiled; opening it must be enough to use
    everything in it.
    """

    def __init__(self, corpus: Path, copy: Path) -> None:
        if not copy.exists():
            shutil.copytree(corpus, copy)
        self.path = copy
        self.value = json.loads((copy / MANIFEST_NAME).read_bytes())
        self.rows = copy / self.value["folder"]

    def manifest(self, data: bytes) -> object:
        (self.path / MANIFEST_NAME).write_bytes(data)
        return self._use()

    def seal(self, data: bytes) -> object:
        return self.manifest(_sealed(data))

    def tokenizer(self, data: bytes) -> object:
        try:
            value = json.loads(data)
            data = _spelled(value)
            digest = sha256_of(_loosely_canonical(value))
        except (ValueError, RecursionError):
            digest = ""
        (self.path / TOKENIZER_NAME).write_bytes(data)
        return self.seal(json.dumps({**self.value, "tokenizer_sha256": digest}).encode())

    def state(self, data: bytes) -> object:
        from vaiom.corpus.append import append_bars

        (self.rows / STATE_NAME).write_bytes(data)
        manifest = json.dumps({**self.value, "state_sha256": sha256_of(data)}).encode()
        (self.path / MANIFEST_NAME).write_bytes(_sealed(manifest))
        return append_bars(self.path, self.path.parent.parent / "materials" / "bars")

    def column(self, data: bytes) -> object:
        name = "ret_z" if b"<f4" in data[:128] else "flags"
        (self.rows / f"{name}.npy").write_bytes(data)
        arrays = {
            **self.value["arrays"],
            name: {**self.value["arrays"][name], "sha256": sha256_of(data)},
        }
        return self.seal(json.dumps({**self.value, "arrays": arrays}).encode())

    def _use(self) -> object:
        corpus = open_corpus(self.path)
        inputs = corpus.cont, corpus.disc, corpus.extra, corpus.target_return, corpus.target_gap
        return *inputs, corpus.endpoints(SPLIT, CONTEXT), corpus.tokenizer.sha256, corpus.sha256


def _sealed(manifest: bytes) -> bytes:
    """With a checksum that fits, where it can have one."""
    try:
        value = json.loads(manifest)
        unsealed = {key: item for key, item in value.items() if key != "manifest_sha256"}
        return _spelled({**unsealed, "manifest_sha256": sha256_of(_loosely_canonical(unsealed))})
    except (ValueError, AttributeError, TypeError, RecursionError):
        return manifest


def _spelled(value: Any) -> bytes:
    return json.dumps(value, indent=2).encode() + b"\n"


def _loosely_canonical(value: Any) -> bytes:
    """As `canonical_json`, but a forger writes NaN where it pleases."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _looks(folder: Path) -> Callable[[bytes], object]:
    corpus = SimpleNamespace(path=folder)
    return _written(folder / LEDGER_NAME, lambda _: read_ledger(corpus))  # type: ignore[arg-type]


def _forecasts(file: Path) -> list[bytes]:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"")
    ledger, at = ForecastLedger(file, "model"), datetime(2025, 1, 1)
    bits = {"model_bits": 3.0, "frequency_bits": 3.25}
    dist = SimpleNamespace(
        symbol="EURUSD", as_of=at, sigma=0.001, probs=np.full(16, 1 / 16), missing_assets=()
    )
    ledger.commit(dist)  # type: ignore[arg-type]
    ledger.settle(Settlement(symbol="EURUSD", as_of=at, target_time=at, **bits))
    ledger.close()
    return [file.read_bytes()]


def _on_record(file: Path) -> Callable[[bytes], object]:
    def read(path: Path) -> object:
        ledger = ForecastLedger(path, "model")
        ledger.close()
        return ledger.head, ledger.e_value

    return _written(file, read)


def _sealed_line(file: Path) -> Callable[[bytes], object]:
    read = _on_record(file)

    def sealed(text: bytes) -> object:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        return read(
            json.dumps({**value, "previous": sha256_of(b"")}).encode() + b"\n"
            if isinstance(value, dict)
            else text
        )

    return sealed


def _unpack(folder: Path) -> Callable[[bytes], object]:
    return _written(
        folder / "corpus.zip", lambda file: unpack(file, folder / "corpus", overwrite=True)
    )


def _metadata(file: Path) -> dict[str, str]:
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        return dict(opened.metadata())


def _checkpoint(file: Path) -> Callable[[bytes], object]:
    from vaiom.model.checkpoint import load_checkpoint

    return _written(file, load_checkpoint)


def _header(run: Path, file: Path) -> Callable[[bytes], object]:
    return _with_header(run / "best.safetensors", _checkpoint(file))


def _with_header(file: Path, load: Callable[[bytes], object]) -> Callable[[bytes], object]:
    """The tensors of a file under another header, with a checksum that fits."""
    from safetensors.torch import load_file, save

    tensors = load_file(file)

    def sealed(text: bytes) -> object:
        header = text.decode(errors="replace")
        return load(
            save(
                tensors,
                {"vaiom": header, "vaiom_sha256": sha256_of(header.encode(errors="replace"))},
            )
        )

    return sealed


def _horizons(run: Path, file: Path) -> Callable[[bytes], object]:
    from vaiom.model.checkpoint import load_checkpoint
    from vaiom.model.horizon_heads import load_horizons

    card = load_checkpoint(run / "best.safetensors")
    hidden, inputs = (
        np.zeros(card.config.width, np.float32),
        np.zeros(len(card.config.input_fields), np.float32),
    )

    def use(path: Path) -> object:
        found = load_horizons(path, card)
        return [found.probs(hidden, inputs, each.bars) for each in found.fitted.fits]

    return _written(file, use)


def _sealed_horizons(run: Path, file: Path) -> Callable[[bytes], object]:
    return _with_header(run / "horizons.safetensors", _horizons(run, file))


def _dependence(run: Path, file: Path) -> Callable[[bytes], object]:
    from vaiom.distribution.dependence import Dependence
    from vaiom.model.checkpoint import load_checkpoint

    sha256 = load_checkpoint(run / "best.safetensors").sha256

    def use(path: Path) -> object:
        found = Dependence.read(path, sha256)
        symbols = [*found.symbols, "GBPUSD"]
        return found.memory, found.initial_state().correlation(symbols, np.ones(len(symbols)))

    return _written(file, use)


def _state_seed(run: Path) -> list[bytes]:
    return _seed(*sorted((run / "checkpoints").glob("*.state.safetensors")))


def _state(file: Path) -> Callable[[bytes], object]:
    from vaiom.model.checkpoint import read_tensors
    from vaiom.training.step import FORMAT, FORMAT_VERSION

    return _written(file, lambda path: read_tensors(path, FORMAT, FORMAT_VERSION))


def _config(run: Path) -> Callable[[bytes], object]:
    from vaiom.run import Run

    return _written(Run(run).config, lambda _: (Run(run).read_config(), Run(run).corpus_path()))


def _metrics(file: Path) -> Callable[[bytes], object]:
    from vaiom.run import Run

    return _written(file, lambda path: Run(path.parent).read_metrics())


def _losses(corpus: Path, folder: Path) -> Callable[[bytes], object]:
    opened: Corpus = open_corpus(corpus)
    return _written(folder / f"{SPLIT}.npz", lambda _: load_losses(folder, opened, SPLIT, CONTEXT))


def _events(folder: Path, suffix: str) -> Callable[[bytes], object]:
    from vaiom.evaluation.scores import read_events

    return _written(folder / f"events-{SPLIT}.{suffix}", lambda _: read_events(folder, SPLIT))


def _evaluation(folder: Path, run: Path) -> Callable[[bytes], object]:
    from vaiom.evaluation.record import Evaluation
    from vaiom.model.checkpoint import load_checkpoint

    sha256 = load_checkpoint(run / "best.safetensors").sha256
    return _written(
        folder / f"evaluation-{SPLIT}.json", lambda _: Evaluation.read(folder, SPLIT, sha256)
    )


def _record(file: Path) -> Callable[[bytes], object]:
    from reproduction.records import read_record

    return _written(file, read_record)


def _truth(file: Path) -> Callable[[bytes], object]:
    from vaiom.simulation.oracle import Truth

    return _written(file, Truth.load)
