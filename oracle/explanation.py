"""Explanation: what a compiler made of a program, as facts and as text. Does not import torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

_SHOWN = 12  # lines of a list; the rest is counted
_WIDTH = 150  # characters of a line


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """A graph break."""

    reason: str
    where: str  # "file.py:8: print(x)"; "" where it is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """The graphs and breaks of one system's capture of the program, over all calls."""

    name: str  # "Dynamo", "refimpl"
    graphs: tuple[tuple[str, ...], ...] = ()  # the operators of each graph, in order
    breaks: tuple[Break, ...] = ()
    guards: tuple[str, ...] = ()  # each once; the systems have different kinds, so their numbers need not agree
    recompiles: tuple[str, ...] = ()  # the reason of each
    error: str = ""  # why the run ended early

    @property
    def operators(self) -> Counter[str]:
        """How often each operator occurs in all graphs."""
        return Counter(name for graph in self.graphs for name in graph)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of the tensors that the program has."""

    parameters: int
    buffers: int
    inputs: int  # of the first call
    outputs: int  # of the first call
    # The most that is alive at one time within one graph, without inputs. None if sizes are symbols.
    intermediates: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The captures of a program by the compilers: torch's Dynamo, and the reference implementation beside it."""

    program: str
    calls: int
    dynamo: Capture
    refimpl: Capture
    mutations: tuple[str, ...]  # "call 0: args[0]", "call 0: module.norm.running_mean"
    aliases: tuple[str, ...]  # "call 0: output[1] shares memory with args[0]"
    memory: Memory | None
    tools: tuple[str, ...]  # commands that show more

    def differences(self) -> list[tuple[str, str, str]]:
        """Rows (what, Dynamo's, refimpl's) where the two differ, guards apart."""
        rows = [row for row in self.counts() if row[1] != row[2] and row[0] != "guards"]
        ours, theirs = self.refimpl.operators, self.dynamo.operators
        return rows + [
            (name, str(theirs[name]), str(ours[name])) for name in sorted(ours | theirs) if ours[name] != theirs[name]
        ]

    def counts(self) -> list[tuple[str, str, str]]:
        """Rows (what, Dynamo's, refimpl's) of all counts."""
        return [
            (what, str(of(self.dynamo)), str(of(self.refimpl)))
            for what, of in (
                ("graphs", lambda capture: len(capture.graphs)),
                ("operators in them", lambda capture: capture.operators.total()),
                ("graph breaks", lambda capture: len(capture.breaks)),
                ("guards", lambda capture: len(capture.guards)),
                ("recompiles", lambda capture: len(capture.recompiles)),
            )
        ]


def explained(explanation: Explanation) -> str:
    """The explanation as text: a section for each kind of fact."""
    dynamo = explanation.dynamo
    lines = [f"{explanation.program}: {explanation.calls} {'call' if explanation.calls == 1 else 'calls'}"]
    for capture in (dynamo, explanation.refimpl):
        lines += [f"{capture.name} did not reach the end: {capture.error}"] if capture.error else []
    lines += _section("graphs", [_graph(ops) for ops in dynamo.graphs])
    lines += _section("graph breaks", _counted(map(_break, dynamo.breaks)))
    lines += _section("recompiles", _counted(dynamo.recompiles))
    lines += _section("operators", [f"{count:4} {name}" for name, count in dynamo.operators.most_common()])
    lines += _section("guards", list(dynamo.guards))
    lines += _section("arguments and state that calls change", list(explanation.mutations))
    lines += _section("outputs that share memory", list(explanation.aliases))
    lines += _section("memory", _memory(explanation.memory))
    lines += _section("Dynamo beside refimpl", _table(explanation))
    lines += _section("more", list(explanation.tools))
    return "\n".join(lines)


def _section(title: str, lines: list[str]) -> list[str]:
    left_out = len(lines) - _SHOWN
    shown = [_cut(line) for line in lines[:_SHOWN]] or ["none"]
    return ["", title, *(f"  {line}" for line in shown), *([f"  ... and {left_out} more"] if left_out > 0 else [])]


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 4]} ..."


def _counted(texts: Iterable[str]) -> list[str]:
    return [text if count == 1 else f"{count} times: {text}" for text, count in Counter(texts).items()]


def _graph(operators: tuple[str, ...]) -> str:
    names = ", ".join(_counted_runs(operators)) or "nothing"
    return f"{len(operators)} {'operator' if len(operators) == 1 else 'operators'}: {names}"


def _counted_runs(operators: tuple[str, ...]) -> list[str]:
    return [name if count == 1 else f"{count} x {name}" for name, count in Counter(operators).items()]


def _break(found: Break) -> str:
    return f"{found.where}  ({found.reason})" if found.where else found.reason


def _memory(memory: Memory | None) -> list[str]:
    if memory is None:
        return []
    rows = [
        ("parameters", memory.parameters), ("buffers", memory.buffers), ("inputs of a call", memory.inputs),
        ("outputs of a call", memory.outputs),
    ]  # fmt: skip
    if memory.intermediates is not None:
        rows.append(("most alive within one forward graph", memory.intermediates))
    return [f"{_bytes(count):>10}  {what}" for what, count in rows]


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def _table(explanation: Explanation) -> list[str]:
    """All counts, then the operators whose counts differ, then the graph breaks that only one has."""
    rows = explanation.counts()
    rows += [row for row in explanation.differences() if row not in rows]
    width = max(len(what) for what, _, _ in rows)
    lines = [f"{'':{width}}  {'Dynamo':>8}  {'refimpl':>8}"]
    for what, theirs, ours in rows:
        is_different = (what, theirs, ours) in explanation.differences()
        lines.append(f"{what:{width}}  {theirs:>8}  {ours:>8}{'   differs' if is_different else ''}")
    places = [{each.where for each in capture.breaks} for capture in (explanation.dynamo, explanation.refimpl)]
    for capture, other in ((explanation.dynamo, places[1]), (explanation.refimpl, places[0])):
        for text in _counted(_break(each) for each in capture.breaks if each.where not in other):
            lines.append(f"graph break of {capture.name} alone: {text}")
    return lines
