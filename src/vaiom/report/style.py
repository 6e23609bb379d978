"""The look of the page and the little that it does: one style sheet, one script, no other file."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fffef9; --ink: #1d1c1a; --muted: #6e6a62; --rule: #e6e2d8; --wash: #f6f3ea;
  --accent: #1f5f8b; --good: #1d7a68; --bad: #b4442e;
  --serif: Charter, "Bitstream Charter", "Iowan Old Style", "Palatino Linotype", Palatino, Georgia, serif;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  --mono: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
}
:root[data-theme="light"] { color-scheme: light; }
:root[data-theme="dark"] { color-scheme: dark; }
DARK
* { box-sizing: border-box; }
html { scroll-behavior: smooth; scroll-padding-top: 1.5rem; -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 17px/1.6 var(--serif); font-kerning: normal; text-rendering: optimizeLegibility;
}
.page {
  display: grid; grid-template-columns: 13rem minmax(0, 54rem); gap: 3.5rem; max-width: 76rem;
  margin: 0 auto; padding: 3.5rem 2rem 6rem;
}
nav {
  position: sticky; top: 3rem; align-self: start; max-height: calc(100vh - 4rem); overflow-y: auto;
  font: 13px/1.45 var(--sans);
}
nav ol { list-style: none; margin: 0; padding: 0; }
nav li { margin: 0 0 .5rem; }
nav a { color: var(--muted); text-decoration: none; }
nav a:hover, nav a:focus-visible { color: var(--ink); text-decoration: underline; text-underline-offset: .2em; }
#theme {
  margin: 1.4rem 0 0; padding: .3rem .7rem; font: inherit; color: var(--muted); background: none;
  border: 1px solid var(--rule); border-radius: 2rem; cursor: pointer;
}
#theme:hover { color: var(--ink); border-color: var(--muted); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
header { margin-bottom: 3rem; }
.kicker {
  margin: 0; font: 600 12px/1.4 var(--sans); letter-spacing: .12em; text-transform: uppercase;
  color: var(--muted);
}
h1 { margin: .5rem 0 .4rem; font-weight: 400; font-size: 2.6rem; line-height: 1.12; letter-spacing: -.01em; }
.facts { margin: 0 0 1.8rem; font: 14px/1.5 var(--sans); color: var(--muted); }
.verdict { max-width: 40rem; }
.verdict p { margin: 0 0 .7rem; }
.verdict .finding { font-size: 1.22rem; line-height: 1.5; }
section { margin: 0 0 3.6rem; }
h2 {
  margin: 0 0 .9rem; padding-top: 1.1rem; border-top: 1px solid var(--ink); font-weight: 400;
  font-size: 1.6rem; line-height: 1.25;
}
h3 { margin: 2.2rem 0 .6rem; font: 600 15px/1.4 var(--sans); }
p, dl { max-width: 40rem; }
p { margin: 0 0 1rem; }
code { font: .84em var(--mono); }
.note { font-size: .92rem; color: var(--muted); }
.scroll { overflow-x: auto; margin: 1.2rem 0 1.6rem; }
table {
  border-collapse: separate; border-spacing: 0; font: 13px/1.4 var(--sans);
  font-variant-numeric: tabular-nums lining-nums; min-width: 24rem;
}
caption { text-align: left; padding: 0 0 .5rem; font-weight: 600; }
caption span { position: sticky; left: 0; display: inline-block; max-width: min(54rem, calc(100vw - 2.3rem)); }
th, td {
  padding: .3rem .85rem .3rem 0; text-align: right; font-weight: 400; white-space: nowrap;
  vertical-align: baseline;
}
th.words, td.words { text-align: left; }
tr > :first-child { position: sticky; left: 0; background: var(--paper); }
tr > :last-child { padding-right: .2rem; }
td.words { overflow-wrap: anywhere; }
thead th { border-top: 1.5px solid var(--ink); border-bottom: 1px solid var(--ink); vertical-align: bottom; }
thead button { all: unset; cursor: pointer; color: var(--muted); font-size: 12px; }
thead button:hover { color: var(--ink); }
thead button:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
thead th[aria-sort="ascending"] button::after { content: " \\2191"; }
thead th[aria-sort="descending"] button::after { content: " \\2193"; }
tbody tr:first-child > * { padding-top: .45rem; }
tbody tr:last-child > * { border-bottom: 1.5px solid var(--ink); padding-bottom: .45rem; }
tbody tr:hover > * { background: var(--wash); }
tr.strong > * { font-weight: 650; }
figure { margin: 1.4rem 0 2.2rem; }
figure .scroll { margin: 0; }
figure svg {
  display: block; width: 100%; min-width: 34rem; max-width: calc(var(--natural) * 1.5); height: auto;
  font-family: var(--sans);
}
figcaption { max-width: 40rem; margin-top: .5rem; font-size: .92rem; line-height: 1.5; color: var(--muted); }
details { margin: 0 0 .6rem; }
summary { cursor: pointer; font: 13px/1.5 var(--sans); color: var(--muted); }
summary:hover { color: var(--ink); }
pre {
  overflow-x: auto; margin: 1rem 0; padding: .9rem 1.1rem; background: var(--wash);
  font: 13px/1.6 var(--mono);
}
.facts-table table { width: 100%; min-width: 0; }
.facts-table td, .facts-table tbody th { white-space: normal; }
dt { font-weight: 650; }
dd { margin: 0 0 .9rem; }
footer { font: 13px/1.5 var(--sans); color: var(--muted); border-top: 1px solid var(--rule); padding-top: 1rem; }
@media (max-width: 62rem) {
  .page { display: block; padding: 1.6rem 1.15rem 4rem; }
  nav {
    position: static; max-height: none; margin: 0 0 2rem; padding-bottom: 1rem;
    border-bottom: 1px solid var(--rule);
  }
  nav ol { columns: 2; column-gap: 1.5rem; }
  #theme { margin-top: .4rem; }
  h1 { font-size: 2rem; }
  .verdict .finding { font-size: 1.1rem; }
}
@media print {
  :root, :root[data-theme] { color-scheme: light; LIGHT_COLOURS }
  body { font-size: 10.5pt; }
  .page { display: block; max-width: none; padding: 0; }
  nav, thead button::after { display: none; }
  .scroll { overflow: visible; }
  table { font-size: 7pt; min-width: 0; }
  th, td { padding-right: .5em; }
  figure svg { min-width: 0; }
  figure, table, dl > div { break-inside: avoid; }
  h2, h3, caption { break-after: avoid; }
}
"""

