"""Run one case in a worker: build the program, run eager twice, run the subject, judge, measure. Every sweep's task function.

Eager's runs, those in fp64 and under noise included, are kept for the next case, which often is the same program on another
subject.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, TypeVar

import torch

from oracle.configure import configured
from oracle.hygiene import ProcessState, differences, restore, rng_digest, seed_everything, snapshot
from oracle.isolate import START_UP
from oracle.isolate.forked import in_child
from oracle.judge import Evidence, Promises, Runs, judge
from oracle.judge.later_calls import plan_taken, refusal_of_double_backward, up_to, up_to_gradients
from oracle.judge.outside import judge_outside
from oracle.leaks import MORE_CALLS, calls_of_longer_look, leak_text, may_leak, stops_growing, with_more_calls
from oracle.observe import observe
from oracle.observe.outcome import Leaf, Outcome, Raised, Returned
from oracle.observe.peer import observe_in_second_process
from oracle.program import Call, Program
from oracle.program.build import Instance, ProgramLoadError, instantiate
from oracle.program.inputs import clone_tree
from oracle.records import Measurements, PlannedCase
from oracle.reruns.noise import RoundingNoise
from oracle.reruns.other_kernels import OTHERS
from oracle.reruns.uninitialized import LARGE, ZEROS, uninitialized_memory
from oracle.reruns.unknowns import Unknowns
from oracle.reruns.widen import CannotWiden, Widened, narrow_dtype, only_dtype, widen_module, widen_tree
from oracle.speed import measure_again, measure_speed, of_forks
from oracle.subjects.base import CompileRequest, Subject
from oracle.subjects.spec import SubjectSpec
from oracle.subjects.start_up import load_warm
from oracle.verdict import Status, Verdict

NOISE_RUNS = 4
LOUD_NOISE_RUNS = 16
LOUD_NOISE_SCALE = 8.0  # float32's k, by which the judge multiplies the spread under quiet noise
NOISE_BUDGET_S = 20.0  # after so many seconds, no further runs are made beyond NOISE_RUNS
_NO_GUARDS = "not judged, for the subject guards its inputs only and the plan changes something else"
_LONGER_THAN_A_TASK_S = 1e6  # the pool ends a task with its children
OTHER_SEED = 7919  # added to the seed to see whether eager's result depends on it
OTHER_SEEDS = 12  # number of seeds tried before the result is taken not to depend on the seed
FEW_SEEDS = 16  # eager's runs with which a subject that draws its own random numbers is compared
FEW_SEEDS_BUDGET_S = 2.0
MANY_SEEDS = 64  # runs in one of which a NaN or an infinity that depends on chance has to occur
Progress = Callable[[str], None]
_Ran = TypeVar("_Ran", Outcome, Outcome | None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseOptions:
    """Options of a run, the same for every case."""

    speed: bool = False  # measure speed, compile times and memory if the case passes
    speed_budget_s: float = 1.0  # of all processes together
    speed_processes: int = 1  # 1: the process that judges also measures; more: others measure (`measure_case_again`)
    speed_precision: float | None = (
        None  # add processes until each cost is known so precisely (`oracle.costs.Precision`)
    )
    speed_most_processes: int = 0  # with speed_precision
    device: str = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """The result of a case, from which its record is made."""

    verdict: Verdict
    measurements: Measurements = Measurements()
    traceback: str = ""
    leaked: tuple[str, ...] = ()  # process state the subject left changed


# Findings in the outputs and arguments of the first call, of which later calls and gradients change neither status nor symptom.
_DECIDED_BY_FORWARD = (Status.FAIL_ACCURACY, Status.FAIL_MUTATION)


@dataclass(slots=True, kw_only=True)
class EagerState:
    """Eager's runs of one program, each made when it is first needed."""

    make: Callable[[], Instance]
    seconds: float = 0.0  # time of all calls so far
    first: Outcome | None = None
    second: Outcome | None = None
    other_seed: Outcome | None = None  # eager under another seed, if the program draws random numbers
    many_seeds: list[Outcome] = field(default_factory=list)  # eager under many seeds
    is_random: bool | None = None
    leaks: tuple[str, ...] = ()  # process state that the program itself changes
    truth_run: bool = False
    truth: Outcome | None = None
    noise: list[Outcome] = field(default_factory=list)
    loud_noise: list[Outcome] = field(default_factory=list)
    other_kernels: dict[str, Outcome] = field(default_factory=dict)
    still: Outcome | None = None
    calls: tuple[Call, ...] = ()  # replaces the program's plan if eager cannot run that on other values
    explained: tuple[str, ...] = ()  # why it was replaced

    def instance(self) -> Instance:
        """A fresh instance of the program, with the plan that eager can run."""
        instance = self.make()
        return instance.with_calls(self.calls) if self.calls else instance

    def run(self, progress: Progress, before: ProcessState) -> None:
        """Run eager twice, and a third time under another seed if it draws random numbers.

        Uninitialized memory has other contents in the second run, so that results that depend on it differ.
        """
        if self.first is not None:
            return
        progress("eager")
        instance = self.instance()
        self.first = self._first_run(instance)
        self.leaks = _restored(before)
        while (taken := plan_taken(instance.program.calls, self.first)) is not None:
            self.calls, reason = taken
            self.explained += (reason,)
            instance = self.instance()
            self.first = self._first_run(instance)
            _restored(before)
        progress("eager again")
        again = self.instance()
        with uninitialized_memory(LARGE):
            self.second = self._timed(lambda: observe(again, like=self.first))
        _restored(before)
        policy = instance.program.policy
        if policy.is_random is not None:
            self.is_random = policy.is_random
        else:
            self.is_random = draws_numbers(instance.program, self.first) and self._depends_on_seed(before)

    def up_to(self, calls: tuple[Call, ...]) -> EagerState:
        """Eager's runs of a beginning of the plan, as far as they were made. The last call may lack its backward."""
        cut = functools.partial(up_to, calls=calls)
        return EagerState(
            make=self.make,
            first=None if self.first is None else cut(self.first),
            second=None if self.second is None else cut(self.second),
            is_random=self.is_random,
            leaks=self.leaks,
            noise=[*map(cut, self.noise)],
            loud_noise=[*map(cut, self.loud_noise)],
            calls=calls,
            explained=self.explained,
        )

    def further_runs(self, progress: Progress, before: ProcessState) -> Runs:
        """The further runs that the judge may need, each made once."""
        return Runs(
            truth=lambda: self.ground_truth(progress, before),
            noise=lambda: self.noise_runs(progress, before),
            loud_noise=lambda: self.loud_noise_runs(progress, before),
            still=lambda: self.still_run(progress, before),
            other_kernels=lambda name: self.other_kernel_run(name, progress, before),
            other_seed=lambda: self.other_seed,
            few_seeds=lambda: self.runs_under_seeds(FEW_SEEDS, FEW_SEEDS_BUDGET_S, progress, before),
            many_seeds=lambda: self.runs_under_seeds(MANY_SEEDS, NOISE_BUDGET_S, progress, before),
        )

    def _first_run(self, instance: Instance) -> Outcome:
        with uninitialized_memory(ZEROS):
            return self._timed(lambda: observe(instance))

    def _depends_on_seed(self, before: ProcessState) -> bool:
        """Whether results differ under one of several other seeds. One is not enough: a mask of one element has two values."""
        for number in range(1, OTHER_SEEDS + 1):
            instance, offset = self.instance(), number * OTHER_SEED
            with uninitialized_memory(ZEROS):  # as in the first run
                self.other_seed = self._timed(functools.partial(observe, instance, seed_offset=offset))
            _restored(before)
            if not _have_equal_values(self.first, self.other_seed):
                return True
        return False

    def runs_under_seeds(self, count: int, budget_s: float, progress: Progress, before: ProcessState) -> list[Outcome]:
        """Runs under `count` other seeds, or fewer if the time is over, but at least OTHER_SEEDS."""
        started = time.monotonic()
        while len(self.many_seeds) < count:
            if time.monotonic() - started > budget_s and len(self.many_seeds) >= OTHER_SEEDS:
                break
            progress("noise")
            instance, number = self.instance(), OTHER_SEEDS + 1 + len(self.many_seeds)
            run = functools.partial(observe, instance, seed_offset=number * OTHER_SEED)
            self.many_seeds.append(self._timed(run))
            _restored(before)
        return self.many_seeds[:count]

    def ground_truth(self, progress: Progress, before: ProcessState) -> Outcome | None:
        """Eager in the widest dtype, or None if the program means something else there."""
        if not self.truth_run:
            progress("truth")
            self.truth_run = True
            self.truth = self._timed(lambda: observe_widened(self.instance()))
            _restored(before)
        return self.truth

    def noise_runs(self, progress: Progress, before: ProcessState) -> list[Outcome]:
        """Eager reruns under rounding noise."""
        if not self.noise:
            progress("noise")
            self._add_noise(self.noise, NOISE_RUNS, 1.0, before)
        return self.noise

    def loud_noise_runs(self, progress: Progress, before: ProcessState) -> list[Outcome]:
        """More runs, with larger noise, to find jumps that few quiet runs miss."""
        if not self.loud_noise:
            progress("loud noise")
            self._add_noise(self.loud_noise, LOUD_NOISE_RUNS, LOUD_NOISE_SCALE, before)
        return self.loud_noise

    def still_run(self, progress: Progress, before: ProcessState) -> Outcome | None:
        """Eager under the noise's dispatch mode, without noise: shows what the mode itself changes."""
        if self.still is None:
            progress("noise")
            instance = self.instance()
            around_call = functools.partial(RoundingNoise, 0, scale=0.0)
            self.still = self._timed(lambda: self._further(instance, around_call))
            _restored(before)
        return self.still

    def other_kernel_run(self, name: str, progress: Progress, before: ProcessState) -> Outcome | None:
        """Eager by the other kernels of this name."""
        if name not in self.other_kernels:
            progress("other kernels")
            instance = self.instance()
            self.other_kernels[name] = self._timed(lambda: self._further(instance, OTHERS[name]))
            _restored(before)
        return self.other_kernels[name]

    def _add_noise(self, runs: list[Outcome], count: int, scale: float, before: ProcessState) -> None:
        started = time.monotonic()
        for seed in range(count):
            instance = self.instance()
            around_call = functools.partial(RoundingNoise, seed, scale=scale)
            run = self._timed(functools.partial(self._further, instance, around_call))
            runs.append(run)
            _restored(before)
            if isinstance(run, Raised) and isinstance(
                self.first, Returned
            ):  # only the noise makes it raise: try less noise
                scale = max(1.0, scale / 2)
            if time.monotonic() - started > NOISE_BUDGET_S and len(runs) >= NOISE_RUNS:
                return

    def _further(
        self, instance: Instance, around_call: Callable[[], contextlib.AbstractContextManager[Any]]
    ) -> Outcome:
        """Eager under a dispatch mode. The judge asks only for its leaves."""
        return observe(instance, around_call=around_call, like=self.first, watches_results=False)

    def _timed(self, run: Callable[[], _Ran]) -> _Ran:
        outcome = run()
        self.seconds += _bare_seconds(outcome)
        return outcome


