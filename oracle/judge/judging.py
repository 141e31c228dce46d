"""The judge: what eager did beside what the subject did, and a verdict.

Pure: it runs no program. Runs in fp64 and under rounding noise are handed in as callables and started only when a float is
not close to eager or an integer differs.

The order of the questions is fixed, and the first that is answered with "no" gives the status:

1. did eager run, and does it agree with itself;
2. did the subject run: `crash`, `timeout`, `OOM`, `fail_to_run`; or raise what eager raised (`fail_exception`);
3. call by call, in the order of `oracle.judge.leaves.Severity`: other leaves and other shapes (`fail_metadata`), values
   (`fail_accuracy`), mutated arguments (`fail_mutation`), gradients (`fail_grad`), module state (`fail_state`), flags such as
   requires_grad (`fail_metadata`), aliases (`fail_alias`), strides (`fail_stride`), generator state (`fail_rng`).
   The earliest wrong call counts; if it is not the first call, the status is `fail_guard`: what was right once went
   stale. Of a random program the generator state comes before the values, for it explains them.
4. was anything compared at all (`pass_due_to_skip`).
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from typing_extensions import assert_never

from oracle.judge.alias import compare_aliases, compare_strides
from oracle.judge.distribution import compare_distribution, compare_masks
from oracle.judge.leaves import (
    GRADIENTS,
    OUTPUTS,
    SECTIONS,
    Finding,
    FindingsBuilder,
    LeafPair,
    RunsState,
    Severity,
    calls_of,
    compare_pair,
    is_undefined,
    no_runs,
    pair_leaves,
)
from oracle.judge.rounded import is_rounded_exception
from oracle.judge.symmetry import align_tied_gradients, check_invariant, explain_indices, rule_of
from oracle.outcome import (
    CallObservation,
    Crashed,
    ExceptionFacts,
    Leaf,
    Outcome,
    OutOfMemory,
    Raised,
    Returned,
    TimedOut,
)
from oracle.program import ComparePolicy
from oracle.verdict import Status, Verdict, WorstElement

_ALSO = 20  # further symptoms kept in a verdict; a wrong model has thousands


def judge(
    *,
    eager: Outcome,
    eager_again: Outcome,
    subject: Outcome,
    truth: Callable[[], Outcome | None],
    noise: Callable[[], Sequence[Outcome]],
    policy: ComparePolicy,
    expects_raise: bool = False,
    rng: Literal["eager", "own"] = "eager",
    is_random: bool = False,
    eager_draws: bool = False,
    graphs: int | None = None,
    subject_is_export: bool = False,
    flushes_denormals: bool = False,
    other_seed: Callable[[], Outcome | None] = lambda: None,
    many_seeds: Callable[[], Sequence[Outcome]] = tuple,
    loud_noise: Callable[[], Sequence[Outcome]] = tuple,
    relaid: Callable[[str], Outcome | None] = lambda name: None,
    still: Callable[[], Outcome | None] = lambda: None,
) -> Verdict:
    """The verdict on `subject`.

    `truth` gives eager in fp64, `noise` eager's reruns under rounding noise: inexact ops perturbed by about one eps,
    exact ones (comparisons, indexing, round, floor_divide ...) left alone. Either may give nothing. `loud_noise` gives reruns
    under noise of 8 eps, about 16 of them, started only if something still fails: an element on the edge of a jump falls to
    the other side in every second run or fewer.

    `relaid` gives eager by its other kernels, those of a name in oracle.relaid: what these leave otherwise, a value or the sign
    of a zero, is nobody's. Of gradients only the loops of elementwise operators are asked.

    `still` gives eager under the noise's mode without noise. Where a value differs there from plain eager by more than noise
    moves it, the mode made it another program: neither `truth` nor noise says anything there (oracle.judge.trust).

    `rng` is the subject's promise about random numbers. `eager_draws` says that eager takes some, and `is_random` that its
    result depends on them; then runs in fp64 and under noise count only if they left the generators in eager's state, which
    says that they drew the same numbers.
    `other_seed` gives eager under another seed, the yardstick of distributions whose elements are not independent; `many_seeds`
    gives eager under many, started where the subject alone met a NaN or an infinity.

    `graphs` is how many graphs the subject compiled: 0 makes agreement vacuous, other than on an exception.
    `flushes_denormals` is the subject's documented licence to treat subnormal numbers as zero. `subject_is_export` changes
    no rule: an exported program owes what every subject owes, and `fail_export` is for the caller, who sees the signature.

    Raises UsageError if the policy names a rule or a path that does not exist.
    """
    del subject_is_export
    if policy.invariant:
        rule_of(policy.invariant)
    verdict = _judge_eager(eager, eager_again, policy, expects_raise=expects_raise, is_random=is_random)
    if verdict.status is not Status.PASS:
        return verdict
    settings = _Settings(
        policy=policy,
        runs=RunsState(truth, noise, loud_noise, relaid, still, like=eager if is_random else None),
        is_random=is_random,
        draws_own=is_random and rng == "own",
        owes_stream=not (rng == "own" and (is_random or eager_draws)),
        flushes_denormals=flushes_denormals,
        other_seed=RunsState(other_seed, many_seeds),
    )
    builder = FindingsBuilder(explained=list(verdict.explained))
    assert isinstance(eager, (Returned, Raised))  # anything else has been answered
    match subject:
        case Crashed():
            return Verdict(status=Status.CRASH, symptom=_crash_symptom(subject), explained=verdict.explained)
        case TimedOut():
            symptom = (
                f"outcome is no end within {subject.seconds:g} s in {subject.stage}, but should be {_ending(eager)}"
            )
            return Verdict(status=Status.TIMEOUT, symptom=symptom, explained=verdict.explained)
        case OutOfMemory():
            symptom = (
                f"outcome is out of memory at {subject.bytes} bytes in {subject.stage}, but should be {_ending(eager)}"
            )
            return Verdict(status=Status.OOM, symptom=symptom, explained=verdict.explained)
        case Raised() | Returned():
            pass
        case _:
            assert_never(subject)
    _compare_calls(calls_of(eager), calls_of(subject), settings, builder)
    if settings.draws_own and any(finding.severity in _MAY_FOLLOW_CHANCE for finding in builder.findings):
        _drop_chance(builder, eager, many_seeds(), settings)
    ending = _compare_endings(eager, subject, builder)
    if (
        ending is not None
        and isinstance(eager, Returned)
        and isinstance(subject, Raised)
        and not is_random
        and is_rounded_exception(subject.exception, truth=truth, noise=noise, still=still)
    ):
        ending = _rounded_ending(ending, subject.exception, builder)
    result = _verdict(builder, ending, number_of_calls=len(calls_of(eager)) + isinstance(eager, Raised))
    if result.status is Status.PASS and graphs == 0 and not isinstance(eager, Raised):
        return _with(result, Status.PASS_DUE_TO_SKIP, "the subject compiled no graph: that it agrees says nothing")
    return result


# A wrong value in one place says nothing of chance in another: distributions are compared element by element elsewhere.
_MAY_FOLLOW_CHANCE = (Severity.STRUCTURE, Severity.METADATA, Severity.FLAGS, Severity.ALIAS, Severity.STRIDE)


def _drop_chance(builder: FindingsBuilder, eager: Outcome, seeds: Sequence[Outcome], settings: _Settings) -> None:
    """Leave out a shape, or a number of outputs, in a place where eager has another one under another seed.

    A branch on a random number decides them. What eager has the same under every seed is owed by every subject.
    """
    varies: set[tuple[Severity, str]] = set()
    for other in seeds:
        found = FindingsBuilder()
        _compare_calls(calls_of(eager), calls_of(other), settings, found)
        varies |= {_place(finding) for finding in found.findings}
    for finding in [*builder.findings]:
        if finding.severity in _MAY_FOLLOW_CHANCE and _place(finding) in varies:
            builder.findings.remove(finding)
            builder.explain(finding.call, f" differs between seeds in eager too ({finding.symptom})")


def _place(finding: Finding) -> tuple[Severity, str]:
    """What is wrong where, without what was seen: the symptom up to its verb."""
    return finding.severity, finding.symptom.partition(" is ")[0]


# --------------------------------------------------------------------------------------------- eager itself


def _judge_eager(
    eager: Outcome, again: Outcome, policy: ComparePolicy, *, expects_raise: bool, is_random: bool
) -> Verdict:
    """PASS, with what had to be explained, if eager can serve as the measure."""
    match eager:
        case Returned():
            pass
        case Raised(exception=exception):
            if not expects_raise:
                symptom = f"call {exception.call}: eager is {_exception_text(exception)}, but should return"
                return Verdict(status=Status.EAGER_FAIL_TO_RUN, symptom=symptom, call=exception.call)
        case Crashed():
            return Verdict(status=Status.EAGER_FAIL_TO_RUN, symptom=f"eager: {_crash_symptom(eager)}")
        case TimedOut():
            return Verdict(status=Status.EAGER_FAIL_TO_RUN, symptom=f"eager: no end within {eager.seconds:g} s")
        case OutOfMemory():
            return Verdict(status=Status.EAGER_FAIL_TO_RUN, symptom=f"eager: out of memory at {eager.bytes} bytes")
        case _:
            assert_never(eager)
    builder = FindingsBuilder()
    if type(again) is not type(eager):
        symptom = f"eager's second run is {_ending(again)}, but should be {_ending(eager)}"
        return Verdict(status=Status.EAGER_TWO_RUNS_DIFFER, symptom=symptom)
    if isinstance(eager, Raised) and isinstance(again, Raised):
        first, second = eager.exception, again.exception
        if (first.type_name, first.call) != (second.type_name, second.call):
            symptom = f"eager's second run is {_exception_text(second)}, but should be {_exception_text(first)}"
            return Verdict(status=Status.EAGER_TWO_RUNS_DIFFER, symptom=symptom, call=second.call)
    if is_random:
        return Verdict(status=Status.PASS)
    settings = _Settings(policy=policy, runs=no_runs(), is_random=False, draws_own=False, other_seed=no_runs())
    _compare_calls(calls_of(eager), calls_of(again), settings, builder)
    if builder.findings:
        worst = min(builder.findings, key=lambda finding: (finding.call, finding.severity))
        return Verdict(
            status=Status.EAGER_TWO_RUNS_DIFFER, symptom=worst.symptom, call=worst.call, worst=worst.worst,
            compared=builder.compared,
        )  # fmt: skip
    if not builder.max_ulp:
        return Verdict(status=Status.PASS)
    explained = f"eager's own two runs differ by up to {builder.max_ulp:g} ULP, within the tolerance row"
    return Verdict(status=Status.PASS, explained=(explained,))


# --------------------------------------------------------------------------------------------- calls


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    policy: ComparePolicy
    runs: RunsState
    is_random: bool
    draws_own: bool  # values are other random numbers: only distributions can be compared
    owes_stream: bool = True  # the generators must be left in eager's state
    other_seed: RunsState
    flushes_denormals: bool = False


def _compare_calls(
    eager: Sequence[CallObservation],
    subject: Sequence[CallObservation],
    settings: _Settings,
    builder: FindingsBuilder,
) -> None:
    """The calls that returned on both sides. Which did not is _compare_endings' question."""
    for number, (expected, seen) in enumerate(zip(eager, subject, strict=False)):
        _compare_call(number, expected, seen, settings, builder)


