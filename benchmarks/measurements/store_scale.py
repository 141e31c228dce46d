"""What the results store costs with many records: `python -m benchmarks.measurements.store_scale [--runs N] [--rows N]`.

Writes runs of made-up cases to a database, in batches as a sweep does, then runs commands on it, each in a process of its own.
Columns: rows written or read, wall and processor seconds, rows a second, and the peak of resident memory of the process in MB
(imports included). One record in a hundred is a finding, two are known issues, and one in five was timed. With --failing each row
of both runs is a finding with a text of its own. With --timed the runs are ten that were asked to measure speed, so that the last
two are compared with the noise that eight earlier ones tell.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

from benchmarks.measurements.frame import options_of, shown
from oracle.records import Record
from oracle.verdict import BiasSum, Status
from results.history import case_history
from results.store import Store
from results.tests import fabricate

BATCH = 1000
_TIMED_RUNS = 10  # `results.history` reads eight before those that are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One row of the table."""

    what: str
    database: str
    rows: int
    wall_s: float
    cpu_s: float
    rows_per_s: int
    peak_mb: int


def made_up_records(run: int, rows: int, *, fail: bool = False) -> Iterator[Record]:
    """Records of one run: the same cases in each run, some of which change their verdict from run to run. `fail`: all do."""
    bias = BiasSum(dtype="float32", eps=2.0**-23, tensors=1, weight=24, subject=0.5, eager=0.25, variance=0.125)
    for index in range(rows):
        operator, sample = divmod(index, 40)
        case = fabricate.case(
            f"operator_{operator}/float32/forward/{sample}",
            subject=("inductor", "aot_eager")[index % 2],
            source=f"def program(x):\n    return torch.operator_{operator}(x, {sample})\n",
        )
        status = Status.PASS
        if fail or index % 100 == 0 or (index + run) % 1000 == 7:
            status = Status.FAIL_ACCURACY
        elif index % 50 == 1:
            status = Status.KNOWN
        speedup = 1.0 + ((index * 7919 + run * 104729) % 97) / 100 if index % 5 == 2 else None
        record = fabricate.record(case, status, run_id=f"run-{run:04}", speedup=speedup)
        verdict = replace(record.verdict, bias=(bias,))
        if fail:
            element, value = index % 1000, index / rows  # each text differs, as those of real findings do
            symptom = f"call 0: output[{operator % 8}][{element}] is {value:.9g}, but should be 1 (fp64 1.0)"
            verdict = replace(
                verdict,
                symptom=f"{symptom}: error {1 - value:.3g}, allowed 4.77e-07; {element} of 1000 elements are wrong",
            )
        yield replace(record, verdict=verdict)


def write(db: str, first: int, runs: int, rows: int, kind: str = "") -> tuple[int, float, float]:
    """Rows, and seconds of wall and processor, of planning and appending; making the records up is not counted.

    `kind`: "failing" or "timed", as the options.
    """
    wall = cpu = 0.0
    arguments = {**fabricate.ARGUMENTS, "options": {"speed": True}} if kind == "timed" else fabricate.ARGUMENTS
    with Store.open(db, create=True) as store:
        for run in range(first, first + runs):
            records = made_up_records(run, rows, fail=kind == "failing")
            store.begin_run(run_id=f"run-{run:04}", environment=fabricate.ENVIRONMENT, arguments=arguments)
            batches = iter(lambda records=records: list(islice(records, BATCH)), [])
            for batch in batches:
                cases = fabricate.cases_of(batch)
                start, start_cpu = time.perf_counter(), time.process_time()
                with store.transaction() as transaction:
                    transaction.add_cases(f"run-{run:04}", cases)
                store.append(batch)
                wall += time.perf_counter() - start
                cpu += time.process_time() - start_cpu
            store.finish_planning(f"run-{run:04}")
            store.end_run(f"run-{run:04}", state="complete")
    return runs * rows, wall, cpu


def command(*arguments: str) -> tuple[float, float]:
    """Seconds of wall and processor of a command in this process, its imports included."""
    start, start_cpu = time.perf_counter(), time.process_time()
    from oracle.cli import run  # noqa: PLC0415  counted as part of the command

    if (code := run(list(arguments))) not in (0, 1):
        raise SystemExit(f"torch-oracle {' '.join(arguments)} ended with {code}")
    return time.perf_counter() - start, time.process_time() - start_cpu


def history(db: str) -> tuple[int, float, float]:
    """Runs of one case, and seconds of wall and processor of opening the database and asking for them."""
    case_id = next(made_up_records(0, 1)).case_id
    start, start_cpu = time.perf_counter(), time.process_time()
    with Store.open(db, create=False, read_only=True) as store:
        found = case_history(store, case_id)
    return len(found), time.perf_counter() - start, time.process_time() - start_cpu


