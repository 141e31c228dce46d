"""The judge: compares the subject's run with eager's and returns a verdict.

It runs no program itself. Runs in fp64 and under rounding noise are passed in as callables, which it calls only if a float is not
close to eager's or an integer differs.

It checks in a fixed order, and the first check that fails gives the status:

1. eager ran, and its two runs agree;
2. the subject ran (`crash`, `timeout`, `OOM`, `fail_to_run`) or raised the exception that eager raised (`fail_exception`);
3. each call agrees, in the order of `oracle.judge.findings.Severity`: leaves and shapes (`fail_metadata`), values
   (`fail_accuracy`), mutated arguments (`fail_mutation`), gradients (`fail_grad`), module state (`fail_state`), flags such as
   requires_grad (`fail_metadata`), aliases (`fail_alias`), strides (`fail_stride`), generator state (`fail_rng`).
   The earliest wrong call counts. If it is a later call, the status is `fail_guard`: a guard let a stale graph run. With a
   random program the generator state comes before the values, since it explains them;
4. something was compared (`pass_due_to_skip`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from typing_extensions import assert_never

from oracle.judge.alias import compare_aliases, compare_strides
from oracle.judge.distribution import compare_distribution, compare_masks
from oracle.judge.endings import Ending, compare_endings, crash_symptom, ending_text, exception_text, rounded_ending
from oracle.judge.evidence import Evidence, LeavesOfRuns, Place, Runs, no_leaves
from oracle.judge.findings import GRADIENTS, OUTPUTS, SECTIONS, Finding, FindingsBuilder, Severity
from oracle.judge.leaves import LeafPair, compare_pair, is_undefined, pair_leaves
from oracle.judge.rounded import is_rounded_exception
from oracle.judge.symmetry import align_tied_gradients, check_invariant, explain_indices, rule_of
from oracle.observe import SECOND
from oracle.observe.outcome import (
    CallObservation,
    Crashed,
    Leaf,
    Outcome,
    OutOfMemory,
    Raised,
    Returned,
    TimedOut,
    calls_of,
)
from oracle.program import ComparePolicy
from oracle.verdict import Status, Verdict, WorstElement, added_by_dtype

_LEAST_SHARE = 0.5  # share of the program's numbers that must have been compared for a `pass`
_MOST_BESIDE = 4  # number of leaves of its shape whose dependence on a random leaf is tested


def judge(evidence: Evidence) -> Verdict:
    """The verdict on the subject's run. Raises UsageError if the policy names a rule or a path that does not exist."""
    eager, subject, runs, promises = evidence.eager, evidence.subject, evidence.runs, evidence.promises
    if promises.policy.invariant:
        rule_of(promises.policy.invariant)
    verdict = _judge_eager(evidence)
    if verdict.status is not Status.PASS:
        return verdict
    assert isinstance(eager, (Returned, Raised))  # _judge_eager does not pass any other outcome
    if not isinstance(subject, (Returned, Raised)):
        return _judge_dead(subject, eager, verdict)
    draws_own = evidence.is_random and promises.own_stream
    settings = _Settings(
        policy=promises.policy,
        leaves=LeavesOfRuns(runs, like=eager if evidence.is_random else None),
        is_random=evidence.is_random,
        draws_own=draws_own,
        owes_stream=not (promises.own_stream and (evidence.is_random or evidence.draws)),
    )
    builder = FindingsBuilder(explained=list(verdict.explained))
    _compare_calls(calls_of(eager), calls_of(subject), settings, builder)
    if draws_own and any(finding.severity in _MAY_FOLLOW_CHANCE for finding in builder.findings):
        _drop_chance(builder, eager, runs.many_seeds(), settings)
    ending = compare_endings(eager, subject, builder)
    if (
        ending is not None
        and isinstance(eager, Returned)
        and isinstance(subject, Raised)
        and not evidence.is_random
        and is_rounded_exception(subject.exception, runs)
    ):
        ending = rounded_ending(ending, subject.exception, builder)
    result = _verdict(builder, ending, evidence)
    if result.worst is not None and result.call is not None and result.call < len(calls_of(eager)):
        result = replace(result, explained=(*result.explained, *_missing_witnesses(settings.leaves, result.call)))
    if result.status is Status.PASS and evidence.graphs == 0 and not isinstance(eager, Raised):
        return _with(result, Status.PASS_DUE_TO_SKIP, "the subject compiled no graph: that it agrees says nothing")
    return result


def _judge_dead(subject: Crashed | TimedOut | OutOfMemory, eager: Returned | Raised, verdict: Verdict) -> Verdict:
    """The verdict on a subject that neither returned nor raised."""
    should = f"but should be {ending_text(eager)}"
    match subject:
        case Crashed():
            status, symptom = Status.CRASH, crash_symptom(subject)
        case TimedOut():
            status = Status.TIMEOUT
            symptom = f"outcome is no end within {subject.seconds:g} s in {subject.stage}, {should}"
        case OutOfMemory():
            status = Status.OOM
            symptom = f"outcome is out of memory at {subject.bytes} bytes in {subject.stage}, {should}"
    return replace(verdict, status=status, symptom=symptom)