def _compare_call(
    call: int, eager: CallObservation, subject: CallObservation, settings: _Settings, builder: FindingsBuilder
) -> None:
    policy = settings.policy
    if eager.structure != subject.structure:
        builder.add(
            Severity.STRUCTURE, Status.FAIL_METADATA, call,
            f"output.structure is {subject.structure}, but should be {eager.structure}",
        )  # fmt: skip
    is_another_factor = False  # whether the outputs show a choice that a symmetry leaves
    ties: list[LeafPair] = []  # indices that show a choice among equal elements
    for section in SECTIONS:
        expected, seen = getattr(eager, section.name), getattr(subject, section.name)
        if not expected and not seen:
            continue
        pairs = pair_leaves(call, section, expected, seen, no_runs() if settings.draws_own else settings.runs, builder)
        pairs = _drop_undefined(pairs, policy, builder)
        if settings.draws_own:
            for pair in pairs:
                compare_distribution(
                    pair,
                    other_seed=lambda p: settings.other_seed.truth_leaf(p.call, p.section, p.path),
                    many_seeds=lambda p: settings.other_seed.noise_leaves(p.call, p.section, p.path),
                    builder=builder,
                )
        elif section is OUTPUTS and policy.invariant:
            is_another_factor = _compare_up_to_symmetry(pairs, eager, subject, settings, builder)
        elif section is OUTPUTS and policy.index_outputs:
            ties = _compare_with_indices(pairs, eager, subject, settings, builder)
        elif section is GRADIENTS and is_another_factor:
            builder.count(tensors=sum(pair.eager.facts is not None for pair in pairs))
            builder.explain(call, f"gradients depend on the choice that {policy.invariant!r} leaves open: not compared")
        elif section is GRADIENTS and ties:
            for pair in pairs:
                _compare_tied_gradient(pair, ties, eager, settings, builder)
        else:
            for pair in pairs:
                compare_pair(pair, runs=settings.runs, builder=builder, flushes_denormals=settings.flushes_denormals)
    if settings.draws_own:
        compare_masks(
            call, eager, subject, builder,
            under_seeds=lambda section, path: settings.other_seed.noise_leaves(call, section, path),
        )  # fmt: skip
    reported = compare_aliases(call, eager, subject, policy, builder)
    compare_strides(call, eager, subject, policy, builder, reported=reported)
    if settings.owes_stream and eager.rng_digest != subject.rng_digest:
        severity = Severity.RANDOM_STREAM if settings.is_random else Severity.RNG
        builder.add(
            severity, Status.FAIL_RNG, call,
            f"generator state after the call is {subject.rng_digest[:16]!r}, but should be {eager.rng_digest[:16]!r}",
        )  # fmt: skip


