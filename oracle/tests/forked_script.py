"""Runs a script in a fork of a process that has imported torch: an interpreter of its own takes seconds for that.

The process is the test process, or one that has imported nothing but torch.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

from oracle.in_fork import settle_in_fork

_STREAMS = ("stdout", "stderr")
_FRESH = multiprocessing.get_context("forkserver")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a script ended, and what it printed."""

    returncode: int  # negative: minus the signal that ended the process
    stdout: str
    stderr: str


def run_forked(script: str, folder: Path) -> Ended:
    """Writes the script to the folder and runs it there as a main program, without warnings."""
    path = folder / "script.py"
    path.write_text(script)
    return run_program(path, folder)


def run_program(path: Path, folder: Path, *arguments: str) -> Ended:
    """Runs a script in the folder as `python -W ignore PATH ARGUMENTS` would."""
    return run_in_fork(partial(_as_main, path, *arguments), folder)


def run_fresh(script: str, folder: Path, *arguments: str) -> Ended:
    """Runs a script as `run_forked` does, in a fork of a process that has imported torch and nothing of ours or of the tests."""
    path = folder / "script.py"
    path.write_text(script)
    return run_fresh_program(path, folder, *arguments)


def run_fresh_program(path: Path, folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> Ended:
    """Runs a script as `run_program` does, in a fork of a process that has imported torch alone.

    No cache holds what earlier tests left. The hash seed and what torch reads when it is imported are those of that process.
    """
    _FRESH.set_forkserver_preload(["torch"])
    work = partial(_as_fresh_main, path, *arguments)
    child = _FRESH.Process(target=_run_here, args=(work, folder, {**os.environ, **(environment or {})}))
    child.start()
    return _ended(child, folder)


def _as_main(path: Path, *arguments: str) -> int:
    sys.argv[:] = [str(path), *arguments]
    sys.path.insert(0, str(path.parent))
    warnings.simplefilter("ignore")
    runpy.run_path(str(path), run_name="__main__")
    return 0


def _as_fresh_main(path: Path, *arguments: str) -> int:
    try:
        return _as_main(path, *arguments)
    finally:
        atexit._run_exitfuncs()  # what the script and its modules registered


def run_in_fork(work: Callable[[], int], folder: Path, environment: Mapping[str, str] | None = None) -> Ended:
    """Calls `work` in a fork whose directory is the folder, with further environment variables; it returns the exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns if a process with threads forks
        child = multiprocessing.get_context("fork").Process(target=_run_here, args=(work, folder, environment or {}))
        child.start()
    return _ended(child, folder)


def _ended(child: BaseProcess, folder: Path) -> Ended:
    child.join(300)
    if child.exitcode is None:
        child.kill()
        raise AssertionError("the script does not end")
    return Ended(child.exitcode, *((folder / name).read_text(encoding="utf-8") for name in _STREAMS))


def _run_here(work: Callable[[], int], folder: Path, environment: Mapping[str, str]) -> None:
    """What a new interpreter would do, in a forked child."""
    for descriptor, name in enumerate(_STREAMS, start=1):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    # pytest has put its own streams there
    sys.stdout, sys.stderr = (os.fdopen(descriptor, "w", encoding="utf-8") for descriptor in (1, 2))
    os.chdir(folder)
    os.environ.update(environment)
    settle_in_fork()
    try:
        code = work()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
