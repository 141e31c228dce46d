"""Judge one function or module from Python: `check` returns verdicts, `assert_agrees` raises.

    >>> import torch, oracle
    >>> verdicts = oracle.check(lambda x: torch.sin(x) + 1, torch.randn(8), subjects=["aot_eager"])
    >>> verdicts["aot_eager"].status.value
    'pass'

Each subject runs in a process forked from this one, so that a crash or a hang is a verdict and not the end of your
program; nothing is pickled on the way in. With `isolate=False` (and on CUDA, whose state does not survive a fork)
it runs here.
"""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import time
import types
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from oracle.build import LiveProgram
from oracle.case import CaseOptions, CaseResult, EagerState, judge_subject
from oracle.errors import InternalError, UsageError
from oracle.flatten import flatten
from oracle.program import Call, Program
from oracle.subjects.base import Subject
from oracle.subjects.registry import check_requirements, load, of_callable, resolve
from oracle.verdict import Status, Verdict

DEFAULT_SUBJECTS = ("dynamo", "aot_eager", "aot_eager_decomp_partition", "inductor")


class DisagreementError(AssertionError):
    """A subject does not agree with eager. `verdict` says how."""

    def __init__(self, subject: str, verdict: Verdict) -> None:
        super().__init__(describe(subject, verdict))
        self.verdict = verdict


def check(
    fn: Callable[..., Any],
    *inputs: Any,
    subjects: Sequence[str | Callable[..., Any]] = DEFAULT_SUBJECTS,
    kwargs: Mapping[str, Any] | None = None,
    backward: bool | None = None,
    dynamic: bool | None = None,
    calls: int = 2,
    seed: int = 0,
    isolate: bool = True,
    timeout_s: float = 300.0,
) -> dict[str, Verdict]:
    """Run `fn(*inputs, **kwargs)` in eager and on each subject, and judge.

    `fn` is a function or an nn.Module (deep-copied for each run); it must give the same result when called again.
    `inputs` and `kwargs` may be any nesting of tensors (any dtype, layout, strides, aliasing) and Python values; they are
    copied, never changed. `subjects` are names (`torch-oracle list subjects`), "module:function" paths, or a Dynamo
    backend itself: `backend(gm, example_inputs) -> callable`. `backward=None` differentiates when an input or parameter
    requires grad. `calls` repeats the call on the same values, to see what reuse of compiled code does.

    Returns a verdict per subject name, in the order given. Raises UsageError for unknown subjects and for targets that
    cannot be called.
    """
    if not callable(fn):
        raise UsageError(
            seen=f"{type(fn).__name__} as fn", expected="a function or an nn.Module", do="pass something callable"
        )
    if calls < 1:
        raise UsageError(seen=f"calls={calls}", expected="at least 1", do="leave it out for 2")
    live = _live_program(fn, inputs, dict(kwargs or {}), backward=backward, dynamic=dynamic, calls=calls, seed=seed)
    chosen = [_subject(subject) for subject in subjects]
    on_cuda = any(
        isinstance(leaf.value, torch.Tensor) and leaf.value.is_cuda for leaf in flatten((inputs, kwargs), "")[0]
    )
    can_fork = isolate and not on_cuda and not torch.cuda.is_initialized() and hasattr(os, "fork")
    run = _run_forked if can_fork else _run_here
    return {subject.spec.name: run(live, subject, timeout_s) for subject in chosen}


def assert_agrees(
    fn: Callable[..., Any], *inputs: Any, subject: str | Callable[..., Any] = "inductor", **options: Any
) -> None:
    """Raise DisagreementError, with the symptom and the worst element, unless `subject` agrees with eager.

    `options` are those of `check`. A verdict that compared nothing raises as well.
    """
    ((name, verdict),) = check(fn, *inputs, subjects=[subject], **options).items()
    if verdict.status not in (Status.PASS, Status.KNOWN):
        raise DisagreementError(name, verdict)