def _bare_seconds(outcome: Outcome | None) -> float:
    return sum(call.seconds for call in outcome.calls) if isinstance(outcome, (Returned, Raised)) else 0.0


def draws_numbers(program: Program, outcome: Outcome | None) -> bool:
    """Whether a run drew random numbers: a generator's state differs from its seeded state."""
    if not isinstance(outcome, (Returned, Raised)):
        return False
    return any(call.rng_digest != _seeded_digest(program.seed + i) for i, call in enumerate(outcome.calls))


def _have_equal_values(one: Outcome | None, other: Outcome | None) -> bool:
    """Whether two runs have the same values in all calls that returned, with NaN equal to NaN."""
    if not isinstance(one, (Returned, Raised)) or type(one) is not type(other):
        return type(one) is type(other)
    assert isinstance(other, (Returned, Raised))
    return len(one.calls) == len(other.calls) and all(
        len(a) == len(b) and all(map(_leaves_are_equal, a, b))
        for mine, its in zip(one.calls, other.calls, strict=True)
        for a, b in (
            (mine.outputs, its.outputs),
            (mine.inputs_after, its.inputs_after),
            (mine.gradients, its.gradients),
        )
    )


def _leaves_are_equal(one: Leaf, other: Leaf) -> bool:
    a, b = one.value, other.value
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return bool(a == b) if not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor) else False
    if a.shape != b.shape or a.dtype != b.dtype or a.layout is not torch.strided or a.is_nested or a.is_quantized:
        return False
    if a is b:
        return True
    wide = torch.complex128 if a.is_complex() else torch.float64 if a.is_floating_point() else a.dtype
    a, b = a.to(wide), b.to(wide)
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _have_equal_shapes(one: Sequence[Leaf], other: Sequence[Leaf]) -> bool:
    """Whether two sections have the same leaves, of the same shapes, dtypes, devices and layouts."""

    def shapes(leaves: Sequence[Leaf]) -> list[tuple[Any, ...]]:
        found = ((leaf.path, leaf.facts) for leaf in leaves)
        return [(path, facts and (facts.shape, facts.dtype, facts.device, facts.layout)) for path, facts in found]

    return shapes(one) == shapes(other)


