// The page of one case: what happened, how the judge decided, the program, what to run next.

async function drawCase(cases, row, neighbours) {
  const detail = (await block(`data-cases-${Math.floor(row / cases.data.in_block)}`))[row % cases.data.in_block];
  const program = detail.program < 0 ? null : (await block(`data-programs-${Math.floor(detail.program / cases.data.programs_in_block)}`))[detail.program % cases.data.programs_in_block];
  const id = cases.id(row), status = cases.word("status", row), meta = cases.meta;
  const symptom = detail.symptom ?? cases.word("symptom", row);
  const place = el("div", {});
  place.append(crumbs(cases, row, neighbours));
  place.append(el("h1", { id: "case-title" }, `${cases.word("suite", row)}/${cases.word("name", row)}`, " ", el("span", { class: "dim" }, `on ${cases.word("subject", row)}`)));
  const change = cases.word("change", row);
  const flags = Object.entries(meta.flags).filter(([, bit]) => cases.data.flags[row] & bit).map(([name]) => name);
  place.append(el("p", { class: "statement" }, statusBadge(cases, row), " ", meta.statuses[status] ?? "",
    change ? el("span", {}, " ", el("strong", {}, change[0].toUpperCase() + change.slice(1)), `: ${meta.changes[change] ?? ""}.`) : "",
    ...flags.map((flag) => el("span", {}, " ", el("span", { class: "badge warn" }, flag)))));
  if (symptom) place.append(el("div", { class: "symptom" }, symptom));
  if (change === "changed symptom" || change === "fixed") place.append(el("p", {}, `In the earlier run (${cases.word("base_status", row)}):`), el("div", { class: "symptom" }, detail.base_symptom ?? "–"));
  const main = el("div", {}, issueText(cases, row, detail), sourceText(program, detail, symptom), traceText(detail), judged(cases, detail));
  const side = el("aside", {}, commands(cases, row, detail), rungs(cases, row), historyText(cases, row, detail), facts(cases, row, detail));
  place.append(el("div", { class: "case-grid" }, main, side));
  return place;
}

function crumbs(cases, row, { list, query, previous, next }) {
  const to = (target, text, key) => (target === undefined ? null : el("a", { href: caseLink(cases.id(target)), title: `key ${key}` }, text));
  const at = list.indexOf(row);
  return el("p", { class: "crumbs" }, el("a", { href: `#/cases?${query}` }, query.toString() ? "← cases with these filters" : "← all cases"),
    el("span", { class: "moves" }, at >= 0 ? el("span", { class: "dim" }, `${count(at + 1)} of ${count(list.length)}`) : "", to(previous, "previous", "k"), to(next, "next", "j")));
}

function issueText(cases, row, detail) {
  const id = cases.word("issue", row);
  if (!id) return "";
  const issue = cases.data.issues[id];
  const link = issue && /^https?:\/\//.test(issue.link) ? el("a", { href: issue.link, rel: "noreferrer" }, "upstream report") : "";
  return el("section", {}, el("h2", {}, "Known issue"), el("p", {}, el("strong", {}, id), issue ? `: ${issue.title}` : ": an entry of your own ledger", " ", link),
    issue?.where ? el("p", {}, `Where: ${issue.where}.`) : "", issue && issue.cause !== issue.title ? el("p", {}, `Cause: ${issue.cause}.`) : "",
    issue ? command(`torch-oracle issues ${quoted(id)}`, "Its program and history:") : "",
    detail.observed ? el("p", { class: "dim" }, `Without the ledger, the verdict is ${detail.observed}.`) : "");
}