_LIGHT = "--paper: #fff; --ink: #000; --muted: #555; --rule: #ddd; --wash: #f4f4f4;"
_DARK = (
    "--paper: #16171a; --ink: #e4e1da; --muted: #938f88; --rule: #303236; --wash: #1e2024; "
    "--accent: #7db4dc; --good: #58b8a2; --bad: #e5826b;"
)

SCRIPT = """
(() => {
  const root = document.documentElement, button = document.getElementById("theme");
  const dark = () => root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  const name = () => { button.textContent = dark() ? "Light page" : "Dark page"; };
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); });
  button.hidden = false;
  name();

  const key = (row, column) => {
    const cell = row.cells[column];
    if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
    return cell.textContent;
  };
  const compare = (a, b) => typeof a === "number" && typeof b === "number"
    ? a - b
    : String(a).localeCompare(String(b), "en", { numeric: true });
  const missing = (value) => typeof value === "string" && (value === "" || value === "\\u2013");
  document.querySelectorAll("thead th button").forEach((head) => {
    head.addEventListener("click", () => {
      const th = head.closest("th"), table = head.closest("table"), body = table.tBodies[0];
      const down = th.getAttribute("aria-sort") === "ascending";
      table.querySelectorAll("thead th").forEach((other) => other.setAttribute("aria-sort", "none"));
      th.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].map((row) => [key(row, th.cellIndex), row]);
      // What is missing stays at the end, whichever way the others go.
      rows.sort(([a], [b]) => missing(a) - missing(b) || (missing(a) ? 0 : compare(a, b) * (down ? -1 : 1)));
      body.append(...rows.map(([, row]) => row));
    });
  });
})();
"""


def style_sheet() -> str:
    """The style sheet, with the dark colours wherever the reader or the reader's system asks for them."""
    dark = f"""@media (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {_DARK} }} }}
:root[data-theme="dark"] {{ {_DARK} }}"""
    return STYLE.replace("DARK", dark, 1).replace("LIGHT_COLOURS", _LIGHT)
