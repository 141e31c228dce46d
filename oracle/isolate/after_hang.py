"""A command that is run after a worker was killed for its time limit, before another worker starts: it resets a device."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO

CASE_VARIABLE = "TORCH_ORACLE_CASE"
DEVICE_VARIABLE = "TORCH_ORACLE_DEVICE"
PID_VARIABLE = "TORCH_ORACLE_WORKER_PID"
_TAIL_CHARACTERS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterHang:
    """The command, its arguments, and for how many seconds it may run."""

    command: tuple[str, ...]
    device: str = "cpu"
    timeout_s: float = 60.0

    def variables(self, *, case: str, pid: int) -> dict[str, str]:
        """Environment variables of the command besides those of this process."""
        return {CASE_VARIABLE: case, DEVICE_VARIABLE: self.device, PID_VARIABLE: str(pid)}


class RunningCommand:
    """The command while it runs, in a process group of its own and without input."""

    def __init__(self, settings: AfterHang, *, case: str, pid: int, inherited: Mapping[str, str]) -> None:
        self._settings = settings
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the command runs
        self._process: subprocess.Popen[bytes] | None = None
        self._failure = ""
        self._deadline = time.monotonic() + settings.timeout_s
        try:
            self._process = subprocess.Popen(
                settings.command,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                env={**inherited, **settings.variables(case=case, pid=pid)},
                start_new_session=True,
            )
        except OSError as error:
            self._failure = f"could not be started: {error}"

    def failure(self) -> str | None:
        """None while it runs; then "" if it succeeded, else one line about what went wrong."""
        if self._process is None:
            return self._told(self._failure)
        code = self._process.poll()
        if code is None and time.monotonic() < self._deadline:
            return None
        if code is None:
            self.kill()
            return self._told(f"had not ended after {self._settings.timeout_s:g} s and was killed")
        if code == 0:
            return ""
        return self._told(f"ended with exit code {code}" if code > 0 else f"died of signal {-code}")

    def kill(self) -> None:
        """End it and the processes that it started."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _told(self, what: str) -> str:
        self._output.seek(0)
        said = " ".join(self._output.read().decode(errors="replace").split())[-_TAIL_CHARACTERS:]
        return f"{shlex.join(self._settings.command)} {what}" + (f", saying: {said}" if said else "")
