// Plots as SVG. Colours are classes of report.css, so that they follow the theme and print.

const SVG = "http://www.w3.org/2000/svg";
function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null && value !== undefined) element.setAttribute(key, value);
  element.append(...children.flat().filter(Boolean));
  return element;
}
const label = (x, y, text, attributes = {}) => svg("text", { x, y, ...attributes }, text);
const compact = new Intl.NumberFormat("en-US", { notation: "compact" });
const brief = (value) => (value < 10000 ? count(value) : compact.format(value));
const title = (text) => svg("title", {}, text);
function chart(width, height, described, ...children) {
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": described }, ...children);
}
function figure(caption, drawn, ...more) {
  return el("figure", { class: "chart" }, drawn, ...more, el("figcaption", {}, caption));
}

/** The history of a case as small bars, oldest first: short for agreement, tall for a difference, so that colour is not needed. */
function beats(word, runs, { width = 7, height = 16 } = {}) {
  const names = { p: "passed", f: "failed", k: "a known issue", n: "not compared", "-": "not run", ".": "not planned" };
  const bars = [...word].map((letter, i) => {
    const tall = { p: 0.45, f: 1, k: 0.75, n: 0.2 }[letter] ?? 0.08;
    const kind = { p: "p", f: "f", k: "k", n: "n" }[letter] ?? "none";
    const bar = svg("rect", { x: i * width, y: height * (1 - tall), width: width - 2, height: height * tall, class: kind });
    if (runs) bar.append(title(`${runs[i].run_id}: ${names[letter]}`));
    return bar;
  });
  const failed = [...word].filter((letter) => letter === "f" || letter === "k").length;
  const said = `differed in ${failed} of ${word.length} runs; the last one ${names[word.at(-1)]}`;
  return svg("svg", { class: "beats", width: word.length * width, height, viewBox: `0 0 ${word.length * width} ${height}`, role: "img", "aria-label": said }, ...bars);
}

/** How many cases differ from eager in each run, known issues below new failures, oldest run first. */
function trend(runs) {
  const height = 150, bottom = 118, left = 44;
  const step = Math.min(46, 416 / Math.max(runs.length, 1));
  const width = Math.max(200, left + 4 + step * runs.length);
  const wrong = runs.map((run) => run.new + run.known);
  const most = Math.max(1, ...wrong);
  const parts = [];
  for (const [share, value] of [[0, 0], [1, most]]) {
    const y = bottom - share * (bottom - 14);
    parts.push(svg("line", { class: "axis", x1: left, x2: width, y1: y, y2: y }), label(left - 6, y + 4, brief(value), { "text-anchor": "end" }));
  }
  runs.forEach((run, i) => {
    const x = left + 4 + i * step;
    let y = bottom;
    for (const name of ["known", "new"]) {
      const tall = ((bottom - 14) * run[name]) / most;
      y -= tall;
      parts.push(svg("rect", { class: name, x, y, width: Math.max(3, step - 6), height: tall }, title(`${run.run_id}: ${run[name]} ${name === "new" ? "failures" : "known"}`)));
    }
    if (wrong[i]) parts.push(label(x + Math.max(3, step - 6) / 2, y - 3, brief(wrong[i]), { "text-anchor": "middle", class: i === runs.length - 1 ? "strong" : null }));
    const every = Math.ceil(42 / step);
    if ((runs.length - 1 - i) % every === 0) parts.push(label(x + Math.max(3, step - 6) / 2, bottom + 14, run.started_at.slice(5, 10), { "text-anchor": "middle" }));
    if ((runs.length - 1 - i) % every === 0) parts.push(label(x + Math.max(3, step - 6) / 2, bottom + 27, run.started_at.slice(11, 16), { "text-anchor": "middle" }));
  });
  const drawn = chart(width, height, `Failing cases in ${runs.length} runs: ${wrong.join(", ")}`, ...parts);
  drawn.style.maxWidth = `${width}px`;
  return drawn;
}

