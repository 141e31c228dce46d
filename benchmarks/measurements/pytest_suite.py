"""The tests of an installed package, as they are, with the pytest plugin: `python -m benchmarks.measurements.pytest_suite`.

By default those of einops (`pip install einops`), with its functions and all modules as targets. Each compiler is a run of its
own, and so is the suite alone. The wall times include starting pytest; they are of one run each.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measurements.frame import options_of, shown
from oracle.errors import UsageError
from oracle.verdict import Status
from results.store import Store

_EINOPS = ("rearrange", "reduce", "repeat", "pack", "unpack", "einsum")
_TARGETS = (*(f"einops.{name}" for name in _EINOPS), "torch.nn.Module")
_OUTCOMES = re.compile(r"(\d+) (passed|failed|skipped|error)")
_CALLS = re.compile(r"^(\d+) calls judged", re.MULTILINE)
_LEFT_OUT = re.compile(r"^(\d+) further calls", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteRun:
    """One run of the suite. A row of the results is one test, target and compiler."""

    package: str
    version: str
    subject: str  # empty: without the plugin's option
    passed: int
    failed: int
    skipped: int
    calls: int
    calls_left_out: int
    rows: int
    agree: int
    differ: int
    not_compared: int
    wall_s: float


def run_suite(package: str, tests: str, subject: str, targets: Sequence[str], words: Sequence[str]) -> SuiteRun:
    """Run the tests of a package once. Raises UsageError if pytest ran no test."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "rows.db"
        options = [f"--torch-oracle={subject}", f"--torch-oracle-db={database}"] if subject else []
        options += [f"--torch-oracle-target={target}" for target in targets if subject]
        command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider", *words]
        began = time.perf_counter()
        done = subprocess.run(
            [*command, *options, "--pyargs", tests],
            cwd=folder,
            env={**os.environ, "EINOPS_TEST_BACKENDS": "numpy,torch"},
            capture_output=True,
            text=True,
            check=False,
        )
        wall_s = time.perf_counter() - began
        outcomes = {word: int(count) for count, word in _OUTCOMES.findall(done.stdout.rstrip().rpartition("\n")[2])}
        if not outcomes.get("passed"):
            raise UsageError(
                seen=f"no test of {tests} passed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}",
                expected="a package with its tests, installed",
                do=f"pip install {package}",
            )
        statuses: Counter[Status] = Counter()
        if database.exists():
            with Store.open(database, create=False) as store:
                statuses.update(record.verdict.status for record in store.records())
    differ = sum(count for status, count in statuses.items() if status.is_finding)
    return SuiteRun(
        package=package,
        version=importlib.metadata.version(package),
        subject=subject,
        passed=outcomes.get("passed", 0),
        failed=outcomes.get("failed", 0) + outcomes.get("error", 0),
        skipped=outcomes.get("skipped", 0),
        calls=sum(map(int, _CALLS.findall(done.stdout))),
        calls_left_out=sum(map(int, _LEFT_OUT.findall(done.stdout))),
        rows=statuses.total(),
        agree=statuses[Status.PASS],
        differ=differ,
        not_compared=statuses.total() - statuses[Status.PASS] - differ,
        wall_s=round(wall_s),
    )


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--package", default="einops")
    parser.add_argument("--tests", default="einops.tests", help="the module or package with the tests")
    parser.add_argument("--subjects", nargs="*", default=["aot_eager", "inductor"])
    parser.add_argument("--targets", nargs="*", default=list(_TARGETS))
    options, words = parser.parse_known_args()

    def runs() -> Iterator[SuiteRun]:
        for subject in ["", *options.subjects]:
            yield run_suite(options.package, options.tests, subject, options.targets, words)

    shown(runs(), options.csv)


if __name__ == "__main__":
    main()
