"""Finds the culprit: the part of torch's compiler without which a symptom goes away (ablation).

On `dynamo` and `aot_eager` it is a call that is captured, dynamic sizes, code that a later call uses again, or recomputation in
backward. In AOT autograd it may also be its analysis, or a write or view that it makes functional. On
`aot_eager_decomp_partition` it is a decomposition; on `inductor` a graph pass, the lowering of an operator, vector code, or
fusion. In torch.export it is how it captures, or what it does with inputs, state or an overload. On every rung it may be an
option that the user gave. If the compiler raises, it is the function that raised.

Counterpart: torch/_inductor/compiler_bisector.py
Differs: asks the judge about one symptom, not a user's test; a set of parts may be to blame together; lowerings and
decompositions are switched off by name.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from oracle.case import CaseOptions, CaseResult, EagerState, judge_subject
from oracle.localisation.aot_parts import ANALYSIS
from oracle.localisation.capture_parts import MERGED, RECOMPUTATION, REPLAY, TANGENTS, with_zero_tangents
from oracle.localisation.export_parts import CONSTANTS, INPUTS, NOT_STRICT, STRICT, SeenInExport, exporting
from oracle.localisation.parts import (
    CACHE,
    CAPTURE,
    CODEGEN,
    WAYS_OF_CODE,
    CalledOperators,
    Part,
    SeenInFront,
    recording,
    recording_decompositions,
    recording_front,
    without,
)
from oracle.localisation.steps.recorder import GENERATED
from oracle.observe import observe
from oracle.program.build import Instance
from oracle.subjects.base import Subject
from oracle.subjects.registry import load
from oracle.symptom import Symptom, matches, symptom_of
from oracle.verdict import Status

_CPU_BUDGET_S = 40.0
IN_EAGER = "added to eager: zeros for missing tangents"  # the trial that leaves nothing out, but adds one thing
# Calls that are wrong in one graph. Of more it is not certain which are needed, and which are only between them.
_MOST_TOGETHER = 3
_OF_VALUES = (Status.FAIL_ACCURACY, Status.FAIL_STRIDE, Status.FAIL_RNG, Status.FAIL_GUARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of the compiler without some of its parts."""

    parts: tuple[str, ...]  # what was switched off: "pass: remove_noop_ops"
    outcome: str  # "right", "wrong" (the same symptom), or another symptom
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """The parts to blame, and the trials that show it."""

    text: str = ""  # "lowering: aten.argmin", "pass: a, b" if only both together cure; "" if nothing does
    detail: str = ""  # what is wrong with it, if that is known: "result 0 shares memory with argument 0"
    parts: tuple[Part, ...] = ()
    trials: tuple[Trial, ...] = ()
    is_finished: bool = True  # False: the budget was used up before

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Culprit:
        parts = tuple(Part(**part) for part in data["parts"])
        trials = tuple(Trial(**{**trial, "parts": tuple(trial["parts"])}) for trial in data["trials"])
        return cls(**{**data, "parts": parts, "trials": trials})


def find_culprit(
    make: Callable[[], Instance],
    subject: Subject,
    symptom: Symptom,
    *,
    eager: EagerState | None = None,
    first_wrong_step: str = "",
    cpu_budget_s: float = _CPU_BUDGET_S,
) -> Culprit:
    """The culprit of a symptom on the first wrong rung. Call it in a child process: it patches the compiler.

    `make` makes a fresh instance of the program. `eager`: eager's runs of it, if there are some already. `first_wrong_step`: the
    name of a step (`oracle.localisation.steps`), if one was found; it is tried first. The budget is CPU time, including compilers
    that are started, so that a busy machine gives the same answer.
    """
    search = _Search(make, subject, symptom, cpu_seconds() + cpu_budget_s, eager)
    if symptom.status == Status.FAIL_TO_RUN.value:
        seen = search.judged(subject)
        is_backend = subject.spec.kind in ("backend", "compiler")
        # The traceback is the end of a longer one, so that its message may be cut; the verdict has the start of that.
        text = f"{seen.verdict.symptom}\n{seen.traceback}"
        raised = _raised_outside_torch(seen.traceback) if is_backend else _raised_in(text)
        if raised or is_backend:
            return Culprit(text=raised)
    found: Culprit | None = None
    with contextlib.suppress(_OutOfTimeError):
        found = search.option() or search.part(first_wrong_step)
    if found is None:
        return Culprit(trials=tuple(search.trials), is_finished=False)
    return replace(found, trials=tuple(search.trials))


