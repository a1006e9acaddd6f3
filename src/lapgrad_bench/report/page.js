"use strict";
// Tables can be sorted by any column and filtered by text. Without this script they show all the same.
(() => {
  const key = (row, i) => {
    const cell = row.cells[i];
    return cell.dataset.key ?? cell.textContent.trim();
  };
  const compare = (a, b) => {
    const x = parseFloat(a), y = parseFloat(b);
    const numbers = !Number.isNaN(x) && !Number.isNaN(y) && Number.isFinite(+a) && Number.isFinite(+b);
    return numbers ? x - y : a.localeCompare(b, "en", { numeric: true });
  };
  // A cell without a figure stays at the end, whichever way the others go.
  const missing = (text) => text === "–" || text === "";

  const sort = (table, i, direction) => {
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [key(row, i), row]);
    rows.sort(([a], [b]) => missing(a) - missing(b) || (missing(a) ? 0 : direction * compare(a, b)));
    body.append(...rows.map(([, row]) => row));
  };

  const makeSortable = (table) => {
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, i) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => {
        const descending = heading.getAttribute("aria-sort") === "ascending";
        headings.forEach((other) => other.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
        sort(table, i, descending ? -1 : 1);
      });
    });
  };

  const addFilter = (table) => {
    const rows = [...table.tBodies[0].rows];
    if (rows.length < 8) return;
    const line = document.createElement("div");
    const label = document.createElement("label");
    const input = document.createElement("input");
    const count = document.createElement("span");
    line.className = "filter";
    input.type = "search";
    input.placeholder = "potrf float64 back";
    label.append("Rows with ", input);
    count.setAttribute("role", "status");
    line.append(label, count);
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        const hit = words.every((word) => text.includes(word));
        row.hidden = !hit;
        shown += hit;
      }
      count.textContent = words.length ? `${shown} of ${rows.length} rows` : "";
    });
    table.parentElement.before(line);
  };

  for (const table of document.querySelectorAll("table.sortable")) {
    makeSortable(table);
    addFilter(table);
  }
})();
