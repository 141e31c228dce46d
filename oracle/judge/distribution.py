"""Judge random programs whose subject draws its own random numbers: compare distributions instead of values.

Four checks must hold whatever the seed:

- where eager is never NaN (never infinite) under many seeds, neither is the subject. One seed does not tell, since it is chance
  whether dropout keeps a value that overflows;
- the elements of eager's and of the subject's tensor come from one distribution (two-sample Kolmogorov-Smirnov at
  p < 1e-6, so that a sweep of a hundred thousand tensors raises a tenth of a false alarm);
- element by element, the subject's run could be one of eager's runs under other seeds (oracle.judge.exchange);
- if the zeros of an output and of a gradient coincide in eager under every seed, as the mask of dropout makes them, they coincide
  in the subject. Recomputing the forward with a new mask breaks this check and no other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from oracle.judge.elements import READABLE, is_float, is_identical, widen
from oracle.judge.evidence import LeavesOfRuns, Place
from oracle.judge.exchange import FEWEST, stands_out
from oracle.judge.findings import GRADIENTS, OUTPUTS, FindingsBuilder, Severity
from oracle.judge.leaves import LeafPair, compare_pair, part_of, parts_of
from oracle.observe.outcome import CallObservation, Leaf
from oracle.verdict import Status

_ENOUGH = 32  # with fewer elements only almost disjoint samples reach p < 1e-6
_AT_MOST = 1 << 20
_AS_FAR = 1.5  # a distance up to 1.5 times the largest between eager's own runs is chance
# The asymptotic p-value is about 2 exp(-2 z^2) at z = D sqrt(nm / (n + m)); it is conservative for small and tied samples.
_CRITICAL = math.sqrt(math.log(2 / 1e-6) / 2)


def kolmogorov_smirnov(left: Tensor, right: Tensor) -> tuple[float, float]:
    """The largest distance between the two empirical distributions, and that distance scaled by the sample sizes.

    Takes any real or bool tensors and leaves out NaN.
    """
    return _distance(_sample(left), _sample(right))


def _distance(a: Tensor, b: Tensor) -> tuple[float, float]:
    """`kolmogorov_smirnov` of two sorted samples."""
    if a.numel() == 0 or b.numel() == 0:
        return 0.0, 0.0
    everything = torch.cat([a, b])
    below_a = torch.searchsorted(a, everything, right=True).to(torch.float64) / a.numel()
    below_b = torch.searchsorted(b, everything, right=True).to(torch.float64) / b.numel()
    distance = (below_a - below_b).abs().max().item()
    return distance, distance * math.sqrt(a.numel() * b.numel() / (a.numel() + b.numel()))


def _sample(tensor: Tensor) -> Tensor:
    flat = tensor.reshape(-1)
    if flat.numel() > _AT_MOST:
        flat = flat[:: flat.numel() // _AT_MOST + 1]
    flat = flat.to(torch.float64)
    return flat[~flat.isnan()].sort().values


def compare_distribution(
    pair: LeafPair, leaves: LeavesOfRuns, builder: FindingsBuilder, *, beside: Sequence[LeafPair] = ()
) -> None:
    """Add a finding to `builder` if the values of one leaf cannot come from eager's distribution.

    `beside`: other leaves, such as the same leaf of the call before. The leaf must depend on them as much as it does in eager.

    A leaf that is the same under every seed in eager is first compared by value: a layer norm beside a dropout may round
    differently. Elements need not be independent (`x + rand(())` shifts them all), so the subject is wrong only if eager's runs
    under different seeds agree with each other.
    """
    if pair.eager.facts is None:
        builder.count(others=1)
        return
    if _is_the_same_under_every_seed(pair, leaves):
        by_values = FindingsBuilder()
        if compare_pair(pair, runs=leaves, builder=by_values):
            builder.take_counts(by_values)
            builder.explained += by_values.explained
            builder.saw_ulp(by_values.max_ulp)
            return
    builder.count(tensors=1)
    eager_parts, subject_parts = parts_of(pair.eager.value), parts_of(pair.subject.value)
    for position, ((suffix, eager), (_, subject)) in enumerate(zip(eager_parts, subject_parts, strict=False)):
        builder.count(elements=eager.numel(), witnesses={"distribution": eager.numel()})

        def runs(source: Callable[[Place], Sequence[Leaf]], of: LeafPair, position: int = position) -> list[Tensor]:
            return [part for leaf in source(of.place) if (part := part_of(leaf, position)) is not None]

        symptom = _finite_symptom(eager, subject)
        if symptom and _has_by_chance(subject, runs(leaves.many_seeds, pair)):
            symptom = ""
        if not symptom:
            symptom = _distribution_symptom(eager, subject, part_of(leaves.other_seed(pair.place), position))
            if symptom and _is_as_far_by_chance(eager, subject, runs(leaves.many_seeds, pair)):
                symptom = ""
        for source in (
            () if symptom else (leaves.few_seeds, leaves.many_seeds)
        ):  # many runs must confirm what few runs show
            others = {
                _named(other, pair): [
                    part_of(other.subject, position),
                    part_of(other.eager, position),
                    *runs(source, other),
                ]
                for other in beside
            }
            symptom = _exchange_symptom([subject, eager, *runs(source, pair)], others)
            if not symptom:
                break
        if symptom:
            builder.add(pair.section.severity, pair.section.status, pair.call, f"{pair.path}{suffix}{symptom}")


def _is_the_same_under_every_seed(pair: LeafPair, leaves: LeavesOfRuns) -> bool:
    """Whether no random number seems to reach this leaf. A rare event may be missing, so a different value is no finding yet."""
    runs = [parts_of(leaf.value) for leaf in leaves.few_seeds(pair.place) if leaf.facts is not None]
    own = parts_of(pair.eager.value)
    return len(runs) >= FEWEST and all(
        len(parts) == len(own)
        and all(
            mine.shape == its.shape and mine.dtype == its.dtype and is_identical(mine, its)
            for (_, mine), (_, its) in zip(own, parts, strict=True)
        )
        for parts in runs
    )


def _named(other: LeafPair, pair: LeafPair) -> str:
    return "the call before" if other.call != pair.call else other.path


def _exchange_symptom(tensors: Sequence[Tensor], others: Mapping[str, Sequence[Tensor | None]]) -> str:
    """`stands_out` of the tensors with the dtype and shape of the first, the subject's. Complex tensors are viewed as real."""

    def comparable(found: Sequence[Tensor | None]) -> list[Tensor]:
        like = found[0]
        if like is None or like.dtype not in READABLE:
            return []
        same = [
            other for other in found if other is not None and (other.shape, other.dtype) == (like.shape, like.dtype)
        ]
        return [torch.view_as_real(widen(other)) if like.is_complex() else other for other in same]

    seen = comparable(tensors)
    return (
        stands_out(seen, {name: found for name, more in others.items() if (found := comparable(more))}) if seen else ""
    )


