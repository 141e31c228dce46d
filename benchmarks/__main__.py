"""Runs benchmarks: `python -m benchmarks [NAME...] [--repeat N] [--json FILE] [--list]`; without names, all of them.

It prints the median of each side with half the interquartile range, and each peer's time divided by ours (above 1 ours is faster)
with its 95 % interval. `--db FILE` runs them in several processes and adds the ratios to a results database, for `torch-oracle
compare`. Exit code: 1 if our side failed or was slower than its bound, 2 for a usage error, 3 if the GPU can no longer be used by
this process (--resume continues after that case).
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch.utils.benchmark.utils.common import select_unit

from benchmarks.harness import REGISTRY, Benchmark, Row, geometric_mean, load, measure, quartiles
from benchmarks.stored import rows_of, write_run
from oracle.environment import fingerprint, torch_fingerprint
from oracle.errors import UsageError
from results.files import write_atomically

LOST_GPU = 3
SCHEMA = 1


def cells(row: Row) -> dict[str, str]:
    """The printed cells of a row, by column."""
    found = {"case": row.case}
    for side, median in row.medians().items():
        unit, scale = select_unit(median)
        low, high = quartiles(row.seconds(side))
        found[side] = f"{median / scale:.4g} {unit} ±{50 * (high - low) / median:.0f}%"
    for side, speed in row.ratios().items():
        found[f"{side}/{row.ours}"] = f"{speed.speedup:.2f} [{speed.speedup_low:.2f}, {speed.speedup_high:.2f}]"
    found.update({name: f"{v:.4g}" if isinstance(v, float) else str(v) for name, v in row.figures.items()})
    found.update({f"{side}: error": text for side, text in row.errors.items()})
    return found | ({"bound": "TOO SLOW"} if row.is_slow else {})


def summary(rows: Sequence[Row]) -> list[str]:
    """A line for each peer of a benchmark."""
    ratios: dict[str, list[tuple[float, str]]] = {}
    for row in rows:
        for side, speed in row.ratios().items():
            ratios.setdefault(f"{side}/{row.ours}", []).append((speed.speedup, row.case))
    return [
        f"{name}: {geometric_mean([ratio for ratio, _ in found]):.2f} geometric mean of {len(found)}, "
        f"{min(found)[0]:.2f} at least ({min(found)[1]}), {max(found)[0]:.2f} at most"
        for name, found in ratios.items()
    ]


class TableState:
    """Prints rows as they arrive, with a heading whenever the columns change."""

    def __init__(self) -> None:
        self.columns: list[str] = []

    def show(self, row: Row) -> None:
        found = cells(row)
        if list(found) != self.columns:
            self.columns = list(found)
            print(f"{'case':44}", *(f"{name:>20}" for name in self.columns[1:]))
        print(f"{row.case:44}", *(f"{found[name]:>20}" for name in self.columns[1:]), flush=True)


class ReportState:
    """Rows by benchmark and case. Files are written after every change, so that a killed run keeps its rows."""

    def __init__(self, json_file: Path | None, csv_file: Path | None, *, is_resumed: bool) -> None:
        self.json_file, self.csv_file = json_file, csv_file
        self.rows: dict[tuple[str, str], Row] = {}
        self._machine = {**fingerprint(), **torch_fingerprint()} if json_file else {}
        if is_resumed and json_file is not None and json_file.exists():
            kept = json.loads(json_file.read_text(encoding="utf-8"))
            if kept.get("schema") != SCHEMA:
                raise UsageError(
                    seen=f"{json_file}: schema {kept.get('schema')}",
                    expected=f"schema {SCHEMA}",
                    do="name another file, or leave --resume out",
                )
            self.rows = {(row.benchmark, row.case): row for row in map(Row.from_json, kept["rows"])}

    def keep(self, row: Row) -> None:
        self.rows[row.benchmark, row.case] = row
        if self.json_file is not None:
            rows = [each.to_json() for each in self.rows.values()]
            data = {"schema": SCHEMA, "machine": self._machine, "rows": rows}
            write_atomically(self.json_file, json.dumps(data, indent=1) + "\n")
        if self.csv_file is not None:
            table = pd.DataFrame([each.flat() for each in self.rows.values()])
            table.to_csv(self.csv_file, index=False)


def run(chosen: Mapping[str, Mapping[str, Any]], options: argparse.Namespace, report: ReportState) -> int:
    """Run benchmarks with their parameters. Returns the exit code."""
    table, started, is_bad, not_begun, seen = TableState(), time.monotonic(), False, 0, 0
    for name, parameters in chosen.items():
        benchmark = REGISTRY[name]
        print(f"\n== {name}: {_first_line(benchmark)}", flush=True)
        rows: list[Row] = []
        torch.manual_seed(0)
        try:
            for case in benchmark.function(**parameters):
                known = report.rows.get((name, case.name))
                sides = [side for side in options.sides if known is None or side not in known.samples]
                if options.only not in case.name:
                    continue
                seen += 1
                if known is not None and ("all" in known.errors or not sides):
                    continue
                if time.monotonic() - started > options.time:
                    not_begun += 1
                    continue
                if known is None:
                    report.keep(Row(benchmark=name, case=case.name, errors={"all": "did not end"}))
                row = measure(
                    name, case, repeat=options.repeat or benchmark.repeat, only=sides, known=known, enough_s=options.enough,
                    warm_up=int(benchmark.warm_up == "each" or (benchmark.warm_up == "first" and not rows)),
                )  # fmt: skip
                rows.append(row)
                report.keep(row)
                table.show(row)
                is_bad |= row.is_slow or bool({"set-up", row.ours} & row.errors.keys())
                if is_lost():
                    print(
                        f"{name}, {case.name}: the GPU is unusable for this process; --resume goes on", file=sys.stderr
                    )
                    return LOST_GPU
        except UsageError as error:
            if options.names:
                raise
            print(f"left out: {error.seen}")
        print(*summary(rows), sep="\n")
    if not_begun:
        print(f"{not_begun} cases were not begun")
    if not seen and options.only:
        raise UsageError(
            seen=f"no case with {options.only!r} in its name",
            expected=f"a part of the name of a case of {', '.join(chosen)}",
            do="leave --only out to see all",
        )
    return int(is_bad)


def is_lost() -> bool:
    """Whether the current GPU can no longer be used by this process."""
    try:
        return torch.cuda.is_initialized() and not torch.ones(1, device="cuda").item()
    except RuntimeError:
        return True


def _first_line(benchmark: Benchmark) -> str:
    return (benchmark.function.__doc__ or "").strip().splitlines()[0]


def parameters_of(names: Sequence[str], settings: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parameters of each benchmark from `NAME=VALUE`. Raises UsageError for an unknown name or an invalid value."""
    chosen: dict[str, dict[str, Any]] = {name: {} for name in names}
    for setting in settings:
        key, is_given, text = setting.partition("=")
        takers = [name for name in names if key in REGISTRY[name].parameters]
        known = sorted({key for name in names for key in REGISTRY[name].parameters})
        for name in takers:
            kind = type(REGISTRY[name].parameters[key])
            try:
                chosen[name][key] = {"true": True, "false": False}[text] if kind is bool else kind(text)
            except (KeyError, ValueError):
                raise _bad_setting(setting, f"{kind.__name__} for {key}") from None
        if not takers or not is_given:
            raise _bad_setting(setting, f"NAME=VALUE with a name of {', '.join(known) or 'a benchmark that has some'}")
    return chosen


