"""Judges one call of a launcher against its reference.

The reference must accept the arguments. Then the launcher runs twice in guarded memory, each time with another fill pattern.
Errors of the level (out of bounds, races) come first, then guard zones, then unwritten and undefined elements; oracle's judge
compares the rest by value.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from oracle.case import CaseOptions, EagerState, judge_subject
from oracle.errors import UsageError
from oracle.kernels.guards import GuardState, guarding, never_written
from oracle.observe.flatten import flatten
from oracle.program import Call, ComparePolicy, Program
from oracle.program.build import LiveProgram
from oracle.program.clone import clone_tree as clone
from oracle.subjects.base import CompileRequest, Counters
from oracle.subjects.refimpl_kernels import kind_of_error, launches_watched
from oracle.subjects.spec import SubjectSpec
from oracle.verdict import Status, describe

_POLICY = ComparePolicy(strides="ignore", is_random=False, reason="a launcher chooses the strides of what it allocates")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something wrong with the launcher. `where` tells findings of one kind apart."""

    kind: str  # out_of_bounds, race, would_not_compile, launch, raises, guard_zone, unwritten, undefined, wrong_values, ...
    where: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """How one case ended. `skipped`: why nothing could be judged. `refused`: the error that the launcher raised before it
    launched a kernel.
    """

    finding: Finding | None = None
    skipped: str = ""
    refused: str = ""
    launches: int = 0


@dataclass(slots=True)
class _RunState:
    """One run of the launcher."""

    outputs: Any = None
    arguments: list[Any] = field(default_factory=list)
    launches: list[str] = field(default_factory=list)
    error: Exception | None = None


def check_case(
    launcher: Callable[..., Any], reference: Callable[..., Any], arguments: Sequence[Any], *, device: str = "cpu"
) -> Checked:
    """Judge one call. UsageError for a kernel that needs what the level lacks.

    `arguments` are on the CPU, where the reference runs; the launcher gets its own on `device`.
    """
    try:
        with torch.no_grad():
            reference(*clone(tuple(arguments)))
    except Exception as error:
        return Checked(skipped=f"the reference raises {type(error).__name__}: {_first_line(error)}")
    states = [GuardState(which=which) for which in (0, 1)]
    runs = [_run(launcher, arguments, state, device) for state in states]
    for run in runs:
        if run.error is not None:
            return _raised(run)
    launches = len(runs[0].launches)
    for state in states:
        finding = _guard_finding(state)
        if finding is not None:
            return Checked(finding=finding, launches=launches)
    finding = _definedness(launcher, arguments, runs, device) or _judged(launcher, reference, arguments, device)
    return Checked(finding=finding, launches=launches)


def _run(launcher: Callable[..., Any], arguments: Sequence[Any], state: GuardState, device: str) -> _RunState:
    """Run the launcher on guarded copies of the arguments."""
    run = _RunState()
    run.arguments = [
        state.place_copy(f"argument {i}", a, torch.device(device)) if isinstance(a, Tensor) else a
        for i, a in enumerate(arguments)
    ]
    try:
        with torch.no_grad(), guarding(state), launches_watched(run.launches.append, _disable_current_modes):
            run.outputs = launcher(*run.arguments)
        if device != "cpu":
            torch.cuda.synchronize()
    except Exception as error:
        run.error = error
    return run


def _raised(run: _RunState) -> Checked:
    error = run.error
    assert error is not None
    kind = kind_of_error(error)
    if kind == "not_emulated":
        raise UsageError(
            seen=f"this kernel does not run on the emulator: {_text(error)}", expected="a kernel within the emulator's subset",
            do="use --level interpreter or --level gpu",
        )  # fmt: skip
    if kind is None and not run.launches:
        return Checked(refused=f"{type(error).__name__}: {_first_line(error)}")
    if kind is None:
        kind = "raises"
    return Checked(finding=Finding(kind=kind, where=_place(error), text=_text(error)), launches=len(run.launches))


