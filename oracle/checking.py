"""Judge one function or module from Python: `check` returns verdicts, `assert_agrees` raises.

    >>> import torch, oracle
    >>> verdicts = oracle.check(lambda x: torch.sin(x) + 1, torch.randn(8), subjects=["aot_eager"])
    >>> verdicts["aot_eager"].status.value
    'pass'

Each subject runs in a forked process, so that a crash or a hang is a verdict and does not end your program; arguments are not
pickled. With `isolate=False` (and on CUDA, whose state does not survive a fork) it runs in this process.
"""

from __future__ import annotations

import copy
import inspect
import os
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch._dynamo import OptimizedModule
from torch._subclasses.fake_tensor import FakeTensor

from oracle.case import CaseOptions, EagerState, judge_subject
from oracle.errors import UsageError
from oracle.in_fork import settle_in_fork
from oracle.isolate.forked import ChildDiedError, ChildLateError, in_child
from oracle.observe.flatten import flatten
from oracle.program import Call, Program, default_plan
from oracle.program.build import LiveProgram
from oracle.subjects.base import Subject
from oracle.subjects.naming import check_distinct_names, check_distinct_specs, names_of_callables
from oracle.subjects.registry import check_requirements, load, of_callable, resolve, split_names
from oracle.subjects.spec import SubjectSpec
from oracle.verdict import Status, Verdict, describe

DEFAULT_SUBJECTS = ("dynamo", "aot_eager", "aot_eager_decomp_partition", "inductor")
GivenSubject = str | Callable[..., Any]


class DisagreementError(AssertionError):
    """A subject disagrees with eager as `verdict` says."""

    def __init__(self, subject: str, verdict: Verdict) -> None:
        super().__init__(describe(subject, verdict))
        self.verdict = verdict


def check(
    fn: Callable[..., Any],
    *inputs: Any,
    subjects: GivenSubject | Iterable[GivenSubject] = DEFAULT_SUBJECTS,
    kwargs: Mapping[str, Any] | None = None,
    backward: bool | None = None,
    dynamic: bool | None = None,
    calls: int = 3,
    seed: int = 0,
    isolate: bool = True,
    timeout_s: float = 300.0,
) -> dict[str, Verdict]:
    """Run `fn(*inputs, **kwargs)` in eager and on each subject, and judge.

    `fn` is a function or an nn.Module (deep-copied for each run); on the same values it must return the same result again.
    `inputs` and `kwargs` may be any nesting of tensors (any dtype, layout, strides, aliasing; not on the meta device, where there
    are no values to compare) and Python values; they are copied, never changed. `subjects` is one subject or a list: a name
    (`torch-oracle list subjects`), a "module:function" path, or a Dynamo backend: `backend(gm, example_inputs) -> callable`.
    `backward=None` differentiates if an input or parameter requires grad. `calls` is the number of calls. The first has the given
    values, later ones other values in the same tensors (floats are shifted and scaled, `oracle.program.other_values`), to test
    the reuse of compiled code. If `fn` cannot run on those, the given values are used again, and the verdict's `explained` says
    so. `timeout_s` is the limit in seconds for each subject.

    Returns a verdict per subject, in the order given. The key of a subject given by name or path is that text. The key of a
    backend is `module.qualname` (of its class if it is an instance, of the function if it is a partial), with `#2`, `#3` ...
    for further backends of the same name.

    Raises UsageError for unknown subjects, for one subject given twice by name, for a backend that takes other arguments or
    does not return a callable, for a `fn` that cannot be called with these inputs, and for options of a wrong type.
    """
    check_options(kwargs=kwargs, backward=backward, dynamic=dynamic, calls=calls, seed=seed, timeout_s=timeout_s)
    check_target(fn, inputs, dict(kwargs or {}))
    live = live_program(fn, inputs, dict(kwargs or {}), backward=backward, dynamic=dynamic, calls=calls, seed=seed)
    on_cuda = any(
        isinstance(leaf.value, torch.Tensor) and leaf.value.is_cuda for leaf in flatten((inputs, kwargs), "")[0]
    )
    chosen = chosen_subjects(subjects, device="cuda" if on_cuda else "cpu")
    can_fork = isolate and not on_cuda and not torch.cuda.is_initialized() and hasattr(os, "fork")
    run = _run_forked if can_fork else _run_here
    return {subject.spec.name: run(live, subject, timeout_s) for subject in chosen}


