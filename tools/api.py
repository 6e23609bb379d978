"""The API page, from signatures and docstrings: `python tools/api.py` writes docs/api.md.

Enters: the source of the modules below. Leaves: Markdown, what users call in the order in which data flows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "api.md"
COMMAND = "python tools/api.py"
WIDTH = 100

INTRODUCTION = f"""\
# What you can call

Written by `{COMMAND}` from the signatures and docstrings, in the order in which data flows. The whole job is there as
`vaiom.read_bars`, `vaiom.train`, `vaiom.Forecaster` and so on; a class or function below is imported from the module
above it. Names that are not on this page may change without notice. What a forecast means, and what it
does not, is in [forecasting.md](forecasting.md); the same steps on the command line are in [tutorial.md](tutorial.md).
"""

CONTENTS: dict[str, dict[str, Sequence[str]]] = {
    "The whole job": {"vaiom": ["simulate", "build_corpus", "train", "fit_baselines", "evaluate", "audit"]},
    "Prices": {
        "vaiom.market.imports": ["import_files"],
        "vaiom.market.formats.table": ["Options"],
        "vaiom.market.download": ["download"],
        "vaiom.market.resample": ["resample_folder", "resample"],
        "vaiom.market.check": ["check_folder", "check_bars", "QualityReport", "AssetQuality"],
        "vaiom.market.findings": ["Finding"],
        "vaiom.simulate.market": ["MarketConfig", "simulate", "write_market"],
        "vaiom.market.folder": ["read_bars", "write_symbol"],
    },
    "Corpora": {
        "vaiom.events.build": ["CorpusConfig", "build_corpus", "append_bars"],
        "vaiom.events.splits": ["SplitConfig"],
        "vaiom.events.corpus": ["open_corpus", "Corpus"],
        "vaiom.events.pack": ["pack", "unpack"],
    },
    "Training": {
        "vaiom.experiments.registry": ["experiment"],
        "vaiom.training.experiment": ["Experiment"],
        "vaiom.training.loop": ["train", "TrainResult"],
        "vaiom.experiments.refit": ["refit"],
    },
    "Baselines": {
        "vaiom.baselines.registry": ["baseline"],
        "vaiom.baselines.base": ["Predictor", "Baseline"],
    },
    "Judgement": {
        "vaiom.evaluation.predictor": ["score_baselines", "ModelPredictor"],
        "vaiom.evaluation.evaluate": ["evaluate_run", "Evaluation"],
        "vaiom.evaluation.scores": ["event_bits"],
        "vaiom.evaluation.inference": ["compare", "PairedComparison", "PairedGain", "BlockBootstrap"],
        "vaiom.evaluation.events_file": ["read_events", "ScoredEvents"],
        "vaiom.evaluation.ledger": ["count_looks", "read_ledger"],
        "vaiom.report.page": ["write_report"],
        "vaiom.audit.audit": ["audit_path"],
        "vaiom.audit.proof": ["Proof"],
    },
    "Forecasts": {
        "vaiom.forecast.forecaster": ["Forecaster"],
        "vaiom.forecast.distribution": ["ReturnDistribution"],
        "vaiom.events.distribution": ["BucketDistribution", "ReturnDistributions"],
        "vaiom.forecast.rows": ["History"],
        "vaiom.forecast.online": ["OnlineForecaster"],
        "vaiom.forecast.engine": ["export_run", "Exported"],
    },
    "Errors": {"vaiom.errors": ["UserError", "DataError", "ConfigError", "CheckpointError"]},
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module:
    """The source of a module, and what it defines."""

    def __init__(self, name: str) -> None:
        path = ROOT / "src" / Path(*name.split("."))
        self.name = name
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        self.source = file.read_text(encoding="utf-8")
        self.tree = ast.parse(self.source)

    def entry(self, name: str) -> str:
        """A function or class as Markdown."""
        found = [node for node in self.tree.body if isinstance(node, ast.ClassDef | Function) and node.name == name]
        if not found:
            raise SystemExit(f"{self.name} has no {name}: correct CONTENTS of {Path(__file__).name}")
        node = found[-1]
        if isinstance(node, ast.ClassDef):
            # A module that is about one class may say it for the class.
            return "\n\n".join([f"#### `{name}`", _about(node) or _about(self.tree), *self._members(node)])
        return f"#### `{name}`\n\n```python\n{self._signature(node, WIDTH)}\n```\n\n{_about(node)}"

    def _members(self, node: ast.ClassDef) -> Iterator[str]:
        fields = [self._field(*pair) for pair in zip(node.body, [*node.body[1:], None], strict=True)]
        methods = [self._method(each) for each in node.body if isinstance(each, Function)]
        listed = [line for line in (*fields, *methods) if line]
        if listed:
            yield "\n".join(listed)

    def _field(self, node: ast.stmt, after: ast.stmt | None) -> str:
        """A field of a dataclass; a string that follows it is its docstring."""
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name) or node.target.id[0] == "_":
            return ""
        default = "" if node.value is None else _default(self._text(node.value))
        text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        return _bullet(f"{node.target.id}: {self._text(node.annotation)}{default}", str(text))

    def _method(self, node: Function) -> str:
        decorators = {self._text(each) for each in node.decorator_list}
        if (node.name[0] == "_" and node.name != "__getitem__") or "overload" in decorators:
            return ""
        if not decorators.isdisjoint({"property", "cached_property"}):
            return _bullet(f"{node.name}: {self._text(node.returns)}", _about(node))
        # What a user calls has a docstring; the rest is plumbing.
        return _bullet(self._signature(node), _about(node)) if _about(node) else ""

    def _signature(self, node: Function, width: int | None = None) -> str:
        """On one line, or with a line for each argument where that is wider than `width`."""
        arguments, after = self._arguments(node.args), f" -> {self._text(node.returns)}" if node.returns else ""
        one_line = f"{node.name}({', '.join(arguments)}){after}"
        if width is None or len(one_line) <= width:
            return one_line
        return "\n".join([f"{node.name}(", *(f"    {argument}," for argument in arguments), f"){after}"])

    def _arguments(self, given: ast.arguments) -> list[str]:
        plain = [*given.posonlyargs, *given.args]
        defaults = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
        shown = [self._argument(*pair) for pair in zip(plain, defaults, strict=True) if pair[0].arg not in _IMPLIED]
        if given.vararg or given.kwonlyargs:
            shown.append(f"*{self._argument(given.vararg, None) if given.vararg else ''}")
        shown += [self._argument(*pair) for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
        return shown + ([f"**{self._argument(given.kwarg, None)}"] if given.kwarg else [])

    def _argument(self, node: ast.arg, default: ast.expr | None) -> str:
        annotation = f": {self._text(node.annotation)}" if node.annotation else ""
        return f"{node.arg}{annotation}{_default(self._text(default)) if default else ''}"

    def _text(self, node: ast.AST | None) -> str:
        """As it stands in the source, on one line; how a field is stored is nothing that a caller needs."""
        if (
            isinstance(node, ast.Subscript)
            and self._text(node.value) == "Annotated"
            and isinstance(node.slice, ast.Tuple)
        ):
            node = node.slice.elts[0]
        return "" if node is None else " ".join((ast.get_source_segment(self.source, node) or "").split())


_IMPLIED = ("self", "cls")


def _default(text: str) -> str:
    """A default that is made anew each time has no value to show."""
    return " = ..." if text.startswith("field(") or len(text) > WIDTH // 2 else f" = {text}"


def _about(node: ast.ClassDef | Function | ast.Module) -> str:
    """The first paragraph of a docstring."""
    return " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())


def _bullet(code: str, about: str) -> str:
    return f"- `{code}`" + (f": {about}" if about else "")


def page() -> str:
    parts = [INTRODUCTION.rstrip()]
    for title, modules in CONTENTS.items():
        parts.append(f"## {title}")
        for module in map(Module, modules):
            parts.append(f"### {module.name}")
            parts += [module.entry(name) for name in modules[module.name]]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} is up to date")