def _child(arguments: list[str]) -> None:
    """Run one step, and print its cost as JSON on the last line of stderr."""
    what, db, *rest = arguments
    if what == "insert":
        first, runs, rows_each, *kind = rest
        rows, wall, cpu = write(db, int(first), int(runs), int(rows_each), *kind)
    elif what == "history":
        rows, wall, cpu = history(db)
    else:
        rows = int(rest[0])
        wall, cpu = command(*rest[1:])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sys.stderr.write("\n" + json.dumps({"rows": rows, "wall_s": wall, "cpu_s": cpu, "peak_mb": peak // 1024}))


def cost(what: str, db: str, *arguments: str) -> Cost:
    """The cost of one step, in a process of its own."""
    name = what.split()[0]
    done = subprocess.run(
        [sys.executable, "-m", __spec__.name if __spec__ else __name__, "--child", name, db, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    found = json.loads(done.stderr.splitlines()[-1])
    kind = "PostgreSQL" if "://" in db else "SQLite"
    return Cost(
        what=what,
        database=kind,
        rows=found["rows"],
        wall_s=round(found["wall_s"], 3),
        cpu_s=round(found["cpu_s"], 3),
        rows_per_s=round(found["rows"] / found["wall_s"]),
        peak_mb=found["peak_mb"],
    )


def costs_of_compare(db: str, rows: int, first: int = 0) -> Iterator[Cost]:
    """The cost of comparing two successive runs of a database that has them."""
    yield cost("compare", db, str(2 * rows), "compare", f"{db}#run-{first:04}", f"{db}#run-{first + 1:04}")


def costs_with_history(db: str, rows: int) -> Iterator[Cost]:
    """The costs of writing ten runs that measured speed, and of comparing the last two."""
    yield cost("insert", db, "0", str(_TIMED_RUNS), str(rows), "timed")
    yield from costs_of_compare(db, rows, _TIMED_RUNS - 2)


def costs(db: str, runs: int, rows: int) -> Iterator[Cost]:
    """One row per step."""
    yield cost("insert", db, "0", str(runs), str(rows))
    last = f"run-{runs - 1:04}"
    before = f"run-{max(runs - 2, 0):04}"
    yield cost("compare", db, str(2 * rows), "compare", f"{db}#{before}", f"{db}#{last}")
    yield cost("show", db, str(rows), "show", "--db", db)
    yield cost("history of a case", db)
    yield cost("show --runs", db, str(runs * rows), "show", "--runs", "--db", db)
    yield from _costs_of_gate("gate", db, rows)
    yield cost("show --json", db, str(rows), "show", "--json", "--db", db)
    for kind, ending in (("JSON lines", "jsonl"), ("JUnit XML", "xml")):
        with tempfile.TemporaryDirectory() as folder:
            yield cost(f"export to {kind}", db, str(rows), "export", "--db", db, str(Path(folder) / f"out.{ending}"))


def costs_of_failures(db: str, rows: int) -> Iterator[Cost]:
    """The costs of such commands on two runs in which every case fails."""
    yield cost("insert", db, "0", "2", str(rows), "failing")
    yield from _costs_of_gate("gate of failing rows alone", db, rows)
    yield cost("show of failing rows alone", db, str(rows), "show", "--db", db)
    yield cost("compare of failing rows alone", db, str(2 * rows), "compare", f"{db}#run-0000", f"{db}#run-0001")


def _costs_of_gate(what: str, db: str, rows: int) -> Iterator[Cost]:
    """The cost of a gate without accepted failures."""
    with tempfile.TemporaryDirectory() as folder:
        (accepted := Path(folder) / "accepted.txt").write_text("")
        yield cost(what, db, str(rows), "gate", "--db", db, "--baseline", str(accepted))


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        _child(sys.argv[2:])
        return
    parser: argparse.ArgumentParser = options_of(__doc__)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--rows", type=int, default=100_000, help="cases of each run")
    parser.add_argument(
        "--db", default="", help="a database to write to, such as one on PostgreSQL; else a temporary file"
    )
    parser.add_argument(
        "--failing", type=int, default=0, metavar="ROWS", help="measure runs whose rows all fail instead"
    )
    parser.add_argument("--timed", action="store_true", help="measure ten runs that measured speed instead")
    parser.add_argument(
        "--compare", action="store_true", help="only compare two runs of --db, as another version wrote them"
    )
    parser.add_argument("--first", type=int, default=0, metavar="RUN", help="with --compare: number of the first")
    options = parser.parse_args()
    if options.compare:
        shown(map(asdict, costs_of_compare(options.db, options.rows, options.first)), options.csv)
        return
    with tempfile.TemporaryDirectory() as folder:
        db = options.db or str(Path(folder) / "scale.db")
        if options.timed:
            found = costs_with_history(db, options.rows)
        else:
            found = costs_of_failures(db, options.failing) if options.failing else costs(db, options.runs, options.rows)
        shown(map(asdict, found), options.csv)


if __name__ == "__main__":
    main()