def _text(error: BaseException) -> str:
    said = str(error).strip() or type(error).__name__
    cause = error.__cause__
    return (
        f"{said}\n{cause}"
        if cause is not None and str(cause) not in said and "Interpreter" in type(error).__name__
        else said
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else ""


def _place(error: BaseException) -> str:
    access = getattr(error, "access", None)
    if access is not None:
        return f"{access.kernel}.{access.parameter}{access.line}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else type(error).__name__


# ------------------------------------------------------------------------------------------------------ memory


def _guard_finding(state: GuardState) -> Finding | None:
    for zone in state.zones:
        place = zone.first_change(state.which)
        if place is not None:
            return Finding(
                kind="guard_zone", where=zone.name.split("(")[0].strip(),
                text=f"{zone.name} was written outside of its memory: at place {place}, counted from its first element; it spans "
                f"{zone.extent} elements (shape {list(zone.tensor.shape)}, stride {list(zone.tensor.stride())})",
            )  # fmt: skip
    return None


def _definedness(
    launcher: Callable[..., Any], arguments: Sequence[Any], runs: Sequence[_RunState], device: str
) -> Finding | None:
    """Finds elements of outputs that were never written, or that depend on undefined memory."""
    first, second = (_tensors(run.outputs) for run in runs)
    if [path for path, _ in first] != [path for path, _ in second]:
        return None  # the judge compares the structure
    again: list[tuple[str, Tensor]] | None = None
    for i, ((path, a), (_, b)) in enumerate(zip(first, second, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            continue
        unwritten = never_written(a, b)
        if bool(unwritten.any()):
            return _index_finding(
                "unwritten", path, unwritten, a, "was never written: it still has the bits that the memory had before"
            )
        differs = ~_equal(a, b)
        if not bool(differs.any()):
            continue
        if again is None:  # differences between two runs with one pattern have another cause: atomics in another order
            again = _tensors(_run(launcher, arguments, GuardState(which=0), device).outputs)
        differs &= _equal(a, again[i][1]) if i < len(again) and again[i][1].shape == a.shape else False
        if bool(differs.any()):
            text = "depends on undefined memory: uninitialised, between the elements of an argument, or out of bounds"
            return _index_finding("undefined", path, differs, a, text)
    return None


def _tensors(outputs: Any) -> list[tuple[str, Tensor]]:
    return [(leaf.path, leaf.value) for leaf in flatten(outputs, "output")[0] if isinstance(leaf.value, Tensor)]


def _equal(a: Tensor, b: Tensor) -> Tensor:
    return (a == b) | ((a != a) & (b != b))


def _index_finding(kind: str, path: str, where: Tensor, like: Tensor, text: str) -> Finding:
    index = where.nonzero()[0].tolist()
    count = int(where.sum())
    return Finding(
        kind=kind, where=path,
        text=f"{path}{index} {text} ({count} of {like.numel()} elements of shape {list(like.shape)})",
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------ values


class _LauncherSubject:
    """The launcher as a subject, so that oracle's judge can compare it with the reference."""

    spec = SubjectSpec(name="kernel", kind="kernel")

    def __init__(self, launcher: Callable[..., Any], device: str) -> None:
        self.launcher, self.device = launcher, device

    def reset(self) -> None:
        return None

    def counters(self) -> Counters:
        return Counters(graphs=None)

    def compile(self, request: CompileRequest) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            state = GuardState(which=0)
            run = _run(self.launcher, arguments, state, self.device)
            if run.error is not None:
                raise run.error
            for given, guarded in zip(arguments, run.arguments, strict=True):
                if isinstance(given, Tensor):
                    given.copy_(guarded)
            return _brought_back(run, arguments, state)

        return call


def _brought_back(run: _RunState, arguments: Sequence[Any], state: GuardState) -> Any:
    """Copy the outputs from guarded memory to the CPU. Outputs that are arguments, or views of arguments, stay so."""
    originals = {id(guarded): given for guarded, given in zip(run.arguments, arguments, strict=True)}

    def bring(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(bring(item) for item in value)
        if isinstance(value, dict):
            return {key: bring(item) for key, item in value.items()}
        if not isinstance(value, Tensor):
            return value
        if id(value) in originals:
            return originals[id(value)]
        zone = state.zone_of(value)
        for guarded, given in zip(run.arguments, arguments, strict=True):
            if zone is not None and zone.tensor is guarded and value.dtype == given.dtype:
                offset = value.storage_offset() - guarded.storage_offset() + given.storage_offset()
                return given.as_strided(value.shape, value.stride(), offset)
        result = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        return result.copy_(value)

    return bring(run.outputs)


def _judged(
    launcher: Callable[..., Any], reference: Callable[..., Any], arguments: Sequence[Any], device: str
) -> Finding | None:
    program = Program(name="kernel", source="", calls=(Call(grad_mode="no_grad"),), policy=_POLICY)
    live = LiveProgram(program=program, make_target=lambda: reference, args=tuple(arguments), kwargs={})
    result = judge_subject(
        eager=EagerState(make=live.instantiate), subject=_LauncherSubject(launcher, device), options=CaseOptions()
    )
    verdict = result.verdict
    if not verdict.status.is_finding:
        return None
    kind = "wrong_values" if verdict.status is Status.FAIL_ACCURACY else verdict.status.value
    return Finding(kind=kind, where=verdict.worst.where if verdict.worst else "", text=describe("launcher", verdict))