_SEEDED_DIGESTS: dict[int, str] = {}


def _seeded_digest(seed: int) -> str:
    if seed not in _SEEDED_DIGESTS:
        seed_everything(seed)
        _SEEDED_DIGESTS[seed] = rng_digest()
    return _SEEDED_DIGESTS[seed]


def _restored(before: ProcessState) -> tuple[str, ...]:
    """Restore the process state; returns what had changed."""
    after = snapshot()
    changed = differences(before, after)
    if changed:
        restore(before)
    return changed


def observe_widened(instance: Instance) -> Outcome | None:
    """Eager in fp64 / complex128, without tensors of unknown value; None if the program's meaning depends on a dtype."""
    target = instance.target
    modes: list[Widened] = []
    unknown = Unknowns()
    narrow: torch.dtype | None = None
    rounded: torch.dtype | None = None

    def prepare_inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        nonlocal narrow, rounded
        narrow = module_dtype or narrow_dtype((args, kwargs))
        rounded = only_dtype((args, kwargs, empty_like_state))
        return widen_tree((args, kwargs))

    def around_call() -> Widened:
        modes.append(Widened(narrow=narrow, rounded=rounded, unknown=unknown))
        return modes[-1]

    module_dtype = narrow_dtype(list(target.parameters())) if isinstance(target, torch.nn.Module) else None
    state = [*target.parameters(), *target.buffers()] if isinstance(target, torch.nn.Module) else []
    empty_like_state = [torch.empty(0, dtype=tensor.dtype) for tensor in state]  # has the dtypes before widening
    if isinstance(target, torch.nn.Module):
        try:
            widen_module(target)
        except CannotWiden:
            return None
    outcome = observe(
        instance,
        prepare_inputs=prepare_inputs,
        around_call=around_call,
        leaves_out=unknown.__contains__,
        watches_results=False,
    )
    return None if any(mode.meaning_changed for mode in modes) else outcome


