"""Size and speed of the HTML report: `python -m benchmarks.measurements.report_scale [--rows 10,1000,100000] [--csv FILE]`.

Makes databases with three runs of made-up cases, of which 2 % fail and some are new, fixed, flaky or slower; a number with "f"
(`1000000f`) makes all of them fail, each with a symptom of its own. Columns: cases of the last run; whether all fail; rows that
the file carries; seconds to read, compare and write, and the process's peak memory, in MB; size of the file in MB; then, in
headless Chromium, medians of three: milliseconds from navigation to the first painted content (`painted_ms`) and until the data
is unpacked and the page answers (`interactive_ms`); milliseconds to search for two words and draw the list (`search_ms`), to
filter by a subject and an outcome (`filter_ms`), to sort by symptom (`sort_ms`), and to open a case page (`case_ms`).
"""

from __future__ import annotations

import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from benchmarks.measurements.frame import options_of, shown
from oracle.records import Measurements, PlannedCase, Record
from oracle.verdict import Compared, Status, Verdict, WorstElement
from results.html.contents import ROWS_CARRIED, Side, contents_of
from results.html.page import write_report
from results.store import LATEST, Store
from results.tests.browser import chromium, visit, wait_for

_OPERATORS: Final = (
    *("add", "mul", "softmax", "nn.functional.gelu", "linalg.svd", "index_put", "scatter_reduce", "cumsum", "sort"),
    *("nn.functional.conv2d", "logsumexp", "as_strided", "masked_fill", "nn.functional.layer_norm", "einsum", "var"),
)
_SUBJECTS: Final = ("dynamo", "aot_eager", "inductor")
_DTYPES: Final = ("float32", "bfloat16", "float64", "int64")
_SOURCE: Final = '''"""Sample {sample} of torch.{operator}, {dtype}."""

import torch

PROGRAM = {{"calls": [{{}}]}}


def program(x, y):
    scaled = x * {sample}.0 + y
    result = torch.{operator}(scaled)
    return result, scaled


def inputs(call):
    return (torch.randn({rows}, 8).to(torch.{dtype}), torch.randn({rows}, 8).to(torch.{dtype})), {{}}
'''
_STATUSES: Final = (Status.FAIL_ACCURACY, Status.FAIL_GRAD, Status.FAIL_TO_RUN, Status.CRASH, Status.FAIL_STRIDE)