def describe(subject: str, verdict: Verdict) -> str:
    """A verdict as a few lines of text."""
    lines = [f"{subject}: {verdict.status.value}" + (f": {verdict.symptom}" if verdict.symptom else "")]
    if verdict.worst is not None:
        worst = verdict.worst
        lines.append(f"  worst element: {worst.where}[{', '.join(map(str, worst.index))}]")
        lines.append(
            f"    eager {worst.eager}, subject {worst.subject}" + (f", fp64 {worst.truth}" if worst.truth else "")
        )
        if worst.subject_error is not None:
            lines.append(
                f"    error {worst.subject_error:.3g}, eager's {worst.eager_error}, allowed {worst.allowed_error}"
            )
    lines += [f"  also: {text}" for text in verdict.also[:5]]
    return "\n".join(lines)


def _subject(subject: str | Callable[..., Any]) -> Subject:
    if isinstance(subject, str):
        spec = resolve(subject)
        check_requirements(spec)
        return load(spec)
    return of_callable(subject)


def _live_program(
    fn: Callable[..., Any],
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    backward: bool | None,
    dynamic: bool | None,
    calls: int,
    seed: int,
) -> LiveProgram:
    is_module = isinstance(fn, torch.nn.Module)
    if backward is None:
        tensors = [leaf.value for leaf in flatten((inputs, kwargs), "")[0] if isinstance(leaf.value, torch.Tensor)]
        tensors += list(fn.parameters()) if isinstance(fn, torch.nn.Module) else []
        backward = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    call = Call(backward=backward, grad_mode="grad" if torch.is_grad_enabled() else "no_grad")
    name = getattr(fn, "__name__", type(fn).__name__)
    program = Program(name=name, source="", calls=(call,) * calls, seed=seed, is_module=is_module, dynamic=dynamic)

    def make_target() -> Callable[..., Any]:
        return copy.deepcopy(fn) if isinstance(fn, torch.nn.Module) else _same_function(fn)

    return LiveProgram(program=program, make_target=make_target, args=inputs, kwargs=kwargs)


def _same_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function under a code object of its own, so that nothing compiled before is reused or disturbed."""
    if not isinstance(fn, types.FunctionType):
        return fn
    fresh = types.FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    fresh.__kwdefaults__ = fn.__kwdefaults__
    fresh.__dict__.update(fn.__dict__)
    return fresh


def _run_here(live: LiveProgram, subject: Subject, timeout_s: float) -> Verdict:
    return _judge(live, subject).verdict


def _judge(live: LiveProgram, subject: Subject) -> CaseResult:
    return judge_subject(eager=EagerState(make=live.instantiate), subject=subject, options=CaseOptions())


def _run_forked(live: LiveProgram, subject: Subject, timeout_s: float) -> Verdict:
    """Judge in a forked child; its end is a verdict whatever it is."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(live, subject, there), daemon=False)
    child.start()
    there.close()
    deadline = time.monotonic() + timeout_s
    try:
        if here.poll(max(0.0, deadline - time.monotonic())):
            message = json.loads(here.recv_bytes())
            if "error" in message:
                raise InternalError(message["error"])
            if "refused" in message:  # there is no process to be had in which autograd works
                return _run_here(live, subject, timeout_s)
            return Verdict.from_json(message["verdict"])
        return Verdict(status=Status.TIMEOUT, symptom=f"no end within {timeout_s:.0f} s")
    except EOFError:
        child.join(5)
        code = child.exitcode
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return Verdict(status=Status.CRASH, symptom=f"the process died of {how}")
    finally:
        if child.is_alive():
            child.kill()
        child.join()
        here.close()


def _refusal() -> dict[str, Any] | None:
    """Builds of torch for accelerators refuse every backward pass in the child of a process that has run one."""
    try:
        torch.ones(1, requires_grad=True).sum().backward()
    except RuntimeError as error:
        return {"refused": str(error)}
    return None


def _child(live: LiveProgram, subject: Subject, connection: Connection) -> None:
    torch.set_num_threads(1)  # the parent's thread pool did not survive the fork
    try:
        message = _refusal() or {"verdict": _judge(live, subject).verdict.to_json()}
    except Exception as error:  # process edge: the parent raises it again
        message = {"error": f"{type(error).__name__}: {error}"}
    connection.send_bytes(json.dumps(message).encode())
    connection.close()
    os._exit(0)  # no atexit handlers of the parent's libraries in the child
