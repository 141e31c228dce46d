"""Sets up an environment for each supported torch and Python, runs tests and a sweep there, and writes docs/versions.md.

    python docs/tools/versions.py [--torch 2.12.0]... [--python 3.11 | --python PATH]... [--keep] [--show]

`make setup` sets up each pair in build/versions. It runs TESTS and SWEEP, each with a time limit, and gets a row; rows of other
pairs stay. A torch with CUDA takes 6 GB, so an environment is deleted after its row is written, unless `--keep` is given; an
existing environment is used as it is. Add a new release of torch to TORCHES.

This program itself needs no packages. Exit code 1 if a pair could not be set up, or a test failed.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import processors

TORCHES = ("2.11.0", "2.12.0", "2.13.0")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")

# Tests of each stage of the reference implementation and of the judge; not of suites and campaigns, whose tables are for one
# torch.
TESTS = (
    "oracle/tests/test_judge_*.py", "oracle/tests/test_noise.py", "refimpl/tests/aot/test_*.py",
    "refimpl/tests/contracts/test_*.py", "refimpl/tests/functionalize/test_*.py", "refimpl/tests/trace/test_make_fx.py",
    "refimpl/tests/partition/test_*.py",
)  # fmt: skip
TESTS_MINUTES = 30.0
SUBJECTS = ("dynamo", "aot_eager_decomp_partition", "refimpl.capture", "refimpl.aot")
SWEEP = (
    "--suite", "features,opinfo", "--max-samples", "1", "--dtype", "float32", "--direction", "forward,backward",
    "--shard", "1/8", "--subject", ",".join(SUBJECTS),
)  # fmt: skip
SWEEP_MINUTES = 15.0
SETUP_MINUTES = 60.0
AGREE = ("pass", "pass_due_to_skip", "known")  # verdicts that are not new findings

ROOT = processors.ROOT
OUTPUT = ROOT / "build" / "versions"
PAGE = ROOT / "docs" / "versions.md"
HEADER = ("torch", "Python", "tests passed", "failed", "skipped", *SUBJECTS, "on")


@dataclass(frozen=True, kw_only=True)
class Row:
    """The results of one pair. `tests`: passed, failed (with errors), skipped. `agreed`: cases that agree, of all, by subject."""

    torch: str
    python: str
    tests: tuple[str, str, str]
    agreed: tuple[str, ...]
    on: str

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells in the order of HEADER."""
        return (self.torch, self.python, *self.tests, *self.agreed, self.on)


# ----------------------------------------------------------------------------------------------------------------- page


def page(rows: Sequence[Row]) -> str:
    """The whole document, oldest versions first."""
    ordered = sorted(rows, key=lambda row: (_numbers(row.torch), _numbers(row.python)))
    lines = [
        "# Versions that were tried",
        "",
        "`make versions` writes this page. Each row is an environment of its own, as `make setup` makes it.",
        "",
        f"* Tests: {', '.join(f'`{pattern}`' for pattern in TESTS)}, without those marked slow or gpu.",
        f"* Sweep: `torch-oracle sweep {' '.join(SWEEP)}`.",
        "  For each subject: cases in which nothing new differs from eager, of all.",
        "  A difference may be a bug of that torch, or one of ours.",
        "",
        _line(HEADER),
        _line(["---"] * len(HEADER)),
        *(_line(row.cells) for row in ordered),
    ]
    return "\n".join(lines) + "\n"


def rows_of(text: str) -> list[Row]:
    """The rows of a page, for pairs that are still supported; none if the page has other columns."""
    tables = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines() if line[:1] == "|"]
    if not tables or tuple(tables[0]) != HEADER:
        return []
    return [
        Row(torch=cells[0], python=cells[1], tests=(cells[2], cells[3], cells[4]), agreed=tuple(cells[5:-1]), on=cells[-1])
        for cells in tables[2:]
        if cells[0] in TORCHES and cells[1] in PYTHONS and len(cells) == len(HEADER)
    ]  # fmt: skip


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


# ------------------------------------------------------------------------------------------------------------- one pair


