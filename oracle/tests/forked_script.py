"""Runs a script in a fork of the test process, which has imported torch: an interpreter of its own takes seconds for that."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path

from oracle.in_fork import settle_in_fork

_STREAMS = ("stdout", "stderr")


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
    child = multiprocessing.get_context("fork").Process(target=_run_here, args=(path,))
    child.start()
    child.join(300)
    assert child.exitcode is not None, "the script does not end"
    return Ended(child.exitcode, *((folder / name).read_text() for name in _STREAMS))


def _run_here(path: Path) -> None:
    """What a new interpreter would do with the script, in a forked child."""
    for descriptor, name in enumerate(_STREAMS, start=1):
        os.dup2(os.open(path.parent / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    # pytest has put its own streams there
    sys.stdout, sys.stderr = (os.fdopen(descriptor, "w") for descriptor in (1, 2))
    os.chdir(path.parent)
    settle_in_fork()
    warnings.simplefilter("ignore")
    code = 0
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
