"""Judge one call of a running program in a forked child, which is collected later; or in this process, without traces.

The fork is the copy: the child has the module, the arguments, the generators, grad mode and autocast as they were at that moment,
and nothing that it does reaches the parent. Its output goes nowhere, since the program's own prints would appear again.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._inductor.config
from torch._dynamo.utils import counters as dynamo_counters

from oracle.case import CaseOptions, EagerState, judge_subject
from oracle.checking import autograd_refusal, live_program
from oracle.hygiene import restore, snapshot
from oracle.in_fork import settle_in_fork
from oracle.isolate.process_tree import die_with_parent, thread_times, tree_of
from oracle.isolate.task_clock import TaskClock
from oracle.saved_call import save_call
from oracle.subjects.base import CompileRequest, Counters, Subject
from oracle.subjects.spec import SubjectSpec
from oracle.verdict import Status, Verdict, describe

_NICE = 10  # where processors are short, training goes first
_POLL_S = 0.25  # least time between two polls that do not wait: each may cost the program its time slice
_LOOK_S = 1.0  # least time between two looks at a child that is late
_SUBJECT_STAGES = ("subject", "judge")  # a death in another stage is not the subject's


@dataclass(frozen=True, slots=True, kw_only=True)
class CallToJudge:
    """One call of the user's program, before it is made. Its values are read, never changed."""

    number: int
    target: Callable[..., Any]  # what eager runs: a function, or a module that is deep-copied
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    backward: bool
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The outcome of one call: a verdict, or the reason why there is none."""

    number: int
    verdict: Verdict | None = None
    error: str = ""
    is_late: bool = False  # the subject did not end within the time limit
    refused: bool = False  # autograd does not run in a forked process
    saved: str = ""  # the folder with the call, if it was saved
    unsaved: str = ""  # why it could not be saved


def judged_here(call: CallToJudge, subject: Subject, save_to: Path | None) -> Judgement:
    """Judge in this process. The generators, gradients, global settings and Dynamo's compiled code stay as they were.

    The subject's code for this call joins the compiled code that Dynamo has of the same function.
    """
    before = snapshot()
    try:
        with _kept_generators():
            return _judged(call, _Unreset(subject), save_to, lambda stage: None)
    finally:
        restore(before)


class ForkedJudgement:
    """A call that is being judged in a child. Mutable; used once."""

    def __init__(self, call: CallToJudge, subject: Subject, *, save_to: Path | None, timeout_s: float) -> None:
        self._number = call.number
        self._stage = "start"
        context = multiprocessing.get_context("fork")
        self._here, there = context.Pipe(duplex=False)
        child = context.Process(target=_child, args=(call, subject, save_to, there, os.getpid()), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of a fork beside threads
            child.start()
        there.close()
        assert child.pid is not None
        self._child, self._pid = child, child.pid
        self._limit_s = timeout_s
        self._clock = TaskClock(limit_s=timeout_s, times=thread_times([child.pid]))
        self._look_at = self._clock.due_at
        self._poll_at = 0.0

    def poll(self, wait_s: float = 0.0) -> Judgement | None:
        """The result if there is one after so many seconds; else None. Polls without a wait are cheap, and some are left out."""
        now = time.monotonic()
        if not wait_s and now < self._poll_at:
            return None
        ends_at, self._poll_at = now + wait_s, now + _POLL_S
        while True:
            left_s = max(0.0, ends_at - time.monotonic())
            if self._here.poll(min(left_s, _LOOK_S)):
                found = self._received()
                if found is not None:
                    self.stop()
                    return found
                continue
            if time.monotonic() >= self._look_at and (late := self._late()) is not None:
                return late
            if left_s <= 0:
                return None

    def result(self) -> Judgement:
        """The result, as soon as there is one. The time limit makes sure that there will be."""
        while (found := self.poll(_LOOK_S)) is None:
            pass
        return found

    def stop(self) -> None:
        """End the child, whatever it does."""
        if self._child.is_alive():
            self._child.kill()
        self._child.join()
        self._here.close()

    def _received(self) -> Judgement | None:
        """The result in the next message; None for a message of the stage. A closed pipe says that the child died."""
        try:
            message = json.loads(self._here.recv_bytes())
        except EOFError:
            return self._death()
        if "stage" in message:
            self._stage = message["stage"]
            return None
        verdict = message.pop("verdict", None)
        return Judgement(number=self._number, verdict=verdict and Verdict.from_json(verdict), **message)

    def _death(self) -> Judgement:
        self._child.join(5)
        code = self._child.exitcode
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        if self._stage not in _SUBJECT_STAGES or code in (-signal.SIGKILL, -signal.SIGTERM):
            return Judgement(number=self._number, error=f"the child died of {how} in stage {self._stage!r}")
        verdict = Verdict(status=Status.CRASH, symptom=f"the process died of {how}", stage=self._stage)
        return Judgement(number=self._number, verdict=verdict)

    def _late(self) -> Judgement | None:
        self._clock.look(thread_times(tree_of(self._pid)))
        if not self._clock.is_over:
            self._look_at = max(self._clock.due_at, time.monotonic() + _LOOK_S)
            return None
        self.stop()
        return Judgement(
            number=self._number,
            error=f"no end within {self._limit_s:.0f} s, in stage {self._stage!r}",
            is_late=self._stage in _SUBJECT_STAGES,
        )


def _child(call: CallToJudge, subject: Subject, save_to: Path | None, connection: Connection, parent: int) -> None:
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program; the parent ends this process
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    sys.stdout = sys.stderr = os.fdopen(nowhere, "w")  # pytest's capture replaces them by files of its own
    os.nice(_NICE)
    settle_in_fork()

    def send(message: Mapping[str, Any]) -> None:
        connection.send_bytes(json.dumps(message).encode())

    try:
        if autograd_refusal() is not None:
            send({"refused": True})
        else:
            found = _judged(call, subject, save_to, lambda stage: send({"stage": stage}))
            assert found.verdict is not None
            send({"verdict": found.verdict.to_json(), "saved": found.saved, "unsaved": found.unsaved})
    except Exception as error:  # at the process edge: any program's code runs here; the parent counts and tells it
        send({"error": f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"})
    connection.close()
    os._exit(0)  # no atexit handlers of the parent's libraries in the child


def _judged(call: CallToJudge, subject: Subject, save_to: Path | None, progress: Callable[[str], None]) -> Judgement:
    live = live_program(
        call.target, call.args, call.kwargs, backward=call.backward, dynamic=None, calls=1, seed=call.seed
    )
    eager = EagerState(make=live.instantiate)
    verdict = judge_subject(eager=eager, subject=subject, options=CaseOptions(), progress=progress).verdict
    misuse = getattr(subject, "misuse", None)
    if misuse is not None:
        raise misuse
    return saved_if_differs(call, subject.spec.name, verdict, save_to)


def saved_if_differs(call: CallToJudge, name: str, verdict: Verdict, save_to: Path | None) -> Judgement:
    """The judgement with the verdict on a subject of that name. A call that differs is saved in a folder below `save_to`."""
    if save_to is None or not verdict.status.is_finding:
        return Judgement(number=call.number, verdict=verdict)
    folder = save_to / f"call-{call.number}"
    facts = {
        "call": call.number, "subject": name, "verdict": verdict.to_json(), "seed": call.seed, "backward": call.backward,
        "grad_mode": torch.is_grad_enabled(), "autocast": _autocast(),
    }  # fmt: skip
    try:
        save_call(
            folder, target=call.target, args=call.args, kwargs=call.kwargs, report=describe(name, verdict), facts=facts
        )
    except Exception as error:  # the disk is full, a tensor has no plain storage: the verdict counts all the same
        return Judgement(number=call.number, verdict=verdict, unsaved=f"{type(error).__name__}: {error}")
    return Judgement(number=call.number, verdict=verdict, saved=str(folder))


def _autocast() -> dict[str, str]:
    """Device type -> dtype, where autocast is on."""
    return {
        device: str(torch.get_autocast_dtype(device)).removeprefix("torch.")
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    }


@contextlib.contextmanager
def _kept_generators() -> Iterator[None]:
    """Put back the states of the global generators of torch, Python and NumPy."""
    on_cuda = torch.cuda.is_initialized()
    own, python, numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()
    cuda = torch.cuda.get_rng_state_all() if on_cuda else []
    try:
        yield
    finally:
        torch.set_rng_state(own)
        random.setstate(python)
        np.random.set_state(numpy)
        if on_cuda:
            torch.cuda.set_rng_state_all(cuda)


class _Unreset:
    """A subject that keeps what is compiled: its reset would make Dynamo forget the user's own compiled code."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.spec = subject.spec

    @property
    def misuse(self) -> Any:
        return getattr(self._subject, "misuse", None)

    def reset(self) -> None:
        pass

    def compile(self, request: CompileRequest) -> Callable[..., Any]:
        return self._subject.compile(request)

    def counters(self) -> Counters:
        return self._subject.counters()


class OwnCode:
    """A subject that is the program's own compiled code: what torch.compile made of the model up to now, with its guards.

    `code_of` gives the compiled form of a copy of the model. Dynamo looks its code up by the function that it compiled, so the
    copy runs the code that the model runs; where no guards hold, it is compiled as the model would be.
    """

    def __init__(self, code_of: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        draws_as_eager = getattr(torch._inductor.config, "fallback_random")
        self.spec = SubjectSpec(name="its own compiled code", kind="own", rng="eager" if draws_as_eager else "own")
        self._code_of = code_of

    def reset(self) -> None:
        pass

    def compile(self, request: CompileRequest) -> Callable[..., Any]:
        return self._code_of(request.target)

    def counters(self) -> Counters:
        """Graphs of the whole process: more than zero says that there is compiled code."""
        return Counters(graphs=dynamo_counters["stats"]["unique_graphs"])
