"""Runs a script for a report (`fuzz.triage.repro`) by another interpreter, which needs torch only, and says how it ended.

A script exits with 1 while the bug exists, as Python does for every exception. Therefore a few lines (`_WRAPPER`) run it there,
and write down which of the two it was, and the versions.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import takewhile
from pathlib import Path
from typing import Any

from oracle.errors import UsageError

_WRAPPER = """
import json, os, platform, runpy, sys
answer, script, module = sys.argv[1:4]
told = {"python": platform.python_version()}

def tell(**more):
    told.update(more)
    with open(answer + ".part", "w") as file:
        json.dump(told, file)
    os.replace(answer + ".part", answer)

def short(error):
    lines = str(error).strip().splitlines()
    return type(error).__name__ + (": " + lines[0] if lines else "")

tell()
try:
    import torch
except BaseException as error:
    tell(error="no torch: " + short(error))
    os._exit(3)
tell(torch=torch.__version__)
sys.argv = [script]
try:
    runpy.run_path(script, run_name="__main__")
    tell(code=0)
except SystemExit as ended:
    code = int(ended.code or 0) if isinstance(ended.code, (int, type(None))) else 1
    tell(code=code) if code in (0, 1) and not isinstance(ended.code, str) else tell(error="exit: " + str(ended.code))
except BaseException as error:
    tell(error=short(error))
tell(origin=getattr(sys.modules.get(module), "__file__", None) or "")
sys.stdout.flush()
os._exit(0)
"""
_SHOWN = 60  # characters of a value
_BEFORE = 12  # of these, before the first difference
_CALL = r"call \d+: "
_DIFFERENCE = re.compile(
    rf"^(?P<key>{_CALL}[^\n]*)\n    eager:    (?P<eager>.*?)\n    compiled: (?P<compiled>.*?)"
    rf"(?=\n{_CALL}|\nDIFFERENT$|\nthe same$)",
    re.MULTILINE | re.DOTALL,
)
_RAISES = re.compile(r"^    raises (?P<type>\w+): \[(?P<message>.*)\]$", re.MULTILINE)
_COMPILED = re.compile(r"^compiled:.*$", re.MULTILINE)


class Result(str, Enum):
    """The answer of one interpreter. The value is the word that users see."""

    BUG = "bug"
    GONE = "no bug"
    CANNOT_RUN = "cannot run"
    TIMEOUT = "timeout"

    @property
    def is_answer(self) -> bool:
        """Whether it says that the bug is there, or that it is not."""
        return self in (Result.BUG, Result.GONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a script ended."""

    result: Result
    seconds: float = 0.0
    torch: str = ""
    python: str = ""
    what: str = ""  # what differs; without an answer, the reason
    eager_raises: tuple[str, ...] = ()  # "RuntimeError: message" of each call that eager refuses
    origin: str = ""  # the file of the module that was asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script, and what it needs."""

    text: str
    asked: tuple[str, ...]  # aspects that it is about (`fuzz.triage.repro.aspects`)
    module: str = ""  # the module of the user's backend
    env: Mapping[str, str] = field(default_factory=dict)  # more environment variables
    eager_raises: int = 0  # calls that eager refuses on the torch of this process


def check_interpreter(name: str) -> str:
    """The path of an interpreter given by path or name. Raises UsageError if there is none."""
    found = shutil.which(name)
    if found is None:
        raise UsageError(
            seen=f"no interpreter {name!r}", expected="the path of a Python that has torch, or its name on the PATH",
            do="write for example --python ~/venvs/nightly/bin/python",
        )  # fmt: skip
    return os.path.abspath(found)  # not resolved: an environment's interpreter is a link to another one


def run_script(python: str, script: Script, *, folders: Sequence[str] = (), timeout_s: float, runs: int = 1) -> Ran:
    """Runs the script up to `runs` times, until it shows the bug. `folders` are put before others on its path."""
    seconds = 0.0
    while True:
        ran = _run_once(python, script, folders, timeout_s)
        seconds, runs = seconds + ran.seconds, runs - 1
        if ran.result is not Result.GONE or runs <= 0:
            return replace(ran, seconds=seconds)


