"""What an example of the documentation is, how it is run, and the checks that examples share.

An example is a program of our own that does what a code example of a page does. It gets `api`, which stands for the module
`torch` of the page: `api.compile`, `api._dynamo.graph_break`, `api.export.export`. With refimpl these are refimpl's functions
(`refimpl.SUBSTITUTION_PARTS`); a program run with PyTorch's own shows that the program itself is right.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from refimpl.errors import RefimplError
from refimpl.tests.corpus.compare import assert_same, observe
from refimpl.upstream.substitutions import SUBSTITUTION_PARTS


class NoCounterpart(RefimplError):
    """refimpl has no function for a name that a page uses."""

    def __init__(self, name: str) -> None:
        super().__init__(f"refimpl has no counterpart of {name}")


class Ending(Enum):
    """How an example ended. `REFUSED`: an error where the page shows none. `WRONG`: something else than what must hold."""

    RIGHT = "right"
    REFUSED = "refused"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A program after a page. `entry` is the function that the page shows."""

    name: str
    area: str
    page: str
    path: str
    entry: str
    run: Callable[[Any], None]

    def __str__(self) -> str:
        return f"{self.area}/{self.name}"


class Page:
    """A page of docs.pytorch.org: decorates programs that follow its examples."""

    examples: list[Example] = []

    def __init__(self, area: str, title: str, path: str, entry: str = "compile") -> None:
        self.area, self.title, self.path, self.entry = area, title, path, entry

    def __call__(self, run: Callable[[Any], None] | None = None, *, entry: str = "") -> Any:
        """Add a program, under its name."""

        def add(run: Callable[[Any], None]) -> Callable[[Any], None]:
            self.examples.append(
                Example(
                    name=run.__name__, area=self.area, page=self.title, path=self.path, entry=entry or self.entry, run=run
                )
            )  # fmt: skip
            return run

        return add if run is None else add(run)


class Names:
    """A module of the documentation, whose names are found as they are asked for."""

    def __init__(self, path: str, find: Callable[[str], Any]) -> None:
        self._path = path
        self._find = find

    def __getattr__(self, name: str) -> Any:
        return self._find(f"{self._path}.{name}")


@functools.cache
def _homes() -> dict[str, str]:
    return {name: home for part in SUBSTITUTION_PARTS.values() for name, home in part.items()}


def of_refimpl() -> Any:
    """`torch` with refimpl's entry points. Raises NoCounterpart for other names."""

    def find(name: str) -> Any:
        if name in _homes():
            module, _, attribute = _homes()[name].rpartition(".")
            return getattr(importlib.import_module(module), attribute)
        if any(known.startswith(f"{name}.") for known in _homes()):
            return Names(name, find)
        raise NoCounterpart(name)

    return Names("torch", find)


def ending_of(example: Example, api: Any) -> tuple[Ending, str]:
    """Run an example: how it ended, and the first line of its error."""
    api.compiler.reset()
    torch.manual_seed(0)
    try:
        example.run(api)
    except AssertionError as error:
        return Ending.WRONG, _first_line(error)
    except Exception as error:
        return Ending.REFUSED, _first_line(error)
    return Ending.RIGHT, ""


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


class Graphs:
    """A backend that runs graphs as they are and keeps them."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, graph: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        self.graphs.append(graph)
        return graph.forward

    def __len__(self) -> int:
        return len(self.graphs)


def same(eager: Callable[..., Any], compiled: Callable[..., Any], *inputs: Any) -> None:
    """The two have equal values, layouts, gradients and effects on copies of the inputs, and on parameters of a module."""
    __tracebackhide__ = True

    def make() -> tuple[list[Tensor], list[Any]]:
        given = [_copied(value) for value in inputs]
        return [value for value in given if isinstance(value, Tensor) and value.requires_grad], given

    module = eager if isinstance(eager, torch.nn.Module) else None
    before = None if module is None else {name: value.clone() for name, value in module.state_dict().items()}
    expected = observe(eager, make, module=module)
    if module is not None and before is not None:
        module.load_state_dict(before)
    assert_same(expected, observe(compiled, make, module=module))


def _copied(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def equal(actual: Any, expected: Any) -> None:
    """Close tensors, or equal others."""
    __tracebackhide__ = True
    if isinstance(expected, Tensor):
        torch.testing.assert_close(actual, expected)
    else:
        assert actual == expected, f"{actual!r}, but should be {expected!r}"


@contextmanager
def raising(*kinds: Any, text: str = "") -> Iterator[None]:
    """The block must raise one of these errors, with this text in its message."""
    __tracebackhide__ = True
    raised = ""
    try:
        yield
    except kinds as error:
        raised = f"{type(error).__name__}: {error}"
    assert raised, f"nothing was raised, but should be {' or '.join(kind.__name__ for kind in kinds)}"
    assert text in raised, f"the message is {raised[:200]!r}, but should say {text!r}"


def leaf(*shape: int) -> Tensor:
    """Normal numbers of this shape, which require a gradient."""
    return torch.randn(*shape, requires_grad=True)
