// The list of cases: a table whose rows exist only where the reader looks. All rows have one height.

const ROW_HEIGHT = 30;
const COLUMNS = [
  { name: "id", title: "case", width: "27%", cell: (cases, row) => `${cases.word("suite", row)}/${cases.word("name", row)}` },
  { name: "subject", title: "subject", width: "11%", cell: (cases, row) => cases.word("subject", row) },
  { name: "status", title: "status", width: "136px", cell: (cases, row) => statusBadge(cases, row) },
  { name: "change", title: "change", width: "126px", cell: (cases, row) => (cases.word("change", row) === "unchanged" ? "" : cases.word("change", row)) },
  { name: "symptom", title: "symptom", width: "", cell: (cases, row) => cases.word("symptom", row).replace(/^call 0: /, "") },
  { name: "history", title: "history", width: "86px", cell: (cases, row) => beats(cases.word("history", row), null) },
  { name: "speedup", title: "speedup", width: "78px", right: true, cell: (cases, row) => times(cases.number("speedup", row)) },
  { name: "compile_cold_s", title: "compile", width: "78px", right: true, cell: (cases, row) => duration(cases.number("compile_cold_s", row)) },
];

function tone(cases, status) {
  const outcome = cases.meta.outcomes[status];
  return { new: "bad", known: "warn", passed: "good" }[outcome] ?? "";
}
function statusBadge(cases, row) {
  const status = cases.word("status", row);
  return el("span", { class: `badge ${tone(cases, status)}`, title: cases.meta.statuses[status] ?? "" }, status);
}

class CaseList {
  constructor(cases, place, { sort, open }) {
    this.cases = cases;
    this.place = place;
    this.open = open;
    this.found = [];
    this.at = -1;
    this.body = place.querySelector("tbody");
    this.table = place.querySelector("table");
    const columns = COLUMNS.filter((column) => column.name !== "change" || cases.meta.base_run);
    this.columns = columns.filter((column) => !["speedup", "compile_cold_s"].includes(column.name) || cases.data[column.name].some((value) => value !== null));
    this.heads = this.columns.map((column) => {
      const button = el("button", { type: "button", onclick: () => sort(column.name) }, column.title);
      const head = el("th", { scope: "col", class: `c-${column.name}${column.right ? " right" : ""}` }, button);
      const runs = cases.data.runs.length;
      if (column.width) head.style.width = column.name === "history" ? `${Math.max(86, 7 * runs + 20)}px` : column.width;
      return head;
    });
    place.querySelector("thead tr").replaceChildren(...this.heads);
    let waiting = false;
    place.addEventListener("scroll", () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => { waiting = false; this.draw(); });
    });
    addEventListener("resize", () => this.draw());
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest("tr.row");
      if (row && !event.target.closest("a")) open(Number(row.dataset.row));
    });
  }
  show(found, sort) {
    this.found = found;
    this.at = Math.min(this.at, found.length - 1);
    this.heads.forEach((head, i) => {
      const name = this.columns[i].name;
      const order = sort === name ? "ascending" : sort === `-${name}` ? "descending" : null;
      if (order) head.setAttribute("aria-sort", order);
      else head.removeAttribute("aria-sort");
      head.firstChild.textContent = this.columns[i].title + (order ? (order === "ascending" ? " ↑" : " ↓") : "");
    });
    this.table.setAttribute("aria-rowcount", found.length + 1);
    this.draw();
  }
  draw({ all = false } = {}) {
    const height = this.place.clientHeight || 600;
    const first = all ? 0 : Math.max(0, Math.floor(this.place.scrollTop / ROW_HEIGHT) - 12);
    const last = Math.min(this.found.length, all ? 1000 : first + Math.ceil(height / ROW_HEIGHT) + 24);
    const rows = [];
    for (let i = first; i < last; i++) rows.push(this.row(i));
    this.body.replaceChildren(this.spacer(first), ...rows, this.spacer(all ? 0 : this.found.length - last));
  }
  spacer(rows) {
    const cell = el("td", { class: "spacer", colspan: this.columns.length });
    cell.style.height = `${rows * ROW_HEIGHT}px`;
    return el("tr", { "aria-hidden": "true" }, cell);
  }
  row(i) {
    const row = this.found[i];
    const cells = this.columns.map((column, k) => {
      let content = column.cell(this.cases, row);
      const text = typeof content === "string" ? content : null;
      if (k === 0) content = el("a", { href: caseLink(this.cases.id(row)), tabindex: -1 }, content);
      return el("td", { class: `c-${column.name}${column.right ? " right" : ""}`, title: text }, content);
    });
    return el("tr", { class: i === this.at ? "row at" : "row", "data-row": row, "aria-rowindex": i + 2, "aria-current": i === this.at ? "true" : null }, cells);
  }
  move(by) {
    if (!this.found.length) return;
    this.at = Math.max(0, Math.min(this.found.length - 1, this.at + by));
    const top = this.at * ROW_HEIGHT, height = this.place.clientHeight - 40;
    if (top < this.place.scrollTop) this.place.scrollTop = top;
    else if (top + ROW_HEIGHT > this.place.scrollTop + height) this.place.scrollTop = top + ROW_HEIGHT - height;
    this.draw();
    this.body.querySelector("tr.at a")?.focus({ preventScroll: true }); // a screen reader says the row
  }
}

const caseLink = (id) => `#/case/${encodeURIComponent(id)}`;
const casesLink = (filters) => `#/cases?${new URLSearchParams(filters)}`;