def _drop_undefined(pairs: list[LeafPair], policy: ComparePolicy, builder: FindingsBuilder) -> list[LeafPair]:
    if not policy.undefined_outputs:
        return pairs
    kept = []
    for pair in pairs:
        if is_undefined(pair.path, policy):
            builder.count(tensors=1)  # its metadata was compared
            builder.explain(pair.call, f"{pair.path} has undefined values: only its metadata was compared")
        else:
            kept.append(pair)
    return kept


def _compare_up_to_symmetry(
    pairs: Sequence[LeafPair],
    eager: CallObservation,
    subject: CallObservation,
    settings: _Settings,
    builder: FindingsBuilder,
) -> bool:
    """Whether the outputs agree only up to the symmetry; what does not agree at all is reported.

    Neither fp64 nor noise is asked: they may choose otherwise, too, and would then excuse anything.
    """
    attempt = FindingsBuilder()
    for pair in pairs:
        compare_pair(pair, runs=no_runs(), builder=attempt, flushes_denormals=settings.flushes_denormals)
    builder.take_counts(attempt)
    if not attempt.findings:
        builder.explained += attempt.explained
        builder.saw_ulp(attempt.max_ulp)
        return False
    call = pairs[0].call
    difference = check_invariant(settings.policy.invariant, eager.outputs, subject.outputs)
    if difference:
        builder.findings += attempt.findings
        builder.explain(call, f"outputs differ beyond {settings.policy.invariant!r}: {difference}")
        return False
    builder.explain(call, f"outputs agree up to the choice that {settings.policy.invariant!r} leaves open")
    return True


