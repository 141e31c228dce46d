"""Finds the first wrong value: the earliest intermediate value or gradient of a program that a compiler gets wrong.

Each graph of the program is compiled again so that it also returns its intermediate values. The judge compares them like any
program's outputs, so there is no tolerance here.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from oracle.case import CaseOptions, EagerState, judge_subject
from oracle.localisation.values.captured import CapturedGraph, captured_graphs
from oracle.localisation.values.graph_run import GraphRun
from oracle.localisation.values.places import Place
from oracle.localisation.values.taps import GRADIENTS, GradientTaps, Taps, ValueTaps, wrong_places
from oracle.program import Call, ComparePolicy, Program
from oracle.program.build import Instance
from oracle.subjects.base import Subject
from oracle.subjects.registry import load
from oracle.subjects.spec import SubjectSpec
from oracle.verdict import Verdict

# Symptoms. The first wrong value may be any of thousands, and wrong shapes are listed before wrong values.
_ALL = 1 << 30
_SHOWN = 20  # of them in the answer
_POLICY = ComparePolicy(strides="ignore", aliases=False, reason="an intermediate value need not have eager's memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongValue:
    """The first value that a compiler gets wrong. All values that it is computed from are right."""

    module: str  # path in the model, "encoder.layers.3.norm2"; "" in a function, and in the model's own forward
    source: str  # "model.py:41"
    line: str  # the text of that line
    operator: str  # "layer_norm": it computes the value, or its backward computes the gradient
    direction: str  # "forward", or "backward": the value is a gradient
    node: str  # the operator's node in the graph
    value: str  # the value's node or, if it is an input of the graph, its name; with "backward" its gradient is wrong
    graph: int  # number of the graph in the program
    position: int  # of the value among those of the graph, in the order in which they are computed
    of: int  # number of the graph's values
    is_alone: bool  # the compiler gets it right if it has to return all values: they were looked at one by one
    hidden_by: tuple[
        str, ...
    ]  # with `is_alone`: places before it that may be to blame too, since a look at them hides the error
    symptom: str  # of this value, as in the verdict
    verdict: Verdict  # on the graph that also returns the value

    def describe(self) -> str:
        """One line: "encoder.layers.3.norm2, model.py:41, layer_norm"."""
        where = _described(self)
        return where if self.direction == "forward" else f"{where}, gradient of {self.value}"


def first_wrong_value(make: Callable[[], Instance], spec: SubjectSpec | Subject, *, call: int = 0) -> WrongValue | None:
    """The first value of one call that the subject computes wrong, or None if none is found.

    `make` returns a fresh instance of the program. `call` is a call of its plan; earlier calls run in eager. Forward values come
    before gradients. Each graph of the program is looked at on its own, on the inputs of its first run, with right values before
    it. So None does not say that the subject is right: what is wrong may be the capture, a guard, an alias, or a graph's later
    run. It is None as well if the program's policy leaves open which values are right. Raises UsageError if the subject cannot
    be loaded, and what the call raises in eager. A subject that draws its own random numbers is given eager's, if it has a
    configuration for that.
    """
    subject = load(spec) if isinstance(spec, SubjectSpec) else spec
    graphs = captured_graphs(make, call, options=subject.spec.options)
    if any(graph.program.policy.invariant or graph.program.policy.index_outputs for graph in graphs):
        return None
    looks = [_Look(captured, subject, call=call, number=number) for number, captured in enumerate(graphs)]
    for look in looks:
        # A single graph is all of the program, so it is most likely wrong: the look at its values can come first.
        found = look.first_wrong("forward") if len(looks) == 1 or look.is_wrong else None
        if found is not None:
            return found
    for look in reversed(looks):
        found = look.first_wrong("backward") if look.has_wrong_gradient else None
        if found is not None:
            return found
    return None


class _Look:
    """One graph of a program, which a subject compiles with and without taps. Mutable."""

    def __init__(self, captured: CapturedGraph, subject: Subject, *, call: int, number: int) -> None:
        self._captured = captured
        stream = subject.spec.eager_stream if captured.draws else {}
        # Compared with eager's random numbers, a wrong value shows at once; their distributions may differ later only.
        self._subject = _WithEagerStream(subject) if stream else subject
        self._config = {**captured.program.config, **stream}
        self._number = number
        self._backward = captured.program.calls[call].backward and captured.grad_mode == "grad"
        self._run: GraphRun | None = None

    @functools.cached_property
    def _plain(self) -> Verdict:
        """The verdict on the graph without taps."""
        return self._judged((self._captured.module, self._captured.inputs), backward=self._backward)

    @property
    def has_wrong_gradient(self) -> bool:
        """Whether a gradient is wrong without taps."""
        return bool(wrong_places(self._plain, GRADIENTS))

    @property
    def is_wrong(self) -> bool:
        """Whether a result, a changed argument or a gradient is wrong without taps."""
        return self.has_wrong_gradient or any(wrong_places(self._plain, at) for at in ("output", "args"))

    def first_wrong(self, direction: str) -> WrongValue | None:
        """The first wrong value or gradient of the graph. All are looked at at once; if none is wrong then, one by one."""
        if self._run is None:
            self._run = GraphRun(self._captured)
        is_forward = direction == "forward"
        taps = ValueTaps(self._captured, self._run) if is_forward else GradientTaps(self._captured, self._run)
        found, hiders, is_alone = self._at_once(taps), list[int](), False
        if found is not None and not self._shows(taps, found[2]):
            return None
        if found is None and (ends := taps.ends(self._plain)):
            found, hiders = self._one_by_one(taps, min(ends), ends[min(ends)])
            is_alone = True
        if found is None or not taps.is_certain(found[0]):
            return None
        position, symptom, verdict = found
        tap = taps.taps[position]
        place = self._captured.places[tap.node]
        return WrongValue(
            module=place.module,
            source=place.source,
            line=place.line,
            operator=place.operator,
            direction=direction,
            node=tap.node,
            value=self._captured.labels.get(tap.value, tap.value),
            graph=self._number,
            position=position,
            of=len(taps.taps),
            is_alone=is_alone,
            hidden_by=tuple(_described(self._captured.places[taps.taps[at].node]) for at in hiders),
            symptom=symptom,
            verdict=replace(verdict, also=verdict.also[:_SHOWN]),
        )

    def _shows(self, taps: Taps, verdict: Verdict) -> bool:
        """Whether the graph is wrong. The verdict with all taps may tell already; if not, the graph is judged without taps."""
        return taps.has_wrong_result(verdict) or self.is_wrong

    def _at_once(self, taps: Taps) -> tuple[int, str, Verdict] | None:
        """The first wrong of all taps."""
        chosen = range(len(taps.taps))
        verdict = self._judged(taps.program(chosen), backward=taps.has_backward)
        wrong = taps.wrong(verdict, chosen)
        return (min(wrong), wrong[min(wrong)], verdict) if wrong else None

    def _one_by_one(self, taps: Taps, end: int, symptom: str) -> tuple[tuple[int, str, Verdict], list[int]]:
        """The first wrong of the taps that `end` is computed from, which is wrong without taps, and those that hide the error.

        Each is compiled alone.
        """
        current, seen = end, dict[int, Verdict]()

        def wrong(position: int) -> str:
            if position not in seen:
                seen[position] = self._judged(taps.program([position]), backward=taps.has_backward)
            return taps.wrong(seen[position], [position]).get(position, "")

        def is_wrong(position: int) -> bool:
            return bool(wrong(position))

        while True:
            earlier = _bisected(sorted(_before(taps, current)), is_wrong)
            if earlier is None:  # right ones may have come last in the order without being on the way to `current`
                earlier = next(filter(is_wrong, taps.taps[current].after), None)
            if earlier is None:
                break
            current = earlier
        hiders = [position for position in taps.taps[current].after if not seen[position].status.is_finding]
        if current in seen:
            return (current, wrong(current), seen[current]), hiders
        return (current, symptom, self._plain), hiders

    def _judged(self, tapped: tuple[fx.GraphModule, tuple[Any, ...]], *, backward: bool) -> Verdict:
        module, inputs = tapped
        captured = self._captured
        program = Program(
            name=f"{captured.program.name}, graph {self._number}",
            source="",
            calls=(Call(backward=backward, grad_mode=captured.grad_mode),),
            seed=captured.seed,
            is_module=True,
            dynamic=captured.program.dynamic,
            config=self._config,
            policy=replace(_POLICY, is_random=captured.program.policy.is_random),
        )

        namespace: dict[str, Any] = {"inputs": lambda call: (inputs, {})}  # Instance.inputs copies
        if captured.computed:
            namespace["derive"] = lambda *args: (captured.arguments(args), {})

        def make() -> Instance:
            return Instance(program=program, namespace={**namespace}, target=copy.deepcopy(module), device="cpu")

        return judge_subject(
            eager=EagerState(make=make), subject=self._subject, options=CaseOptions(), most_also=_ALL
        ).verdict


class _WithEagerStream:
    """A subject that promises to draw eager's random numbers."""

    def __init__(self, subject: Subject) -> None:
        self.spec = replace(subject.spec, rng="eager", eager_stream={})
        self.reset, self.compile, self.counters = subject.reset, subject.compile, subject.counters


def _described(place: Place | WrongValue) -> str:
    return ", ".join(part for part in (place.module, place.source, place.operator) if part)


def _before(taps: Taps, position: int) -> set[int]:
    """All taps that this one is computed from, directly or not."""
    found: set[int] = set()
    open_ones = [position]
    while open_ones:
        new = set(taps.taps[open_ones.pop()].after) - found
        found |= new
        open_ones += new
    return found


def _bisected(positions: Sequence[int], is_wrong: Callable[[int], bool]) -> int | None:
    """The first wrong position if all after it are wrong too, None if the last ones are right."""
    right, wrong = -1, len(positions)
    while wrong - right > 1:
        middle = (right + wrong) // 2
        if is_wrong(positions[middle]):
            wrong = middle
        else:
            right = middle
    return positions[wrong] if wrong < len(positions) else None
