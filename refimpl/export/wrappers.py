"""Functions that exported graphs call on wrapper subclasses: one makes a wrapper of its dense tensors, one reads a tensor of it.

Counterpart: torch/_higher_order_ops/flat_apply.py; torch/export/custom_ops.py access_subclass_inner_tensor
Differs: a graph as `export` returns it reads attributes by `getattr`, as the program did.

Note [Gradients of wrappers]
Autograd sees the wrapper, and not what is inside of it. A class decides what the gradient of its wrapper is, so no rule gives it
from gradients of the dense tensors. A decomposed graph computes on dense tensors. Where a gradient would have to pass between
them and a wrapper, its calls raise GradientOfWrapper.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from refimpl._torch import FakeTensor, HigherOrderOperator, is_traceable_wrapper_subclass
from refimpl.aot.analysis.subclasses import WrapperLayout, build, dense_parts, layout_of
from refimpl.errors import UnsupportedByRefimpl
from refimpl.export.errors import GradientOfWrapper
from refimpl.trace.recording_mode import RecordingMode, paused_recordings
from refimpl.trace.tracker import inner_tensors


class WrapperMaker:
    """A call target that makes a wrapper of one layout from its dense tensors.

    with_history: for each dense tensor whether it keeps its autograd history; those of a wrapper that an operator returned have
    none. refuses_gradients: see Note [Gradients of wrappers].
    """

    def __init__(
        self, layout: WrapperLayout, *, with_history: tuple[bool, ...] = (), refuses_gradients: bool = False
    ) -> None:
        self.layout = layout
        self._with_history = with_history or (True,) * layout.count
        self._refuses_gradients = refuses_gradients
        self.__name__ = f"make_{layout.kind.__name__.lower()}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.layout.kind.__name__} of {', '.join(self.layout.attributes)})"

    def __call__(self, *parts: Any) -> torch.Tensor:
        if self._refuses_gradients and torch.is_grad_enabled():
            for part in parts:
                if _is_real(part) and part.requires_grad:
                    raise GradientOfWrapper(
                        f"a {self.layout.kind.__name__} as a result, made of tensors that require gradients"
                    )
        kept = [part if keeps else part.detach() for part, keeps in zip(parts, self._with_history, strict=True)]
        return build(self.layout, kept)


class InputMaker(WrapperMaker):
    """Makes an input of a dense program while it is traced, and notices a write that puts another tensor into the wrapper."""

    def __init__(self, layout: WrapperLayout, name: str) -> None:
        super().__init__(layout)
        self._name = name
        self._made: list[tuple[torch.Tensor, tuple[Any, ...]]] = []

    def __call__(self, *parts: Any) -> torch.Tensor:
        made = super().__call__(*parts)
        self._made.append((made, parts))
        return made

    def check(self) -> None:
        """Raises UnsupportedByRefimpl if a wrapper has other tensors inside than it was made of. To be called after the trace."""
        made, self._made = self._made, []
        for wrapper, parts in made:
            found = dense_parts(wrapper)
            if len(found) != len(parts) or any(a is not b for a, b in zip(found, parts, strict=True)):
                raise UnsupportedByRefimpl(
                    seen=f"the decomposition of a program that puts another tensor into {self._name}, a {type(wrapper).__name__}",
                    supported="in-place operators that write to the tensors inside of a wrapper",
                    do="use the program as `export` returns it",
                )


def refuse_operands(graph: fx.Graph) -> None:
    """Raises UnsupportedByRefimpl for a wrapper as an operand of a higher-order operator: it has no rule for the class."""
    for node in graph.nodes:
        values = (
            [arg.meta.get("val") for arg in node.all_input_nodes]
            if isinstance(node.target, HigherOrderOperator)
            else []
        )
        kinds = [type(value).__name__ for value in values if is_wrapper(value)]
        if kinds:
            raise UnsupportedByRefimpl(
                seen=f"{node.target} on a {kinds[0]}",
                supported="higher-order operators on dense tensors",
                do="read the tensors inside of the wrapper before the call, and use them in the function",
            )


def part_of(wrapper: Any, name: str) -> Any:
    """The tensor in the attribute of a wrapper that is an input of a decomposed graph."""
    part = getattr(wrapper, name)
    if torch.is_grad_enabled() and wrapper.requires_grad and _is_real(part):
        raise GradientOfWrapper(f"a {type(wrapper).__name__} that requires gradients as an input")
    return part


def _is_real(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and not any(isinstance(each, FakeTensor) for each in dense_parts(part))


def is_of_wrappers(node: fx.Node) -> bool:
    """Whether the node makes a wrapper, or reads a tensor of one."""
    if isinstance(node.target, WrapperMaker):
        return True
    owner = node.args[0] if node.target in (getattr, part_of) and len(node.args) == 2 else None
    return isinstance(owner, fx.Node) and is_wrapper(owner.meta.get("val"))


def is_wrapper(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and is_traceable_wrapper_subclass(value)


def record_wrapper(recording: RecordingMode, value: Any) -> None:
    """Give a wrapper that the program made a node, which makes it from the nodes of its dense tensors."""
    layout = layout_of(value)
    if layout is None or recording.can_find(value):
        return
    parts = dense_parts(value)
    if value.requires_grad or not all(isinstance(part, torch.Tensor) for part in parts):
        raise UnsupportedByRefimpl(
            seen=f"a result of class {layout.kind.__name__} that the program makes"
            + (", and that requires gradients" if value.requires_grad else ", with an object inside that is no tensor"),
            supported="wrappers of tensors, made without an autograd function",
            do="return the tensors inside of the wrapper, and make it outside of the program",
        )
    maker = WrapperMaker(layout, with_history=tuple(part.requires_grad for part in parts))
    with paused_recordings():
        node = recording.builder.call(maker, tuple(map(recording.node_of, parts)), {})
        recording.builder.describe(node, value)
        recording.track(value, node)


def paths_of(wrapper: torch.Tensor) -> Iterator[tuple[tuple[str, ...], torch.Tensor]]:
    """The dense tensors of a wrapper, each with the attributes that lead to it. Raises UnsupportedByRefimpl for other objects."""
    found = dict(inner_tensors(wrapper))
    names, _ = wrapper.__tensor_flatten__()  # type: ignore[attr-defined]
    for name in names:
        if name not in found:
            raise UnsupportedByRefimpl(
                seen=f"the decomposition of a program with a {type(wrapper).__name__}, whose {name!r} is no tensor",
                supported="wrappers that hold only tensors",
                do="use the program as `export` returns it",
            )
        if is_wrapper(found[name]):
            yield from (((name, *path), part) for path, part in paths_of(found[name]))
        else:
            yield (name,), found[name]


def read_part(graph: fx.Graph, node: fx.Node, path: tuple[str, ...], function: Any) -> fx.Node:
    """Nodes that read the dense tensor at `path` of a node's wrapper by `function`, `getattr` or `part_of`."""

    def read(owner: fx.Node, name: str) -> fx.Node:
        made = graph.call_function(function, (owner, name))
        made.meta["val"] = getattr(owner.meta["val"], name)
        return made

    return functools.reduce(read, path, node)
