"""Finds the step of torch's compiler that first changes what a graph computes.

The compiler runs once. A copy of each graph after each step is then run in eager in place of the compiled code, on the arguments
that the program gave the graph, and judged against the graph that Dynamo captured, by the same judge as any subject. The wrong
step is the first one after which the result is wrong and stays wrong up to the compiled code.

Counterpart: torch/_inductor/compiler_bisector.py
Differs: no pass is switched off, the graphs themselves are run and compared. Only a program that draws random numbers is compiled
twice, and only the graph of a wrong decomposition is traced again.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from oracle.configure import configured
from oracle.errors import UsageError
from oracle.hygiene import differences, restore, snapshot
from oracle.localisation.steps.compiled_graph import COMPILED, CompiledGraph, RecordedStep, Stage
from oracle.localisation.steps.graph_runs import RefusedError, changed_operators
from oracle.localisation.steps.judging import GraphJudge
from oracle.localisation.steps.recorder import GENERATED, TRACED, Recorder
from oracle.localisation.steps.wrong_parts import wrong_decomposition, wrong_output
from oracle.observe import observe
from oracle.observe.outcome import Raised
from oracle.program.build import Instance
from oracle.program.inputs import clone_tree
from oracle.subjects.base import CompileRequest
from oracle.subjects.registry import load
from oracle.subjects.spec import SubjectSpec
from oracle.verdict import Status, Verdict

BACKENDS = ("inductor", "aot_eager_decomp_partition")
_REFUSED = re.compile(rf"{RefusedError.__name__} in [\w ]+ \(['\"](.*)['\"]\)", re.DOTALL)
# Findings that count only if the compiled code has them too.
_LAYOUT = frozenset({Status.FAIL_STRIDE, Status.FAIL_ALIAS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the compiler on one graph."""

    graph: int  # number of the captured graph, in the order of compilation
    direction: str = ""  # "captured" (before AOT autograd), "joint", "forward", "backward" or "inference"
    name: str  # "pre_grad: fuse_conv_bn", "decomposition: aten.addmm.default", "partitioner", "lowering and code generation"
    is_changed: bool  # the text of the graph changed
    difference: str = ""  # what is wrong after the step: "output[1][2, 3] is 3.5, but should be 3.0", or what it raises
    # Where the step is wrong: an output of the lowered graph, or the operators that the pass removed and added.
    where: str = ""
    not_run: str = ""  # why the graph after the step could not be run or compared

    @property
    def text(self) -> str:
        """The step in one line."""
        direction = f" ({self.direction})" if self.direction else ""
        return f"graph {self.graph}{direction}, {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """All steps of the compiler on a program."""

    steps: tuple[Step, ...] = ()  # by graph, in the order in which they ran
    wrong: Step | None = None  # the first wrong one; None: not found
    explained: tuple[str, ...] = ()  # why none was found, or what was not compared


def first_wrong_step(make: Callable[[], Instance], spec: SubjectSpec, *, call: int | None = None) -> StepReport:
    """The first step of the compiler after which a program is wrong that `spec` makes wrong.

    `spec` is torch.compile with the backend inductor or aot_eager_decomp_partition; capture is taken to be right. With `call`,
    only graphs that this call of the plan runs are compared, on its values; the default is all calls. It patches the compiler
    while it runs, so nothing else should compile in this process then. Raises UsageError for another subject.
    """
    if spec.options.get("backend") not in BACKENDS:
        raise UsageError(
            seen=f"subject {spec.name!r}",
            expected=f"torch.compile with the backend {' or '.join(BACKENDS)}",
            do="name the first wrong rung of torch's ladder",
        )
    # A subject that draws its own random numbers is first tried with eager's, which can be compared one by one.
    config = spec.eager_stream if spec.rng == "own" else {}
    report, draws = _report(make, spec, call, config, rng="eager" if config else spec.rng)
    if report.wrong is not None or not (config and draws):
        return report
    report, _ = _report(make, spec, call, {}, rng=spec.rng)
    text = "with eager's random numbers no step was wrong; random values were compared by their distribution"
    return replace(report, explained=(*report.explained, text))


def _report(
    make: Callable[[], Instance], spec: SubjectSpec, call: int | None, config: Mapping[str, Any], *, rng: str
) -> tuple[StepReport, bool]:
    """The report of one run of the compiler under a configuration of torch, and whether some graph draws random numbers."""
    original = make()
    recorder, raised = _recorded(original, spec, call, config)
    if raised and recorder.raised_in and not recorder.graphs[-1].calls:
        step = Step(graph=len(recorder.graphs) - 1, name=recorder.raised_in, is_changed=False, difference=raised)
        return StepReport(steps=(step,), wrong=step), False
    explained = [f"the compiler or the program raised {raised}"] if raised else []
    judges = [
        GraphJudge(graph=graph, original=original.program, device=original.device, rng=rng, config=config)
        for graph in recorder.graphs
        if graph.calls and graph.steps
    ]
    if not judges:
        return StepReport(explained=(*explained, "no graph was compiled and called")), False
    steps: list[Step] = []
    wrong: Step | None = None
    with configured({**original.program.config, **config}):
        for judge in judges:
            judged = _judged(judge, spec)
            steps += judged.steps
            wrong = wrong or judged.wrong
            explained += judged.explained
    report = StepReport(steps=tuple(steps), wrong=wrong, explained=tuple(explained))
    return report, any(graph.draws for graph in recorder.graphs)


def _recorded(
    instance: Instance, spec: SubjectSpec, call: int | None, config: Mapping[str, Any]
) -> tuple[Recorder, str]:
    """Compile and run the program, with a record of each graph. Returns the exception's text too, if it raised."""
    recorder, subject, before = Recorder(), load(spec), snapshot()
    program = instance.program
    if call is not None:
        instance = instance.with_calls(program.calls[: call + 1])

    def compile_target(target: Callable[..., Any]) -> Callable[..., Any]:
        args, kwargs, _ = instance.arguments(*clone_tree(instance.inputs(0)))
        request = CompileRequest(
            target=target,
            args=args,
            kwargs=kwargs,
            dynamic=program.dynamic,
            sizes=program.sizes,
            backward=any(plan.backward for plan in program.calls),
        )
        return _counted(subject.compile(request), recorder, call)

    subject.reset()
    with configured({**program.config, **config}), recorder.watching():
        outcome = observe(instance, compile_target=compile_target)
    if differences(before, snapshot()):
        restore(before)
    return recorder, f"{outcome.exception.type_name}: {outcome.exception.message}"[:300] if isinstance(
        outcome, Raised
    ) else ""


