"""Coverage: features of a campaign's programs, and how they change the weights of later ones. Does not import torch.

A feature is a text "kind:value". Features of the structured program (operators, pairs of producer and consumer, dtypes, layouts,
call plans) depend on the program alone. Only these change weights, so that a seed gives the same programs on every machine and
for any number of workers. Features that a worker observes at run time (aten overloads, graph-break reasons, lowerings, passes
that fired: `fuzz.judge.observing`) show how much of the compiler was reached, and which programs to keep as interesting.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuzz.program.structure import Block, FuzzProgram, Lines, OpCall, Statement, names_in, walk

# New features of these kinds are new behaviour, and make a program's operators more likely in the next rounds.
STEERING_KINDS = ("pair", "op_dtype", "op_layout")
_IN_TEXT = re.compile(r"\btorch(?:\.\w+)+(?=\()")
_LOW, _HIGH = 0.5, 4.0  # bounds of a factor, so that the weights keep their meaning


def program_features(program: FuzzProgram) -> list[str]:
    """Features of a structured program, each once, in order of appearance."""
    return list(dict.fromkeys(_features(program)))


def _features(program: FuzzProgram) -> Iterator[str]:
    yield from (f"family:{family}" for family in program.families)
    yield f"kind:{'module' if program.is_module else 'function'}"
    if program.derive:
        yield "kind:derived arguments"
    if program.expects_raise:
        yield "kind:raises"
    yield f"dynamic:{program.dynamic}"
    yield from (f"config:{key}" for key in program.config)
    yield from _plan_features(program)
    specs = program.calls[0].args or []
    argument_traits = {
        name: traits for name, spec in zip(program.inputs or program.arguments, specs, strict=False)
        if (traits := list(_tensor_features(spec)))
    }  # fmt: skip
    for traits in argument_traits.values():
        yield from traits
    producers: dict[str, str] = dict.fromkeys(program.arguments, "argument")
    for statement in walk(program.statements):
        yield from _statement_features(statement, producers, argument_traits)


def _plan_features(program: FuzzProgram) -> Iterator[str]:
    yield f"calls:{len(program.calls)}"
    for earlier, call in zip((None, *program.calls), program.calls, strict=False):
        yield f"grad_mode:{call.grad_mode}"
        if call.backward:
            yield "plan:backward"
        if call.before:
            yield "plan:something changed between calls"
        if call.training is not None:
            yield f"plan:training {call.training}"
        if earlier is not None and call.args != earlier.args:
            yield from _changes(earlier.args or [], call.args or [])


def _changes(before: Sequence[Any], after: Sequence[Any]) -> Iterator[str]:
    """The features in which a call differs from the call before."""
    for old, new in zip(before, after, strict=False):
        if not isinstance(old, Mapping) or not isinstance(new, Mapping):
            if old != new:
                yield f"plan:another {type(new).__name__}"
            continue
        for key in ("shape", "dtype", "stride", "offset", "requires_grad", "storage", "memory_format"):
            if old.get(key) != new.get(key):
                yield f"plan:another {key}"


def _tensor_features(spec: Any) -> Iterator[str]:
    if not isinstance(spec, Mapping) or spec.get("$") != "tensor":
        if isinstance(spec, Mapping) and spec.get("$") == "same":
            yield "layout:same tensor twice"
        elif isinstance(spec, (bool, int, float, str)):
            yield f"scalar:{type(spec).__name__}"
        return
    yield f"dtype:{spec['dtype']}"
    shape = list(spec["shape"])
    yield f"rank:{len(shape)}"
    if 0 in shape:
        yield "size:0"
    if 1 in shape:
        yield "size:1"
    yield from (f"layout:{name}" for name in _layout_names(spec, shape))
    if spec.get("requires_grad"):
        yield "requires_grad:True"
    fill = spec.get("fill")
    if isinstance(fill, Mapping):
        yield f"fill:{fill.get('kind', fill.get('$', 'given'))}"


def _layout_names(spec: Mapping[str, Any], shape: Sequence[int]) -> list[str]:
    """The classes of stride, offset and storage; "contiguous" if there are no others."""
    found = [key for key in ("conj", "neg", "parameter") if spec.get(key)]
    found += ["shared storage"] if "storage" in spec else []
    found += ["offset"] if spec.get("offset") else []
    found += [str(spec["memory_format"])] if spec.get("memory_format") else []
    stride = spec.get("stride")
    if stride is not None:
        steps = [(step, size) for step, size in zip(stride, shape, strict=False) if size != 1]
        in_order = [step for step, _ in steps]
        if any(step == 0 for step in in_order):
            found.append("expanded")
        elif _is_dense(steps):
            found += [] if in_order == sorted(in_order, reverse=True) else ["permuted"]
        elif _overlaps(steps):
            found.append("overlapping")
        else:
            found.append(
                "gaps" if [s for s, _ in steps] == sorted((s for s, _ in steps), reverse=True) else "permuted gaps"
            )
    return found or ["contiguous"]


def _is_dense(steps: Sequence[tuple[int, int]]) -> bool:
    """Whether the elements fill a range of memory without gaps, in any order."""
    expected = 1
    for step, size in sorted(steps):
        if step != expected:
            return False
        expected *= max(size, 1)
    return True


def _overlaps(steps: Sequence[tuple[int, int]]) -> bool:
    reach = 0
    for step, size in sorted(steps):
        if step <= reach:
            return True
        reach += step * (size - 1)
    return False


def _statement_features(
    statement: Statement, producers: dict[str, str], argument_traits: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    match statement:
        case OpCall():
            yield f"op:{statement.target}"
            read = [name for arg in statement.args for name in names_in(arg)]
            read += [name for _, arg in statement.kwargs for name in names_in(arg)]
            for name in dict.fromkeys(read):
                producer = producers.get(name, "state" if name.startswith("self.") else "?")
                yield f"pair:{producer}->{statement.target}"
                for trait in argument_traits.get(name, ()):
                    kind, _, value = trait.partition(":")
                    if kind in ("dtype", "layout"):
                        yield f"op_{kind}:{statement.target}({value})"
            yield from (f"keyword:{statement.target}({name}=)" for name, _ in statement.kwargs)
            producers.update(dict.fromkeys(statement.results, statement.target))
            if len(read) > len(set(read)):
                yield "operands:one value twice"
        case Lines():
            words = list(dict.fromkeys(_IN_TEXT.findall(statement.text)))
            yield from (f"op:{word}" for word in words)
            yield f"python:{_shape_of_text(statement.text)}"
            producers.update(dict.fromkeys(statement.results, "python"))
        case Block():
            yield f"block:{_shape_of_text(statement.header)}"


def _shape_of_text(text: str) -> str:
    """The first line without names and numbers: "with torch.no_grad():", "for # in range(#):"."""
    first = next((line.strip() for line in text.strip().splitlines() if line.strip()), "")
    return re.sub(r"\{[\w.]*\}|\b\d+(?:\.\d+)?\b", "#", first)[:60]


@dataclass(slots=True, kw_only=True)
class CoverageState:
    """How many programs had each feature."""

    counts: Counter[str] = field(default_factory=Counter)

    def add(self, features: Iterable[str]) -> list[str]:
        """Count one program; returns what no program had before."""
        fresh = []
        for feature in features:
            if feature not in self.counts:
                fresh.append(feature)
            self.counts[feature] += 1
        return fresh

    def of_kind(self, kind: str) -> dict[str, int]:
        prefix = f"{kind}:"
        return {name[len(prefix) :]: count for name, count in self.counts.items() if name.startswith(prefix)}

    def sizes(self) -> dict[str, int]:
        """The number of distinct features of each kind."""
        return dict(sorted(Counter(name.partition(":")[0] for name in self.counts).items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Names of all operators and rules of the grammar, as `Steering` uses them."""

    operators: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()