class _OutOfTimeError(Exception):
    """The budget is used up."""


def cpu_seconds() -> float:
    """CPU time of this process and its ended children, compilers included; it does not depend on how busy the machine is."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class _Search:
    """Judges one program on one subject again and again, without parts of the compiler."""

    def __init__(
        self,
        make: Callable[[], Instance],
        subject: Subject,
        symptom: Symptom,
        deadline: float,
        eager: EagerState | None = None,
    ) -> None:
        self._make, self._subject, self._symptom, self._deadline = make, subject, symptom, deadline
        self._eager = eager or EagerState(make=make)
        self.trials: list[Trial] = []
        self._answers: dict[frozenset[Part], str] = {}

    # ------------------------------------------------------------------------------------------------------- trials

    def judged(self, subject: Subject) -> CaseResult:
        """The result on a subject. Raises _OutOfTimeError after the deadline."""
        if cpu_seconds() > self._deadline:
            raise _OutOfTimeError
        return judge_subject(eager=self._eager, subject=subject, options=CaseOptions())

    def outcome(
        self, names: Sequence[str], context: AbstractContextManager[Any], subject: Subject | None = None
    ) -> str:
        """ "right", "wrong", or another symptom that the program has in this context."""
        started = time.monotonic()
        with context:
            verdict = self.judged(subject or self._subject).verdict
        seen = symptom_of(verdict)
        if matches(self._symptom, seen):
            outcome = "wrong"
        else:
            outcome = "right" if not verdict.status.is_finding else f"{seen.status}: {seen.kind}"
        self.trials.append(Trial(parts=tuple(names), outcome=outcome, seconds=time.monotonic() - started))
        return outcome

    def without(self, parts: Sequence[Part]) -> str:
        """The outcome without these parts. The same question gets the same answer."""
        asked = frozenset(parts)
        if asked not in self._answers:
            self._answers[asked] = self.outcome([str(part) for part in parts], without([*parts]))
        return self._answers[asked]

    def smallest_cure(self, parts: Sequence[Part]) -> tuple[Part, ...]:
        """A smallest set of parts whose absence cures, by delta debugging; of several the one with the last parts."""
        if not parts:
            return ()
        together = self.without(parts)
        if together == "wrong":
            return ()
        if together != "right":  # the compiler cannot do without all of them
            single = next((part for part in reversed(parts) if self.without([part]) == "right"), None)
            return () if single is None else (single,)
        return _smallest(parts, lambda rest: self.without(rest) == "right")

    # ------------------------------------------------------------------------------------------------------- search

    def option(self) -> Culprit | None:
        """An option of the subject, or of the program's configuration, without which the symptom goes away."""
        spec = self._subject.spec
        is_compile = spec.kind in ("torch_compile", "backend")  # options of exporters say which exporter it is
        for key in spec.options if is_compile else ():
            if key in ("backend", "dynamic"):  # these define the rung
                continue
            plain = replace(spec, options={k: v for k, v in spec.options.items() if k != key})
            if self.outcome([f"option: {key}"], contextlib.nullcontext(), load(plain)) == "right":
                return Culprit(text=f"option: {key}={spec.options[key]}")
        program = self._make().program
        for key in program.config:
            name = f"option: {key}={program.config[key]}"
            if self._right_without_config(key, name):
                return Culprit(text=name)
        return None

    def _right_without_config(self, key: str, name: str) -> bool:
        def make() -> Instance:
            instance = self._make()
            config = {k: v for k, v in instance.program.config.items() if k != key}
            return replace(instance, program=replace(instance.program, config=config))

        usual, self._eager = self._eager, EagerState(make=make)
        try:
            return self.outcome([name], contextlib.nullcontext()) == "right"
        finally:
            self._eager = usual

    def part(self, step: str) -> Culprit:
        """The part to blame. `step` is the first wrong step, or ""."""
        backend = self._subject.spec.options.get("backend")
        if self._subject.spec.kind == "export":
            return self._of_export()
        if self._subject.spec.kind == "backend":  # what is below it agrees with eager
            seen = self._seen_in_front()
            return _first(self._whole_capture, lambda: self._of_calls(seen))
        if backend in ("eager", "aot_eager"):
            seen = self._seen_in_front()
            return _first(
                self._whole_capture,
                self._missing_tangents,
                lambda: _named(self.smallest_cure([Part(kind="python kernel", name=n) for n in seen.python_kernels])),
                lambda: self._analysis(seen),
                lambda: self._of_calls(seen),
                lambda: self._functionalization(seen),
            )
        if backend == "aot_eager_decomp_partition":
            with recording_decompositions() as ran:
                seen = self._seen_in_front()
            called = self._decompositions()
            # Decompositions of operators that eager does not call: of functional variants, and of those that others are made of.
            besides = [part for part in (Part(kind="decomposition", name=name) for name in ran) if part not in called]
            return _first(
                lambda: self._analysis(seen),
                lambda: _named(self.smallest_cure(called)),
                lambda: _named(self.smallest_cure(besides)),
                lambda: self._functionalization(seen),
            )
        return self._of_inductor(step) if backend == "inductor" else Culprit()

    def _of_inductor(self, step: str) -> Culprit:
        with recording() as used, recording_front() as seen:  # both work without caches
            is_right = self.outcome([], contextlib.nullcontext()) == "right"
        if is_right:
            self.trials[-1] = replace(self.trials[-1], parts=(str(CACHE),))
            return _named((CACHE,)) if self.outcome([], contextlib.nullcontext()) == "wrong" else Culprit()
        passes = used.optional_passes()
        named = [part for part in passes if step.endswith(f": {part.name}")]
        if named and self.without(named) == "right":
            return _named((*named,))
        return _first(
            lambda: self._analysis(seen),
            lambda: _named(self.smallest_cure(passes) if step != GENERATED else ()),
            lambda: self._of_code(used.lowerings()),
            lambda: _named(self.smallest_cure(self._decompositions())),
            lambda: self._functionalization(seen),
        )

    def _of_export(self) -> Culprit:
        """The culprit in torch.export. How it captures comes last, since that changes more than other parts."""
        seen = SeenInExport()
        with exporting(seen):
            self.outcome([], contextlib.nullcontext())
        is_strict = self._subject.spec.options.get("strict", True)
        names = [INPUTS] * seen.shares_memory + [CONSTANTS] * bool(seen.constants)
        whole = [Part(kind="export", name=name) for name in (*names, STRICT if is_strict else NOT_STRICT)]
        overloads = [Part(kind="overload", name=name) for name in seen.operators]
        cure = next(((part,) for part in whole[:-1] if self.without([part]) == "right"), ())
        cure = cure or self.smallest_cure(overloads) or self.smallest_cure(whole[-1:])
        is_constant = cure == (Part(kind="export", name=CONSTANTS),)
        return replace(_named(cure), detail=", ".join(seen.constants) if is_constant else "")

    def _seen_in_front(self) -> SeenInFront:
        with recording_front() as seen:
            self.outcome([], contextlib.nullcontext())
            breaks = self._subject.counters().graph_breaks
        return replace(seen, breaks=bool(breaks))

    def _whole_capture(self) -> Culprit:
        """A step of Dynamo or AOT autograd that concerns the whole program."""
        for name in CAPTURE:
            part = Part(kind="capture", name=name)
            if self._may_be(name) and self.without([part]) == "right":
                return _named((part,))
        return Culprit()

    def _is_gradient_of_aot(self) -> bool:
        return (
            self._subject.spec.options.get("backend") == "aot_eager" and self._symptom.status == Status.FAIL_GRAD.value
        )

    def _missing_tangents(self) -> Culprit:
        """Zeros in place of tangents that do not arrive, if they alone make a gradient of Dynamo's graphs in eager wrong."""
        if not self._is_gradient_of_aot():
            return Culprit()
        seen = self.outcome([IN_EAGER], contextlib.nullcontext(), with_zero_tangents(self._subject.spec))
        return Culprit(text="runtime: zeros for missing tangents" if seen == "wrong" else "")

    def _analysis(self, seen: SeenInFront) -> Culprit:
        """AOT autograd's analysis, if it may have missed something, and the program is right with that."""
        for name in ANALYSIS:
            part, missed = Part(kind="analysis", name=name), seen.not_seen.texts[name]
            if missed and self.without([part]) == "right":
                return replace(_named((part,)), detail=f"not seen of the graph: {', '.join(missed)}")
        return Culprit()

    def _functionalization(self, seen: SeenInFront) -> Culprit:
        """A write or a view that AOT autograd rewrites.

        Making one in another way may hide a fault elsewhere. If making the others in another way hides it too, none is named.
        """
        parts = [Part(kind="functionalization", name=name) for name in seen.functionalized]
        cure = self.smallest_cure(parts)
        others = [part for part in parts if part not in cure]
        return Culprit() if cure and others and self.without(others) == "right" else _named(cure)

    def _may_be(self, name: str) -> bool:
        """Whether the symptom can come from this part of capture: not from later calls if the first one is wrong."""
        if name in (MERGED, REPLAY):
            return self._subject.spec.options.get("backend") == "aot_eager"
        if name == TANGENTS:
            return self._is_gradient_of_aot()
        if name == RECOMPUTATION:
            program = self._make().program
            return self._subject.spec.options.get("backend") == "aot_eager" and any(
                call.backward for call in program.calls
            )
        return len(self._make().program.calls) > 1

    def _of_calls(self, seen: SeenInFront) -> Culprit:
        """The call that is captured wrongly. Some calls are wrong only together, if Dynamo captures them in the same graph.

        A program that breaks the graph itself may be wrong because of where it does, and not because of a call.
        """
        parts = [Part(kind="call", name=name) for name in seen.calls]
        if seen.breaks:
            return Culprit()
        found = _named(self._call(parts))
        is_capture = self._subject.spec.options.get("backend") == "eager"
        return found if found.text or not is_capture else self._calls_together(parts)

    def _calls_together(self, parts: list[Part]) -> Culprit:
        """The smallest set of calls that shows the symptom if only they are captured, and loses it without any of them."""

        def left_out(kept: Sequence[Part]) -> list[Part]:
            return [part for part in parts if part not in kept]

        together = _smallest(parts, lambda kept: self.without(left_out(kept)) == "wrong")
        if not 1 < len(together) <= _MOST_TOGETHER:
            return Culprit()
        are_needed = all(self.without([part, *left_out(together)]) == "right" for part in together)
        text = f"calls in one graph: {', '.join(part.name for part in together)}"
        return Culprit(text=text, parts=together) if are_needed else Culprit()

    def _call(self, parts: list[Part]) -> tuple[Part, ...]:
        """The call that makes the program wrong if only this call is captured, and right if only it is not; () if there is none.

        A break in the graph changes more than one call, therefore both are asked. In a program of a single call, AOT autograd,
        or a backend of the user, may be wrong about what is around the call instead: a write, its gradient, what its arguments
        share. There only values and strides of a call that writes nothing blame it; of a user's backend only values, since it
        makes the results itself.
        """
        cure = self.smallest_cure(parts)
        others = [part for part in parts if part not in cure]
        if len(cure) != 1:
            return ()
        if others:
            return cure if self.without(others) == "wrong" else ()
        spec, status = self._subject.spec, Status(self._symptom.status)
        if spec.options.get("backend") == "eager":
            return cure
        is_write = re.search(r"[^_]_$|^__setitem__$", cure[0].name) is not None
        is_of_code = status in _OF_VALUES and not (spec.kind == "backend" and status is Status.FAIL_STRIDE)
        return cure if is_of_code and not is_write else ()

    def _of_code(self, lowerings: list[Part]) -> Culprit:
        """The culprit behind the passes. Without fusion, or with one lowering less, much is different in the code."""
        options = [Part(kind="codegen", name=name) for name in reversed(CODEGEN)]  # of several, the first of the table
        found_options = self.smallest_cure(options)
        whole = found_options[0] if len(found_options) == 1 else None
        cures = self.smallest_cure(lowerings)
        way = whole.name if whole is not None and whole.name in WAYS_OF_CODE else ""
        # A lowering that falls back changes the code of the others too: they are fused with less, and so may not be vectorised.
        # If the others cure as well, no single lowering is wrong.
        if cures and whole is not None and (way or whole.name == "fusion"):
            others = [part for part in lowerings if part not in cures]
            if others and self.without(others) == "right":
                cures = ()
        if not cures:
            return _named(found_options)
        found = _named(cures)
        return replace(found, text=f"{found.text}, {way}") if way else found

    def _decompositions(self) -> list[Part]:
        modes: list[CalledOperators] = []

        def recorder() -> CalledOperators:
            modes.append(CalledOperators())
            return modes[-1]

        observe(self._make(), around_call=recorder)
        return list(dict.fromkeys(part for mode in modes for part in mode.decomposed()))


