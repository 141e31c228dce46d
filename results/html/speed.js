// The page on speed: distributions, histories, and what became slower or faster.

function drawSpeed(cases) {
  const data = cases.data, place = el("div", {});
  const passing = [];
  for (let row = 0; row < cases.rows; row++) if (cases.word("status", row) === "pass") passing.push(row);
  const of = (column) => passing.map((row) => data[column][row]).filter((value) => value !== null && value > 0);
  const charts = el("div", { class: "charts" });
  const subjects = [...new Set(passing.filter((row) => data.speedup[row] !== null).map((row) => cases.word("subject", row)))];
  for (const subject of subjects.slice(0, 6)) {
    const found = passing.filter((row) => cases.word("subject", row) === subject).map((row) => data.speedup[row]).filter((value) => value > 0);
    const drawn = histogram(found, times, { mark: 1, described: `Speedups of ${subject}` });
    if (drawn) charts.append(figure(`Speedup of ${subject} over eager, ${plural(found.length, "case")}; left of the line it is slower than eager`, drawn));
  }
  const compiled = histogram(of("compile_cold_s"), duration, { described: "Cold compile times" });
  if (compiled) charts.append(figure(`Cold compile time, ${plural(of("compile_cold_s").length, "passing case")}`, compiled));
  const memory = passing.filter((row) => data.peak_memory[row] > 0 && data.eager_peak_memory[row] > 0).map((row) => data.eager_peak_memory[row] / data.peak_memory[row]);
  const remembered = histogram(memory, times, { mark: 1, described: "Memory" });
  if (remembered) charts.append(figure(`Eager's peak memory divided by the subject's, ${plural(memory.length, "case")}; left of the line it needs more than eager`, remembered));
  for (const [column, format, said] of [["speedup", times, "Median speedup of the timed cases, by run"], ["compile_cold_s", duration, "Median cold compile time, by run"]]) {
    const series = data.runs.map((run) => run[column]);
    if (series.filter((value) => value !== null).length > 1) charts.append(figure(said, line(series, data.runs, format, said)));
  }
  if (charts.childElementCount) place.append(el("h2", {}, "Distributions and history"), charts);
  for (const [flag, said, column, base, format] of [
    ["slower", "Slower than in the earlier run", "speedup", "base_speedup", times], ["faster", "Faster than in the earlier run", "speedup", "base_speedup", times],
    ["compiles slower", "Compiles slower", "compile_cold_s", "base_compile_cold_s", duration], ["compiles faster", "Compiles faster", "compile_cold_s", "base_compile_cold_s", duration]]) {
    const bit = cases.meta.flags[flag], found = [];
    for (let row = 0; row < cases.rows; row++) if (data.flags[row] & bit) found.push(row);
    if (!found.length) continue;
    const change = (row) => data[column][row] / data[base][row];
    found.sort((a, b) => Math.abs(Math.log(change(b))) - Math.abs(Math.log(change(a))));
    place.append(el("h2", {}, `${said}: `, el("a", { href: casesLink({ flag }) }, plural(found.length, "case"))),
      el("div", { class: "scroll" }, el("table", { class: "plain" }, el("thead", {}, el("tr", {}, ["case", "earlier run", "this run", "change"].map((text, i) => el("th", { scope: "col", class: i ? "right" : null }, text)))),
        el("tbody", {}, found.slice(0, 20).map((row) => el("tr", {}, el("td", {}, el("a", { href: caseLink(cases.id(row)) }, cases.id(row))), el("td", { class: "right" }, format(data[base][row])), el("td", { class: "right" }, format(data[column][row])), el("td", { class: "right" }, `${change(row) < 1 ? "" : "+"}${(100 * (change(row) - 1)).toFixed(1)} %`)))))));
  }
  return place;
}