/** How the judge came to its verdict, in sentences, with the worst element as a table and plots. */
function judged(cases, detail) {
  const section = el("section", {}, el("h2", {}, "How the judge decided"));
  const [tensors, elements, others, unstable] = detail.compared ?? [0, 0, 0, 0];
  const nothing = tensors === 0 && others === 0;
  const left = unstable ? ` ${plural(unstable, "element")} were left out, since rounding noise changes them completely in eager.` : "";
  section.append(el("p", {}, nothing ? "Nothing was compared." : `It compared ${plural(tensors, "tensor")} with ${plural(elements, "element")} and ${plural(others, "other value")}.${left}`,
    detail.max_ulp !== undefined ? ` The largest difference from eager is ${short(detail.max_ulp)} units in the last place.` : "",
    detail.stage ? ` The worker was busy with: ${detail.stage}.` : ""));
  const worst = detail.worst;
  if (worst) {
    const over = typeof worst.subject_error === "number" && worst.allowed_error > 0 ? worst.subject_error / worst.allowed_error : null;
    const against = worst.truth ? "from the fp64 value" : "from eager (there is no fp64 value)";
    section.append(el("p", {}, "The worst element is ", el("code", {}, `${worst.where} [${worst.index.join(", ")}]`), ". ",
      over !== null ? `The subject is ${short(worst.subject_error)} away ${against}; the judge allows ${short(worst.allowed_error)} there, so it is ${short(over)} times ${over > 1 ? "too far: rounding does not explain it." : "the allowed distance."}` : ""));
    const line = (name, value, error) => el("tr", {}, el("th", { scope: "row" }, name), el("td", { class: "right mono" }, value ?? "unknown"), el("td", { class: "right mono" }, error === undefined || error === null ? "–" : short(error)));
    section.append(el("table", { class: "plain" }, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, ""), el("th", { scope: "col", class: "right" }, "value"), el("th", { scope: "col", class: "right" }, worst.truth ? "error against fp64" : "error against eager"))),
      el("tbody", {}, line("eager", worst.eager, worst.eager_error), line("subject", worst.subject, worst.subject_error), line("fp64", worst.truth, null), line("allowed", "", worst.allowed_error),
        worst.ulp !== undefined && worst.ulp !== null ? el("tr", {}, el("th", { scope: "row" }, "apart"), el("td", { class: "right mono" }, `${short(worst.ulp)} ULP`), el("td", {})) : "")));
    const drawn = values(worst), bars = errors(worst);
    if (drawn) section.append(figure("Values around the fp64 value; the band is what the judge allows. Round: eager. Square: the subject.", drawn));
    if (bars) section.append(figure("Errors, on a logarithmic axis.", bars));
  }
  if (detail.witnesses?.length) {
    section.append(el("h3", {}, "Witnesses that accepted elements"), el("ul", {}, detail.witnesses.map(([name, n]) => el("li", {}, `${name}: ${plural(n, "element")}`, cases.meta.witnesses[name] ? `, ${cases.meta.witnesses[name]}` : ""))));
  }
  if (detail.also?.length) section.append(el("h3", {}, "Also different"), el("ul", {}, detail.also.map((text) => el("li", { class: "mono" }, text))));
  if (detail.reruns?.length) section.append(el("p", {}, `Differs ${detail.frequency}; run again in a fresh process: ${detail.reruns.join(", ")}.`));
  if (detail.explained?.length) section.append(el("h3", {}, "Seen and accepted"), el("ul", {}, detail.explained.map((text) => el("li", {}, text))));
  return section;
}

/** The line that raised, from the traceback; else the lines that return the wrong value. */
function markedLines(lines, detail, symptom) {
  const raised = [...(detail.traceback ?? "").matchAll(/File "<program [^"\n]*>", line (\d+)/g), ...symptom.matchAll(/File "<program [^"\n]*>", line (\d+)/g)].map((m) => Number(m[1]));
  const inside = raised.filter((n) => n >= 1 && n <= lines.length);
  const statements = inside.filter((n) => !/^\s*(def|class|@)/.test(lines[n - 1]));
  if (statements.length) return { hit: new Set([statements.at(-1)]), from: new Set(), said: `Line ${statements.at(-1)} was running when the error was raised.` };
  if (inside.length) return { hit: new Set(), from: new Set([inside.at(-1)]), said: `The error was raised by the compiled code of the function at line ${inside.at(-1)}.` };
  const from = new Set();
  if (/(^|: )(output|grad)/.test(symptom)) {
    let indent = null;
    lines.forEach((text, i) => {
      const start = /^(\s*)(?:async )?def (program|forward)\b/.exec(text);
      if (start) indent = start[1].length;
      else if (indent !== null && text.trim() && text.search(/\S/) <= indent) indent = null;
      else if (indent !== null && /^\s*return\b/.test(text)) from.add(i + 1);
    });
  }
  const said = from.size ? `${[...from].map((n) => `Line ${n}`).join(", ")} returns the value that differs. \`torch-oracle localise\` finds the statement that makes it wrong.` : "";
  return { hit: new Set(), from, said };
}

