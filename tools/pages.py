"""What the documentation site has beyond docs/: pages of the root, notebooks, the reference of
commands, formulas.

Enters: the events of a build by MkDocs, which names this file as its hook. Leaves: pages and HTML.
As a program it writes the results of README.md again, from the page of all tables.
"""

from __future__ import annotations

import io
import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[1]
ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
NOTEBOOKS = {
    path: f"examples/{path.stem}.md" for path in sorted((ROOT / "examples").glob("*.ipynb"))
}
COMMANDS = "commands.md"
GENERATED = {*ROOT_PAGES.values(), *NOTEBOOKS.values(), COMMANDS}
RESULTS = re.compile(r"(?<=-->\n)[^<]*(?=<!-- /results -->)")
SHOWN = {
    "frequency": "Frequency: how often each bucket came",
    "garch_t": "GARCH, Student-t",
    "hour_of_week": "Hour of the week",
    "garch_t_seasonal": "GARCH on returns freed from their hour of the week",
    "lightgbm": "LightGBM, the paper's main baseline",
    "har_t": "HAR on ranges, Student-t",
    "gru": "GRU",
    "tabm": "TabM on lags",
    "lightgbm_extra": "LightGBM on lags and extra fields",
    "main, mean of seeds": "**`main`**, the paper's model",
    "best, mean of seeds": "**`best`**, ours",
}
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    for source, page in ROOT_PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text.replace("](docs/", "](")))
    for path, page in NOTEBOOKS.items():
        files.append(File.generated(config, page, content=notebook_page(path)))
        files.append(File.generated(config, f"examples/{path.name}", abs_src_path=str(path)))
    files.append(File.generated(config, COMMANDS, content=commands_page()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A link to a page of the root leads to its copy; a folder of records is not on the site."""
    for source, page in ROOT_PAGES.items():
        markdown = re.sub(rf"\]\((\.\./)*{source}", f"]({page}", markdown)
    markdown = re.sub(r"\]\(\.\./examples/([\w-]+)\.ipynb", r"](examples/\1.md", markdown)
    return re.sub(r"\[(\w+)\]\(results\)", r"`docs/\1`", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Formulas as MathML, which browsers draw by themselves."""
    from html import unescape

    from latex2mathml.converter import convert

    return FORMULA.sub(lambda found: convert(unescape(found[2])), html)


def run_notebook(path: Path) -> Iterator[tuple[str, str, str]]:
    """Kind, text and printed lines of each cell, whose code is run in order in one namespace, in an
    empty folder.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            text, printed = "".join(cell["source"]), io.StringIO()
            if cell["cell_type"] == "code":
                with redirect_stdout(printed):
                    exec(compile(text, path.name, "exec"), names)
            yield cell["cell_type"], text, printed.getvalue()


def notebook_page(path: Path) -> str:
    """A notebook with what it prints; links of a notebook are as they are where it lies."""
    parts = []
    for kind, text, printed in run_notebook(path):
        parts.append(
            text.replace(".ipynb)", ".md)").replace("](../docs/", "](../")
            if kind == "markdown"
            else _fence(text)
        )
        parts += [_fence(printed, "text")] if printed else []
    parts.append(f"Made by running [{path.name}]({path.name}) when this site was built.")
    return "\n\n".join(parts) + "\n"


def _fence(text: str, language: str = "python") -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def results_table() -> str:
    """Some rows of the page of all tables, which is made from the records: bits on each period."""
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    section = page.partition("## All baselines in one table\n")[2].partition("\n## ")[0]
    lines = [
        re.split(r" *\| *", line.strip("| "))
        for line in section.splitlines()
        if line.startswith("|")
    ]
    bits = [at for at, head in enumerate(lines[0]) if head.endswith("events")]
    by_name = {line[0].replace("\\_", "_").strip("*"): [line[at] for at in bits] for line in lines}
    rows = [
        ["", *(lines[0][at].partition(",")[0] for at in bits)],
        ["---", *("---:" for _ in bits)],
    ]
    rows += [[label, *by_name[name]] for name, label in SHOWN.items()]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def with_results(readme: str) -> str:
    return RESULTS.sub(results_table().replace("\\", r"\\"), readme)


def commands_page() -> str:
    """Every command as `--help` describes it."""
    from typer.main import get_command

    from vaiom.cli.main import app

    introduction = (
        "As `--help` says it. Every command that reports has `--json`: one object on "
        "stdout, nothing else there."
    )
    return "\n\n".join(["# Commands", introduction, *_describe(get_command(app), "vaiom")]) + "\n"


def _describe(command: Any, path: str) -> Iterator[str]:
    subcommands = getattr(command, "commands", {})
    if subcommands and path != "vaiom":
        yield f"## {path}\n\n{command.help}"
    for name, each in subcommands.items():
        yield from _describe(each, f"{path} {name}")
    if not subcommands and not command.params:
        yield (
            f"## {path}\n\n{command.help} In a "
            f"checkout:\n\n{_fence(_help_of(path.split()[1:]), 'text')}"
        )
    elif not subcommands:
        context = command.make_context(path, [], resilient_parsing=True)
        words = " ".join(command.collect_usage_pieces(context))
        yield (
            f"{'###' if path.count(' ') > 1 else '##'} {path}\n\n{command.help}\n\n```\n{path} "
            f"{words}\n```"
        )
        rows = [
            _row(each, context) for each in command.params if not getattr(each, "hidden", False)
        ]
        yield "\n".join(["| | default | |", "|---|---|---|", *rows])


def _help_of(words: list[str]) -> str:
    """What a command prints that passes its words on to another program."""
    from vaiom.cli.main import app

    with redirect_stdout(io.StringIO()) as printed, suppress(SystemExit):
        app([*words, "--help"], prog_name="vaiom")
    return printed.getvalue()


def _row(parameter: Any, context: Any) -> str:
    if parameter.param_type_name == "argument":
        names = f"`{parameter.metavar or parameter.name.upper()}`"
    else:
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    default = "required" if parameter.required else parameter.get_default(context)
    shown = "" if default is None or default is False or default in ((), []) else str(default)
    about = " ".join((parameter.help or "").split())
    return f"| {names} | {_cell(shown)} | {_cell(about)} |"


def _cell(text: str) -> str:
    return re.sub(r"(?<!`)<([A-Za-z]+)>", r"&lt;\1&gt;", text.replace("|", "\\|"))


if __name__ == "__main__":
    (ROOT / "README.md").write_text(
        with_results((ROOT / "README.md").read_text(encoding="utf-8")), encoding="utf-8"
    )
