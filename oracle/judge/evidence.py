"""Evidence: everything the judge knows about one case.

Two runs of eager and the subject's run have been made beforehand. Further runs of eager cost time; each one is made when a
witness first needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from oracle.judge.findings import SECTIONS, Section
from oracle.observe.outcome import ExceptionFacts, Leaf, Outcome, Raised, calls_of
from oracle.program import ComparePolicy

Place = tuple[int, Section, str]  # identifies a leaf: number of the call, section, path


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Functions that run eager again in another way. A witness whose run is missing here (the default) is not asked."""

    truth: Callable[[], Outcome | None] = lambda: None  # in fp64
    # Results of inexact operators perturbed by about one eps (reruns.noise).
    noise: Callable[[], Sequence[Outcome]] = tuple
    # Perturbed by 8 eps: shows jumps that few runs with one eps miss.
    loud_noise: Callable[[], Sequence[Outcome]] = tuple
    # A run under the noise's dispatch mode, unperturbed (oracle.judge.trust).
    still: Callable[[], Outcome | None] = lambda: None
    other_kernels: Callable[[str], Outcome | None] = lambda name: None  # takes a name from oracle.reruns.other_kernels
    other_seed: Callable[[], Outcome | None] = lambda: None  # of a random program
    few_seeds: Callable[[], Sequence[Outcome]] = tuple  # of a random program whose subject draws its own numbers
    many_seeds: Callable[[], Sequence[Outcome]] = tuple  # the same, made if few seeds make the subject look wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """Declarations of the program's author: comparisons to relax, an expected exception, random numbers of the subject's own."""

    policy: ComparePolicy = field(default_factory=ComparePolicy)
    raises: bool = False  # the program is meant to raise on its last call
    own_stream: bool = False  # the subject may draw other random numbers than eager, of the same distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One case: eager's runs, the subject's run, and the promises."""

    eager: Outcome
    again: Outcome  # eager's second run
    subject: Outcome
    runs: Runs = field(default_factory=Runs)
    promises: Promises = field(default_factory=Promises)
    draws: bool = False  # eager draws random numbers
    is_random: bool = False  # eager's result depends on them
    # Symptoms that the verdict lists besides the first. A model may have thousands of wrong tensors.
    most_also: int = 20
    # Number of graphs that the subject compiled. With 0 it ran eager, and agreement proves nothing.
    graphs: int | None = None


class LeavesOfRuns:
    """Single leaves of the further runs. Each run is made once, when its first leaf is needed.

    `like` is eager's run of a random program: a further run with eager's seed counts only up to the first call after which its
    generator state differs from that of `like`, since it has drawn other numbers from there on.
    """

    def __init__(self, runs: Runs, *, like: Outcome | None = None) -> None:
        self._runs = runs
        self._digests = None if like is None else [call.rng_digest for call in calls_of(like)]
        self._found: dict[str, list[dict[tuple[int, str, str], Leaf]]] = {}
        self._outcomes: dict[str, list[Outcome]] = {}

    def truth(self, at: Place) -> Leaf | None:
        return next(self._leaves("truth", at, lambda: [self._runs.truth()]), None)

    def still(self, at: Place) -> Leaf | None:
        return next(self._leaves("still", at, lambda: [self._runs.still()]), None)

    def noise(self, at: Place) -> list[Leaf]:
        return list(self._leaves("noise", at, self._runs.noise))

    def loud_noise(self, at: Place) -> list[Leaf]:
        return list(self._leaves("loud noise", at, self._runs.loud_noise))

    def other_kernels(self, at: Place) -> Iterator[Leaf]:
        """The leaf by each of eager's other kernels that the leaf's section admits."""
        for name in at[1].other_kernels:
            yield from self._leaves(name, at, lambda name=name: [self._runs.other_kernels(name)])

    def other_seed(self, at: Place) -> Leaf | None:
        return next(self._leaves("other seed", at, lambda: [self._runs.other_seed()], is_like=False), None)

    def few_seeds(self, at: Place) -> list[Leaf]:
        return list(self._leaves("few seeds", at, self._runs.few_seeds, is_like=False))

    def many_seeds(self, at: Place) -> list[Leaf]:
        return list(self._leaves("many seeds", at, self._runs.many_seeds, is_like=False))

    def raised_before(self, call: int) -> Iterator[tuple[str, ExceptionFacts]]:
        """Kinds of runs that were tried and always raised in this call or before it, each with one of the exceptions."""
        for name, text in (("truth", "eager in fp64"), ("noise", "eager under rounding noise")):
            outcomes = self._outcomes.get(name, ())
            raised = [outcome for outcome in outcomes if isinstance(outcome, Raised) and len(outcome.calls) <= call]
            if raised and len(raised) == len(outcomes):
                yield text, raised[0].exception

    def _leaves(
        self, name: str, at: Place, start: Callable[[], Sequence[Outcome | None]], *, is_like: bool = True
    ) -> Iterator[Leaf]:
        if name not in self._found:
            digests = self._digests if is_like else None
            self._outcomes[name] = [outcome for outcome in start() if outcome is not None]
            self._found[name] = [_leaves_by_key(outcome, digests) for outcome in self._outcomes[name]]
        call, section, path = at
        found = (leaves.get((call, section.name, path)) for leaves in self._found[name])
        return (leaf for leaf in found if leaf is not None)


def no_leaves() -> LeavesOfRuns:
    """No further runs: elements must be close to eager's."""
    return LeavesOfRuns(Runs())


def _leaves_by_key(outcome: Outcome, digests: Sequence[str] | None) -> dict[tuple[int, str, str], Leaf]:
    calls = calls_of(outcome)
    if digests is not None:
        drew_the_same = [call.rng_digest == digest for call, digest in zip(calls, digests, strict=False)]
        calls = calls[: drew_the_same.index(False) if False in drew_the_same else len(drew_the_same)]
    return {
        (number, section.name, leaf.path): leaf
        for number, call in enumerate(calls)
        for section in SECTIONS
        for leaf in getattr(call, section.name)
    }