def judge_subject(
    *,
    eager: EagerState,
    subject: Subject,
    options: CaseOptions,
    progress: Progress = lambda stage: None,
    is_brief: bool = False,
    most_also: int = 20,
) -> CaseResult:
    """Judge one subject on one program, in this process.

    With `is_brief` the verdict has the same status and symptom, but lists nothing of later calls if the first one is wrong, and
    no gradients if outputs are wrong. Then the runs of eager under noise are shorter. `most_also` is the number of symptoms that
    the verdict lists besides the first.
    """
    started = time.perf_counter()
    before = snapshot()
    seconds_before = eager.seconds
    try:
        eager.run(progress, before)
    except ProgramLoadError as error:
        restore(before)
        return CaseResult(
            verdict=Verdict(status=Status.MODEL_FAIL_TO_LOAD, symptom=str(error)[:500]),
            traceback=_cause_text(error),
            measurements=Measurements(wall_s=time.perf_counter() - started),
        )
    case = _SubjectCase(eager, subject, progress, before, most_also)
    seen = case.run(options.device)
    leaked = tuple(text for text in _restored(before) if text not in eager.leaks)
    counters = subject.counters()
    decided = case.verdict_on_first_call(seen, counters.graphs) if is_brief else None
    verdict = decided or case.verdict(seen, counters.graphs)
    if leaked:
        verdict = _with_leak(verdict, leaked)
    elif not verdict.status.is_finding and (leak := case.leak(seen)) is not None:
        verdict = dataclasses.replace(verdict, status=Status.FAIL_STATE, symptom=leak)
    bare_s = _bare_seconds(seen) + case.compile_seconds + eager.seconds - seconds_before
    measurements = Measurements(bare_s=bare_s, **dataclasses.asdict(counters))
    returned = seen.calls if isinstance(seen, Returned | Raised) else ()
    if options.speed and verdict.status is Status.PASS and returned:  # a program whose first call raises has no speed
        progress("speed")
        measurements = measure_speed(
            make=eager.instance,
            subject=subject,
            budget_s=options.speed_budget_s / options.speed_processes,
            device=options.device,
            first_call_s=case.compile_seconds + returned[0].seconds,
            base=measurements,
        )
        _restored(before)
    trace = seen.exception.traceback if isinstance(seen, Raised) and verdict.status is not Status.PASS else ""
    measurements = dataclasses.replace(measurements, wall_s=time.perf_counter() - started)
    return CaseResult(verdict=verdict, measurements=measurements, traceback=trace, leaked=leaked)


