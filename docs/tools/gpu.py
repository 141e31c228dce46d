"""Runs tests, benchmarks and sweeps on a machine with a GPU, most valuable part first, each with its own time limit.

    python docs/tools/gpu.py --minutes 25 --output gpu-results [--archive FILE.tar.gz] [--part NAME]...

A finished part is not run again; a stopped one continues if it can. So repeat the command with the same output folder until every
part is `done` or `failed`. torch-oracle runs from the checkout and need not be installed; if another package is missing, the
parts that need it fail and name it.

The output has a log for each part, `state.json`, the databases of sweeps, and tables in a folder named as in results/data.
`--cpu` runs every part on a small scale without a GPU, to test this program.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

ROOT = Path(__file__).resolve().parents[2]
ALWAYS = ("torch", "numpy", "scipy", "pytest", "hypothesis")
SWEEPS = ("sqlalchemy", "typer", "rich", "psutil", "pandas", "expecttest")
GRACE_S = 20.0  # time for a part to end by itself after its limit
LEAST_S = 20.0  # no part is started with less time left than this


@dataclass(frozen=True, kw_only=True)
class Part:
    """One command. `needs`: modules; `goes_on`: it can continue after it was stopped."""

    name: str
    minutes: float
    command: tuple[str, ...]
    needs: tuple[str, ...] = ALWAYS
    goes_on: bool = False
    again: int | None = None  # the exit code that asks to be started again at once
    database: Path | None = None


@dataclass(frozen=True, kw_only=True)
class _Commands:
    """Makes the commands of parts. On a CPU they are narrowed to a few cases, which only try the commands out."""

    output: Path
    tables: Path
    is_cpu: bool

    def tests(self, name: str, minutes: float, *files: str, narrow: str = "") -> Part:
        """Tests of the code generator."""
        paths = tuple(f"refimpl/tests/codegen/test_{file}.py" for file in files)
        chosen = ("-m", "not gpu and not slow", "-k", narrow) if self.is_cpu else ("-m", "gpu")
        return Part(name=name, minutes=minutes, command=(sys.executable, "-m", "pytest", "-q", *chosen, *paths))

    def speed(self, name: str, minutes: float, dtype: str, sides: str, *more: str) -> Part:
        """A benchmark of generated kernels."""
        file = str(self.tables / name)
        small = ("--set", "cpu=true", "--repeat", "1", "--only", "softmax") if self.is_cpu else ()
        sides = "eager,ours" if self.is_cpu else sides
        command = (
            sys.executable, "-m", "benchmarks", "codegen_speed", "--set", f"dtype={dtype}", "--sides", sides,
            "--json", f"{file}.json", "--csv", f"{file}.csv",
        )  # fmt: skip
        return Part(
            name=name, minutes=minutes, command=(*command, "--resume", *more, *small), needs=(*ALWAYS, "pandas"), goes_on=True,
            again=3,
        )  # fmt: skip

    def sweep(
        self, name: str, minutes: float, suite: str, subjects: str, *more: str, narrow: Sequence[str] = ()
    ) -> Part:
        """A sweep, with a database of its own."""
        database = self.output / f"{name}.db"
        device = ("--device", "cpu", "--workers", "1") if self.is_cpu else ("--device", "cuda", "--workers", "8")
        matches = tuple(word for pattern in narrow for word in ("--match", pattern)) if self.is_cpu else ()
        command = (
            sys.executable, "-m", "oracle.cli", "sweep", "--suite", suite, "--subject", subjects, *device, *more, *matches,
        )  # fmt: skip
        return Part(
            name=name, minutes=minutes, command=(*command, "--db", str(database)), needs=(*ALWAYS, *SWEEPS), goes_on=True,
            database=database,
        )  # fmt: skip


def parts(output: Path, tables: Path, *, is_cpu: bool) -> list[Part]:
    """The parts, most valuable first."""
    commands = _Commands(output=output, tables=tables, is_cpu=is_cpu)
    tests, speed, sweep = commands.tests, commands.speed, commands.sweep
    ours = "triton" if is_cpu else "triton[level=device]"
    quick, only_models = "eager,ours,inductor", ("--only", "model: ")
    errors = (
        sys.executable,
        "-m",
        "refimpl.tests.codegen.function_errors",
        "--csv",
        str(tables / "codegen-function-errors.csv"),
    )
    return [
        tests("tests-kernels", 3, "levels", narrow="launches"),
        tests("tests-programs", 4, "programs", "contractions", narrow="softmax"),
        tests("tests-choices", 4, "autotune", "cuda_graphs", narrow="refused"),
        speed("codegen-speed-bfloat16", 4, "bfloat16", quick),
        sweep("models", 5, "models", ours, narrow=["mlp"]),
        speed("codegen-speed-float32", 4, "float32", quick),
        sweep("opinfo", 6, "opinfo", ours, "--max-samples", "2", "--direction", "forward,backward", narrow=["softmax"]),
        sweep("features", 4, "features,regressions", ours, narrow=["c*"]),
        speed("codegen-speed-tuned-bfloat16", 8, "bfloat16", "eager,inductor,inductor_max,ours,ours_tuned"),
        Part(
            name="function-errors", minutes=4, needs=(*ALWAYS, "pandas"),
            command=(*errors, "--levels", "emulator" if is_cpu else "device", *(("--count", "64") if is_cpu else ())),
        ),
        sweep("opinfo-half", 6, "opinfo", ours, "--max-samples", "2", "--dtype", "bfloat16,float16,int64", narrow=["softmax"]),
        speed("codegen-speed-models-float32", 8, "float32", quick, "--set", "models=true", *(() if is_cpu else only_models)),
        sweep("inductor", 6, "opinfo", "inductor", "--max-samples", "1", narrow=["softmax"]),
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ environment


def missing(names: Sequence[str]) -> list[str]:
    """Modules that this Python does not have."""
    return [name for name in names if util.find_spec(name) is None]


def write_entry_points(folder: Path) -> None:
    """Write torch-oracle's entry points, so that its commands and backend are found from a checkout."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = folder / f"torch_oracle-{project['version']}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in entries.items()), "")
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))