/** A line over runs; gaps where there is no value. */
function line(values, runs, format, described) {
  const width = 460, height = 120, left = 64, bottom = 92;
  const known = values.filter((value) => value !== null);
  if (known.length === 0) return null;
  let low = Math.min(...known), high = Math.max(...known);
  if (low === high) { low *= 0.95; high = high * 1.05 || 1; }
  const pad = (high - low) * 0.1;
  low = Math.max(0, low - pad); high += pad;
  const x = (i) => left + 8 + ((width - left - 16) * i) / Math.max(1, values.length - 1);
  const y = (value) => bottom - ((value - low) / (high - low)) * (bottom - 12);
  const parts = [low, high].map((value) => [svg("line", { class: "axis", x1: left, x2: width, y1: y(value), y2: y(value) }), label(left - 6, y(value) + 4, format(value), { "text-anchor": "end" })]).flat();
  let path = "";
  values.forEach((value, i) => {
    if (value === null) return;
    path += `${path === "" || values[i - 1] === null ? "M" : "L"}${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
    parts.push(svg("circle", { class: "fill-accent", cx: x(i), cy: y(value), r: 3 }, title(`${runs[i].run_id}: ${format(value)}`)));
  });
  parts.push(svg("path", { class: "line", d: path }));
  parts.push(label(left + 8, bottom + 18, runs[0].started_at.slice(0, 10)), label(width - 8, bottom + 18, runs.at(-1).started_at.slice(0, 10), { "text-anchor": "end" }));
  return chart(width, height, described, ...parts);
}

/** How often each size of a positive number occurs, on a logarithmic axis; `mark` is drawn as a line. */
function histogram(values, format, { mark = null, described = "" } = {}) {
  const logs = values.filter((value) => value > 0).map(Math.log2);
  if (logs.length === 0) return null;
  const width = 460, height = 150, left = 44, bottom = 118, bins = 32;
  let low = Math.min(...logs), high = Math.max(...logs);
  if (mark) { low = Math.min(low, Math.log2(mark) - 0.25); high = Math.max(high, Math.log2(mark) + 0.25); }
  if (high - low < 0.5) { low -= 0.25; high += 0.25; }
  const tall = new Array(bins).fill(0);
  for (const value of logs) tall[Math.min(bins - 1, Math.floor(((value - low) / (high - low)) * bins))]++;
  const most = Math.max(...tall);
  const x = (value) => left + ((value - low) / (high - low)) * (width - left - 8);
  const parts = [svg("line", { class: "axis", x1: left, x2: width, y1: bottom, y2: bottom }), label(left - 6, 18, count(most), { "text-anchor": "end" }), label(left - 6, bottom + 3, "0", { "text-anchor": "end" })];
  tall.forEach((n, i) => {
    const from = low + ((high - low) * i) / bins, to = low + ((high - low) * (i + 1)) / bins;
    const h = ((bottom - 14) * n) / most;
    const slower = mark && to <= Math.log2(mark) + 1e-9;
    if (n) parts.push(svg("rect", { class: slower ? "fill-warn" : "fill-accent", x: x(from) + 0.5, y: bottom - h, width: x(to) - x(from) - 1, height: h }, title(`${format(2 ** from)} to ${format(2 ** to)}: ${plural(n, "case")}`)));
  });
  for (let i = 0; i <= 4; i++) {
    const value = low + ((high - low) * i) / 4;
    parts.push(label(x(value), bottom + 16, format(2 ** value), { "text-anchor": i === 0 ? "start" : i === 4 ? "end" : "middle" }));
  }
  if (mark) parts.push(svg("line", { class: "mark", x1: x(Math.log2(mark)), x2: x(Math.log2(mark)), y1: 8, y2: bottom }));
  return chart(width, height, described, ...parts);
}

/** Errors on one logarithmic axis: eager's, the largest allowed, the subject's. */
function errors(worst) {
  const rows = [["eager's error", worst.eager_error, "fill-good"], ["allowed", worst.allowed_error, "fill-grey"], ["subject's error", worst.subject_error, "fill-bad"]].filter(([, value]) => typeof value === "number");
  const positive = rows.map(([, value]) => value).filter((value) => value > 0);
  if (rows.length < 2 || positive.length === 0) return null;
  const low = Math.floor(Math.log10(Math.min(...positive))) - 1, high = Math.max(Math.ceil(Math.log10(Math.max(...positive))), low + 2);
  const width = 560, left = 104, right = 76, height = 30 + 26 * rows.length;
  const x = (value) => left + ((Math.log10(value) - low) / (high - low)) * (width - left - right);
  const parts = [];
  for (let power = low, each = Math.ceil((high - low) / 6); power <= high; power += each) {
    parts.push(svg("line", { class: "axis", x1: x(10 ** power), x2: x(10 ** power), y1: 4, y2: height - 22 }), label(x(10 ** power), height - 8, `1e${power}`, { "text-anchor": "middle" }));
  }
  rows.forEach(([name, value, fill], i) => {
    const y = 8 + 26 * i;
    parts.push(label(left - 8, y + 13, name, { "text-anchor": "end", class: "strong" }));
    const end = value > 0 ? x(value) : left;
    parts.push(svg("rect", { class: fill, x: left, y, width: Math.max(2, end - left), height: 18 }), label(end + 6, y + 13, short(value), { class: "strong" }));
  });
  return chart(width, height, `Errors: ${rows.map(([name, value]) => `${name} ${short(value)}`).join(", ")}`, ...parts);
}

/** Eager's and the subject's value on an axis through the fp64 value, with the allowed range as a band. */
function values(worst) {
  const numbers = [worst.truth ?? worst.eager, worst.eager, worst.subject].map(Number);
  const [truth, eager, subject] = numbers;
  if (!numbers.every(Number.isFinite) || worst.eager === "" || worst.subject === "") return null;
  const allowed = typeof worst.allowed_error === "number" && Number.isFinite(worst.allowed_error) ? worst.allowed_error : 0;
  const reach = Math.max(Math.abs(eager - truth), Math.abs(subject - truth), allowed) * 1.25;
  if (!(reach > 0)) return null;
  const width = 560, height = 84, y = 42, left = 40, right = 40;
  const x = (value) => left + ((value - truth + reach) / (2 * reach)) * (width - left - right);
  const parts = [svg("line", { class: "axis", x1: left, x2: width - right, y1: y, y2: y })];
  if (allowed > 0) parts.push(svg("rect", { class: "band", x: x(truth - allowed), y: y - 12, width: Math.max(2, x(truth + allowed) - x(truth - allowed)), height: 24 }, title("allowed")));
  parts.push(svg("line", { class: "mark", x1: x(truth), x2: x(truth), y1: y - 18, y2: y + 18 }));
  parts.push(svg("circle", { class: "fill-good", cx: x(eager), cy: y, r: 5 }, title(`eager ${worst.eager}`)));
  parts.push(svg("rect", { class: "fill-bad", x: x(subject) - 5, y: y - 5, width: 10, height: 10 }, title(`subject ${worst.subject}`)));
  const close = Math.abs(x(eager) - x(truth)) < 110;
  const name = worst.truth === undefined || worst.truth === null ? "eager" : close ? "fp64 and eager" : "fp64";
  parts.push(label(x(truth), y + 34, `${name} ${short(truth)}`, { "text-anchor": "middle", class: "strong" }));
  if (!close) parts.push(label(x(eager), y - 14, `eager ${short(eager)}`, { "text-anchor": "middle", class: "strong" }));
  const edge = x(subject) < 90 ? "start" : x(subject) > width - 90 ? "end" : "middle";
  parts.push(label(x(subject), y - 14, `subject ${short(subject)}`, { "text-anchor": edge, class: "strong" }));
  return chart(width, height, `fp64 ${worst.truth ?? "unknown"}, eager ${worst.eager}, subject ${worst.subject}`, ...parts);
}