def _compare_with_indices(
    pairs: Sequence[LeafPair],
    eager: CallObservation,
    subject: CallObservation,
    settings: _Settings,
    builder: FindingsBuilder,
) -> list[LeafPair]:
    """The indices that differ and point to the same values."""
    ties: list[LeafPair] = []
    for pair in pairs:
        spec = settings.policy.index_outputs.get(pair.path)
        attempt = FindingsBuilder()
        runs = settings.runs if spec is None else no_runs()
        is_right = compare_pair(pair, runs=runs, builder=attempt, flushes_denormals=settings.flushes_denormals)
        if not is_right and spec is not None:
            reason = explain_indices(pair, spec, _leaf_at(eager, spec["of"]), _leaf_at(subject, spec["of"]))
            if reason:
                builder.take_counts(attempt)
                builder.explain(pair.call, reason)
                ties.append(pair)
                continue
            # Other values behind the indices: still no finding if eager's own noise flips those very elements.
            attempt = FindingsBuilder()
            compare_pair(pair, runs=settings.runs, builder=attempt, flushes_denormals=settings.flushes_denormals)
        builder.findings += attempt.findings
        builder.explained += attempt.explained
        builder.take_counts(attempt)
        builder.saw_ulp(attempt.max_ulp)
    return ties


def _compare_tied_gradient(
    pair: LeafPair,
    ties: Sequence[LeafPair],
    eager: CallObservation,
    settings: _Settings,
    builder: FindingsBuilder,
) -> None:
    """Equal up to a permutation among the elements that are equal in eager's source, and the same where each side chose.

    Other gradients may depend on the choice. Neither fp64 nor noise is asked: they may choose otherwise, too.
    """
    specs = [(index, settings.policy.index_outputs[index.path]) for index in ties]
    here = [(index, spec) for index, spec in specs if pair.path == f"grad of {spec['of']}"]
    if not here:
        builder.count(tensors=pair.eager.facts is not None)
        builder.explain(pair.call, f"{pair.path} depends on the choice among equal elements: not compared")
        return
    for index, spec in here:
        aligned = align_tied_gradients(pair, index, spec.get("dim"), _leaf_at(eager, spec["of"]))
        if aligned is None:
            compare_pair(pair, runs=no_runs(), builder=builder)
            continue
        gradient, wrong = aligned
        if wrong:
            builder.add(pair.section.severity, pair.section.status, pair.call, wrong)
        subject = replace(pair.subject, value=gradient)
        compare_pair(replace(pair, subject=subject), runs=no_runs(), builder=builder)
        builder.explain(pair.call, f"{pair.path} was compared up to the choice among equal elements")