# Differences that a branch on a random number can cause. Values are not among them: their distributions are compared instead.
_MAY_FOLLOW_CHANCE = (Severity.STRUCTURE, Severity.METADATA, Severity.FLAGS, Severity.ALIAS, Severity.STRIDE)


def _drop_chance(builder: FindingsBuilder, eager: Outcome, seeds: Sequence[Outcome], settings: _Settings) -> None:
    """Drop findings about shapes or the number of outputs where eager's own runs under other seeds differ in the same property.

    There a branch on a random number decides. What is the same under every seed in eager must be the same in the subject.
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
    """The leaf and its property that are wrong, without the values: the symptom up to its verb."""
    return finding.severity, finding.symptom.partition(" is ")[0]


# --------------------------------------------------------------------------------------------- eager itself


def _judge_eager(evidence: Evidence) -> Verdict:
    """PASS if subjects can be compared with eager: it ran and its two runs agree."""
    eager, again = evidence.eager, evidence.again
    match eager:
        case Returned():
            pass
        case Raised(exception=exception):
            if not evidence.promises.raises:
                symptom = f"call {exception.call}: eager is {exception_text(exception)}, but should return"
                return Verdict(status=Status.EAGER_FAIL_TO_RUN, symptom=symptom, call=exception.call)
        case Crashed():
            return Verdict(status=Status.EAGER_FAIL_TO_RUN, symptom=f"eager: {crash_symptom(eager)}")
        case TimedOut():
            return Verdict(status=Status.EAGER_FAIL_TO_RUN, symptom=f"eager: no end within {eager.seconds:g} s")
        case OutOfMemory():
            return Verdict(status=Status.EAGER_FAIL_TO_RUN, symptom=f"eager: out of memory at {eager.bytes} bytes")
        case _:
            assert_never(eager)
    builder = FindingsBuilder()
    if type(again) is not type(eager):
        symptom = f"eager's second run is {ending_text(again)}, but should be {ending_text(eager)}"
        return Verdict(status=Status.EAGER_TWO_RUNS_DIFFER, symptom=symptom)
    if isinstance(eager, Raised) and isinstance(again, Raised):
        first, second = eager.exception, again.exception
        if (first.type_name, first.call) != (second.type_name, second.call):
            symptom = f"eager's second run is {exception_text(second)}, but should be {exception_text(first)}"
            return Verdict(status=Status.EAGER_TWO_RUNS_DIFFER, symptom=symptom, call=second.call)
    if evidence.is_random:
        return Verdict(status=Status.PASS)
    settings = _Settings(policy=evidence.promises.policy)
    _compare_calls(calls_of(eager), calls_of(again), settings, builder)
    if builder.findings:
        worst = min(builder.findings, key=lambda finding: (finding.call, finding.severity))
        differing = Verdict(
            status=Status.EAGER_TWO_RUNS_DIFFER, symptom=worst.symptom, call=worst.call, worst=worst.worst,
            compared=builder.compared,
        )  # fmt: skip
        return _judge_repeated(evidence, differing)
    if not builder.max_ulp:
        return Verdict(status=Status.PASS)
    explained = f"eager's own two runs differ by up to {builder.max_ulp:g} ULP, within the tolerance row"
    return Verdict(status=Status.PASS, explained=(explained,))


def _judge_repeated(evidence: Evidence, differing: Verdict) -> Verdict:
    """The verdict where eager's two runs differ in values only, as with `torch.empty`: the subject must agree in all the rest.

    The rest is how a call ends, its outputs' shapes, dtypes, flags, aliases and strides, and the values of tensors that are equal
    in both runs.
    """
    eager, again, subject = evidence.eager, evidence.again, evidence.subject
    assert isinstance(eager, (Returned, Raised))
    policy, shared = evidence.promises.policy, FindingsBuilder()
    without_values = _Settings(policy=policy, leaves_out=lambda pair: True, owes_stream=False)
    _compare_calls(calls_of(eager), calls_of(again), without_values, shared)
    if shared.findings:
        return differing
    if not isinstance(subject, (Returned, Raised)):
        return _judge_dead(subject, eager, differing)
    arbitrary: dict[Place, bool] = {}
    others = LeavesOfRuns(Runs(still=lambda: again))

    def is_arbitrary(pair: LeafPair) -> bool:
        if pair.place not in arbitrary:
            other, found = others.still(pair.place), FindingsBuilder()
            is_same = other is not None and compare_pair(replace(pair, subject=other), runs=no_leaves(), builder=found)
            arbitrary[pair.place] = not is_same
        return arbitrary[pair.place]

    builder = FindingsBuilder()
    settings = _Settings(policy=policy, leaves=LeavesOfRuns(evidence.runs), leaves_out=is_arbitrary, owes_stream=False)
    _compare_calls(calls_of(eager), calls_of(subject), settings, builder)
    ending = compare_endings(eager, subject, builder)
    if ending is None and not builder.findings:
        return differing
    verdict = _verdict(builder, ending, evidence)
    text = f"values that eager has otherwise in its second run were not compared: {differing.symptom}"
    return replace(verdict, explained=(*verdict.explained, text))


# --------------------------------------------------------------------------------------------- calls


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """How two outcomes are compared."""

    policy: ComparePolicy
    leaves: LeavesOfRuns = field(default_factory=no_leaves)
    is_random: bool = False
    draws_own: bool = False  # the subject draws its own random numbers: only distributions can be compared
    owes_stream: bool = True  # the subject must leave the generators in eager's state
    leaves_out: Callable[[LeafPair], bool] = lambda pair: False  # leaves whose values are not compared


def _compare_calls(
    eager: Sequence[CallObservation],
    subject: Sequence[CallObservation],
    settings: _Settings,
    builder: FindingsBuilder,
) -> None:
    """Compare the calls that returned on both sides; `compare_endings` judges those that did not."""
    for number, (expected, seen) in enumerate(zip(eager, subject, strict=False)):
        before = (eager[number - 1], subject[number - 1]) if number else None
        _compare_call(number, expected, seen, settings, builder, before=before)


def _compare_call(
    call: int,
    eager: CallObservation,
    subject: CallObservation,
    settings: _Settings,
    builder: FindingsBuilder,
    *,
    before: tuple[CallObservation, CallObservation] | None,
) -> None:
    """Compare one call. `before` is the previous call, of eager and of the subject."""
    policy = settings.policy
    if eager.structure != subject.structure:
        builder.add(
            Severity.STRUCTURE, Status.FAIL_METADATA, call,
            f"output.structure is {subject.structure}, but should be {eager.structure}",
        )  # fmt: skip
    is_another_factor = False  # whether the outputs agree only up to a symmetry, as eigenvectors of the other sign do
    ties: list[LeafPair] = []  # outputs that index other elements of the same values, as `topk` does with ties
    drawn: list[LeafPair] = []  # leaves whose distributions have been compared
    for section in SECTIONS:
        expected, seen = getattr(eager, section.name), getattr(subject, section.name)
        if not expected and not seen:
            continue
        pairs = pair_leaves(
            call, section, expected, seen, no_leaves() if settings.draws_own else settings.leaves, builder
        )
        pairs = [pair for pair in _drop_undefined(pairs, policy, builder) if not settings.leaves_out(pair)]
        if settings.draws_own:
            for pair in pairs:
                compare_distribution(pair, settings.leaves, builder, beside=_beside(pair, drawn, before))
                drawn.append(pair)
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
                compare_pair(pair, runs=settings.leaves, builder=builder)
    if settings.draws_own:
        compare_masks(call, eager, subject, settings.leaves, builder)
    reported = compare_aliases(call, eager, subject, policy, builder)
    compare_strides(call, eager, subject, policy, builder, reported=reported)
    if settings.owes_stream and eager.rng_digest != subject.rng_digest:
        # A generator state that differs only after the backward does not explain outputs: a wrong gradient comes first then.
        explains = settings.is_random and eager.rng_after_call != subject.rng_after_call
        severity = Severity.RANDOM_STREAM if explains else Severity.RNG
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
    """Whether the outputs agree only up to the symmetry; adds a finding if they do not agree even then.

    fp64 and noise are not used: they may choose other factors too, and would then excuse anything.
    """
    attempt = FindingsBuilder()
    for pair in pairs:
        compare_pair(pair, runs=no_leaves(), builder=attempt)
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
    """Compare outputs some of which are indices. Returns the index outputs that differ and point to the same values."""
    ties: list[LeafPair] = []
    for pair in pairs:
        spec = settings.policy.index_outputs.get(pair.path)
        attempt = FindingsBuilder()
        runs = settings.leaves if spec is None else no_leaves()
        is_right = compare_pair(pair, runs=runs, builder=attempt)
        if not is_right and spec is not None:
            reason = explain_indices(pair, spec, _leaf_at(eager, spec["of"]), _leaf_at(subject, spec["of"]))
            if reason:
                builder.take_counts(attempt)
                builder.explain(pair.call, reason)
                ties.append(pair)
                continue
            # The indices point to other values. That is no finding if rounding noise flips the same indices in eager.
            attempt = FindingsBuilder()
            compare_pair(pair, runs=settings.leaves, builder=attempt)
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
    """Compare a gradient up to permutations of equal elements of the tensor that was indexed; other gradients are not compared.

    At the elements that each side chose, the gradients must agree. fp64 and noise are not used: they may choose others too.
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
            compare_pair(pair, runs=no_leaves(), builder=builder)
            continue
        gradient, wrong = aligned
        if wrong:
            builder.add(pair.section.severity, pair.section.status, pair.call, wrong)
        subject = replace(pair.subject, value=gradient)
        compare_pair(replace(pair, subject=subject), runs=no_leaves(), builder=builder)
        builder.explain(pair.call, f"{pair.path} was compared up to the choice among equal elements")


