"""`make steady`: record refimpl's results for the corpus, here and at another commit, and list every difference.

`python -m suites.steady record FILE` records the tree that it runs in; `compare OLD NEW` lists the differences of two recordings;
`against COMMIT` does both, with a recording of that commit, made in a worktree of its own the first time and kept.

Exit codes: 0 no differences, 1 differences, 2 usage or environment, 3 internal error.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console

from oracle.cli import run_app
from oracle.errors import InternalError, UsageError
from oracle.isolate import Completed, Pool, Task
from suites.base import Selection
from suites.planning import make_plan
from suites.steady import CORPUS, DRAWN, DRAWN_SEED, DRAWN_SUBJECTS
from suites.steady.recording import Recording, TextsOfCases, compare, opened
from suites.traces.commands import how_it_ended

FOLDER = Path("build/steady")
_PRELOAD = ("torch", "oracle.case", "suites.steady.worker")
_TIMEOUT_S = 300.0
_MEMORY_BYTES = 6 * 2**30
_LINE_EVERY_S = 20.0
_DRAWN_IN_ONE_TASK = 100
_ENVIRONMENT = {"PYTHONHASHSEED": "0"}  # of workers, since texts contain sets of strings in their order

_Match = Annotated[list[str] | None, typer.Option(help="Glob on cases; repeatable. Default: all.")]
_Names = Annotated[bool, typer.Option("--names", help="Name all cases of a change, not only the first.")]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)


@app.command()
def record(
    file: Annotated[Path, typer.Argument(help="The recording to make; a file there is replaced.")],
    like: Annotated[Path | None, typer.Option(help="Take the drawn programs of this recording.")] = None,
    match: _Match = None,
    drawn: Annotated[int, typer.Option(help="So many drawn programs.")] = DRAWN,
    workers: Annotated[int | None, typer.Option(help="Worker processes. Default: one per core.")] = None,
) -> None:
    """Run the corpus in this tree and store its texts."""
    started = time.monotonic()
    partial = file.with_name(f"{file.name}.part")
    partial.unlink(missing_ok=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    given = _drawn_of(like) if like else {}
    count = workers or len(os.sched_getaffinity(0))
    with Pool(workers=count, preload=_PRELOAD, environment=_ENVIRONMENT) as pool, opened(partial) as recording:
        globs = match or ["*"]
        programs = _planned(pool, globs)
        if any(fnmatchcase("drawn", glob.split("/")[0]) for glob in globs):
            programs |= given or _draw(pool, drawn)
        cases = list(_cases(programs, globs))
        if not cases:
            raise UsageError(
                seen=f"no case matches {', '.join(globs)}", expected="a glob on suite/program@subject",
                do="write for example --match 'features/*' or --match '*@triton'",
            )  # fmt: skip
        for name, program in programs.items():
            if name.startswith("drawn/"):
                recording.add_drawn(name, program["program"])
        _run(pool, cases, recording)
    partial.replace(file)
    err.print(f"recorded in {time.monotonic() - started:.0f} s: {file}")


@app.command("compare")
def compare_recordings(
    old: Annotated[Path, typer.Argument(help="The recording before.")],
    new: Annotated[Path, typer.Argument(help="The recording after.")],
    names: _Names = False,
) -> None:
    """List the differences of two recordings; returns exit code 1 if there are any."""
    before, after = _texts(old), _texts(new)
    changes = compare(before, after)
    for change in changes:
        print(change.text(names=names), end="\n\n")
    cases = {case_id for change in changes for case_id in change.cases}
    total = len({case_id for case_id, _ in after})
    print(f"{total} cases, {len(after)} texts: {len(cases)} cases differ, by {len(changes)} different changes")
    raise typer.Exit(1 if changes else 0)


@app.command()
def against(
    commit: Annotated[str, typer.Argument(help="What to compare with: a commit, branch or tag.")],
    match: _Match = None,
    names: _Names = False,
) -> None:
    """Record this tree and, unless that was done before, the commit; list the differences."""
    sha = _sha(commit)
    suffix = "-part" if match else ""
    old, new = recording_of(sha, suffix), FOLDER / f"now{suffix}.db"
    words = [word for glob in match or [] for word in ("--match", glob)]
    if match or not old.exists():
        _record_commit(sha, old, words)
    record(new, like=old, match=match, drawn=DRAWN, workers=None)
    compare_recordings(old, new, names=names)


def recording_of(sha: str, suffix: str = "") -> Path:
    """The path of a commit's recording, one for each torch and Python, since texts and verdicts depend on them."""
    return FOLDER / f"{sha}-torch-{version('torch')}-python-{platform.python_version()}{suffix}.db"


