// Pages by the part of the address after "#": every state of a list and every case has a link of its own.

const $ = (id) => document.getElementById(id);
const state = { cases: null, list: null, query: new URLSearchParams(), groups: [], groupAt: -1, groupsShown: 200, found: [], page: "", row: -1 };

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  $("theme").textContent = { auto: "Auto", light: "Light", dark: "Dark" }[theme];
  $("theme").setAttribute("aria-label", `Colours: ${{ auto: "as the system", light: "light", dark: "dark" }[theme]}`);
  try { localStorage.setItem("torch-oracle-theme", theme); } catch { /* storage is off: the choice holds for this visit */ }
}
function nextTheme() {
  const now = document.documentElement.dataset.theme ?? "auto";
  setTheme({ auto: "dark", dark: "light", light: "auto" }[now]);
}
let chosen = "auto";
try { chosen = localStorage.getItem("torch-oracle-theme") ?? "auto"; } catch { /* storage is off */ }
setTheme(["auto", "light", "dark"].includes(chosen) ? chosen : "auto");

// ------------------------------------------------------------------------------------------------------------ filters

function field(form, name, title, options, onchange) {
  const select = el("select", { name, "aria-label": title }, el("option", { value: "" }, `all ${title}`), options.map(([value, text]) => el("option", { value }, text)));
  select.addEventListener("change", onchange);
  form.append(el("label", {}, title, select));
}
function searchField(form, placeholder, oninput) {
  const input = el("input", { type: "search", name: "q", placeholder, autocomplete: "off", spellcheck: "false" });
  input.addEventListener("input", oninput);
  form.append(el("label", { class: "search" }, "search", input));
}
const options = (words) => [...words].filter(Boolean).sort().map((word) => [word, word]);

function buildFilters() {
  const { cases } = state, form = $("case-filters"), meta = cases.meta;
  form.addEventListener("submit", (event) => event.preventDefault());
  let timer = 0;
  const changed = () => navigate("cases", fromForm(form, state.query));
  searchField(form, "words of the case or symptom, all must occur", () => { clearTimeout(timer); timer = setTimeout(changed, 120); });
  if (meta.base_run) field(form, "change", "changes", [...options(cases.data.change.words.filter((word) => word !== "unchanged")), ["lost", "without a result"], ["unchanged", "unchanged"]], changed);
  field(form, "outcome", "outcomes", [["new", "failing"], ["known", "known issue"], ["passed", "pass"], ["not_compared", "not compared"], ["not_run", "not run"]], changed);
  field(form, "status", "statuses", options(cases.data.status.words), changed);
  field(form, "suite", "suites", options(cases.data.suite.words), changed);
  field(form, "subject", "subjects", options(cases.data.subject.words), changed);
  if (cases.data.dtype.words.filter(Boolean).length > 1) field(form, "dtype", "dtypes", options(cases.data.dtype.words), changed);
  const marks = Object.entries(meta.flags).filter(([, bit]) => cases.data.flags.some((flags) => flags & bit)).map(([name]) => [name, name]);
  if (marks.length) field(form, "flag", "marks", marks, changed);
  form.append(el("button", { type: "button", onclick: () => navigate("cases", new URLSearchParams()) }, "Clear"));

  const groups = $("group-filters"), filter = () => navigate("failures", fromForm(groups, new URLSearchParams()));
  groups.addEventListener("submit", (event) => event.preventDefault());
  const all = cases.data.groups, distinct = (name) => options(new Set(all.map((group) => group[name])));
  searchField(groups, "operator, symptom, subject", () => { clearTimeout(timer); timer = setTimeout(filter, 120); });
  if (meta.base_run) field(groups, "new", "changes", [["1", "new"], ["0", "not new"]], filter);
  field(groups, "severity", "severities", distinct("severity"), filter);
  field(groups, "status", "statuses", distinct("status"), filter);
  field(groups, "suite", "suites", distinct("suite"), filter);
  field(groups, "subject", "subjects", options(new Set(all.flatMap((group) => group.subjects))), filter);
}
function fromForm(form, before) {
  const query = new URLSearchParams();
  for (const [key, value] of before) if (!form.elements.namedItem(key)) query.set(key, value); // kept: finding, group, timed, sort
  for (const input of form.elements) if (input.name && input.value) query.set(input.name, input.value);
  return query;
}
function toForm(form, query) {
  for (const input of form.elements) {
    if (!input.name || input === document.activeElement && input.type === "search") continue;
    input.value = query.get(input.name) ?? "";
    if (input.tagName === "SELECT") input.classList.toggle("set", input.value !== "");
  }
}

// -------------------------------------------------------------------------------------------------------------- pages

function navigate(page, query) {
  const text = query?.toString();
  history.replaceState(null, "", `#/${page}${text ? `?${text}` : ""}`);
  route();
}

