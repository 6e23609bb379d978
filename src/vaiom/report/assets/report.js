(() => {
  const key = (row, column) => {
    const cell = row.cells[column];
    if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
    return cell.textContent;
  };
  const compare = (a, b) => typeof a === "number" && typeof b === "number"
    ? a - b
    : String(a).localeCompare(String(b), "en", { numeric: true });
  const missing = (value) => typeof value === "string" && (value === "" || value === "\u2013");
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
  // One split at a time, the last at first; on paper, and without scripts, all of them.
  const tabs = [...document.querySelectorAll("[data-shows]")];
  const show = (tab) => {
    tabs.forEach((each) => {
      each.setAttribute("aria-selected", String(each === tab));
      each.tabIndex = each === tab ? 0 : -1;
    });
    document.querySelectorAll("[data-split]").forEach((part) => { part.hidden = part.dataset.split !== tab.dataset.shows; });
  };
  tabs.forEach((tab, at) => {
    tab.addEventListener("click", () => show(tab));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      const next = tabs[(at + step + tabs.length) % tabs.length];
      next.focus();
      show(next);
    });
  });
  if (tabs.length) {
    tabs[0].parentElement.hidden = false;
    show(tabs[tabs.length - 1]);
  }
})();