function sourceText(program, detail, symptom) {
  const section = el("section", {}, el("h2", {}, "Program"));
  if (!program) {
    section.append(el("p", {}, "The file does not carry the source of this program, to stay small. The command `torch-oracle show` on this page prints it."));
    return section;
  }
  const lines = program.source.replace(/\n$/, "").split("\n");
  const marked = markedLines(lines, detail, symptom);
  if (marked.said && symptom) section.append(el("p", {}, marked.said));
  section.append(el("pre", { class: "source", tabindex: 0 }, lines.map((text, i) => {
    const kind = marked.hit.has(i + 1) ? "l hit" : symptom && marked.from.has(i + 1) ? "l from" : "l";
    return el("span", { class: kind }, el("span", { class: "n" }, String(i + 1)), text || " ");
  })));
  if (program.plan) section.append(el("p", { class: "dim" }, "Plan: ", el("code", {}, program.plan)));
  return section;
}

function traceText(detail) {
  if (!detail.traceback) return "";
  return el("section", {}, el("h2", {}, "Traceback"), el("pre", { class: "trace", tabindex: 0 }, detail.traceback));
}

/** A command that is broken between its words only, where they fit. */
const words = (text) => text.split(" ").flatMap((word, i) => [i ? " " : "", el("span", { class: "w" }, word)]);

function command(text, said) {
  const button = el("button", { type: "button", onclick: async () => {
    try { await navigator.clipboard.writeText(text); } catch {
      getSelection().selectAllChildren(button.previousSibling);
      document.execCommand("copy");
    }
    button.textContent = "copied";
  } }, "copy");
  return [el("div", { class: "dim" }, said), el("div", { class: "command" }, el("code", {}, words(text)), button)];
}

function commands(cases, row, detail) {
  const { meta } = cases, lost = cases.word("status", row) === "not_planned";
  const db = quoted(lost ? meta.base_place : meta.place), run = lost ? meta.base_run : meta.run;
  const target = `${quoted(`${run}:${cases.id(row)}`)} --db ${db}`;
  const fails = meta.findings.includes(cases.word("status", row)) || cases.word("status", row) === "known";
  const slower = cases.data.flags[row] & (meta.flags.slower | meta.flags["compiles slower"]);
  return el("section", {}, el("h2", {}, "What to run"),
    fails ? command(`torch-oracle localise ${target}`, "Which stage, part and value is wrong first:") : "",
    fails ? command(`torch-oracle minimise ${target}`, "A smaller program with the same difference:") : "",
    fails ? command(`torch-oracle repro ${target}`, "A script and the text of an issue:") : "",
    detail.repro ? command(slower ? `${detail.repro} --speed` : detail.repro, slower ? "Measure this case again:" : "Run this case again:") : "",
    command(`torch-oracle show ${quoted(cases.id(row))} --run ${quoted(run)} --db ${db}`, "Everything on record:"));
}