function showGroups(query) {
  const { cases } = state;
  toForm($("group-filters"), query);
  const words = (query.get("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  state.groups = cases.data.groups.map((group, number) => ({ ...group, number })).filter((group) => {
    const text = `${group.what} ${group.symptom} ${group.kind} ${group.status} ${group.subjects.join(" ")}`.toLowerCase();
    return words.every((word) => text.includes(word)) && ["severity", "status", "suite"].every((name) => !query.get(name) || group[name] === query.get(name))
      && (!query.get("subject") || group.subjects.includes(query.get("subject"))) && (!query.get("new") || (group.new > 0) === (query.get("new") === "1"));
  });
  const total = state.groups.reduce((sum, group) => sum + group.cases, 0);
  $("groups-found").textContent = `${plural(state.groups.length, "group")} with ${plural(total, "case")}` + (cases.data.groups_left ? `; ${plural(cases.data.groups_left, "smaller group")} left out of this file` : "");
  state.groupAt = Math.min(state.groupAt, state.groups.length - 1);
  drawGroups();
}
function drawGroups() {
  const { cases } = state, shown = state.groups.slice(0, state.groupsShown);
  $("groups").replaceChildren(...shown.map((group, i) => el("tr", { class: i === state.groupAt ? "at" : null },
    el("td", { class: "right" }, el("a", { href: casesLink({ finding: group.number }) }, count(group.cases)), group.new && group.new < group.cases ? el("div", {}, el("a", { class: "dim", href: casesLink({ finding: group.number, change: "new failure" }) }, `${count(group.new)} new`)) : group.new ? el("div", {}, el("span", { class: "badge bad" }, "new")) : ""),
    el("td", {}, el("a", { href: casesLink({ finding: group.number }) }, group.what || "cases without a record"), el("div", { class: "dim" }, group.suite)),
    el("td", {}, group.severity === group.status ? "" : group.severity || "–", el("div", {}, el("span", { class: `badge ${tone(cases, group.status)}` }, group.status))),
    el("td", {}, group.symptom, el("div", {}, cases.find(group.example) === undefined ? el("span", { class: "dim" }, group.example) : el("a", { href: caseLink(group.example) }, group.example))),
    el("td", {}, group.subjects.slice(0, 4).map((subject, k) => el("div", {}, subject, k === 0 ? el("span", { class: "dim" }, " first") : "")), group.subjects.length > 4 ? el("div", { class: "dim" }, `and ${group.subjects.length - 4} more`) : ""))));
  if (!shown.length) $("groups").append(el("tr", {}, el("td", { colspan: 5, class: "dim" }, cases.data.groups.length ? "No group matches these filters." : "No case fails.")));
  $("more-groups").hidden = state.groups.length <= state.groupsShown;
}
$("more-groups").addEventListener("click", () => { state.groupsShown += 400; drawGroups(); });

function showCases(query) {
  const { cases } = state;
  state.query = query;
  toForm($("case-filters"), query);
  const begun = performance.now();
  state.found = cases.select(query);
  performance.measure("filter", { start: begun });
  const kept = ["finding", "group", "issue", "timed", "direction"].filter((name) => query.get(name));
  const extra = kept.map((name) => (name === "finding" ? `group "${cases.data.groups[Number(query.get(name))]?.what ?? query.get(name)}"` : name === "timed" ? (query.get(name) === "slower" ? "slower than eager" : "timed") : `${name} ${query.get(name)}`));
  $("cases-found").textContent = `${count(state.found.length)} of ${plural(cases.rows, "case")}${extra.length ? `, only ${extra.join(", ")}` : ""}${cases.meta.in_all > cases.rows ? `; ${count(cases.meta.in_all - cases.rows)} more are not in this file` : ""}`;
  state.list.show(state.found, query.get("sort") ?? "");
}
function sortBy(name) {
  const query = new URLSearchParams(state.query), now = query.get("sort") ?? "";
  if (now === name) query.set("sort", `-${name}`);
  else if (now === `-${name}`) query.delete("sort");
  else query.set("sort", name);
  navigate("cases", query);
}

async function showCase(id) {
  const { cases } = state, row = cases.find(id);
  if (row === undefined) {
    $("case").replaceChildren(el("h1", { id: "case-title" }, "Not in this file"), el("p", {}, `This report has no case ${id}.`), el("p", {}, el("a", { href: "#/cases" }, "All cases")));
    return;
  }
  state.row = row;
  const list = state.found.includes(row) ? state.found : cases.select(state.query = new URLSearchParams());
  state.found = list;
  const at = list.indexOf(row);
  state.list.at = at;
  const drawn = await drawCase(cases, row, { list, query: state.query, previous: list[at - 1], next: list[at + 1] });
  if (state.row === row) $("case").replaceChildren(drawn);
  document.title = `${id} – torch-oracle`;
}