def _beside(
    pair: LeafPair, drawn: Sequence[LeafPair], before: tuple[CallObservation, CallObservation] | None
) -> list[LeafPair]:
    """Tensors whose dependence on this leaf is tested: the same leaf of the previous call, leaves of its shape in this call."""
    found = [leaf for call in before or () for leaf in getattr(call, pair.section.name) if leaf.path == pair.path]
    earlier = [replace(pair, call=pair.call - 1, eager=found[0], subject=found[1])] if len(found) == 2 else []
    alike = [
        other
        for other in drawn
        if other.eager.facts and pair.eager.facts and other.eager.facts.shape == pair.eager.facts.shape
    ]
    return [other for other in (*earlier, *alike[-_MOST_BESIDE:]) if isinstance(other.subject.value, torch.Tensor)]


def _leaf_at(call: CallObservation, path: str) -> Leaf | None:
    leaves = (*call.outputs, *call.inputs_after)
    return next((leaf for leaf in leaves if leaf.path == path), None)


# --------------------------------------------------------------------------------------------- the verdict


def _verdict(builder: FindingsBuilder, ending: Ending | None, evidence: Evidence) -> Verdict:
    number_of_calls = len(calls_of(evidence.eager)) + isinstance(evidence.eager, Raised)
    ordered = sorted(builder.findings, key=lambda finding: (finding.call, finding.severity))
    symptoms = tuple(finding.symptom for finding in ordered)
    rest = {
        "compared": builder.compared,
        "witnesses": tuple(sorted((+builder.witnesses).items())),
        "explained": tuple(builder.explained),
        "max_ulp": builder.max_ulp,
        "bias": added_by_dtype(builder.bias),
    }
    if ending is not None:
        symptom = f"call {ending.call}: {ending.symptom}"
        return Verdict(
            status=ending.status, symptom=symptom, call=ending.call, also=_also(symptoms, evidence.most_also), **rest
        )
    if ordered:
        first = ordered[0]
        is_stale = first.call > 0 and number_of_calls > 1 and not _is_first_double_backward(first, evidence.eager)
        return Verdict(
            status=Status.FAIL_GUARD if is_stale else first.status,
            symptom=first.symptom, call=first.call, worst=_worst_of(first, ordered),
            also=_also(symptoms[1:], evidence.most_also), **rest,
        )  # fmt: skip
    verdict = Verdict(status=Status.PASS, **rest)
    if builder.compared.is_nothing:
        return _with(verdict, Status.PASS_DUE_TO_SKIP, "nothing was compared: the program returns and changes nothing")
    if builder.produced and builder.compared.unstable_elements > (1 - _LEAST_SHARE) * builder.produced:
        share = f"{builder.compared.unstable_elements} of {builder.produced}"
        return _with(
            verdict,
            Status.PASS_DUE_TO_SKIP,
            f"too little was compared: eager does not determine a digit of {share} numbers",
        )
    return verdict