def cases(count: int) -> list[PlannedCase]:
    """Planned cases: each program on three subjects."""
    found = []
    for i in range(count):
        sample, subject = divmod(i, len(_SUBJECTS))
        operator, dtype = _OPERATORS[sample % len(_OPERATORS)], _DTYPES[sample // len(_OPERATORS) % len(_DTYPES)]
        name = f"{operator}/{dtype}/forward/{sample}"
        source = _SOURCE.format(sample=sample, operator=operator, dtype=dtype, rows=2 + sample % 14)
        program = {"format": 1, "name": name, "source": source, "calls": [{}]}
        case = PlannedCase(
            case_id=f"opinfo/{name}@{_SUBJECTS[subject]}",
            suite="opinfo" if sample % 5 else "models",
            group=operator,
            name=name,
            subject=_SUBJECTS[subject],
            dtype=dtype,
            program=program,
        )
        found.append(replace(case, case_id=f"{case.suite}/{name}@{case.subject}"))
    return found


def records(planned: Sequence[PlannedCase], run: int, *, failing: bool) -> Iterator[Record]:
    """Records of one run. The chance of a failure depends on the case; some cases change from run to run."""
    for i, case in enumerate(planned):
        steady = random.Random(f"{case.name}{case.subject}")
        luck = random.Random(f"{case.case_id} {run}")
        fate = steady.random()
        bad = fate < (0.05 if case.subject == "inductor" else 0.01)
        if 0.06 < fate < 0.064:  # flaky
            bad = luck.random() < 0.5
        elif 0.07 < fate < 0.074:  # new
            bad = run == 2
        elif 0.08 < fate < 0.083:  # fixed
            bad = run < 2
        wrong = steady.choice(_STATUSES)
        number = i if failing else steady.randrange(40)
        status = wrong if bad or failing else Status.PASS
        speedup = (
            steady.lognormvariate(0.25, 0.35)
            * luck.uniform(0.995, 1.005)
            * (0.8 if run == 2 and 0.09 < fate < 0.093 else 1)
        )
        yield Record.of(
            case,
            run_id=f"run-{run}",
            verdict=_verdict(status, number, steady),
            measurements=Measurements(
                wall_s=steady.uniform(0.05, 2),
                eager_s=2e-4,
                subject_s=2e-4 / speedup,
                speedup=speedup,
                speedup_low=speedup * 0.98,
                speedup_high=speedup * 1.02,
                repeats=30,
                compile_cold_s=steady.lognormvariate(0, 0.6),
                compile_warm_s=steady.uniform(0.1, 0.4),
                peak_memory=steady.randrange(1_000_000, 4_000_000),
                eager_peak_memory=steady.randrange(2_000_000, 4_000_000),
                graphs=1,
                graph_breaks=0,
                recompiles=0,
            ),
            seed=i,
            repro=f"torch-oracle sweep --suite {case.suite} --match {case.name} --subject {case.subject}",
            started_at=f"2026-11-2{run}T02:00:00+00:00",
            traceback="Traceback (most recent call last):\n"
            f'  File "<program {case.name}>", line 10, in program\n    result = torch.{case.group}(scaled)\n'
            "RuntimeError: a made-up error"
            if status is Status.FAIL_TO_RUN
            else "",
        )


def _verdict(status: Status, number: int, rng: random.Random) -> Verdict:
    if status is Status.PASS:
        return Verdict(
            status=status, compared=Compared(tensors=2, elements=128), witnesses=(("bits", 120), ("close", 8))
        )
    wrong, right = rng.gauss(0, 1), rng.gauss(0, 1)
    worst = None
    symptom = f"call 0: outcome is RuntimeError in call ('made-up error {number}'), but should be a return"
    if status is Status.CRASH:
        symptom = f"signal 11 in call {number % 3}"
    elif status is Status.FAIL_STRIDE:
        symptom = f"call 0: output[0].stride() is ({number}, 1), but should be (1, {number})"
    elif status is not Status.FAIL_TO_RUN:
        where = "grad of args[0]" if status is Status.FAIL_GRAD else "output[0]"
        symptom = f"call 0: {where}[{number}, 3] is {wrong:.8g}, but should be {right:.8g} (fp64 {right!r})"
        symptom += f": error {abs(wrong - right):.3g}, allowed 1e-06; {number % 32 + 1} of 64 elements are wrong"
        worst = WorstElement(
            where=f"call 0: {where}",
            index=(number, 3),
            eager=f"{right:.8g}",
            subject=f"{wrong:.8g}",
            truth=repr(right),
            eager_error=3e-8,
            subject_error=abs(wrong - right),
            allowed_error=1e-6,
            ulp=1e6,
        )
    return Verdict(
        status=status, symptom=symptom, call=0, worst=worst, compared=Compared(tensors=2, elements=128), max_ulp=1e6
    )


def database(path: Path, count: int, *, failing: bool) -> Path:
    """Three runs of the same cases; two where all fail."""
    planned = cases(count)
    with Store.open(path, create=True) as store:
        for run in range(int(failing), 3):
            environment = {
                "versions": {"torch": f"2.13.0.dev2026112{run}+cpu"},
                "python": "3.11.7",
                "cpu_model": "made up",
            }
            store.begin_planned(
                run_id=f"run-{run}", environment=environment, arguments={"suites": ["opinfo"]}, cases=planned
            )
            batch: list[Record] = []
            for record in records(planned, run, failing=failing):
                batch.append(record)
                if len(batch) == 20_000:
                    store.append(batch)
                    batch = []
            store.append(batch)
            store.end_run(f"run-{run}", state="complete")
    return path


def build(db: str, output: str, limit: int) -> dict[str, Any]:
    """Write the report as the command does; seconds, memory and size."""
    begun = time.perf_counter()
    head = Side.read(db, LATEST)
    base = Side.read(db, "run-1")
    contents = contents_of(head, base, limit=limit)
    size = write_report(contents, Path(output))
    return {
        "carried": len(contents.rows),
        "build_s": round(time.perf_counter() - begun, 1),
        "build_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
        "file_mb": round(size / 1e6, 2),
    }


_TIMED: Final = {
    "search_ms": "showCases(new URLSearchParams('q=softmax+float32'))",
    "filter_ms": "showCases(new URLSearchParams('subject=inductor&outcome=new'))",
    "sort_ms": "showCases(new URLSearchParams('sort=symptom'))",
    "case_ms": "await showCase(state.cases.id(state.found[0]))",
}


# Reading a height makes the browser lay the page out, which is part of the wait.
_STOPWATCH: Final = (
    "const done = arguments[0]; const begun = performance.now();"
    " (async () => { CALL; document.body.offsetHeight; done(performance.now() - begun); })()"
)


def opened(file: Path) -> dict[str, Any]:
    """What a reader waits for, in milliseconds; medians of three fresh loads."""
    found: dict[str, list[float]] = {}
    with chromium() as driver:
        for _ in range(3):
            visit(driver, file)
            wait_for(driver, "performance.getEntriesByName('first-contentful-paint').length")
            times = driver.execute_script(
                "return {painted_ms: performance.getEntriesByName('first-contentful-paint')[0].startTime,"
                " interactive_ms: performance.getEntriesByName('interactive')[0].startTime}"
            )
            visit(driver, file, "#/cases")
            for name, call in _TIMED.items():
                times[name] = driver.execute_async_script(_STOPWATCH.replace("CALL", call))
            for name, value in times.items():
                found.setdefault(name, []).append(value)
    return {name: round(statistics.median(values)) for name, values in found.items()}


def rows_of(counts: Sequence[int], failing: Sequence[bool], folder: Path, limit: int) -> Iterator[dict[str, Any]]:
    for count, all_fail in zip(counts, failing, strict=True):
        name = f"{count}{'-failing' if all_fail else ''}"
        db = folder / f"{name}.db"
        if not db.exists():
            database(db, count, failing=all_fail)
        output = folder / f"{name}.html"
        with get_context("spawn").Pool(1) as pool:  # its own process, for its peak memory
            built = pool.apply(build, (str(db), str(output), limit))
        yield {"rows": count, "all_fail": all_fail, **built, **opened(output)}


def main(arguments: Sequence[str]) -> int:
    parser = options_of(__doc__)
    parser.add_argument("--rows", default="10,1000,100000", help="numbers of cases, by comma; 1000f: all of them fail")
    parser.add_argument("--carry", type=int, default=ROWS_CARRIED, help="most rows in the file")
    parser.add_argument("--keep", type=Path, help="folder for databases and reports")
    options = parser.parse_args(arguments)
    words = options.rows.split(",")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        counts, failing = [int(word.rstrip("f")) for word in words], [word.endswith("f") for word in words]
        shown(rows_of(counts, failing, folder, options.carry), options.csv)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