def _record_commit(sha: str, file: Path, words: Sequence[str]) -> None:
    """Record a commit in a worktree, with this Python. Raises UsageError if the commit lacks this package or refuses the input,
    InternalError if it fails.
    """
    tree = FOLDER.resolve() / f"tree-{sha}"
    shutil.rmtree(tree, ignore_errors=True)
    _git("worktree", "prune")
    _git("worktree", "add", "--detach", str(tree), sha)
    try:
        if not (tree / "suites/steady").is_dir():
            raise UsageError(
                seen=f"commit {sha} without suites/steady",
                expected="a commit that can record itself",
                do="name a later one",
            )
        err.print(f"recording {sha}")
        command = [sys.executable, "-m", "suites.steady", "record", str(file.resolve()), *words]
        # the hash seed for commits whose `record` does not set it
        environment = {**os.environ, **_ENVIRONMENT, "PYTHONPATH": str(tree)}
        code = subprocess.run(command, cwd=tree, env=environment, check=False).returncode
    finally:
        _git("worktree", "remove", "--force", str(tree))
    if code == UsageError.exit_code:
        raise UsageError(
            seen=f"commit {sha} refuses to be recorded", expected="a corpus that it has too", do="see its message above"
        )
    if code:
        raise InternalError(f"recording commit {sha} ended with exit code {code}; its message stands above")


def _sha(commit: str) -> str:
    """The commit's hash. Raises UsageError for an unknown commit."""
    try:
        return _git("rev-parse", "--verify", f"{commit}^{{commit}}")[:12]
    except InternalError as error:
        raise UsageError(seen=str(error), expected="a commit", do="name another one") from error


def _git(*words: str) -> str:
    """Run git and return its output. Raises InternalError with its error message."""
    done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InternalError(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


def _planned(pool: Pool, globs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """suite/name -> program and subjects, for suites that a glob may match."""
    found: dict[str, dict[str, Any]] = {}
    for part in CORPUS:
        if not any(fnmatchcase(part.suite, glob.split("/")[0]) for glob in globs):
            continue
        selection = Selection(
            tags=part.tags, dtypes=part.dtypes, directions=part.directions, max_samples=part.max_samples
        )
        for case in make_plan(part.suite, selection, subjects=("",), pool=pool).cases:
            if not case.name.endswith("/unplannable"):
                name = f"{case.suite}/{case.name}"
                found[name] = {
                    "program": case.program,
                    "subjects": part.subjects,
                    "group": f"{case.suite}/{case.group}",
                }
    return found


def _draw(pool: Pool, count: int) -> dict[str, dict[str, Any]]:
    """Draw programs. Raises InternalError if the fuzzer fails."""
    tasks = [
        Task(
            key=f"draw {first}",
            function="suites.steady.worker:draw",
            payload={"seed": DRAWN_SEED, "numbers": list(range(first, min(first + _DRAWN_IN_ONE_TASK, count)))},
            group="draw",
            timeout_s=_TIMEOUT_S,
            memory_bytes=_MEMORY_BYTES,
        )
        for first in range(0, count, _DRAWN_IN_ONE_TASK)
    ]
    programs: list[dict[str, Any]] = []
    for result in pool.run(tasks):
        if not isinstance(result.end, Completed):
            raise InternalError(f"programs are not drawn: {result.task.key}: {how_it_ended(result.end)[1]}")
        programs += cast("dict[str, Any]", result.end.value)["programs"]
    return {program["name"]: _drawn_entry(program) for program in sorted(programs, key=lambda one: one["name"])}


def _drawn_of(file: Path) -> dict[str, dict[str, Any]]:
    with opened(_existing(file)) as recording:
        return {name: _drawn_entry(program) for name, program in recording.drawn().items()}


def _drawn_entry(program: dict[str, Any]) -> dict[str, Any]:
    return {"program": program, "subjects": DRAWN_SUBJECTS, "group": program["name"]}


def _cases(programs: dict[str, dict[str, Any]], match: Sequence[str]) -> Iterator[Task]:
    for name, program in programs.items():
        for subject in program["subjects"]:
            case_id = f"{name}@{subject}"
            if any(fnmatchcase(case_id, glob) for glob in match):
                yield Task(
                    key=case_id,
                    function="suites.steady.worker:run_case",
                    payload={"program": program["program"], "subject": subject},
                    group=program["group"],
                    timeout_s=_TIMEOUT_S,
                    memory_bytes=_MEMORY_BYTES,
                )


def _run(pool: Pool, tasks: Sequence[Task], recording: Recording) -> None:
    """Run each case once. If a worker dies, hangs or fails, that becomes the text of its case."""
    started = last = time.monotonic()
    for done, result in enumerate(pool.run(tasks), 1):
        if isinstance(result.end, Completed):
            recording.add(result.task.key, cast("dict[str, Any]", result.end.value)["texts"])
        else:
            recording.add(result.task.key, {"verdict": ": ".join(how_it_ended(result.end))})
        if time.monotonic() - last > _LINE_EVERY_S or done == len(tasks):
            last = time.monotonic()
            err.print(f"{done}/{len(tasks)} cases, {last - started:.0f} s")


def _texts(file: Path) -> TextsOfCases:
    with opened(_existing(file)) as recording:
        return {(case_id, kind): text for case_id, kind, text in recording.texts()}


def _existing(file: Path) -> Path:
    """Check that the file exists, else raise UsageError; SQLite would make an empty one."""
    if not file.exists():
        raise UsageError(seen=f"no file {file}", expected="a recording", do="make it with `record`")
    return file


def main(arguments: list[str]) -> int:
    """Run one command line; returns the exit code."""
    return run_app(lambda: typer.main.get_command(app), arguments, name="steady")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
