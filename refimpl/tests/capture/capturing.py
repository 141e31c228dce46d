"""What tests of capture share: a backend that keeps graphs, modes with many breaks, the comparison with eager mode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_map

from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.capture.translate import BreaksAt
from refimpl.tests.corpus.compare import EVERYTHING, assert_same, observe

WHERE_IT_MUST = "breaks where it must"
MODES: dict[str, BreaksAt | None] = {
    WHERE_IT_MUST: None,
    "every second instruction is run": lambda start, offset: offset != start,
    "every second instruction is run, the first one too": lambda start, offset: offset != start or start == 0,
}


IN_EVERY_MODE = pytest.mark.parametrize("mode", MODES)


def each_of(*programs: Callable[..., Any]) -> pytest.MarkDecorator:
    """A test of each of the programs, under its name."""
    return pytest.mark.parametrize("program", programs, ids=lambda program: program.__name__)


@dataclass
class Recorder:
    """A backend that runs graphs as they are and keeps them."""

    graphs: list[torch.fx.GraphModule] = field(default_factory=list)

    def __call__(self, graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        self.graphs.append(graph)
        return graph.forward

    @property
    def targets(self) -> list[str]:
        """What the calls of all graphs call."""
        nodes = [node for graph in self.graphs for node in graph.graph.nodes if node.op.startswith("call")]
        return [node.target if isinstance(node.target, str) else node.target.__name__ for node in nodes]


def options(recorder: Recorder, **fields: Any) -> CaptureOptions:
    return CaptureOptions(backend=recorder, **fields)


def same(left: Any, right: Any) -> bool:
    """Equal containers of equal tensors and equal others."""
    left_leaves, left_tree = tree_flatten(left)
    right_leaves, right_tree = tree_flatten(right)
    if left_tree != right_tree:
        return False
    for a, b in zip(left_leaves, right_leaves, strict=True):
        if isinstance(a, torch.Tensor):
            if not isinstance(b, torch.Tensor) or a.dtype != b.dtype or not torch.equal(a, b):
                return False
        elif type(a) is not type(b) or a != b:
            return False
    return True


def captured_with(function: Callable[..., Any], **fields: Any) -> tuple[Callable[..., Any], Recorder, CaptureOptions]:
    recorder = Recorder()
    made = options(recorder, **fields)
    return with_options(function, made), recorder, made


SQUARES = tuple((torch.full((2, 2), value),) for value in (1.0, 2.0))


def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result, and the arguments afterwards."""
    return function(*arguments), arguments


def assert_same_as_eager(
    program: Callable[..., Any],
    mode: str = WHERE_IT_MUST,
    calls: Iterable[tuple[Any, ...]] = SQUARES,
    *,
    is_whole: bool = False,
    graphs: int | None = None,
    observed: Callable[..., Any] = called,
    **fields: Any,
) -> Recorder:
    """The program captured with the breaks of the mode does at each call what it does as it is, with arguments of its own.

    A program that `is_whole` has no breaks but those of the mode, and makes so many graphs.
    """
    __tracebackhide__ = True
    captured, recorder, made = captured_with(program, breaks_at=MODES[mode], **{"recompile_limit": 64, **fields})
    for arguments in calls:
        assert same(observed(captured, *_copied(arguments)), observed(program, *_copied(arguments)))
    if is_whole and MODES[mode] is None:
        assert not made.breaks, [str(reason) for reason in made.breaks]
        assert graphs is None or len(recorder.graphs) == graphs
    return recorder


def _copied(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tree_map(
        lambda leaf: (
            leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf
        ),
        arguments,
    )


def assert_agrees_at(
    program: Callable[..., Any],
    captured: Callable[..., Any],
    *calls: torch.Tensor,
    requires_grad: bool = True,
    others: Sequence[torch.Tensor] = (),
    parts: Sequence[str] = EVERYTHING,
    is_exact: bool = True,
) -> None:
    """Called with leaves like these, the two agree in what can be seen, gradients of the leaf and of `others` among it."""
    __tracebackhide__ = True
    for given in calls:

        def make(given: torch.Tensor = given) -> Any:
            leaf = given.detach().clone().requires_grad_(requires_grad)
            return [leaf, *others], [leaf]

        assert_same(observe(program, make), observe(captured, make), parts=parts, is_exact=is_exact)