const homeTitle = document.title;
async function route() {
  const address = location.hash.startsWith("#/") ? location.hash.slice(2) : "";
  const [path, search] = address.split("?", 2);
  const [name, argument] = path.split("/", 2);
  const page = ["failures", "cases", "case", "speed", "environment"].includes(name) ? name : "summary";
  const moved = state.page !== page || page === "case";
  state.page = page;
  for (const section of document.querySelectorAll("[data-page]")) section.hidden = section.dataset.page !== page;
  for (const link of document.querySelectorAll("[data-nav]")) {
    if (link.dataset.nav === page || (page === "case" && link.dataset.nav === "cases")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = homeTitle;
  if (!state.cases) return;
  const query = new URLSearchParams(search ?? "");
  if (page === "failures") showGroups(query);
  if (page === "cases") showCases(query);
  if (page === "case") await showCase(decodeURIComponent(argument ?? ""));
  if (page === "speed" && !$("speed").childElementCount) $("speed").append(drawSpeed(state.cases));
  if (moved) { scrollTo(0, 0); if (document.activeElement?.tagName !== "INPUT") $("main").focus({ preventScroll: true }); }
}

// ----------------------------------------------------------------------------------------------------------- keyboard

function moveGroup(by) {
  if (!state.groups.length) return;
  state.groupAt = Math.max(0, Math.min(Math.min(state.groups.length, state.groupsShown) - 1, state.groupAt + by));
  drawGroups();
  const row = $("groups").children[state.groupAt];
  row.scrollIntoView({ block: "nearest" });
  row.querySelector("a").focus({ preventScroll: true });
}
function moveCase(by) {
  const next = state.found[state.found.indexOf(state.row) + by];
  if (next !== undefined) location.hash = caseLink(state.cases.id(next)).slice(1);
}
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open || !state.cases) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "Escape") {
    if (typing) { event.target.blur(); $("main").focus({ preventScroll: true }); }
    else if (state.page === "case") location.hash = `/cases${state.query.toString() ? `?${state.query}` : ""}`;
    else if (state.page !== "summary") location.hash = "/";
    return;
  }
  if (typing) return;
  const by = event.key === "j" ? 1 : event.key === "k" ? -1 : 0;
  if (by) {
    if (state.page === "cases") state.list.move(by);
    else if (state.page === "failures") moveGroup(by);
    else if (state.page === "case") moveCase(by);
  } else if (event.key === "Enter" && !event.target.closest("a, button")) {
    if (state.page === "cases" && state.list.at >= 0) location.hash = caseLink(state.cases.id(state.found[state.list.at])).slice(1);
    else if (state.page === "failures" && state.groupAt >= 0) location.hash = casesLink({ finding: state.groups[state.groupAt].number }).slice(1);
    else return;
  } else if (event.key === "/") {
    if (state.page !== "failures" && state.page !== "cases") { location.hash = "/cases"; setTimeout(() => $("case-filters").elements.q.focus(), 30); }
    else $(state.page === "failures" ? "group-filters" : "case-filters").elements.q.select();
  } else if (event.key === "?") $("help").showModal();
  else if (event.key === "t") nextTheme();
  else if ("12345".includes(event.key)) location.hash = ["/", "/failures", "/cases", "/speed", "/environment"][Number(event.key) - 1];
  else return;
  event.preventDefault();
});
$("theme").addEventListener("click", nextTheme);
$("help-button").addEventListener("click", () => $("help").showModal());
addEventListener("hashchange", route);
addEventListener("beforeprint", () => { if (state.page === "cases") state.list.draw({ all: true }); });
addEventListener("afterprint", () => { if (state.page === "cases") state.list.draw(); });

async function start() {
  await route(); // the summary is there before the data is
  try {
    state.cases = new Cases(await unpack("data-table"));
  } catch (error) {
    $("broken").textContent = `The data of this page could not be read (${error.message}). A browser from 2023 or later is needed; if this is one, the file is damaged.`;
    $("broken").hidden = false;
    return;
  }
  const { cases } = state;
  state.list = new CaseList(cases, $("list"), { sort: sortBy, open: (row) => { location.hash = caseLink(cases.id(row)).slice(1); } });
  state.found = cases.select(state.query);
  buildFilters();
  const runs = cases.data.runs;
  $("trend").append(trend(runs), el("div", { class: "legend" }, el("span", {}, el("i", { class: "new" }), "failing"), el("span", {}, el("i", { class: "known" }), "known issue")),
    el("figcaption", {}, runs.length > 1 ? `Cases of this run that differ from eager, in the last ${plural(runs.length, "run")}` : "Cases that differ from eager. A second run in this database begins a trend."));
  await route();
  performance.mark("interactive");
  document.documentElement.dataset.ready = "true";
}
start();
