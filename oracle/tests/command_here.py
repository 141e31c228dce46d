"""Runs a command line of torch-oracle in the test process, whose pools go on with the starters of earlier ones."""

from __future__ import annotations

import io
import os
import signal
import threading
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess

from oracle.cli import run


class _StandardError(io.StringIO):
    """Sends this process SIGINT, as Ctrl-C does, once the text is written to it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._awaited = text

    def write(self, text: str) -> int:
        written = super().write(text)
        if self._awaited and self._awaited in self.getvalue():
            self._awaited = ""
            os.kill(os.getpid(), signal.SIGINT)
        return written


def run_here(
    *arguments: str, interrupted_at: str = "", interrupted_when: Callable[[], bool] = lambda: False
) -> CompletedProcess[str]:
    """The exit code and output of the command. Ctrl-C is pressed once standard error says this, or once that holds."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    out, errors, has_ended = io.StringIO(), _StandardError(interrupted_at), threading.Event()

    def press() -> None:
        while not has_ended.wait(0.1):
            if interrupted_when():
                os.kill(os.getpid(), signal.SIGINT)
                return

    presser = threading.Thread(target=press)
    presser.start()
    try:
        with redirect_stdout(out), redirect_stderr(errors):
            code = run(list(arguments))
    finally:
        has_ended.set()
        presser.join()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return CompletedProcess(arguments, code, out.getvalue(), errors.getvalue())
