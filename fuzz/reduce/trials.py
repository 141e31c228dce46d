"""Judges candidates in a child process, which is replaced after a crash or a hang."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import warnings
from dataclasses import asdict
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from types import TracebackType
from typing import Any

from fuzz.judge.metamorphic import relation_named
from fuzz.judge.observing import prepared_subject
from fuzz.judge.relation import judge_relation
from fuzz.judge.single import judge
from fuzz.program.render import to_program
from fuzz.program.structure import FuzzProgram
from fuzz.reduce.from_program import Way, forms
from fuzz.reduce.scout import suspects
from oracle.errors import InternalError
from oracle.in_fork import settle_in_fork
from oracle.program import Program
from oracle.program.build import instantiate
from oracle.subjects.registry import load, resolve
from oracle.subjects.spec import SubjectSpec
from oracle.symptom import Symptom, with_relation
from oracle.verdict import Status, Verdict

_TIMEOUT_S = 60.0
_COLD_FACTOR = 4.0
_NOT_RELATED = Verdict(status=Status.PASS_DUE_TO_SKIP, symptom="the relation does not apply")


class TrialProcess:
    """Judges programs on subjects in one child process, and in a new one after it dies.

    A context manager that ends the child.
    """

    def __init__(self, *, timeout_s: float = _TIMEOUT_S, relation: str = "") -> None:
        """`relation`: judge this relation of `fuzz.judge.metamorphic` instead of the program alone."""
        self.timeout_s = timeout_s
        self._relation = relation
        self.judged = 0
        self._child: ForkProcess | None = None
        self._connection: Connection | None = None
        self._is_warm = False

    def __enter__(self) -> TrialProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def judge(self, program: FuzzProgram, subject: SubjectSpec) -> Verdict:
        """The verdict; `crash` or `timeout` if the child does not answer. Raises InternalError if the judge itself fails."""
        self.judged += 1
        message = {
            "ask": "verdict", "program": program.to_json(), "subject": subject.to_json(), "relation": self._relation,
        }  # fmt: skip
        return self._verdict(message, subject)

    def judge_source(self, program: Program, subject: SubjectSpec) -> Verdict:
        """Like `judge`, for a program given as source, which may be large: the verdict is brief (`oracle.case.judge_subject`)."""
        self.judged += 1
        message = {"ask": "verdict of source", "program": program.to_json(), "subject": subject.to_json()}
        return self._verdict(message, subject)

    def _verdict(self, message: dict[str, Any], subject: SubjectSpec) -> Verdict:
        try:
            return Verdict.from_json(self._answered(message, subject, self.timeout_s)["verdict"])
        except _ChildDiedError as died:
            return self._ended(Status.CRASH, f"the process died of {died}")
        except _ChildHangsError:
            return self._ended(Status.TIMEOUT, f"no end within {self.timeout_s:g} s")

    def _ended(self, status: Status, symptom: str) -> Verdict:
        return Verdict(status=status, symptom=with_relation(self._relation, symptom) if self._relation else symptom)

    def suspects(self, program: FuzzProgram, subject: SubjectSpec) -> list[int]:
        """The result of `fuzz.reduce.scout`; [] if the child does not answer."""
        message = {"ask": "suspects", "program": program.to_json(), "subject": subject.to_json()}
        try:
            return self._answered(message, subject, self.timeout_s)["suspects"]
        except (_ChildDiedError, _ChildHangsError):
            return []

    def forms(self, program: Program, subject: SubjectSpec, way: Way) -> list[FuzzProgram | str]:
        """The result of `fuzz.reduce.from_program.forms`; a reason if the child does not answer."""
        message = {
            "ask": "forms", "program": program.to_json(), "subject": subject.to_json(), "way": asdict(way),
        }  # fmt: skip
        try:
            found = self._answered(message, subject, self.timeout_s)["forms"]
        except _ChildDiedError as died:
            return [f"{way.how} dies of {died}"]
        except _ChildHangsError:
            return [f"{way.how} does not end within {self.timeout_s:g} s"]
        return [form if isinstance(form, str) else FuzzProgram.from_json(form) for form in found]

    def culprit(self, program: FuzzProgram, subject: SubjectSpec, symptom: Symptom, *, timeout_s: float) -> str:
        """The culprit (`oracle.localisation.culprit`); "" if the child does not answer in time."""
        message = {
            "ask": "culprit", "program": program.to_json(), "subject": subject.to_json(), "symptom": symptom.to_json(),
        }  # fmt: skip
        try:
            return self._answered(message, subject, timeout_s)["culprit"]
        except (_ChildDiedError, _ChildHangsError):
            return ""
        finally:
            self._stop()  # the search has patched the compiler in that child

    def _answered(self, message: dict[str, Any], subject: SubjectSpec, timeout_s: float) -> dict[str, Any]:
        connection = self._running(subject)
        connection.send_bytes(json.dumps(message).encode())
        if not self._is_warm:  # the first answer takes longer: the compiler is loaded
            timeout_s *= _COLD_FACTOR
        try:
            if not connection.poll(timeout_s):
                self._stop()
                raise _ChildHangsError
            answer = json.loads(connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            raise _ChildDiedError(self._how_it_died()) from None
        self._is_warm = True
        if "error" in answer:
            raise InternalError(answer["error"])
        return answer

    def _running(self, subject: SubjectSpec) -> Connection:
        if self._connection is not None and self._child is not None and self._child.is_alive():
            return self._connection
        self._stop()
        prepared_subject(subject.to_json())
        _warm_up()
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        child = context.Process(target=_serve, args=(there, here), daemon=True)
        child.start()
        there.close()
        self._child, self._connection = child, here
        return here

    def _how_it_died(self) -> str:
        assert self._child is not None
        self._child.join(5)
        code = self._child.exitcode
        self._stop()
        return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"

    def _stop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._child is not None:
            if self._child.is_alive():
                self._child.kill()
            self._child.join()
            self._child = None


@functools.lru_cache(maxsize=1)
def _warm_up() -> None:
    """Import and set up the compiler once, so that every child is forked with it."""
    program = Program(name="warm up", source="import torch\n\ndef program():\n    return torch.ones(2).sin()\n")
    judge(program, load(resolve("aot_eager")))


def _serve(connection: Connection, parents: Connection) -> None:
    parents.close()
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)  # discard the output of candidates and compilers
    os.dup2(silence, 2)
    settle_in_fork()
    warnings.simplefilter("ignore")
    while True:
        try:
            message = json.loads(connection.recv_bytes())
        except EOFError:
            os._exit(0)  # no atexit handlers of the parent's libraries in the child
        connection.send_bytes(json.dumps(_answer(message)).encode())


def _answer(message: dict[str, Any]) -> dict[str, Any]:
    try:
        subject = prepared_subject(message["subject"])
        if message["ask"] == "verdict of source":
            program = Program.from_json(message["program"])
            return {"verdict": judge(program, subject, is_brief=True).verdict.to_json()}
        if message["ask"] == "forms":
            found = forms(Program.from_json(message["program"]), Way(**message["way"]))
            return {"forms": [form if isinstance(form, str) else form.to_json() for form in found]}
        form = FuzzProgram.from_json(message["program"])
        if message["ask"] == "suspects":
            return {"suspects": suspects(form, subject)}
        if message["ask"] == "culprit":
            # Imports Inductor, which takes seconds, and which most reductions do not need.
            from oracle.localisation.culprit import find_culprit  # noqa: PLC0415

            plain, symptom = to_program(form, name="culprit"), Symptom.from_json(message["symptom"])
            return {"culprit": find_culprit(lambda: instantiate(plain), subject, symptom).text}
        if message["relation"]:
            related = judge_relation(form, relation_named(message["relation"]), subject)
            return {"verdict": (related.verdict if related is not None else _NOT_RELATED).to_json()}
        return {"verdict": judge(to_program(form, name="candidate"), subject).verdict.to_json()}
    except Exception as error:  # edge of the process: the parent raises it again
        return {"error": f"{type(error).__name__}: {error}"}


class _ChildDiedError(Exception):
    """The child ended without an answer; the message says how."""


class _ChildHangsError(Exception):
    """The child did not answer in time, and was killed."""
