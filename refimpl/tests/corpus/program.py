"""What a program of the corpus is, and how its arguments are made."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Inputs(NamedTuple):
    """The arguments of one call, and the tensors whose gradients and memory are looked at afterwards (leaves, bases of views)."""

    sources: list[Tensor]
    arguments: list[Any]


MakeInputs = Callable[[bool], Inputs]  # with or without `requires_grad`; draws from the default generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A function, fresh inputs of it, and what is known of it beside what eager mode does.

    `build` makes the function anew: a module has its initial parameters. `with_gradients` says how it is run: with inputs that
    require a gradient, that do not, or both. `needs_data` marks programs whose shapes depend on values, `calls_again` those
    that are also called twice with the same arguments. `ways` are the only ones of aot, where others would show nothing more.

    `refused` maps a way of a room (`"aot.scatter"`) to a regular expression of the message with which that way refuses the
    program.
    """

    name: str
    topic: str
    build: Callable[[], Callable[..., Any]]
    make: MakeInputs
    rooms: frozenset[str]
    with_gradients: tuple[bool, ...] = (True, False)
    needs_data: bool = False
    calls_again: bool = False
    ways: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


class Topic:
    """Programs about one thing. `rooms` and `ways` say where and how they run, unless a program says so itself."""

    def __init__(self, name: str, *rooms: str, ways: tuple[str, ...] = ()) -> None:
        self.name = name
        self.rooms = rooms
        self.ways = ways
        self.programs: list[Program] = []

    def program(
        self, *inputs: MakeInputs, rooms: Collection[str] | None = None, **options: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Adds the decorated function, once for each way to make inputs."""

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            for make in inputs:
                suffix = f"-{make.__name__}" if len(inputs) > 1 else ""
                self.add(function.__name__ + suffix, lambda: function, make, rooms=rooms, **options)
            return function

        return add

    def add(
        self,
        name: str,
        build: Callable[[], Callable[..., Any]],
        make: MakeInputs,
        *,
        rooms: Collection[str] | None = None,
        **options: Any,
    ) -> None:
        """Adds one program whose function is made by `build`."""
        where = frozenset(self.rooms if rooms is None else rooms)
        options.setdefault("ways", self.ways)
        self.programs.append(Program(name=name, topic=self.name, build=build, make=make, rooms=where, **options))


# -------------------------------------------------------------------------------------------------------------- inputs


def given(make: Callable[[], tuple[Any, ...]]) -> MakeInputs:
    """What `make` gives; its floating and complex tensors are leaves that may require a gradient."""

    def inputs(requires_grad: bool) -> Inputs:
        arguments = list(make())
        sources = [a for a in arguments if isinstance(a, Tensor) and (a.is_floating_point() or a.is_complex())]
        return Inputs([s.requires_grad_(requires_grad) for s in sources], arguments)

    return inputs


def leaves(*shapes: tuple[int, ...]) -> MakeInputs:
    """Normal numbers of these shapes."""
    return given(lambda: tuple(torch.randn(shape) for shape in shapes))


def computed(*shapes: tuple[int, ...]) -> MakeInputs:
    """Tensors that were computed of leaves, so that a program may write to them."""

    def inputs(requires_grad: bool) -> Inputs:
        sources = [torch.randn(shape, requires_grad=requires_grad) for shape in shapes]
        return Inputs(sources, [source + 1 for source in sources])

    return inputs


def views(
    shape: tuple[int, ...], *view: Callable[[Tensor], Tensor], dtype: torch.dtype = torch.float32, others: int = 0
) -> MakeInputs:
    """Views of one tensor that was computed of a leaf, and after them `others` more tensors of ones, as large as the first."""

    def inputs(requires_grad: bool) -> Inputs:
        source = torch.randn(shape, dtype=dtype, requires_grad=requires_grad)
        whole = source + 1
        arguments = [one(whole) for one in view]
        return Inputs([source], [*arguments, *(torch.ones(arguments[0].shape) for _ in range(others))])

    return inputs


def named(name: str, make: MakeInputs) -> MakeInputs:
    """The same inputs under a name that tells them from others of the same program."""

    def inputs(requires_grad: bool) -> Inputs:
        return make(requires_grad)

    inputs.__name__ = name
    return inputs