class _SubjectCase:
    """Runs one subject on a program that eager has run, and judges it. Mutable; used once."""

    _program: Program  # of the last run
    _owed: int | None  # number of calls on which the subject promises to agree with eager; None: all of them

    def __init__(
        self, eager: EagerState, subject: Subject, progress: Progress, before: ProcessState, most_also: int
    ) -> None:
        self._eager = eager
        self._most_also = most_also
        self._subject = subject
        self._progress = progress
        self._before = before
        self.compile_seconds = 0.0  # of the last compile

    def run(self, device: str) -> Outcome:
        """The subject's outcome on the plan."""
        spec, instance = self._subject.spec, self._instance()
        if spec.kind == "eager" and spec.options.get("process") == "second":
            return observe_in_second_process(instance.program, device=device)
        return self._observed(instance, {})

    def verdict_on_first_call(self, seen: Outcome, graphs: int | None) -> Verdict | None:
        """The verdict on the first call, if that is wrong; None if the whole plan has to be judged.

        The earliest wrong call counts, and in it wrong outputs before wrong gradients.
        """
        first, calls = self._eager.first, self._program.calls
        refusal = refusal_of_double_backward(seen, is_promised=self._subject.spec.double_backward)
        if refusal is not None:
            seen = up_to_gradients(seen, refusal[0])
        if not isinstance(first, Returned) or not isinstance(seen, Returned) or self._eager.is_random:
            return None
        if self._owed is not None or not _have_equal_values(first, self._eager.second):
            return None
        one, is_refused = calls[0], refusal is not None and refusal[0] == 0
        has_shapes = _have_equal_shapes(first.calls[0].gradients, seen.calls[0].gradients)
        with_backward = (one,)
        plans = [with_backward] if len(seen.calls) > 1 else []
        if is_refused or (one.backward and has_shapes):
            plans = [(dataclasses.replace(one, backward=False, double_backward=False),), *plans]
        for plan in plans:
            eager = self._eager.up_to(plan)
            part = _SubjectCase(eager, self._subject, self._progress, self._before, self._most_also)
            part._program, part._owed = dataclasses.replace(self._program, calls=plan), None
            verdict = part.verdict(up_to(seen, plan), graphs)
            self._eager.seconds += eager.seconds
            if verdict.status in _DECIDED_BY_FORWARD or (plan is with_backward and verdict.status.is_finding):
                return verdict
        return None

    def verdict(self, seen: Outcome, graphs: int | None) -> Verdict:
        """The judge's verdict on a run, with the reasons why parts of the plan are not judged."""
        self._progress("judge")
        spec, is_random = self._subject.spec, self._eager.is_random
        first, second = self._eager.first, self._eager.second
        assert first is not None
        assert second is not None
        assert is_random is not None
        explained = self._eager.explained
        refusal = refusal_of_double_backward(seen, is_promised=spec.double_backward)
        if refusal is not None:
            number, text = refusal
            first, second, seen = (up_to_gradients(outcome, number) for outcome in (first, second, seen))
            explained += (f"gradients of call {number} are not judged, double backward is refused: {text}",)

        def judged(count: int | None, outcome: Outcome, *, own_stream: bool = spec.rng == "own") -> Verdict:
            evidence = Evidence(
                eager=_first_calls(first, count),
                again=_first_calls(second, count),
                subject=outcome,
                runs=self._eager.further_runs(self._progress, self._before),
                promises=Promises(
                    policy=self._program.policy, raises=self._program.expects_raise, own_stream=own_stream
                ),
                draws=draws_numbers(self._program, first),
                is_random=is_random,
                graphs=graphs,
                most_also=self._most_also,
            )
            return judge(evidence)

        calls = self._program.calls
        if calls[-1].outside and spec.ranges:
            verdict = judge_outside(len(calls) - 1, seen, judged)
        else:
            verdict = judged(self._owed, seen)
        if is_random and spec.rng == "own" and not verdict.status.is_finding:
            by_values = self._with_eager_stream()
            if by_values is not None and refusal is not None:
                by_values = up_to_gradients(by_values, refusal[0])
            owed = functools.partial(judged, self._owed)
            verdict = _with_values(verdict, by_values, _first_calls(first, self._owed), owed)
        if self._owed is not None:
            explained = (f"calls from {self._owed} on: {_NO_GUARDS}", *explained)
        return dataclasses.replace(verdict, explained=(*verdict.explained, *explained))

    def leak(self, seen: Outcome) -> str | None:
        """The symptom of a subject that keeps memory of every call; None if it does not, or keeps what eager keeps."""
        if self._subject.spec.kind == "eager" or not may_leak(self._eager.first, seen):
            return None
        if (runs := self._with_more_calls(MORE_CALLS)) is None:
            return None
        text = leak_text(*runs)
        if text is not None and (count := calls_of_longer_look(runs[1])):
            longer = self._with_more_calls(count)
            if longer is not None and stops_growing(*longer, count):
                return None
        return text

    def _with_more_calls(self, count: int) -> tuple[Outcome, Outcome] | None:
        """Eager and the subject on the plan with more calls at its end; None if its last call cannot be repeated."""
        instance = with_more_calls(self._instance(), count)
        own = with_more_calls(self._eager.instance(), count)
        if instance is None or own is None:
            return None
        runs = observe(own.with_calls(instance.program.calls)), self._observed(instance, {})
        _restored(self._before)
        return runs

    def _with_eager_stream(self) -> Outcome | None:
        """A run with eager's random numbers, if the subject has a configuration for that."""
        if not self._subject.spec.eager_stream:
            return None
        seen = self._observed(self._instance(), self._subject.spec.eager_stream)
        _restored(self._before)
        self._progress("judge")
        return seen

    def _observed(self, instance: Instance, more_config: Mapping[str, Any]) -> Outcome:
        config = {**instance.program.config, **more_config}
        compile_target = functools.partial(self._compiled, instance)
        with configured(config), uninitialized_memory(LARGE):  # elements that it never writes show
            return observe(instance, compile_target=compile_target, like=self._eager.first)

    def _compiled(self, instance: Instance, target: Callable[..., Any]) -> Callable[..., Any]:
        args, kwargs, _ = instance.arguments(*clone_tree(instance.inputs(0)))
        at = time.perf_counter()
        compiled = self._subject.compile(
            CompileRequest(
                target=target,
                args=args,
                kwargs=kwargs,
                dynamic=instance.program.dynamic,
                sizes=instance.program.sizes,
                backward=any(call.backward for call in instance.program.calls),
            )
        )
        self.compile_seconds = time.perf_counter() - at
        return compiled

    def _instance(self) -> Instance:
        """A fresh instance, after a reset of the subject, with the calls on which the subject promises to agree."""
        self._progress("subject")
        self._subject.reset()
        instance, self._owed = _as_promised(self._eager.instance(), self._subject.spec)
        self._program = instance.program
        return instance


