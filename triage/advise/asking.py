"""Asks two versions of torch about one program, each in processes of its own.

The versions take turns (old, new, old, new ...), so that a machine that slows down slows both.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.triage.script_parts import compile_keywords
from oracle.errors import UsageError
from oracle.observe.outcome import Raised
from oracle.program import Program
from oracle.subjects.spec import SubjectSpec
from triage.advise import worker
from triage.advise.answers import Answer, read_answer
from triage.interpreters import run_child

SPEED_S = 1.0  # seconds for which one process measures eager and compiled calls
_MORE_ROUNDS = 2  # before two times are called different
_WITH_TENSORS = 2  # rounds whose tensors are kept in memory: the judge wants two runs of eager
_ROOT = Path(__file__).parents[2]
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A program, how it is compiled, and where the user's code is."""

    program: Program
    subject: SubjectSpec
    folders: tuple[str, ...] = ()
    timeout_s: float

    def to_json(self) -> dict[str, Any]:
        spec = self.subject
        backend = spec.path if spec.kind == "backend" else spec.options.get("backend", "inductor")
        compiled = {"backend": backend, "keywords": compile_keywords(self.program.dynamic, spec)}
        return {"program": self.program.to_json(), "compile": compiled, "speed_s": SPEED_S}


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two versions: its interpreter, and its answers, one of each round."""

    python: str
    answers: tuple[Answer, ...] = ()

    @property
    def first(self) -> Answer:
        return self.answers[0]

    @property
    def second(self) -> Answer:
        """Another run of the same; the first one again if there was one round only."""
        return self.answers[:_WITH_TENSORS][-1]

    def times(self, name: str) -> tuple[float, ...]:
        """The times of this name (`compile_s`, `eager_s`, `compiled_s`) in all rounds."""
        found = (getattr(answer, name) for answer in self.answers)
        return tuple(seconds for seconds in found if seconds is not None)


def ask_both(
    request: Request,
    old: str,
    new: str,
    *,
    rounds: int,
    is_called: Callable[[Side, Side], bool],
    progress: Progress = lambda stage: None,
) -> tuple[Side, Side]:
    """Both sides after `rounds` rounds. If `is_called` says that their times differ, more rounds have to confirm it.

    Raises UsageError if an interpreter lacks a module that is needed.
    """
    sides = Side(python=old), Side(python=new)
    number = 0
    while number < rounds or (number < rounds + _MORE_ROUNDS and is_called(*sides)):
        for position, side in enumerate(sides):
            progress(f"round {number + 1}, {'old' if position == 0 else 'new'} torch")
            answer = ask(request, side.python)
            answer = answer if number < _WITH_TENSORS else answer.without_calls()
            side = Side(python=side.python, answers=(*side.answers, answer))
            sides = (side, sides[1]) if position == 0 else (sides[0], side)
        number += 1
    return sides


def ask(request: Request, python: str) -> Answer:
    """The answer of one process. Raises UsageError as `check_answer` does."""
    with tempfile.TemporaryDirectory(prefix="torch-oracle-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        code, answers = folder / "code", folder / "answers"
        _ship(code)
        answers.mkdir()
        (answers / "request.json").write_text(json.dumps(request.to_json()), encoding="utf-8")
        ended = run_child(
            [python, str(code / "worker.py"), str(answers)], scratch=folder, folders=[str(code), *request.folders],
            env=request.subject.env, timeout_s=request.timeout_s,
        )  # fmt: skip
        answer = read_answer(answers, ended, request.timeout_s)
    check_answer(answer, python)
    return answer


def check_answer(answer: Answer, python: str) -> None:
    """Raises UsageError if the interpreter lacks torch, numpy, or a module that the program or the backend imports."""
    if not answer.torch:
        raise UsageError(
            seen=f"{python}: {answer.death}", expected="an interpreter that has torch and numpy",
            do="name another interpreter, or a version of torch",
        )  # fmt: skip
    error = answer.eager.exception if isinstance(answer.eager, Raised) else None
    text = f"{error.type_name}: {error.message}" if error is not None and error.phase == "load" else answer.death
    if text.startswith("ModuleNotFoundError"):
        raise UsageError(
            seen=f"{python}: {text}", expected="an interpreter that has what the program and the backend import",
            do="install it there; for a version of torch, name the package with --pip",
        )  # fmt: skip


def _ship(folder: Path) -> None:
    """Copies the worker and the modules that it imports: the other interpreter need not have this project installed."""
    for name in worker.SHIPPED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_ROOT / name, folder / name)
    (folder / "oracle" / "__init__.py").touch()
    shutil.copyfile(Path(worker.__file__), folder / "worker.py")


def check_subject(spec: SubjectSpec) -> None:
    """Raises UsageError for a subject that is no torch.compile: another version of torch has torch alone."""
    if spec.kind not in ("torch_compile", "backend"):
        raise UsageError(
            seen=f"subject {spec.name!r}", expected="torch.compile with one of its backends, or a backend by path",
            do="leave --subject out for inductor",
        )  # fmt: skip


def names_of(sides: Sequence[Side]) -> tuple[str, ...]:
    """Short names by which the sides differ: versions of torch, else with Python, else interpreters."""
    versions = [side.first.torch.partition("+")[0] for side in sides]
    with_python = [f"{version} on Python {side.first.python}" for version, side in zip(versions, sides, strict=True)]
    for names in (versions, [side.first.torch for side in sides], with_python):
        if len(set(names)) == len(names) and all(names):
            return tuple(names)
    return tuple(side.python for side in sides)