def _smallest(parts: Sequence[Part], is_enough: Callable[[Sequence[Part]], bool]) -> tuple[Part, ...]:
    """A smallest set of parts that is enough, by delta debugging; all together are."""
    kept = list(parts)
    size = len(kept) // 2
    while size:
        at = 0
        while at < len(kept):
            rest = kept[:at] + kept[at + size :]
            if rest and is_enough(rest):
                kept = rest
            else:
                at += size
        size //= 2
    return tuple(kept)


def _first(*searches: Callable[[], Culprit]) -> Culprit:
    """The first culprit that a search finds; later searches are then not made."""
    return next((found for search in searches if (found := search()).text), Culprit())


def _named(parts: tuple[Part, ...]) -> Culprit:
    if not parts:
        return Culprit()
    names = [str(part).partition(": ")[2] for part in parts]
    return Culprit(text=f"{parts[0].kind}: {', '.join(dict.fromkeys(names))}", parts=parts)


# -------------------------------------------------------------------------------------------------------------- raising

_FRAME = re.compile(r'File "[^"]*?/(torch/[\w/]+\.py)", line \d+, in ([\w<>]+)')
# One place raises it, but the program's own stack is the longer one.
_ON_DATA = "Could not guard on data-dependent expression"
_CARRIES = re.compile(
    r"convert_frame|eval_frame|/exc\.py|output_graph|symbolic_convert|compile_fx\.py|/aot_autograd\.py|_utils_internal"
    r"|backends/common|repro/after_"
)
# Frames of the program, not of its compiler: its own backward, its modules, and what Dynamo's message tells of its stack.
_OF_PROGRAM = re.compile(r"torch/autograd/|torch/_tensor\.py|torch/nn/modules/")
_USER_CODE = re.compile(r"from user code:\n(?:[ \t].*\n?)+")
# Dynamo's words for an operator that fails on fake tensors: its frames are the same for all operators.
_FAKE = re.compile(r"run FX node with fake tensors: call_\w+ (?:<(?:built-in )?(?:function|method) )?([\w.]+)")