def _run_once(python: str, script: Script, folders: Sequence[str], timeout_s: float) -> Ran:
    with tempfile.TemporaryDirectory(prefix="torch-oracle-") as name:
        folder = Path(name)
        path, answer = folder / "script.py", folder / "answer.json"
        path.write_text(script.text, encoding="utf-8")
        ended = run_child(
            [python, "-c", _WRAPPER, str(answer), str(path), script.module],
            scratch=folder, folders=folders, env=script.env, timeout_s=timeout_s,
        )  # fmt: skip
        told: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8")) if answer.is_file() else {}
    ran = Ran(
        result=Result.CANNOT_RUN, seconds=ended.seconds, torch=told.get("torch", ""), python=told.get("python", ""),
        origin=told.get("origin", ""),
    )  # fmt: skip
    if ended.code is None:
        return replace(ran, result=Result.TIMEOUT, what=f"no end within {timeout_s:.0f} s")
    if "code" not in told:
        return replace(ran, what=told.get("error") or ended.death)
    eager, compiled = _parts(ended.output)
    refused = tuple(_raised(eager))
    if len(refused) > script.eager_raises:
        return replace(ran, what=f"eager raises {refused[0]}", eager_raises=refused)
    raised = _raised(compiled)
    if len(raised) > len(refused) and "exception" not in script.asked:
        return replace(ran, what=f"the compiled program raises {raised[0]}", eager_raises=refused)
    if told["code"] == 0:
        return replace(ran, result=Result.GONE, eager_raises=refused)
    return replace(ran, result=Result.BUG, what=_what_differs(compiled, script.asked), eager_raises=refused)


# ------------------------------------------------------------------------------------------------------------------ child


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a child process ended, and what it printed."""

    code: int | None  # None: it took too long and was stopped
    seconds: float
    output: str
    errors: str

    @property
    def death(self) -> str:
        """Why there is no answer: a signal, or the last line of stderr."""
        if self.code is not None and self.code < 0:
            return f"died of signal {-self.code}"
        lines = self.errors.strip().splitlines()
        return lines[-1].strip() if lines else f"exit code {self.code}"


def run_child(
    words: Sequence[str], *, scratch: Path, folders: Sequence[str], env: Mapping[str, str], timeout_s: float
) -> Ended:
    """Runs an interpreter in an empty folder. Compiled code is kept in `scratch`, so that none is taken from earlier runs."""
    (scratch / "empty").mkdir()
    started = time.monotonic()
    with (scratch / "stdout").open("wb") as out, (scratch / "stderr").open("wb") as err:
        child = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=scratch / "empty",
            env=_environment(env, folders, scratch), start_new_session=True,
        )  # fmt: skip
        code = _ended(child, timeout_s)
    seconds = time.monotonic() - started
    output, errors = ((scratch / name).read_text(encoding="utf-8", errors="replace") for name in ("stdout", "stderr"))
    return Ended(code=code, seconds=seconds, output=output, errors=errors)


def _environment(own: Mapping[str, str], folders: Sequence[str], scratch: Path) -> dict[str, str]:
    inherited = {name: text for name, text in os.environ.items() if name != "PYTHONHOME"}
    more = inherited.get("PYTHONPATH", "").split(os.pathsep)
    paths = [*folders, *(os.path.abspath(path) for path in more if path)]  # the script runs in another folder
    return {
        **inherited,
        **own,
        "PYTHONPATH": os.pathsep.join(paths),
        # A file that is changed within a second, and keeps its size, would be taken from its bytecode.
        "PYTHONDONTWRITEBYTECODE": "1",
        # Compiled code is kept by the graph, and not by what has changed: the backend.
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        "TRITON_CACHE_DIR": str(scratch / "triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": inherited.get("TORCHINDUCTOR_COMPILE_THREADS", "1"),
    }


def _ended(child: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    """The exit code; None if the child had to be stopped."""
    try:
        return child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:  # what it started ends with it, at an interrupt too
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


# -------------------------------------------------------------------------------------------------------- what it printed


def _parts(output: str) -> tuple[str, str]:
    """The text printed while eager ran, and the text printed after."""
    found = _COMPILED.search(output)
    return (output[: found.start()], output[found.start() :]) if found else (output, "")


def _raised(part: str) -> list[str]:
    return [f"{found['type']}: {found['message'][1:-1]}" for found in _RAISES.finditer(part)]


def _what_differs(compiled: str, asked: Sequence[str]) -> str:
    """The first difference that the script is about, in one line."""
    differences = list(_DIFFERENCE.finditer(compiled))
    for found in differences:  # first, for after an exception everything else is missing
        call, _, aspect = found["key"].partition(": ")
        if aspect == "exception" and aspect in asked and (raised := _raised(compiled)):
            return f"{call}: raises {raised[0]}"
    for found in differences:
        if found["key"].partition(": ")[2].startswith(tuple(asked)):
            compiled, eager = _short(found["compiled"], found["eager"])
            return f"{found['key']}: {compiled}, eager gives {eager}"
    return compiled.partition("\n")[0]  # "compiled: dies: -11"


def _short(*values: str) -> list[str]:
    """Values on one line each. Long ones are cut, and begin shortly before the first place in which they differ."""
    texts = [" ".join(value.split()) for value in values]
    columns = zip(*texts, strict=False)
    alike = 0 if len(set(texts)) == 1 else sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
    begin = texts[0].rfind(" ", 0, max(0, alike - _BEFORE)) + 1 if max(map(len, texts)) > _SHOWN else 0
    return [("... " if begin else "") + _cut(text[begin:]) for text in texts]


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 4] + " ..."
