// On a telephone a table is a stack of rows, and each cell says its column (site.css).
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll(".bd-article table")) {
    const heads = [...table.querySelectorAll("thead tr:last-child th")].map((one) => one.textContent.trim());
    if (heads.length < 2) continue;
    table.classList.add("stacked");
    for (const row of table.querySelectorAll("tbody tr"))
      [...row.cells].forEach((cell, i) => { if (i && heads[i]) cell.dataset.head = heads[i]; });
  }
});