def _with_values(verdict: Verdict, seen: Outcome | None, eager: Outcome, judged: Callable[..., Verdict]) -> Verdict:
    """The verdict on a subject that draws its own random numbers, with findings of its run `seen` under eager's numbers.

    The values of `seen` are compared with eager's only if it left the generators in eager's state.
    """
    drew_the_same = (
        isinstance(seen, Returned)
        and isinstance(eager, Returned)
        and [call.rng_digest for call in seen.calls] == [call.rng_digest for call in eager.calls]
    )
    if not drew_the_same:
        text = "random values were compared by their distribution only: the subject draws other numbers than eager"
        return dataclasses.replace(verdict, explained=(*verdict.explained, text))
    by_values = judged(seen, own_stream=False)
    text = "random values were compared one by one, in a run with eager's random numbers"
    if by_values.status.is_finding:
        return dataclasses.replace(by_values, explained=(*by_values.explained, text))
    return dataclasses.replace(verdict, witnesses=by_values.witnesses, explained=(*verdict.explained, text))


def _as_promised(instance: Instance, spec: SubjectSpec) -> tuple[Instance, int | None]:
    """The instance with the calls on which the subject promises to agree, and their number if some were dropped, else None.

    A trace does not notice changes of globals between two calls, and does not promise to.
    """
    calls = instance.program.calls
    cut = next((i for i, call in enumerate(calls) if i and call.before), None)
    if spec.guards or cut is None:
        return instance, None
    return instance.with_calls(calls[:cut]), cut