def _leaf_at(call: CallObservation, path: str) -> Leaf | None:
    leaves = (*call.outputs, *call.inputs_after)
    return next((leaf for leaf in leaves if leaf.path == path), None)


# --------------------------------------------------------------------------------------------- endings


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ending:
    """How the two runs ended differently."""

    status: Status
    call: int
    symptom: str


def _compare_endings(eager: Raised | Returned, subject: Raised | Returned, builder: FindingsBuilder) -> _Ending | None:
    """None if both returned from every call, or both raised the same in the same call."""
    if isinstance(subject, Raised):
        seen = subject.exception
        if isinstance(eager, Returned) or seen.call < eager.exception.call:
            status = Status.OOM if seen.is_out_of_memory else Status.FAIL_TO_RUN
            return _Ending(
                status=status, call=seen.call, symptom=f"outcome is {_exception_text(seen)}, but should be a return"
            )
        expected = eager.exception
        if seen.call > expected.call or not catches(expected, seen):
            at_other_call = f" in call {seen.call}" if seen.call != expected.call else ""
            return _Ending(
                status=Status.FAIL_EXCEPTION,
                call=expected.call,
                symptom=f"exception is {_exception_text(seen)}{at_other_call}, but should be {_exception_text(expected)}",
            )
        builder.count(others=1)
        if seen.type_name != expected.type_name:
            builder.explain(
                expected.call, f"exception is {seen.type_name}, caught by what catches {expected.type_name}"
            )
        return None
    if isinstance(eager, Raised):
        return _Ending(
            status=Status.FAIL_EXCEPTION,
            call=eager.exception.call,
            symptom=f"outcome is a return, but should be {_exception_text(eager.exception)}",
        )
    if len(eager.calls) != len(subject.calls):
        call = min(len(eager.calls), len(subject.calls))
        return _Ending(
            status=Status.FAIL_TO_RUN,
            call=call,
            symptom=f"number of calls observed is {len(subject.calls)}, but should be {len(eager.calls)}",
        )
    return None


def _rounded_ending(ending: _Ending, seen: ExceptionFacts, builder: FindingsBuilder) -> _Ending | None:
    """Of a subject that raises what eager raises, too, if it rounds otherwise. None beside findings: these are the verdict."""
    text = f"outcome is {_exception_text(seen)}, which eager itself raises in fp64 and under rounding noise"
    builder.explain(seen.call, text)
    return None if builder.findings else replace(ending, status=Status.PASS_DUE_TO_SKIP, symptom=text)