def _finite_symptom(eager: Tensor, subject: Tensor) -> str:
    if not is_float(eager.dtype) or eager.dtype != subject.dtype:
        return ""
    if bool(widen(eager).isfinite().all()):
        count = int((~widen(subject).isfinite()).sum())
        if count:
            return f" has {count} of {subject.numel()} elements that are not finite, but should have none"
    return ""


def _has_by_chance(subject: Tensor, runs: Sequence[Tensor]) -> bool:
    """Whether some run of eager has a NaN if the subject has one, and some run an infinity if the subject has one."""
    wide = widen(subject)
    others = [widen(run) for run in runs if run.dtype == subject.dtype]
    kinds = [kind for kind in (torch.isnan, torch.isinf) if bool(kind(wide).any())]
    return all(any(bool(kind(other).any()) for other in others) for kind in kinds)


def _distribution_symptom(eager: Tensor, subject: Tensor, other: Tensor | None) -> str:
    if min(eager.numel(), subject.numel()) < _ENOUGH:
        return ""
    for name, left, right, third in _real_parts(eager, subject, other):
        distance, scaled = kolmogorov_smirnov(left, right)
        if scaled <= _CRITICAL:
            continue
        if third is not None:
            own, own_scaled = kolmogorov_smirnov(left, third)
            if own_scaled > _CRITICAL or distance <= 2 * own:
                continue
        return (
            f"{name} is of another distribution: mean {left.double().mean():.4g} in eager, {right.double().mean():.4g} "
            f"here; Kolmogorov-Smirnov distance is {distance:.3g}, but should be at most "
            f"{_CRITICAL * distance / scaled:.3g} (p = 1e-6)"
        )
    return ""