def _is_first_double_backward(finding: Finding, eager: Outcome) -> bool:
    """Whether it is a difference of second gradients, and no earlier call has any: then no call was right in this respect."""
    earlier = calls_of(eager)[: finding.call]
    return SECOND in finding.symptom and not any(leaf.path.startswith(SECOND) for c in earlier for leaf in c.gradients)


def _missing_witnesses(leaves: LeavesOfRuns, call: int) -> list[str]:
    """Sentences on further runs of eager that raised, so that a finding's reader knows which evidence is missing."""
    return [
        f"call {call}: {run} raised {exception_text(exception)}: nothing is known from it"
        for run, exception in leaves.raised_before(call)
    ]


def _worst_of(first: Finding, ordered: Sequence[Finding]) -> WorstElement | None:
    """The worst element of the finding that gave the status, or of the next finding that has one."""
    if first.worst is not None:
        return first.worst
    return next((finding.worst for finding in ordered if finding.worst is not None), None)


def _also(symptoms: tuple[str, ...], most: int) -> tuple[str, ...]:
    if len(symptoms) <= most:
        return symptoms
    return (*symptoms[:most], f"... and {len(symptoms) - most} more")


def _with(verdict: Verdict, status: Status, symptom: str) -> Verdict:
    return replace(verdict, status=status, symptom=symptom)