def catches(expected: ExceptionFacts, seen: ExceptionFacts) -> bool:
    """Whether a handler written for eager's exception catches the subject's.

    That is: the subject's type is eager's or derives from it, or derives from the most specific builtin type below Exception
    that eager's derives from (LinAlgError -> RuntimeError), which is what portable code names.
    """
    ancestry = {_plain_name(name) for name in seen.ancestry}
    if _plain_name(expected.type_name) in ancestry:
        return True
    builtin = next((name for name in map(_plain_name, expected.ancestry) if name in _BUILTIN_EXCEPTIONS), None)
    return builtin is not None and builtin in ancestry


def _plain_name(name: str) -> str:
    return name.removeprefix("builtins.")


_BUILTIN_EXCEPTIONS = frozenset(
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, Exception) and value is not Exception
)


def _exception_text(exception: ExceptionFacts) -> str:
    headline = _headline(exception.message)
    message = headline if len(headline) <= 160 else headline[:157] + "..."
    return f"{_plain_name(exception.type_name)} in {exception.phase} ({message!r})"


def _headline(message: str) -> str:
    """The first line; and of a message that only announces another one (a compiler's, a wrapped exception's), that one."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if not lines:
        return ""
    if lines[0].endswith("raised:") and len(lines) > 1:
        return f"{lines[0]} {lines[1]}"
    if lines[0].endswith("compile error"):
        said = next((line for line in lines if ": error: " in line), "")
        return f"{lines[0]}: {said.partition(': error: ')[2]}" if said else lines[0]
    return lines[0]


def _crash_symptom(crash: Crashed) -> str:
    how = f"signal {crash.signal}" if crash.signal is not None else f"exit code {crash.exit_code}"
    return f"outcome is a dead process ({how}) in {crash.stage}, but should be a result"


def _ending(outcome: Outcome) -> str:
    match outcome:
        case Returned():
            return "a return"
        case Raised(exception=exception):
            return _exception_text(exception)
        case Crashed():
            return "a dead process"
        case TimedOut():
            return "no end in time"
        case OutOfMemory():
            return "out of memory"
        case _:
            assert_never(outcome)


# --------------------------------------------------------------------------------------------- the verdict


def _verdict(builder: FindingsBuilder, ending: _Ending | None, *, number_of_calls: int) -> Verdict:
    ordered = sorted(builder.findings, key=lambda finding: (finding.call, finding.severity))
    symptoms = tuple(finding.symptom for finding in ordered)
    rest = {"compared": builder.compared, "explained": tuple(builder.explained), "max_ulp": builder.max_ulp}
    if ending is not None:
        symptom = f"call {ending.call}: {ending.symptom}"
        return Verdict(status=ending.status, symptom=symptom, call=ending.call, also=_also(symptoms), **rest)
    if ordered:
        first = ordered[0]
        is_stale = first.call > 0 and number_of_calls > 1
        return Verdict(
            status=Status.FAIL_GUARD if is_stale else first.status,
            symptom=first.symptom, call=first.call, worst=_worst_of(first, ordered), also=_also(symptoms[1:]), **rest,
        )  # fmt: skip
    verdict = Verdict(status=Status.PASS, **rest)
    if builder.compared.is_nothing:
        return _with(verdict, Status.PASS_DUE_TO_SKIP, "nothing was compared: the program returns and changes nothing")
    if 0 < builder.produced <= builder.compared.unstable_elements:
        return _with(
            verdict, Status.PASS_DUE_TO_SKIP, "every element is one that eager itself moves under rounding noise"
        )
    return verdict


def _worst_of(first: Finding, ordered: Sequence[Finding]) -> WorstElement | None:
    """The worst element of the finding that gave the status; for one without elements, of the next that has some."""
    if first.worst is not None:
        return first.worst
    return next((finding.worst for finding in ordered if finding.worst is not None), None)


def _also(symptoms: tuple[str, ...]) -> tuple[str, ...]:
    if len(symptoms) <= _ALSO:
        return symptoms
    return (*symptoms[:_ALSO], f"... and {len(symptoms) - _ALSO} more")


def _with(verdict: Verdict, status: Status, symptom: str) -> Verdict:
    return Verdict(
        status=status, symptom=symptom, compared=verdict.compared, explained=verdict.explained, max_ulp=verdict.max_ulp
    )