def _is_as_far_by_chance(eager: Tensor, subject: Tensor, runs: Sequence[Tensor]) -> bool:
    """Whether eager's runs under other seeds are as far from its first run as the subject is.

    They are if elements share a few random numbers, as in `dropout2d`; with independent elements it happens once in a million.
    """
    for name, left, right, _ in _real_parts(eager, subject, None):
        own = _sample(left)
        distance, scaled = _distance(own, _sample(right))
        others = [
            _distance(own, _sample(third))[0]
            for run in runs
            for part, _, third, _ in _real_parts(eager, run, None)
            if part == name
        ]
        if scaled > _CRITICAL and distance > _AS_FAR * max(others, default=0.0):
            return False
    return True


def _real_parts(
    eager: Tensor, subject: Tensor, other: Tensor | None
) -> list[tuple[str, Tensor, Tensor, Tensor | None]]:
    if other is not None and other.dtype != eager.dtype:
        other = None
    if not eager.is_complex():
        return [("", eager, subject, other)]
    return [
        (".real", widen(eager).real, widen(subject).real, None if other is None else widen(other).real),
        (".imag", widen(eager).imag, widen(subject).imag, None if other is None else widen(other).imag),
    ]


def compare_masks(
    call: int,
    eager: CallObservation,
    subject: CallObservation,
    leaves: LeavesOfRuns,
    builder: FindingsBuilder,
) -> None:
    """Check that zeros of an output and of a gradient coincide in the subject if they do so in eager under every seed.

    Under one seed they may coincide by chance: an argument that is 0 gives 0 with any mask.
    """
    subject_outputs = _plain_floats(subject.outputs)
    subject_gradients = _plain_floats(subject.gradients)
    for path, output in _plain_floats(eager.outputs).items():
        mask = output == 0
        if path not in subject_outputs or not bool(mask.any()) or bool(mask.all()):
            continue
        for grad_path, gradient in _plain_floats(eager.gradients).items():
            if gradient.shape != output.shape or grad_path not in subject_gradients:
                continue
            if not torch.equal(mask, gradient == 0):
                continue
            theirs = subject_outputs[path] == 0
            their_gradient = subject_gradients[grad_path] == 0
            if theirs.shape != their_gradient.shape or torch.equal(theirs, their_gradient):
                continue
            if _coincide_by_chance(
                leaves.many_seeds((call, OUTPUTS, path)), leaves.many_seeds((call, GRADIENTS, grad_path))
            ):
                builder.explain(
                    call, f"the zeros of {path} and of {grad_path} coincide under some seeds only, in eager too"
                )
                continue
            builder.add(
                Severity.GRADIENT, Status.FAIL_GRAD, call,
                f"{grad_path}: the mask of the gradient is not the mask of the forward, but should be: zeros differ from "
                f"those of {path} in {int((theirs != their_gradient).sum())} of {output.numel()} elements",
            )  # fmt: skip


def _coincide_by_chance(outputs: Sequence[Leaf], gradients: Sequence[Leaf]) -> bool:
    pairs = zip(map(_plain_float, outputs), map(_plain_float, gradients), strict=False)
    return any(
        output is not None and gradient is not None and not torch.equal(output == 0, gradient == 0)
        for output, gradient in pairs
    )


def _plain_float(leaf: Leaf) -> Tensor | None:
    return next(iter(_plain_floats([leaf]).values()), None)


def _plain_floats(leaves: Sequence[Leaf]) -> dict[str, Tensor]:
    """Leaves that are one strided float tensor, by path."""
    found = {}
    for leaf in leaves:
        if leaf.facts is None or leaf.facts.layout != "strided" or not is_float(leaf.value.dtype):
            continue
        parts = parts_of(leaf.value)
        if len(parts) == 1:
            found[leaf.path] = widen(parts[0][1])
    return found
