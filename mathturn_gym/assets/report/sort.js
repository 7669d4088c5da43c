"use strict";
// A click on a heading sorts its table: numbers from the largest, texts from A; a second click turns the order around.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const headings = [...table.tHead.rows[0].cells];
  const numberOf = (row, at) => parseFloat(row.cells[at].textContent.replaceAll(",", "").replace("−", "-"));
  const textOf = (row, at) => row.cells[at].textContent;

  const sort = (at) => {
    const rows = [...body.rows];
    const numeric = rows.some((row) => !Number.isNaN(numberOf(row, at))) && at > 0;
    const before = headings[at].getAttribute("aria-sort");
    const descending = before === null ? numeric : before === "ascending";
    const worth = (row) => { const value = numberOf(row, at); return Number.isNaN(value) ? -Infinity : value; };
    const compare = numeric
      ? (a, b) => worth(a) - worth(b)
      : (a, b) => textOf(a, at).localeCompare(textOf(b, at), "en", { numeric: true });
    rows.sort((a, b) => (descending ? compare(b, a) : compare(a, b)));
    body.append(...rows);
    for (const heading of headings) heading.removeAttribute("aria-sort");
    headings[at].setAttribute("aria-sort", descending ? "descending" : "ascending");
  };

  headings.forEach((heading, at) => {
    heading.tabIndex = 0;
    heading.title = "sort";
    heading.addEventListener("click", () => sort(at));
    heading.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      sort(at);
    });
  });
}
