"""Writes docs/performance.md: our own benchmarks over commits, with the verdicts of results.speed.

    python docs/tools/performance.py --add benchmarks.db    # runs that `python -m benchmarks --db benchmarks.db` wrote
    python docs/tools/performance.py --write | --check      # the page, from HISTORY

HISTORY has a row for each commit, case and peer. Only runs on the processor of the newest one are compared.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from results.files import write_atomically
from results.speed import SpeedCase, SpeedVerdict, judge_speed
from results.speed.change_points import histories
from results.speed.samples import Run
from results.store import Store

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "performance.md"
HISTORY = ROOT / "results" / "data" / "cpu-torch-2.13.0" / "performance-history.csv"
_COLUMNS = ("commit_time", "commit", "measured", "processor", "benchmark", "case", "peer", "costs")
_SHOWN = 8  # characters of a commit


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One case with one peer at one commit."""

    commit_time: str  # ISO 8601
    commit: str
    measured: str  # day
    processor: str
    benchmark: str
    case: str
    peer: str
    costs: str  # one for each process: the natural logarithm of our time over the peer's, by spaces

    @property
    def name(self) -> str:
        return f"{self.benchmark}/{self.case}/{self.peer}"

    @property
    def run(self) -> Run:
        return tuple((float(word),) for word in self.costs.split())


def read_history(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return [Row(**row) for row in csv.DictReader(file)]


def written(rows: Sequence[Row]) -> str:
    """The history as CSV, by commit, then as measured."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows([getattr(row, name) for name in _COLUMNS] for row in sorted(rows, key=lambda row: row.commit_time))
    return text.getvalue()


def rows_of(database: str) -> Iterator[Row]:
    """The rows of all runs of benchmarks in a results database. Runs of a checkout with changes are left out."""
    with Store.open(database, create=False, read_only=True) as store:
        for info in store.runs():
            commit = info.environment.get("commit")
            if not commit or info.environment.get("has_changes"):
                continue
            for record in store.records(info.run_id):
                costs = record.measurements.costs
                if record.suite != "benchmarks" or not costs:
                    continue
                benchmark, case, peer = record.group, *record.name.removeprefix(f"{record.group}/").rsplit("/", 1)
                yield Row(
                    commit_time=info.environment["commit_time"], commit=commit, measured=info.started_at[:10],
                    processor=info.environment.get("cpu_model", ""), benchmark=benchmark, case=case, peer=peer,
                    costs=" ".join(f"{statistics.median(process):.4f}" for process in costs),
                )  # fmt: skip


def added(old: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """Both; a case that was measured again at its commit, on the same processor, has its newer row."""
    by_key = {(row.commit, row.processor, row.name): row for row in (*old, *new)}
    return list(by_key.values())


def page(rows: Sequence[Row]) -> str:
    """The text of the page."""
    newest = max(rows, key=lambda row: row.commit_time)
    rows = [row for row in rows if row.processor == newest.processor]
    commits = sorted({(row.commit_time, row.commit) for row in rows})
    verdicts = _verdicts(rows)
    lines = [
        "# Our own speed, commit by commit",
        "",
        "Made by `docs/tools/performance.py` from",
        f"[`{HISTORY.name}`](../{HISTORY.relative_to(ROOT)}): what `python -m benchmarks --db FILE` measured.",
        "A number is the peer's time divided by ours, so above 1 ours is faster. Each is measured in several processes. The",
        "verdict compares the newest commit with the one measured before it, by the rules of `torch-oracle compare`: `worse` and",
        "`better` are more than noise explains, `same` excludes a change of 10 %, and the interval of the change is one of 95 %.",
        "",
        f"Measured on: {newest.processor}.",
        "",
        "| commit | of | cases |",
        "|---|---|---|",
        *(
            f"| `{commit[:_SHOWN]}` | {time[:10]} | {sum(row.commit == commit for row in rows)} |"
            for time, commit in commits
        ),
        "",
    ]
    for benchmark in dict.fromkeys(row.benchmark for row in rows):
        chosen = [row for row in rows if row.benchmark == benchmark]
        lines += [f"## {benchmark}", "", *_table(chosen, [commit for _, commit in commits], verdicts), ""]
    changes = list(_change_points(rows, [commit for _, commit in commits]))
    lines += [
        "## Lasting changes",
        "",
        *(changes or ["None found: a history needs five commits before any is looked for."]),
        "",
    ]
    return "\n".join(lines)


def _by_name(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.commit_time):
        found.setdefault(row.name, []).append(row)
    return found


def _verdicts(rows: Sequence[Row]) -> Mapping[str, SpeedVerdict]:
    """The verdict on the newest row of each case that has two."""
    cases = {
        name: SpeedCase(base=of[-2].run, head=of[-1].run, history=tuple(row.run for row in of[:-2]))
        for name, of in _by_name(rows).items()
        if len(of) > 1
    }
    return judge_speed(cases).verdicts


def _table(rows: Sequence[Row], commits: Sequence[str], verdicts: Mapping[str, SpeedVerdict]) -> Iterator[str]:
    shown = [commit for commit in commits if any(row.commit == commit for row in rows)][-4:]
    yield f"| case | peer | {' | '.join(f'`{commit[:_SHOWN]}`' for commit in shown)} | our time, newest / before | verdict |"
    yield "|---|---|" + "---|" * (len(shown) + 2)
    for name, of in _by_name(rows).items():
        by_commit = {row.commit: row for row in of}
        ratios = [_ratio(by_commit[commit]) if commit in by_commit else "" for commit in shown]
        verdict = verdicts.get(name)
        change = "" if verdict is None or verdict.effect is None else _change(verdict)
        word = "" if verdict is None else verdict.word.value
        yield f"| {of[-1].case} | {of[-1].peer} | {' | '.join(ratios)} | {change} | {word} |"


def _ratio(row: Row) -> str:
    return f"{math.exp(-statistics.fmean(cost for (cost,) in row.run)):.2f}"


def _change(verdict: SpeedVerdict) -> str:
    return f"{verdict.effect:.2f} [{verdict.low:.2f}, {verdict.high:.2f}]"


def _change_points(rows: Sequence[Row], commits: Sequence[str]) -> Iterator[str]:
    runs: dict[str, Sequence[Run]] = {}
    for name, of in _by_name(rows).items():
        by_commit = {row.commit: row.run for row in of}
        runs[name] = [by_commit.get(commit, ()) for commit in commits]
    for name, history in histories(runs).items():
        for point in history.points:
            commit = commits[history.runs[point.index]]
            word = "slower" if point.is_worse else "faster"
            yield f"* {name}: {word} by {100 * abs(point.effect - 1):.0f} % since `{commit[:_SHOWN]}`"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--add", metavar="DB", help="add the benchmarks of a results database to the history; writes the page too"
    )
    what.add_argument("--write", action="store_true", help="write the page")
    what.add_argument("--check", action="store_true", help="fail if the page is not that of the history")
    options = parser.parse_args()
    rows = read_history(HISTORY) if HISTORY.exists() else []
    if options.add:
        rows = added(rows, list(rows_of(options.add)))
        write_atomically(HISTORY, written(rows))
    if not rows:
        sys.stderr.write(
            "no history yet: run `python -m benchmarks --db FILE` in a checkout without changes, then --add FILE\n"
        )
        return int(bool(options.add) or PAGE.exists())
    text = page(rows)
    if not options.check:
        write_atomically(PAGE, text)
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        sys.stderr.write("docs/performance.md is out of date: run docs/tools/performance.py --write (make fix does)\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