def _first_calls(outcome: Outcome, count: int | None) -> Outcome:
    if count is None or not isinstance(outcome, (Returned, Raised)) or len(outcome.calls) < count:
        return outcome
    return Returned(calls=outcome.calls[:count])


def _with_leak(verdict: Verdict, leaked: tuple[str, ...]) -> Verdict:
    """The verdict with a finding for changed process state, which also explains wrong later calls better than stale guards."""
    texts = tuple(f"process state: {text}" for text in leaked)
    if verdict.status is Status.FAIL_GUARD:
        texts += (verdict.symptom,)
    elif verdict.status.is_finding:
        return dataclasses.replace(verdict, also=verdict.also + texts)
    return dataclasses.replace(verdict, status=Status.FAIL_STATE, symptom=texts[0], also=texts[1:] + verdict.also)


def _cause_text(error: BaseException) -> str:
    cause = error.__cause__
    return f"{type(cause).__name__}: {cause}" if cause is not None else str(error)


def run_case(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Task function: {"case": PlannedCase, "subject": SubjectSpec, "options": CaseOptions} -> the fields of a record."""
    options = CaseOptions(**payload.get("options", {}))
    subject = _subject(payload["subject"], options.device, progress)
    progress("load")
    case = PlannedCase.from_json(payload["case"])
    started_at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    program = Program.from_json(case.program)
    result = judge_subject(
        eager=_eager_state(program, options.device),
        subject=subject,
        options=options,
        progress=progress,
    )
    return {
        "verdict": result.verdict.to_json(),
        "measurements": dataclasses.asdict(result.measurements),
        "traceback": result.traceback,
        "started_at": started_at,
        "seed": program.seed,
        "replace_worker": bool(result.leaked),
    }


def run_case_again(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Task function: that of `run_case`, in a process that runs no other case afterwards."""
    return {**run_case(payload, progress), "replace_worker": True}


def measure_case_again(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Task function: that of `run_case`, with "is_cold" and "forks" -> {"measurements": ...} of a case that passed elsewhere.

    Each case is measured in so many forks of this process, which has loaded the subject and compiled nothing. A process that has
    compiled thirty other programs calls a small one 4 % slower, so the order of the cases would show in their speed.
    """
    options = CaseOptions(**payload.get("options", {}))
    subject = _subject(payload["subject"], options.device, progress)
    progress("load")
    program = Program.from_json(PlannedCase.from_json(payload["case"]).program)
    progress("speed")
    can_fork = options.device == "cpu" and torch.get_num_threads() == 1
    forks = payload["forks"] if can_fork else 1

    def measured() -> dict[str, Any]:
        found = measure_again(
            make=lambda: instantiate(program, device=options.device),
            subject=subject,
            budget_s=options.speed_budget_s / options.speed_processes / forks,
            device=options.device,
            is_cold=payload["is_cold"],
        )
        return dataclasses.asdict(found)

    if can_fork:
        gc.collect()
        gc.freeze()  # or each fork's collections walk through all of torch, which takes longer than most cases
        each = [Measurements(**in_child(measured, timeout_s=_LONGER_THAN_A_TASK_S)) for _ in range(forks)]
        return {"measurements": dataclasses.asdict(of_forks(each))}
    # A fork has neither the threads nor the device of its parent. A new worker on a GPU takes longer than the effect is worth.
    before = snapshot()
    try:
        found = measured()
    finally:
        gc.unfreeze()
    return {"measurements": found, "replace_worker": options.device == "cpu" or bool(_restored(before))}


_SUBJECTS: dict[tuple[str, str], Subject] = {}


def _subject(spec: Mapping[str, Any], device: str, progress: Progress) -> Subject:
    """The subject. The first case in this process loads it and warms it up, in a stage that no case is charged for."""
    key = (json.dumps(spec, sort_keys=True), device)
    if key not in _SUBJECTS:
        progress(START_UP)
        _SUBJECTS[key] = load_warm(SubjectSpec.from_json(spec), device=device)
    return _SUBJECTS[key]


_LAST_EAGER: dict[tuple[str, str], EagerState] = {}


def _eager_state(program: Program, device: str) -> EagerState:
    """The previous case's eager runs if it had the same program, else a new state. Only one is kept, since models are big."""
    key = (json.dumps(program.to_json(), sort_keys=True), device)
    if key not in _LAST_EAGER:
        _LAST_EAGER.clear()
        _LAST_EAGER[key] = EagerState(make=lambda: instantiate(program, device=device))
    return _LAST_EAGER[key]
