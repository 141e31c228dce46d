"use strict";
// The packed data of the page (results/html/payload.py), and small helpers to make elements.

async function unpack(name) {
  const binary = atob(document.getElementById(name).textContent);
  const bytes = Uint8Array.from(binary, (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const unpacked = new Map(); // the last few blocks, as promises
function block(name) {
  if (!unpacked.has(name)) {
    if (unpacked.size > 16) unpacked.delete(unpacked.keys().next().value);
    unpacked.set(name, unpack(name));
  }
  return unpacked.get(name);
}

/** An element. Strings among the children become text nodes, never markup. */
function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "onclick") element.addEventListener("click", value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

const grouped = new Intl.NumberFormat("en-US");
const count = (value) => grouped.format(value).replaceAll(",", "\u202f");
const plural = (value, word, words = word + "s") => `${count(value)} ${value === 1 ? word : words}`;
/** Four significant digits; powers of ten outside of 0.0001 to 999 999. */
function short(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value;
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-4 || size >= 1e6) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}
const times = (value) => (value === null || value === undefined ? "" : `${Number(value.toPrecision(3))}x`);
function duration(value) {
  if (value === null || value === undefined) return "";
  for (const [factor, unit] of [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]]) if (Math.abs(value) >= factor) return `${Number((value / factor).toPrecision(3))} ${unit}`;
  return `${Number((value / 1e-9).toPrecision(3))} ns`;
}
function bytes(value) {
  for (const [factor, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) if (value >= factor) return `${Number((value / factor).toPrecision(3))} ${unit}`;
  return `${value} B`;
}
/** An argument of a POSIX shell. */
const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** The table of cases: columns of codes and numbers, with what the page asks of them. */
class Cases {
  constructor(data) {
    this.data = data;
    this.meta = data.meta;
    this.rows = data.rows;
    this.lowered = new Map();
  }
  word(column, row) {
    const { words, codes } = this.data[column];
    return words[codes[row]];
  }
  number(column, row) { return this.data[column][row]; }
  id(row) { return this.data.id[row] ?? `${this.word("suite", row)}/${this.word("name", row)}@${this.word("subject", row)}`; }
  find(id) {
    if (!this.byId) {
      this.byId = new Map();
      for (let row = 0; row < this.rows; row++) this.byId.set(this.id(row), row);
    }
    return this.byId.get(id);
  }
  /** Lower-case ids, made once: a search of 100 000 cases is then a few milliseconds. */
  ids() {
    if (!this.lowerIds) this.lowerIds = Array.from({ length: this.rows }, (_, row) => this.id(row).toLowerCase());
    return this.lowerIds;
  }
  lower(column) {
    if (!this.lowered.has(column)) this.lowered.set(column, this.data[column].words.map((word) => word.toLowerCase()));
    return this.lowered.get(column);
  }
  outcome(row) { return this.meta.outcomes[this.word("status", row)]; }

  /** Rows that match every filter of a query (URLSearchParams), in the order it asks for. */
  select(query) {
    const tests = [];
    for (const column of ["suite", "subject", "group", "dtype", "direction", "status", "issue", "change"]) {
      const wanted = query.get(column);
      if (!wanted) continue;
      const { words, codes } = this.data[column];
      const names = column === "change" && wanted === "lost" ? ["missing row", "no longer compared"] : [wanted];
      const hit = new Set(names.map((name) => words.indexOf(name)));
      tests.push((row) => hit.has(codes[row]));
    }
    if (query.get("outcome")) {
      const { words, codes } = this.data.status;
      const hit = words.map((word) => this.meta.outcomes[word] === query.get("outcome") && word !== "not_planned");
      tests.push((row) => hit[codes[row]]);
    }
    if (query.get("finding")) tests.push((row) => this.data.finding[row] === Number(query.get("finding")));
    if (query.get("flag")) {
      const bit = this.meta.flags[query.get("flag")] ?? 0;
      tests.push((row) => (this.data.flags[row] & bit) !== 0);
    }
    if (query.get("timed")) {
      const most = query.get("timed") === "slower" ? 1 : Infinity; // slower than eager for certain, or all timed cases
      const { speedup, speedup_high: high } = this.data;
      tests.push((row) => this.word("status", row) === "pass" && speedup[row] > 0 && (most === Infinity || (high[row] !== null && high[row] < most)));
    }
    for (const word of (query.get("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean)) {
      const ids = this.ids();
      const hits = ["symptom", "status", "dtype", "issue"].map((column) => [this.data[column].codes, this.lower(column).map((text) => text.includes(word))]);
      tests.push((row) => ids[row].includes(word) || hits.some(([codes, hit]) => hit[codes[row]]));
    }
    const found = [];
    for (let row = 0; row < this.rows; row++) if (tests.every((test) => test(row))) found.push(row);
    return this.sorted(found, query.get("sort") ?? "");
  }
  /** Rows that call for action come first: 0 new, 1 failing, 2 changed or marked, 3 known or not compared, 4 the rest. */
  ranks() {
    if (this.rank) return this.rank;
    const { data, meta } = this;
    const changes = data.change.words.map((word) => (meta.regressions.includes(word) ? 0 : word === "" || word === "unchanged" ? 4 : 2));
    const statuses = data.status.words.map((word) => (meta.findings.includes(word) ? 1 : meta.outcomes[word] === "passed" ? 4 : 3));
    this.rank = Uint8Array.from({ length: this.rows }, (_, row) => Math.min(changes[data.change.codes[row]], statuses[data.status.codes[row]], data.flags[row] ? 2 : 4));
    return this.rank;
  }
  sorted(found, sort) {
    const descending = sort.startsWith("-");
    const name = sort.replace(/^-/, "");
    if (!name) {
      const rank = this.ranks();
      return found.sort((a, b) => rank[a] - rank[b] || a - b);
    }
    const sign = descending ? -1 : 1;
    const column = this.data[name];
    if (Array.isArray(column)) {
      return found.sort((a, b) => (column[a] === null) - (column[b] === null) || sign * (column[a] - column[b]) || a - b);
    }
    if (name === "id") {
      const ids = this.ids();
      return found.sort((a, b) => sign * (ids[a] < ids[b] ? -1 : ids[a] > ids[b] ? 1 : 0) || a - b);
    }
    if (!column?.words) return found;
    const place = column.words.map((word, code) => [word, code]).sort((a, b) => (a[0] < b[0] ? -1 : 1));
    const rank = new Array(place.length);
    place.forEach(([, code], i) => (rank[code] = i));
    return found.sort((a, b) => sign * (rank[column.codes[a]] - rank[column.codes[b]]) || a - b);
  }
}