def steering_factors(vocabulary: Vocabulary, coverage: CoverageState, novelty: Mapping[str, float]) -> dict[str, float]:
    """Factors for the weights of operators and rules: those that were rare, or still show new behaviour, are drawn more often.

    Features "chosen:NAME" count the grammar's choices, kept or not; they stand for operators that never appear in a statement
    under their own name. `novelty` is the recent mean number of new features per program with the operator.
    """
    factors: dict[str, float] = {}
    kept, attempts = coverage.of_kind("op"), coverage.of_kind("chosen")
    counts = {name: kept.get(name) or attempts.get(name, 0) for name in vocabulary.operators}
    typical_novelty = statistics.fmean(novelty.values()) if novelty else 0.0
    for name, factor in _rarity(counts).items():
        if typical_novelty and name in novelty:
            factor *= 0.75 + 0.25 * min(novelty[name] / typical_novelty, 4.0)
        factors[f"op:{name}"] = round(min(max(factor, _LOW), _HIGH), 3)
    for name, factor in _rarity({name: attempts.get(name, 0) for name in vocabulary.rules}).items():
        factors[f"rule:{name}"] = round(min(factor, 2.0), 3)
    return factors


def _rarity(counts: Mapping[str, int]) -> dict[str, float]:
    """For each name the square root of median count / its count, within bounds."""
    if not counts:
        return {}
    median = statistics.median(counts.values()) + 1
    return {name: min(max((median / (count + 1)) ** 0.5, _LOW), _HIGH) for name, count in counts.items()}