def assert_agrees(
    fn: Callable[..., Any], *inputs: Any, subject: str | Callable[..., Any] = "inductor", **options: Any
) -> None:
    """Raise DisagreementError, with the symptom and the worst element, unless `subject` agrees with eager.

    `options` are those of `check`, without `subjects`. It also raises if nothing was compared.
    """
    if "subjects" in options:
        raise UsageError(
            seen="assert_agrees with subjects=", expected="one subject", do="write subject=..., or call oracle.check"
        )
    ((name, verdict),) = check(fn, *inputs, subjects=[subject], **options).items()
    if verdict.status not in (Status.PASS, Status.KNOWN):
        raise DisagreementError(name, verdict)


def check_target(fn: Any, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise UsageError if it shows without a run that eager cannot run `fn` on these inputs."""
    if isinstance(fn, type) and issubclass(fn, torch.nn.Module):
        raise UsageError(
            seen=f"the class {fn.__name__} as fn", expected="a module", do=f"make one: check({fn.__name__}(...), ...)"
        )
    if not callable(fn):
        raise UsageError(
            seen=f"fn of type {type(fn).__name__}", expected="a function or an nn.Module", do="pass something callable"
        )
    if hasattr(fn, "_torchdynamo_orig_callable") or isinstance(fn, OptimizedModule):
        raise UsageError(
            seen="fn that torch.compile has compiled", expected="the function or module that eager runs",
            do="pass what was given to torch.compile, and the backend in subjects=",
        )  # fmt: skip
    tensors = [("an input", leaf.value) for leaf in flatten((inputs, kwargs), "")[0]]
    if isinstance(fn, torch.nn.Module):
        tensors += [("a parameter", tensor) for tensor in fn.parameters()] + [("a buffer", b) for b in fn.buffers()]
    for what, tensor in tensors:
        if isinstance(tensor, torch.Tensor) and (tensor.is_meta or isinstance(tensor, FakeTensor)):
            kind = "is a fake tensor" if isinstance(tensor, FakeTensor) else "is on the meta device"
            raise UsageError(
                seen=f"{what} that {kind}, of shape {tuple(tensor.shape)}", expected="tensors with values to compare",
                do="make it on the CPU or a GPU",
            )  # fmt: skip
    if isinstance(fn, torch.nn.Module) and fn._forward_pre_hooks:  # they may change the arguments
        return
    try:
        signature = inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn)
    except (TypeError, ValueError):  # of builtins, say
        return
    try:
        signature.bind(*inputs, **kwargs)
    except TypeError as error:
        raise UsageError(
            seen=f"{len(inputs)} inputs{f' and kwargs {sorted(kwargs)}' if kwargs else ''} for {_name(fn)}{signature}: {error}",
            expected="the arguments of one call",
            do="write check(fn, a, b, kwargs={'name': c}) for fn(a, b, name=c)",
        ) from error


def check_options(*, kwargs: Any, backward: Any, dynamic: Any, calls: Any, seed: Any, timeout_s: Any) -> None:
    """Raise UsageError for the first option of a wrong type or out of range."""

    def is_number(value: Any, kinds: tuple[type, ...]) -> bool:
        return isinstance(value, kinds) and not isinstance(value, bool)

    is_dict = kwargs is None or (isinstance(kwargs, Mapping) and all(isinstance(key, str) for key in kwargs))
    rules = (
        ("kwargs", kwargs, is_dict, "a dict from names of arguments to values", "write kwargs={'name': value}"),
        ("backward", backward, backward in (None, True, False), "True, False or None", "leave it out for None"),
        ("dynamic", dynamic, dynamic in (None, True, False), "True, False or None", "leave it out for None"),
        ("calls", calls, is_number(calls, (int,)) and calls >= 1, "an integer, at least 1", "leave it out for 3"),
        ("seed", seed, is_number(seed, (int,)) and seed >= 0, "an integer, at least 0", "leave it out for 0"),
        ("timeout_s", timeout_s, is_number(timeout_s, (int, float)) and timeout_s > 0, "seconds, more than 0",
         "leave it out for 300"),
    )  # fmt: skip
    for name, value, is_right, expected, do in rules:
        if not is_right:
            raise UsageError(seen=f"{name}={value!r}", expected=expected, do=do)


def _listed(given: Any) -> list[GivenSubject]:
    """`subjects=` as a list."""
    if isinstance(given, str) and len(words := split_names(given)) > 1:
        raise UsageError(seen=f"subjects={given!r}", expected="one subject, or a list", do=f"write subjects={words}")
    if isinstance(given, str) or callable(given):
        return [given]
    if not isinstance(given, Iterable) or isinstance(given, (bytes, Mapping)):
        raise _no_subject(given, "subjects")
    listed = list(given)
    if not listed:
        raise UsageError(
            seen="no subjects", expected="at least one", do=f"leave subjects= out for {', '.join(DEFAULT_SUBJECTS)}"
        )
    for subject in listed:
        if not isinstance(subject, str) and not callable(subject):
            raise _no_subject(subject, "a subject")
    return listed


def chosen_subjects(subjects: Any, *, device: str) -> list[Subject]:
    """The subjects that `check` was given, loaded, with unique names. Raises UsageError for what is no subject."""
    given = [resolve(subject) if isinstance(subject, str) else subject for subject in _listed(subjects)]
    specs = [subject for subject in given if isinstance(subject, SubjectSpec)]
    names = iter(names_of_callables(subject for subject in given if not isinstance(subject, SubjectSpec)))
    named = [(subject.name if isinstance(subject, SubjectSpec) else next(names), subject) for subject in given]
    check_distinct_names([name for name, _ in named])
    check_distinct_specs(specs)
    for spec in specs:
        check_requirements(spec, device=device)
    return [
        load(subject) if isinstance(subject, SubjectSpec) else of_callable(subject, name=name)
        for name, subject in named
    ]


def _no_subject(value: Any, what: str) -> UsageError:
    return UsageError(
        seen=f"{what} of type {type(value).__name__}: {value!r}",
        expected="a name, a path module:function, a torch.compile backend f(gm, example_inputs), or a list of these",
        do="`torch-oracle list subjects` shows the names",
    )


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


def live_program(
    fn: Callable[..., Any],
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    backward: bool | None,
    dynamic: bool | None,
    calls: int,
    seed: int,
) -> LiveProgram:
    """The program of a function or module of this process, called on these inputs. The arguments are those of `check`."""
    is_module = isinstance(fn, torch.nn.Module)
    if backward is None:
        tensors = [leaf.value for leaf in flatten((inputs, kwargs), "")[0] if isinstance(leaf.value, torch.Tensor)]
        tensors += list(fn.parameters()) if isinstance(fn, torch.nn.Module) else []
        backward = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    call = Call(backward=backward, grad_mode="grad" if torch.is_grad_enabled() else "no_grad")
    program = Program(
        name=_name(fn),
        source="",
        calls=default_plan(call, key=None, count=calls),
        seed=seed,
        is_module=is_module,
        dynamic=dynamic,
    )

    def make_target() -> Callable[..., Any]:
        return _copied(fn) if isinstance(fn, torch.nn.Module) else _same_function(fn)

    return LiveProgram(program=program, make_target=make_target, args=inputs, kwargs=kwargs)


def _copied(module: torch.nn.Module) -> torch.nn.Module:
    try:
        return copy.deepcopy(module)
    except Exception as error:  # copying runs code of the user's objects
        raise UsageError(
            seen=f"module {type(module).__name__} cannot be copied: {type(error).__name__}: {error}",
            expected="a module that copy.deepcopy takes: each run has a fresh one",
            do="leave out of it what cannot be copied (a lock, a tensor computed from parameters)",
        ) from error


def _same_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of the function with its own code object, so that code compiled earlier is neither reused nor affected."""
    if not isinstance(fn, types.FunctionType):
        return fn
    fresh = types.FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    fresh.__kwdefaults__ = fn.__kwdefaults__
    fresh.__dict__.update(fn.__dict__)
    return fresh


def _run_here(live: LiveProgram, subject: Subject, timeout_s: float) -> Verdict:
    """Judge in this process. Raises UsageError if the given subject turns out to be no Dynamo backend."""
    result = judge_subject(eager=EagerState(make=live.instantiate), subject=subject, options=CaseOptions())
    misuse = getattr(subject, "misuse", None)
    if misuse is not None:
        raise misuse
    return result.verdict


def _run_forked(live: LiveProgram, subject: Subject, timeout_s: float) -> Verdict:
    """Judge in a forked child; a crash or a timeout of it is a verdict too."""

    def work() -> dict[str, Any]:
        settle_in_fork()
        return autograd_refusal() or {"verdict": _run_here(live, subject, timeout_s).to_json()}

    try:
        answer = in_child(work, timeout_s=timeout_s)
    except ChildLateError as late:
        return Verdict(status=Status.TIMEOUT, symptom=str(late))
    except ChildDiedError as died:
        return Verdict(status=Status.CRASH, symptom=f"the process died of {died}")
    if "refused" in answer:  # autograd does not work in a forked process
        return _run_here(live, subject, timeout_s)
    return Verdict.from_json(answer["verdict"])


def autograd_refusal() -> dict[str, Any] | None:
    """The message if autograd refuses to run here, as builds for accelerators do in a fork of a process that ran a backward."""
    try:
        torch.ones(1, requires_grad=True).sum().backward()
    except RuntimeError as error:
        return {"refused": str(error)}
    return None
