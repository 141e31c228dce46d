"""Runs a script in a child of this process, which has imported torch: an interpreter of its own takes seconds for that."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import warnings
from pathlib import Path

from oracle.in_fork import settle_in_fork

NO_END = 124  # the exit code of a script that was stopped
_TIMEOUT_S = 120.0


def exit_code(script: str, *, timeout_s: float = _TIMEOUT_S) -> int:
    """The exit code of a script whose output is discarded: minus the signal that ended it, or NO_END after `timeout_s`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "script.py")
        path.write_text(script, encoding="utf-8")
        child = multiprocessing.get_context("fork").Process(target=_run, args=(path,), daemon=True)
        child.start()
        child.join(timeout_s)
        if child.exitcode is None:
            child.kill()
            child.join()
            return NO_END
        return child.exitcode


def _run(path: Path) -> None:
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(silence, descriptor)
    sys.stdout, sys.stderr = (os.fdopen(descriptor, "w") for descriptor in (1, 2))
    for number in (signal.SIGTERM, signal.SIGINT):  # an interpreter that starts has no handlers of the parent
        signal.signal(number, signal.SIG_DFL if number is signal.SIGTERM else signal.default_int_handler)
    settle_in_fork()
    warnings.simplefilter("ignore")
    sys.argv = [str(path)]
    code = 1
    try:
        runpy.run_path(str(path), run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0) if isinstance(ended.code, (int, type(None))) else 1
    except BaseException:  # whatever the program or a compiler raises ends the script with 1, as an interpreter would
        code = 1
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(code)
