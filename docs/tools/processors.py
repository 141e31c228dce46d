"""Runs tests that depend on kernels as other processors would: with other vector widths, and other code in eager's libraries.

    python docs/tools/processors.py [--setting NAME]... [--minutes 12] [--jobs 1] [--all | --list] [-- PYTEST ARGUMENTS]

A setting is an environment variable. `ATEN_CPU_CAPABILITY` selects the instruction set of torch's own kernels,
`ONEDNN_MAX_CPU_ISA` and `MKL_CBWR` that of the libraries for matrix products and convolutions. Tests must pass with all settings.
A setting that this processor does not support is skipped, with the reason.

It runs test files that import, directly or through another test module, a module of KNOWS_KERNELS, which depend on the numbers of
eager's kernels. Each setting prints a line, and the file with the whole output if tests failed. Exit code 1 if a test failed, or
did not end in time.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("oracle", "refimpl", "fuzz", "suites")
OUTPUT = ROOT / "build" / "processors"
GRACE_S = 20.0  # time for pytest to end by itself after its limit

# Modules and packages that compare values with those of eager's kernels, or reimplement an operator as eager computes it.
KNOWS_KERNELS: Mapping[str, str] = {
    "oracle.checking": "programs of users, judged",
    "oracle.judge": "the judge of values, random numbers and symmetries",
    "oracle.reruns.noise": "roundings that eager could have had",
    "oracle.reruns.overflows": "results that overflow by one kernel and not by another",
    "oracle.reruns.other_kernels": "eager by its other kernels",
    "refimpl.codegen.decompositions": "programs as kernels of our own, held against eager's",
    "refimpl.codegen.printing.error_bounds": "functions in kernels of our own",
    "refimpl.trace.decompositions": "operators written in others, held against eager's",
    "refimpl.trace.refusals": "what kernels make of the numbers they are given",
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """An environment variable that selects code. `flags`: the flags of /proc/cpuinfo that it needs."""

    variable: str
    value: str
    flags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The setting as it is written in a shell."""
        return f"{self.variable}={self.value}"


_AVX2 = ("avx2", "fma")
SETTINGS = (
    Setting(variable="ATEN_CPU_CAPABILITY", value="default"),
    Setting(variable="ATEN_CPU_CAPABILITY", value="avx2", flags=_AVX2),
    Setting(variable="ATEN_CPU_CAPABILITY", value="avx512", flags=("avx512f", "avx512bw", "avx512dq", "avx512vl", "fma")),
    Setting(variable="ONEDNN_MAX_CPU_ISA", value="SSE41", flags=("sse4_1",)),
    Setting(variable="ONEDNN_MAX_CPU_ISA", value="AVX2", flags=_AVX2),
    Setting(variable="MKL_CBWR", value="COMPATIBLE"),
    Setting(variable="MKL_CBWR", value="AVX2", flags=_AVX2),
)  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- which tests


def imported_modules(path: Path) -> set[str]:
    """Names of the modules that a file imports, and of the names imported from them, which may be modules too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return found


def touches_kernels(path: Path, root: Path = ROOT, seen: frozenset[Path] = frozenset()) -> bool:
    """Whether a test file imports a module of KNOWS_KERNELS, directly or through another test module."""
    for name in imported_modules(path):
        if any(name == known or name.startswith(f"{known}.") for known in KNOWS_KERNELS):
            return True
        helper = root / Path(*name.split(".")).with_suffix(".py")
        if ".tests." in name and helper.is_file() and helper not in seen | {path}:
            if touches_kernels(helper, root, seen | {path}):
                return True
    return False


def chosen_files(root: Path = ROOT) -> Iterator[Path]:
    """The test files that depend on kernels, sorted by name."""
    for package in PACKAGES:
        yield from (
            path for path in sorted(set((root / package).glob("**/tests/**/test_*.py"))) if touches_kernels(path, root)
        )


# --------------------------------------------------------------------------------------------------------------- running


def processor_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str] | None:
    """The processor's flags; None if they are not known."""
    if not cpuinfo.is_file():
        return None
    found = re.search(r"^flags\s*:(.*)$", cpuinfo.read_text(encoding="utf-8"), re.M)
    return frozenset(found[1].split()) if found else None