def version_of(interpreter: str) -> str | None:
    """The version of an interpreter, such as "3.11"; None if it does not run (a version manager's launcher, for example)."""
    found = shutil.which(interpreter)
    if found is None:
        return None
    asked = [found, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def interpreters(asked: Sequence[str]) -> dict[str, str]:
    """Version -> interpreter: those given by version or path, else those of PYTHONS that are on the PATH."""
    found = {}
    for name in asked or PYTHONS:
        interpreter = f"python{name}" if name in PYTHONS else name
        version = version_of(interpreter)
        if version in PYTHONS:
            found[version] = interpreter
        elif asked:
            raise SystemExit(
                f"--python {name}: {'no such program that runs' if version is None else f'is Python {version}'}; "
                f"expected one of {', '.join(PYTHONS)} on the PATH, or the path of one. Give the path of an interpreter."
            )
    return found


def run(command: Sequence[str], minutes: float, log: Path, variables: Mapping[str, str]) -> int | None:
    """Run a command with its output in the log. Returns the exit code, or None at the time limit."""
    return processors.run(command, variables, 60 * minutes, log)


def tried(torch: str, python: str, interpreter: str, variables: Mapping[str, str], *, keeps: bool) -> tuple[Row, bool]:
    """Try a pair. Returns its row, and whether it was set up and every test passed."""
    name = f"torch-{torch}-python-{python}"
    folder = OUTPUT / name
    logs = {part: OUTPUT / f"{name}.{part}.log" for part in ("setup", "tests", "sweep")}
    today = datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()
    setup = ["make", "setup", f"VENV={folder}", f"PYTHON={interpreter}", f"TORCH=torch=={torch}", "EXTRAS=dev"]
    try:
        if run(setup, SETUP_MINUTES, logs["setup"], variables) != 0:
            print(f"{name}: not set up; see {logs['setup']}", flush=True)
            return Row(
                torch=torch, python=python, tests=("not set up", "", ""), agreed=("",) * len(SUBJECTS), on=today
            ), False
        own = str(folder / "bin" / "python")
        files = [str(path.relative_to(ROOT)) for pattern in TESTS for path in sorted(ROOT.glob(pattern))]
        command = [own, "-m", "pytest", "-q", "-m", "not slow and not gpu", *files]
        code = run(command, TESTS_MINUTES, logs["tests"], variables)
        tests = counts(logs["tests"].read_text(encoding="utf-8", errors="replace"))
        database = OUTPUT / f"{name}.db"
        database.unlink(missing_ok=True)
        command = [
            own,
            "-m",
            "oracle.cli",
            "sweep",
            *SWEEP,
            "--time",
            f"{SWEEP_MINUTES:g}m",
            "--json",
            "--db",
            str(database),
        ]
        run(command, SWEEP_MINUTES + 2, logs["sweep"], variables)
        agreed = agreement(logs["sweep"].read_text(encoding="utf-8", errors="replace"))
    finally:
        if not keeps:
            # First, so that a partly deleted environment is not taken for a complete one.
            (folder / ".ready").unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
    row = Row(torch=torch, python=python, tests=tests, agreed=agreed, on=today)
    print(_line(row.cells), flush=True)
    if code != 0:
        print(f"  see {logs['tests']}", flush=True)
    return row, code == 0


def counts(output: str) -> tuple[str, str, str]:
    """Counts of pytest's last line: passed, failed and errors, skipped; "not ended" if there is none."""
    closing = processors.closing_line(output)
    found = {kind.rstrip("s"): int(count) for count, kind in re.findall(r"(\d+) (\w+)", closing)}
    if "passed" not in found:
        return "not ended", "", ""
    return str(found["passed"]), str(found.get("failed", 0) + found.get("error", 0)), str(found.get("skipped", 0))


def agreement(output: str) -> tuple[str, ...]:
    """Subject -> "agree/all" from the records that a sweep printed."""
    agree: collections.Counter[str] = collections.Counter()
    every: collections.Counter[str] = collections.Counter()
    for line in output.splitlines():
        if line.startswith('{"run_id"'):
            record = json.loads(line)
            every[record["subject"]] += 1
            agree[record["subject"]] += record["verdict"]["status"] in AGREE
    return tuple(f"{agree[name]}/{every[name]}" if every[name] else "not ended" for name in SUBJECTS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 if all pairs were set up and no test failed, 1 otherwise, 2 for invalid arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", action="append", default=[], choices=TORCHES)
    parser.add_argument("--python", action="append", default=[], metavar="VERSION_OR_PATH")
    parser.add_argument("--keep", action="store_true", help="leave the environments in build/versions")
    parser.add_argument("--show", action="store_true", help="print what would be tried, run nothing")
    options = parser.parse_args(arguments)
    pythons = interpreters(options.python)
    if missing := [version for version in PYTHONS if version not in pythons and not options.python]:
        print(f"not on the PATH, and not tried: Python {', '.join(missing)}", flush=True)
    pairs = [(torch, python) for torch in options.torch or TORCHES for python in pythons]
    if options.show:
        print(*(f"torch {torch}, Python {python}: {pythons[python]}" for torch, python in pairs), sep="\n")
        return 0
    OUTPUT.mkdir(parents=True, exist_ok=True)
    variables = {**processors.environment(), "PYTHONPATH": str(ROOT)}
    is_good = bool(pairs)
    for torch, python in pairs:
        row, has_passed = tried(torch, python, pythons[python], variables, keeps=options.keep)
        is_good = is_good and has_passed
        before = rows_of(PAGE.read_text(encoding="utf-8")) if PAGE.is_file() else []
        others = [each for each in before if (each.torch, each.python) != (row.torch, row.python)]
        PAGE.write_text(page([*others, row]), encoding="utf-8")
    return int(not is_good)


if __name__ == "__main__":
    sys.exit(main())