/** The same program on the other subjects, in the order of the compiler's stages: where it goes wrong first. */
function rungs(cases, row) {
  const { suite, name } = cases.data, meta = cases.meta;
  const same = [];
  for (let other = 0; other < cases.rows; other++) if (name.codes[other] === name.codes[row] && suite.codes[other] === suite.codes[row]) same.push(other);
  if (same.length < 2) return "";
  const rung = (other) => meta.rungs[cases.word("subject", other)] ?? 99;
  same.sort((a, b) => rung(a) - rung(b) || (cases.word("subject", a) < cases.word("subject", b) ? -1 : 1));
  const first = same.find((other) => rung(other) < 99 && meta.findings.includes(cases.word("status", other)));
  return el("section", {}, el("h2", {}, "The same program on other subjects"), el("ul", { class: "rungs" }, same.map((other) =>
    el("li", { class: other === row ? "here" : null }, el("span", {}, other === row ? cases.word("subject", other) : el("a", { href: caseLink(cases.id(other)) }, cases.word("subject", other)), other === first ? el("span", { class: "dim" }, " first wrong") : ""), statusBadge(cases, other)))));
}

function historyText(cases, row, detail) {
  const runs = cases.data.runs, word = cases.word("history", row);
  if (runs.length < 2) return "";
  const section = el("section", {}, el("h2", {}, "History"), beats(word, runs, { width: 14, height: 28 }));
  const since = [...word].findLastIndex((letter, i) => i > 0 && letter !== word.at(-1));
  const before = since >= 0 ? word[since] : "";
  section.append(el("p", { class: "dim" }, since < 0 ? `The same in all ${plural(runs.length, "run")}.` : before === "." ? `First planned in run ${runs[since + 1].run_id} (${runs[since + 1].started_at.slice(0, 10)}).` : `Like this since run ${runs[since + 1].run_id} (${runs[since + 1].started_at.slice(0, 10)}${runs[since + 1].torch !== runs[since].torch ? `, torch ${runs[since].torch} → ${runs[since + 1].torch}` : ""}).`));
  if (detail.speeds?.filter((v) => v !== null).length > 1) section.append(figure("Speedup over eager", line(detail.speeds, runs, times, "Speedup over runs")));
  if (detail.compile_times?.filter((v) => v !== null).length > 1) section.append(figure("Cold compile time", line(detail.compile_times, runs, duration, "Compile time over runs")));
  return section;
}

function facts(cases, row, detail) {
  const m = { ...detail.measured };
  for (const name of ["wall_s", "speedup", "speedup_low", "speedup_high", "compile_cold_s", "compile_warm_s", "peak_memory", "eager_peak_memory", "graph_breaks", "recompiles"]) m[name] = cases.number(name, row) ?? undefined;
  const rows = [
    ["operator or model", cases.word("group", row)], ["dtype", cases.word("dtype", row)], ["direction", cases.word("direction", row)], ["device", cases.word("device", row)],
    ["tags", (detail.tags ?? []).join(", ")], ["seed", detail.seed], ["started", detail.started_at],
    ["speedup", m.speedup !== undefined ? `${times(m.speedup)}${m.speedup_low !== undefined ? ` [${times(m.speedup_low)}, ${times(m.speedup_high)}]` : ""}` : ""],
    ["earlier run", cases.number("base_speedup", row) !== null ? times(cases.number("base_speedup", row)) : ""],
    ["eager, subject", m.eager_s !== undefined ? `${duration(m.eager_s)}, ${duration(m.subject_s)}` : ""],
    ["compile, cold", duration(m.compile_cold_s)], ["compile, warm", duration(m.compile_warm_s)],
    ["peak memory", m.peak_memory !== undefined ? bytes(m.peak_memory) : ""], ["eager's", m.eager_peak_memory !== undefined ? bytes(m.eager_peak_memory) : ""],
    ["graphs", m.graphs], ["graph breaks", m.graph_breaks], ["recompiles", m.recompiles], ["kernels", m.kernels], ["fallbacks", m.fallbacks], ["whole case", duration(m.wall_s)],
  ].filter(([, value]) => value !== undefined && value !== null && value !== "");
  return el("section", {}, el("h2", {}, "Facts"), el("dl", { class: "facts" }, rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))])));
}
