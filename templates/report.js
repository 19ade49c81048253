
"use strict";
(() => {
  const table = document.getElementById("all");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const find = document.getElementById("find");
  const boxes = [...document.querySelectorAll("input[data-show]")];
  const shown = document.getElementById("shown");
  const sections = [...document.querySelectorAll("details.case")];

  // Rows and sections are in the same order until the table is sorted.
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const filter = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const states = new Set(boxes.filter((box) => box.checked).map((box) => box.dataset.show));
    let count = 0;
    rows.forEach((row, at) => {
      const fits = states.has(row.dataset.status) && words.every((word) => texts[at].includes(word));
      row.hidden = !fits;
      sections[at].hidden = !fits;
      count += fits ? 1 : 0;
    });
    shown.textContent = count === rows.length ? `${count} cases` : `${count} of ${rows.length} cases`;
  };
  find.addEventListener("input", filter);
  boxes.forEach((box) => box.addEventListener("change", filter));
  find.closest("p").hidden = false;
  filter();

  const heads = [...table.tHead.rows[0].cells];
  const key = (row, column, by) =>
    by === "text" ? row.cells[column].textContent : Number(row.cells[column].dataset.v);
  heads.forEach((head, column) => {
    const by = head.dataset.by;
    if (!by) return;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const compare = (a, b) => (by === "text" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
      const order = rows.map((row) => [key(row, column, by), row]);
      order.sort((a, b) => (down ? compare(b[0], a[0]) : compare(a[0], b[0])));
      body.append(...order.map(([, row]) => row));
    });
  });

  // A link to a case opens it; `/` goes to the search field.
  const open = () => {
    const target = document.getElementById(location.hash.slice(1));
    if (target && target.matches("details.case")) {
      target.hidden = false;
      target.open = true;
      target.scrollIntoView();
      target.querySelector("summary").focus({ preventScroll: true });
    }
  };
  addEventListener("hashchange", open);
  open();
  addEventListener("keydown", (event) => {
    const typing = event.target.closest("input");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      find.focus();
    }
  });

  // On paper everything that is shown is open.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    closed.forEach((part) => (part.open = true));
  });
  addEventListener("afterprint", () => closed.forEach((part) => (part.open = false)));
})();