def _raised_in(traceback: str) -> str:
    """The function of torch that raised, or the operator that failed on fake tensors.

    Functions that only pass an error on do not count. "" if only frames of the program are seen, such as those of its own
    backward, in which no part of a compiler runs.
    """
    if _ON_DATA in traceback:
        return "raised in: torch/fx/experimental/symbolic_shapes.py, a guard on the value of a tensor"
    if (fake := _FAKE.search(traceback)) is not None:
        return f"raised in: fake tensors, {fake[1]}"
    found = _FRAME.findall(_USER_CODE.sub("", traceback))
    frames = [(path, name) for path, name in found if not _OF_PROGRAM.search(path)]
    telling = [frame for frame in frames if not _CARRIES.search(frame[0])] or frames
    return f"raised in: {telling[-1][0]} {telling[-1][1]}" if telling else ""


_ANY_FRAME = re.compile(r'File "([^"<]+\.py)", line (\d+), in ([\w<>]+)')
_NEXT_ERROR = re.compile(r"^(?:The above exception was|During handling of)", re.MULTILINE)  # Python's own words
_PACKAGE = Path(__file__).resolve().parents[1]


def _raised_outside_torch(traceback: str) -> str:
    """The innermost function of a compiler that is not torch's; "" if only torch is in the first error's traceback."""
    first = _NEXT_ERROR.split(traceback)[0]
    frames = [(Path(path), line, name) for path, line, name in _ANY_FRAME.findall(first)]
    own = [frame for frame in frames if "torch" not in frame[0].parts and not frame[0].is_relative_to(_PACKAGE)]
    return f"raised in: {own[-1][0].name}:{own[-1][1]} {own[-1][2]}" if own else ""