def lacking(setting: Setting, flags: frozenset[str] | None) -> list[str]:
    """The flags that the setting needs and this processor lacks."""
    return [flag for flag in setting.flags if flags is not None and flag not in flags]


def environment() -> dict[str, str]:
    """The variables of this process without those that settings set."""
    return {name: value for name, value in os.environ.items() if name not in {setting.variable for setting in SETTINGS}}


def run(command: Sequence[str], variables: Mapping[str, str], seconds: float, log: Path) -> int | None:
    """Run a command and return its exit code, or None if it did not end in time. All of its processes have ended afterwards."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=dict(variables), stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        is_late = False
        for wait, sign in ((seconds, signal.SIGINT), (GRACE_S, signal.SIGKILL), (None, None)):
            try:
                process.wait(wait)
                break
            except subprocess.TimeoutExpired:
                is_late = True
                if sign is not None:
                    os.killpg(process.pid, sign)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # workers that outlive it
    return None if is_late else process.returncode


def closing_line(output: str) -> str:
    """pytest's counts, without warnings and times; the last line if there are none."""
    lines = output.rstrip().splitlines()
    for line in reversed(lines):
        counts = re.findall(r"\b\d+ (?:passed|failed|skipped|errors?|xfailed|xpassed)\b", line)
        if counts and re.search(r" in [\d.]+s", line):
            return ", ".join(counts)
    return lines[-1] if lines else "no output"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 if nothing failed, 1 if a test failed or did not end, 2 for invalid arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [setting.name for setting in SETTINGS]
    parser.add_argument("--setting", action="append", default=[], metavar="NAME", help=f"one of {', '.join(names)}")
    parser.add_argument("--minutes", type=float, default=12.0, help="for each setting")
    parser.add_argument("--jobs", type=int, default=1, help="test processes")
    parser.add_argument("--all", action="store_true", help="all tests, not only those that touch kernels: hours")
    parser.add_argument("--list", action="store_true", help="print the files, run nothing")
    parser.add_argument("pytest", nargs="*", help="further arguments of pytest, after --")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.setting) - set(names)):
        parser.error(f"--setting {', '.join(unknown)}: expected one of {', '.join(names)}")
    files = [] if options.all else [str(path.relative_to(ROOT)) for path in chosen_files()]
    if options.list:
        print(*files, sep="\n")
        return 0
    OUTPUT.mkdir(parents=True, exist_ok=True)
    workers = ["-n", str(options.jobs), "--dist", "loadfile"] if options.jobs > 1 else []
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow and not gpu", *workers, *options.pytest, *files]
    flags, is_bad = processor_flags(), False
    for setting in SETTINGS:
        if options.setting and setting.name not in options.setting:
            continue
        if lacks := lacking(setting, flags):
            print(f"{setting.name:28} skipped: this processor has no {', '.join(lacks)}", flush=True)
            continue
        log, begin = OUTPUT / f"{setting.name}.log", time.monotonic()
        variables = {
            name: value for name, value in os.environ.items() if name not in {one.variable for one in SETTINGS}
        }
        code = run(command, {**variables, setting.variable: setting.value}, 60 * options.minutes, log)
        said = closing_line(log.read_text(encoding="utf-8", errors="replace"))
        said = f"not ended within {options.minutes:g} min: {said}" if code is None else said
        where = "" if code == 0 else f"; see {log.relative_to(ROOT)}"
        print(f"{setting.name:28} {said} ({(time.monotonic() - begin) / 60:.1f} min){where}", flush=True)
        is_bad = is_bad or code != 0
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(main())