def _counted(compiled: Callable[..., Any], recorder: Recorder, call: int | None) -> Callable[..., Any]:
    """The compiled program, which tells the recorder the number of each call."""
    numbers = itertools.count()

    def called(*args: Any, **kwargs: Any) -> Any:
        recorder.call = next(numbers)
        recorder.is_recording = call in (None, recorder.call)
        return compiled(*args, **kwargs)

    return called


# ---------------------------------------------------------------------------------------------------------- one graph


def _judged(judge: GraphJudge, spec: SubjectSpec) -> StepReport:
    """The steps on one graph."""
    graph = judge.graph
    last = judge.verdict(COMPILED)
    recorded = list(graph.steps)  # a backward that had not been compiled is compiled when a stage runs it
    plain = [_step(graph, step) for step in recorded]
    if not last.status.is_finding:
        text = f"graph {graph.number}: the compiled code agrees with the captured graph ({last.status.value})"
        return StepReport(steps=tuple(plain), explained=(text,))
    steps = [
        _compared(step, judge.verdict(after.stage), last) if step.is_changed else step
        for step, after in zip(plain, recorded, strict=True)
    ]
    number = _first_wrong(steps)
    if number is None:
        return StepReport(steps=tuple(steps))
    before = recorded[number - 1].stage if number else Stage(captured=graph.captured)
    steps[number] = _described(judge, spec, steps[number], before, recorded[number].stage, last)
    return StepReport(steps=tuple(steps), wrong=steps[number])


def _described(judge: GraphJudge, spec: SubjectSpec, step: Step, before: Stage, after: Stage, last: Verdict) -> Step:
    """The wrong step, with the decomposition or the output that is wrong, or with what the pass did."""
    if step.name == TRACED:
        return replace(step, name=wrong_decomposition(judge))
    old, new = before.module(step.direction) or judge.graph.captured, after.module(step.direction)
    if step.name == GENERATED and spec.options["backend"] == "inductor":
        side = "backward" if step.direction == "backward" else "forward"
        return replace(step, where=wrong_output(judge, side, old, strides=last.status is Status.FAIL_STRIDE))
    return step if new is None else replace(step, where=changed_operators(old, new))


def _step(graph: CompiledGraph, step: RecordedStep) -> Step:
    return Step(graph=graph.number, direction=step.direction, name=step.name, is_changed=step.is_changed)


def _compared(step: Step, verdict: Verdict, last: Verdict) -> Step:
    """The step with what is wrong after it, given the verdict on the compiled code."""
    text = re.sub(r"^call 0: ", "", verdict.symptom)
    raises, should_raise = (one.status is Status.FAIL_TO_RUN for one in (verdict, last))
    if raises and (refused := _REFUSED.search(text)) is not None:
        return replace(step, difference=f"eager cannot run the graph: {refused[1]}")
    if raises and not should_raise:
        return replace(step, not_run=f"eager cannot run the graph: {text}"[:300])
    if verdict.status is Status.FAIL_STRIDE and step.name.startswith("post_grad"):
        return replace(step, not_run="code generation chooses the strides")
    is_another = (verdict.status in _LAYOUT and verdict.status is not last.status) or (should_raise and not raises)
    return replace(step, difference=text) if verdict.status.is_finding and not is_another else step


def _first_wrong(steps: Sequence[Step]) -> int | None:
    """The number of the first step after which all steps that could be compared are wrong."""
    number = None
    for i in reversed([i for i, step in enumerate(steps) if step.is_changed and not step.not_run]):
        if not steps[i].difference:
            return number
        number = i
    return number
