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
})();