def _bad_setting(setting: str, expected: str) -> UsageError:
    return UsageError(seen=f"--set {setting}", expected=expected, do="see --list")


def _chosen_names(names: Sequence[str], left_out: Mapping[str, str]) -> list[str]:
    unknown = [name for name in names if name not in REGISTRY]
    if unknown:
        absent = "".join(f"\n  {module} was left out: {why}" for module, why in left_out.items())
        raise UsageError(
            seen=f"no benchmark {', '.join(unknown)}",
            expected=f"some of {', '.join(REGISTRY)}{absent}",
            do="see --list",
        )
    return list(dict.fromkeys(names or REGISTRY))


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `python -m`."""
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="benchmarks, and what can be set")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--repeat", type=int, help="rounds of each case")
    parser.add_argument("--sides", type=lambda text: text.split(","), default=[], help="these only, by commas")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of a benchmark")
    parser.add_argument("--json", type=Path, help="written after each case, with the machine and all samples")
    parser.add_argument("--csv", type=Path, help="the table, written after each case")
    parser.add_argument("--resume", action="store_true", help="keep the rows of --json, and measure sides it lacks")
    parser.add_argument("--db", help="a results database; the ratios become a run of the suite `benchmarks` there")
    parser.add_argument("--processes", type=int, default=3, help="with --db: runs, each in a process of its own")
    parser.add_argument("--commit", default="", help="with --db: what is measured, if not the checkout's commit")
    parser.add_argument("--time", type=float, default=math.inf, help="seconds after which no other case is begun")
    parser.add_argument(
        "--enough", type=float, default=math.inf, help="seconds of a case after which no round is begun"
    )
    options = parser.parse_args(arguments)
    if options.repeat is not None and options.repeat < 1:
        parser.error(f"--repeat {options.repeat}: expected at least 1")
    if options.resume and options.json is None:
        parser.error("--resume needs --json, whose rows it keeps")
    if options.processes < 1:
        parser.error(f"--processes {options.processes}: expected at least 1")
    if options.db and (options.json or options.csv):
        parser.error("--db writes no --json and no --csv: run again without it for these")
    left_out = load()
    try:
        names = _chosen_names(options.names, left_out)
        if options.list:
            for name in names:
                settings = " ".join(f"{key}={value}" for key, value in REGISTRY[name].parameters.items())
                print(f"{name:20} {_first_line(REGISTRY[name])}{f'  [{settings}]' if settings else ''}")
            return 0
        if options.db:
            return into_database(options, list(sys.argv[1:] if arguments is None else arguments))
        for module, why in left_out.items():
            print(f"left out: {module}: {why}", file=sys.stderr)
        chosen = parameters_of(names, options.set)
        return run(chosen, options, ReportState(options.json, options.csv, is_resumed=options.resume))
    except UsageError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def into_database(options: argparse.Namespace, words: list[str]) -> int:
    """Run the benchmarks in several processes, one after another, and add what they measured to a database."""
    kept = [word for word in _without(words, ("--db", "--processes", "--commit")) if word]
    processes: list[list[Row]] = []
    codes = []
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        for number in range(options.processes):
            file = Path(folder, f"{number}.json")
            print(f"process {number + 1} of {options.processes}", flush=True)
            done = subprocess.run([sys.executable, "-m", "benchmarks", *kept, "--json", str(file)], check=False)
            codes.append(done.returncode)
            if done.returncode not in (0, 1) or not file.exists():
                return done.returncode or 1  # its own message says why
            processes.append(rows_of(json.loads(file.read_text(encoding="utf-8"))))
    run_id = write_run(options.db, processes, commit=options.commit)
    print(f"run {run_id} in {options.db}")
    return max(codes)


def _without(words: Sequence[str], names: Sequence[str]) -> list[str]:
    """The command's words without some options and their values."""
    found: list[str] = []
    skip = False
    for word in words:
        name, has_value, _ = word.partition("=")
        if skip or name in names:
            skip = not skip and not has_value
        else:
            found.append(word)
    return found


def _set_up_process() -> None:
    """Use one thread in this process, and switch off warnings of the compilers, which would interrupt the table."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


if __name__ == "__main__":
    _set_up_process()
    sys.exit(main())
