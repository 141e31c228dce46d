"""Runs the passes over a suite in worker processes: stock torch, the raising stand-in, the subject.

The stand-in runs only tests that pass with stock torch, and the subject only the denominator, since other tests cannot change the
figure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from oracle.errors import InternalError, UsageError
from oracle.isolate import Completed, Died, End, Failed, OutOfMemory, Pool, Task, TimedOut
from suites.conformance.job import JOB_VARIABLE, REFIMPL, STAND_IN, STOCK, Job
from suites.conformance.outcomes import Ending, OutcomeCache, ResultRow, TestOutcome
from suites.conformance.table import ConformanceSuite
from suites.conformance.tree import SourceTree

_START_TIMEOUT_S = 600.0  # the operator database takes seconds on an idle core, and far longer on a busy machine
_GIB = 2**30
# The environment variables of PyTorch's CI on a CPU that the harness reads.
_ENVIRONMENT = {
    "PYTORCH_TESTING_DEVICE_ONLY_FOR": "cpu",
    "PYTORCH_PRINT_REPRO_ON_FAILURE": "0",  # else the harness adds a command to every message
    "PYTHONHASHSEED": "0",  # so that sets have the same order in every pass
    "PYTHONDONTWRITEBYTECODE": "1",  # do not write into the user's tree
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceRequest:
    """The user's options."""

    tree: SourceTree
    suite: ConformanceSuite
    subject: str = REFIMPL
    select: tuple[str, ...] = ()
    workers: int = 1
    timeout_s: float = 480.0
    memory_bytes: int = 6 * _GIB
    is_guarded: bool = True
    cache_folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A worker's description of the suite, before any test runs."""

    tests: tuple[str, ...]
    torch: str
    names: tuple[str, ...]
    """The upstream names that are substituted."""
    source: str
    """Hash of refimpl's source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceResult:
    """Every selected test, in the order of the files."""

    described: Described
    rows: tuple[ResultRow, ...]

    @property
    def denominator(self) -> int:
        return sum(row.is_in_denominator for row in self.rows)

    @property
    def passed(self) -> int:
        return sum(row.is_passed for row in self.rows)


class ConformanceRun:
    """Runs the passes of one request. `on_outcome(pass, outcome, done, total)` is called as tests end."""

    def __init__(
        self, request: ConformanceRequest, *, on_outcome: Callable[[str, TestOutcome, int, int], None]
    ) -> None:
        self._request = request
        self._on_outcome = on_outcome

    def run(self) -> ConformanceResult:
        """Raises UsageError if the files do not load, or no test is selected."""
        request = self._request
        # The stand-in's workers collect the tests: they know the substituted names, and fail early if refimpl does not load.
        with self._pool(STAND_IN) as stand_ins:
            described = self._describe(stand_ins)
            tests = _selected(described.tests, request.select)
            stock = self._cached_pass(STOCK, tests, torch=described.torch, names=None)
            passing = [test for test in tests if stock[test].ending.is_passed]
            stand_in = self._cached_pass(
                STAND_IN, passing, torch=described.torch, names=described.names, pool=stand_ins
            )
        denominator = [test for test in passing if not stand_in[test].ending.is_passed]
        subject = stock if request.subject == STOCK else self._subject_pass(denominator, described)
        rows = [ResultRow(stock=stock[t], stand_in=stand_in.get(t), subject=subject.get(t)) for t in tests]
        return ConformanceResult(described=described, rows=tuple(rows))

    def _describe(self, pool: Pool) -> Described:
        (result,) = pool.run(
            [self._task("collect", "suites.conformance.child:collect", {}, timeout_s=_START_TIMEOUT_S)]
        )
        if not isinstance(result.end, Completed):
            raise InternalError(f"collecting the tests ended as {result.end}")
        value: Any = result.end.value
        if "error" in value:
            raise UsageError(
                seen=f"{self._request.tree.root}: the files of suite {self._request.suite.name} do not load\n"
                + value["error"],
                expected="test files that import with the installed torch",
                do="add the names that they do not find to suites/conformance/shims.py, or use a tree closer to that torch",
            )
        return Described(
            tests=tuple(value["tests"]), torch=value["torch"], names=tuple(value["names"]), source=value["source"]
        )

    def _subject_pass(self, tests: Sequence[str], described: Described) -> dict[str, TestOutcome]:
        how = "guarded" if self._request.is_guarded else "not guarded"
        return self._cached_pass(
            self._request.subject,
            tests,
            torch=described.torch,
            names=described.names,
            code=f"{described.source} {how}",
        )

    def _cached_pass(
        self,
        subject: str,
        tests: Sequence[str],
        *,
        torch: str,
        names: Sequence[str] | None,
        code: str = "",
        pool: Pool | None = None,
    ) -> dict[str, TestOutcome]:
        request = self._request
        cache = OutcomeCache(
            request.cache_folder, tree=request.tree, suite=request.suite.name, torch=torch, names=names, subject=code
        )
        kept = cache.read()
        outcomes = {test: kept[test] for test in tests if test in kept}
        missing = [test for test in tests if test not in kept]
        return {**outcomes, **self._pass(subject, missing, pool=pool, keep=cache.add)}

    def _pass(
        self,
        subject: str,
        tests: Sequence[str],
        *,
        pool: Pool | None = None,
        keep: Callable[[TestOutcome], None] | None = None,
    ) -> dict[str, TestOutcome]:
        """Run every test once. `pool`: workers of this subject, if they exist; `keep` is called with each outcome."""
        outcomes: dict[str, TestOutcome] = {}
        if not tests:
            return outcomes
        tasks = [
            self._task(test, "suites.conformance.child:run_test", {"test": test}, timeout_s=self._request.timeout_s)
            for test in tests
        ]
        with nullcontext(pool) if pool is not None else self._pool(subject) as workers:
            for result in workers.run(tasks):
                outcome = outcome_of(result.task.key, result.end)
                outcomes[outcome.test] = outcome
                if keep is not None and outcome.ending not in (Ending.TIMEOUT, Ending.MEMORY):
                    # Tests that hit a limit are tried again: a later run may be faster, or have a higher limit.
                    keep(outcome)
                self._on_outcome(subject, outcome, len(outcomes), len(tests))
        return outcomes

    def _task(self, key: str, function: str, payload: dict[str, Any], *, timeout_s: float) -> Task:
        return Task(
            key=key,
            function=function,
            payload=payload,
            group=key.rpartition(".")[0],  # the test class: its tests run in order on one worker
            timeout_s=timeout_s,
            memory_bytes=self._request.memory_bytes,
        )

    def _pool(self, subject: str) -> Pool:
        job = Job(
            tests_folder=str(self._request.tree.tests),
            suite=self._request.suite.name,
            subject=subject,
            is_guarded=self._request.is_guarded and subject == REFIMPL,
        )
        return Pool(
            workers=self._request.workers,
            preload=("torch", "suites.conformance.warm"),
            environment={**_ENVIRONMENT, JOB_VARIABLE: job.to_variable()},
            start_timeout_s=_START_TIMEOUT_S,
        )


def outcome_of(test: str, end: End) -> TestOutcome:
    """The outcome of a test, from however its task ended."""
    match end:
        case Completed(value=value):
            return TestOutcome.from_json(value)
        case Died(signal=number, exit_code=code, traceback=traceback):
            how = f"signal {number}" if number is not None else f"exit code {code}"
            return TestOutcome(
                test=test, ending=Ending.CRASH, error=f"the process ended by {how}", where=_last(traceback)
            )
        case TimedOut(seconds=seconds, traceback=traceback):
            return TestOutcome(
                test=test,
                ending=Ending.TIMEOUT,
                seconds=seconds,
                error=f"still running after {seconds:.0f} s",
                where=_last(traceback),
            )
        case OutOfMemory(bytes=grown):
            return TestOutcome(test=test, ending=Ending.MEMORY, error=f"grew by {grown / _GIB:.1f} GiB")
        case Failed(error=error):
            raise InternalError(f"running {test} failed in the runner itself\n{error}")


def _last(stack: str) -> str:
    """The innermost frame of a stack written by faulthandler."""
    lines = [line.strip() for line in stack.splitlines() if line.strip().startswith("File ")]
    return lines[0] if lines else ""


def _selected(tests: Iterable[str], select: Sequence[str]) -> list[str]:
    """Like unittest's -k: a substring, or a glob if it contains `*`; several are alternatives."""
    globs = [word if "*" in word else f"*{word}*" for word in select]
    chosen = [test for test in tests if not globs or any(fnmatchcase(test, glob) for glob in globs)]
    if not chosen:
        raise UsageError(
            seen="no test is selected" + (f" by -k {' -k '.join(select)}" if select else ": the files hold none"),
            expected="a part of at least one test's name, or a glob, such as -k TestSymbolicTracing -k '*_mm_cpu*'",
            do="leave -k out to run all, and see --output for the names",
        )
    return chosen