def environment(output: Path) -> dict[str, str]:
    """The environment of every part, with the checkout on the path, and its entry points if it is not installed."""
    paths = [str(ROOT)]
    if not metadata.entry_points(group="torch_oracle.commands"):
        write_entry_points(output / "entry-points")
        paths.append(str(output / "entry-points"))
    paths += [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in paths]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


def machine_name(*, is_cpu: bool) -> str:
    """The name of a folder in results/data: the device and torch's version. Another process imports torch for it."""
    asked = "torch.cuda.get_device_name()" if not is_cpu else "'cpu'"
    command = [sys.executable, "-c", f"import torch; print({asked}, torch.__version__.split('+')[0], sep='|')"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(
            f"{done.stderr[-2000:]}\nno CUDA device, or no torch that sees it; --cpu tests this program without one"
        )
    device, version = done.stdout.strip().splitlines()[-1].split("|")
    return f"{re.sub(r'[^a-z0-9]+', '-', device.lower()).strip('-')}-torch-{version}"


# ------------------------------------------------------------------------------------------------------------------ running


def run(
    part: Part, output: Path, seconds: float, variables: Mapping[str, str], *, is_first: bool
) -> tuple[str, int | None]:
    """ "done", "failed" or "stopped", and the exit code. Everything the command started has ended when this returns."""
    command = list(part.command)
    if part.database is not None and part.database.exists() and not is_first:
        command = [*command[: command.index("sweep") + 1], "--resume", "--db", str(part.database)]
    path = output / f"{part.name}.log"
    begin = path.stat().st_size if path.exists() else 0
    with path.open("ab") as log:
        log.write(f"$ {' '.join(command)}\n".encode())
        log.flush()
        process = subprocess.Popen(
            command, cwd=ROOT, env=dict(variables), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        is_stopped = False
        for wait, sign in ((seconds, signal.SIGTERM), (GRACE_S, signal.SIGKILL), (None, None)):
            try:
                process.wait(wait)
                break
            except subprocess.TimeoutExpired:
                is_stopped = True
                if sign is not None:
                    os.killpg(process.pid, sign)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # kill workers that are still running
    code = process.returncode
    said = path.read_bytes()[begin:].decode(errors="replace")
    if part.database is not None and "while planning: no case has run and nothing is kept" in said:
        part.database.unlink(missing_ok=True)  # it was stopped while it planned
    if is_stopped or code == part.again or (part.database is not None and "sweep --resume" in said):
        return "stopped", code
    # A sweep exits with 1 if it has findings, which is a normal result.
    return ("done" if code == 0 or (part.database is not None and code == 1) else "failed"), code


def _tail(output: Path, part: Part) -> str:
    return (output / f"{part.name}.log").read_bytes()[-2000:].decode(errors="replace")


def pack(output: Path, archive: Path) -> None:
    """Pack everything except the entry points into one file; the old archive stays until the new one is complete."""
    partial = archive.with_name(archive.name + ".part")
    with tarfile.open(partial, "w:gz") as tar:
        for path in sorted(output.iterdir()):
            if path.name != "entry-points":
                tar.add(path, arcname=f"{output.name}/{path.name}")
    partial.replace(archive)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 if every part is done, 1 if one has failed, 2 if some are left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "gpu-results")
    parser.add_argument("--minutes", type=float, default=25.0, help="for everything")
    parser.add_argument("--archive", type=Path, help="a .tar.gz that is written after every part")
    parser.add_argument("--part", action="append", default=[], help="these only")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args(arguments)
    end = time.monotonic() + 60 * options.minutes
    output = options.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    tables = output / machine_name(is_cpu=options.cpu)
    tables.mkdir(exist_ok=True)
    made = parts(output, tables, is_cpu=options.cpu)
    unknown = set(options.part) - {part.name for part in made}
    if unknown:
        parser.error(f"--part {', '.join(sorted(unknown))}: expected {', '.join(part.name for part in made)}")
    chosen = [part for part in made if not options.part or part.name in options.part]
    variables = environment(output)
    file = output / "state.json"
    state: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for part in chosen:
        before = state.get(part.name, {})
        lacking = missing(part.needs)
        left = end - time.monotonic() - GRACE_S
        if before.get("state") in ("done", "failed") or (left < LEAST_S and not lacking):
            continue
        started = time.monotonic()
        limit = min(60 * part.minutes, left)
        if lacking:
            state[part.name] = {"state": "failed", "why": f"not installed: {', '.join(lacking)}", "seconds": 0}
        else:
            ended, code = run(part, output, limit, variables, is_first=not before)
            while code is not None and code == part.again and time.monotonic() - started < limit - LEAST_S:
                ended, code = run(part, output, limit - (time.monotonic() - started), variables, is_first=False)
            if ended == "stopped" and not part.goes_on and before:
                ended = "failed"  # stopped twice: it does not finish within its limit
            seconds = round(before.get("seconds", 0) + time.monotonic() - started, 1)
            state[part.name] = {"state": ended, "code": code, "seconds": seconds}
        print(f"{part.name}: {state[part.name]}", flush=True)
        file.write_text(json.dumps(state, indent=1))
        if options.archive is not None:
            pack(output, options.archive.resolve())
    states = [state.get(part.name, {}).get("state", "not begun") for part in chosen]
    for part, ended in zip(chosen, states, strict=True):
        lines = _tail(output, part).rstrip().splitlines() if (output / f"{part.name}.log").exists() else []
        print(f"{part.name:30} {ended:10} {lines[-1][:120] if lines else ''}")
    return 1 if "failed" in states else 0 if set(states) == {"done"} else 2


if __name__ == "__main__":
    sys.exit(main())
