"""Alias analysis of a graph: finds each tensor's base and the chain of views from the base to the tensor, by schemas.

Counterpart: ViewMeta in aten/src/ATen/FunctionalStorageImpl.h, and the alias analysis of AOT autograd's collect_metadata_analysis
Differs: one analysis of a whole graph, with or without mutation; upstream attaches view metadata to tensors while a program runs.

A base is a placeholder, an attribute, or a call whose result is in fresh memory. Every other tensor is a view of its base by a
chain of `ViewStep`s. The node of an in-place op is the same tensor as the argument that it writes to (`tensor_of`).
`as_strided` reads the storage and not the tensor it is called on, so its step starts at the base, or at the last view in between
that reads the storage as another dtype or conjugated.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch

from refimpl._torch import OpOverload
from refimpl.functionalize.geometry import extent_of, has_symbols
from refimpl.functionalize.schemas import (
    METADATA_OPS,
    RESIZE_OPS,
    SET_OPS,
    ResultAlias,
    effects_of,
    nodes_in,
)
from refimpl.trace.layouts import is_same_shape


class _Viewed:
    """Placeholder for the viewed tensor in a step's arguments."""

    def __repr__(self) -> str:
        return "VIEWED"


VIEWED: Final = _Viewed()

_aten = torch.ops.aten
AS_STRIDED = _aten.as_strided.default
_NONE_DECOMPOSED: Mapping[torch.fx.Node, Any] = MappingProxyType({})
# Views whose elements differ from the base's: `view(dtype)`, and lazy conjugation or negation.
REINTERPRETING = frozenset(
    {
        _aten.view.dtype,
        _aten.view_as_real.default,
        _aten.view_as_complex.default,
        _aten._conj.default,
        _aten._neg_view.default,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewStep:
    """One view: `target(*args, **kwargs)` with `source` in place of VIEWED, or the result at `output_index` of such a call.

    `node` is the view's node: the call itself, the getitem of its result, or an op such as `t_` or `set_` that turns a tensor
    object into a view. `as_strided` always has size, stride and offset, in elements of the storage.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output_index: int | None
    node: torch.fx.Node
    source: torch.fx.Node


@dataclass(frozen=True, slots=True, kw_only=True)
class DecomposedView:
    """A view call that the graph has in decomposed form; `output_index` as in a ViewStep."""

    target: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output_index: int | None


class AliasMap:
    """The bases and views of a graph. Of `meta["val"]` it reads sizes, strides and offsets. Nodes that are no tensors are bases.

    decomposed: maps the last node of a decomposed view call to this call, which is then its `step_of`.

    enlarges: how `resize_` to more elements than the storage has is treated. If True and sizes are integers, the storage grows,
    for all its views: `enlarged` maps the base to its size in bytes before. Else the tensor gets fresh memory: `grown` maps the
    new base to the tensor.

    owners: nodes that are bases although the graph makes them by view ops: nothing else uses the memory.

    follows_autograd: the `_unsafe_view` of an intermediate that nothing else uses is a base, as it is for autograd.
    """

    def __init__(
        self,
        graph: torch.fx.Graph | torch.fx.GraphModule,
        *,
        enlarges: bool = False,
        decomposed: Mapping[torch.fx.Node, DecomposedView] = _NONE_DECOMPOSED,
        owners: Collection[torch.fx.Node] = (),
        follows_autograd: bool = False,
    ) -> None:
        self._tensor: dict[torch.fx.Node, torch.fx.Node] = {}
        self._step: dict[torch.fx.Node, ViewStep] = {}
        self._called_on: dict[torch.fx.Node, torch.fx.Node] = {}
        self._base: dict[torch.fx.Node, torch.fx.Node] = {}
        self._writes: dict[torch.fx.Node, list[torch.fx.Node]] = {}
        self._members: dict[torch.fx.Node, list[torch.fx.Node]] = {}
        self._typed: dict[tuple[torch.fx.Node, torch.dtype], torch.fx.Node] = {}
        self._elements: dict[tuple[torch.fx.Node, Any], torch.fx.Node] = {}
        self.grown: dict[torch.fx.Node, torch.fx.Node] = {}
        self.enlarged: dict[torch.fx.Node, int] = {}
        self._enlarges = enlarges
        self._decomposed = decomposed
        self.owners = owners
        self._follows_autograd = follows_autograd
        attributes: dict[str, torch.fx.Node] = {}
        for node in (graph.graph if isinstance(graph, torch.fx.GraphModule) else graph).nodes:
            if node.op == "get_attr":
                self._same_tensor(node, attributes.setdefault(node.target, node))
            elif node.op == "call_function":
                self._call(node)
            else:
                self._own(node)

    def base_of(self, node: torch.fx.Node) -> torch.fx.Node:
        """The placeholder, attribute or call whose memory the node's tensor is in."""
        return self._base[node]

    def tensor_of(self, node: torch.fx.Node) -> torch.fx.Node:
        """The first node of the same tensor object: for `add_(x, 1)` that of x."""
        return self._tensor[node]

    def step_of(self, node: torch.fx.Node) -> ViewStep | None:
        """The last view that leads to the node; None for a base."""
        return self._step.get(self._tensor[node])

    def steps_of(self, node: torch.fx.Node) -> tuple[ViewStep, ...]:
        """The views from the base to the node."""
        steps: list[ViewStep] = []
        step = self._whole_step_of(node)
        while step is not None:
            steps.append(step)
            step = self._whole_step_of(step.source)
        return tuple(reversed(steps))

    def calls_to(self, node: torch.fx.Node) -> tuple[ViewStep, ...]:
        """The views from the base to the node as the program called them: an as_strided comes after the views it was called on.

        The values are those of `steps_of`. Gradients differ: elements outside the tensor that as_strided was called on get none.
        """
        steps: list[ViewStep] = []
        step = self._whole_step_of(node)
        while step is not None:
            steps.append(step)
            is_whole = step.node in self._decomposed
            step = self._whole_step_of(step.source if is_whole else self._called_on[step.node])
        return tuple(reversed(steps))

    def writes_to(self, base: torch.fx.Node) -> tuple[torch.fx.Node, ...]:
        """The calls that write to the memory of `base`, directly or through a view, in order."""
        return tuple(self._writes.get(base, ()))

    def tensors_in(self, base: torch.fx.Node) -> tuple[torch.fx.Node, ...]:
        """The first node of every tensor in the memory of `base`, beginning with `base`."""
        return tuple(self._members[base])

    def as_strided_views_of(self, base: torch.fx.Node) -> tuple[torch.fx.Node, ...]:
        """The results of `as_strided` in the memory of `base`."""
        return tuple(member for member in self._members[base] if is_as_strided(self._step.get(member)))

    def written_bases(self) -> tuple[torch.fx.Node, ...]:
        """The bases whose memory is written, in the order of their first writes."""
        return tuple(self._writes)

    def grown_by(self, node: torch.fx.Node, call: torch.fx.Node | None) -> torch.fx.Node | None:
        """The base that the tensor becomes by `call`, if the call resized it to more elements than its memory has; else None."""
        if not self.grown:
            return None
        tensor = self._tensor[node]
        return next(
            (
                new
                for new, old in self.grown.items()
                if old is tensor and call in (new, new.args[0] if new.args else None)
            ),
            None,
        )

    # ------------------------------------------------------------------------------------------------------ the walk

    def _whole_step_of(self, node: torch.fx.Node) -> ViewStep | None:
        """The last view that leads to the node: the call before decomposition, if the graph has it decomposed."""
        step = self.step_of(node)
        whole = None if step is None else self._decomposed.get(step.node)
        if step is None or whole is None:
            return step
        alias = view_of(whole.target)
        assert alias is not None
        source = alias.parameter.of(whole.args, whole.kwargs)
        args, kwargs = _with_viewed(alias, source, whole.args, whole.kwargs)
        return ViewStep(
            target=whole.target,
            args=args,
            kwargs=kwargs,
            output_index=whole.output_index,
            node=step.node,
            source=self._tensor[source],
        )

    def _own(self, node: torch.fx.Node) -> None:
        self._tensor[node] = self._base[node] = node
        self._members[node] = [node]

    def _same_tensor(self, node: torch.fx.Node, tensor: torch.fx.Node) -> None:
        """`node` is the same tensor object as `tensor`."""
        if node is tensor:
            self._own(node)
            return
        self._tensor[node] = self._tensor[tensor]
        self._base[node] = self._base[tensor]

    def _view(
        self, node: torch.fx.Node, source: torch.fx.Node, target: Any, args: Any, kwargs: Any, index: Any
    ) -> None:
        source = self._called_on[node] = self._tensor[source]
        if target is AS_STRIDED:
            source = self._storage_view(source)
        step = ViewStep(target=target, args=args, kwargs=kwargs, output_index=index, node=node, source=source)
        self._tensor[node] = node
        self._step[node] = step
        base = self._base[node] = self._base[source]
        self._members[base].append(node)
        if target is _aten.view.dtype and source is base and len(base.meta["val"].shape) == 1:
            self._typed.setdefault((base, args[1]), node)  # a one-dimensional base covers its storage

    def _storage_view(self, source: torch.fx.Node) -> torch.fx.Node:
        """The tensor that an `as_strided` of `source` is a view of: the base, unless a view between reinterprets the elements."""
        dtype, base = source.meta["val"].dtype, self._base[source]
        while (step := self._step.get(source)) is not None:
            if step.target in REINTERPRETING:
                has_bits = step.target in (_aten._conj.default, _aten._neg_view.default)
                if has_bits:
                    return source
                return base if dtype == base.meta["val"].dtype else self._typed.get((base, dtype), source)
            source = self._tensor[step.source]
        return source

    def _call(self, node: torch.fx.Node) -> None:
        target: Any = node.target
        if target is operator.getitem:
            self._element(node)
            return
        effects = effects_of(target)
        for parameter in effects.written:
            for written in nodes_in(parameter.of(node.args, node.kwargs)):
                writes = self._writes.setdefault(self._base[written], [])
                if not writes or writes[-1] is not node:
                    writes.append(node)
        if target in SET_OPS:
            self._set(node)
        elif target in RESIZE_OPS:
            self._resize(node)
        elif len(effects.results) == 1 and (alias := effects.results[0]) is not None and not alias.is_list:
            self._alias(node, node, alias, None)
        else:
            self._own(node)

    def _element(self, node: torch.fx.Node) -> None:
        call, index = node.args
        assert isinstance(call, torch.fx.Node)
        known = self._elements.setdefault((call, index), node)
        if known is not node:
            self._same_tensor(node, known)
            return
        results = effects_of(call.target).results
        if isinstance(index, int) and results and call.op == "call_function":
            alias = results[0] if len(results) == 1 else results[index]
            if alias is not None and (len(results) > 1) != alias.is_list:
                self._alias(node, call, alias, index)
                return
        self._own(node)

    def _alias(self, node: torch.fx.Node, call: torch.fx.Node, alias: ResultAlias, index: int | None) -> None:
        """Record that the result of `call` at `index` is an argument or a view of one."""
        given = alias.parameter.of(call.args, call.kwargs)
        if alias.kind == "same" and alias.is_list and index is not None and isinstance(given, (list, tuple)):
            given = given[index]
        if not isinstance(given, torch.fx.Node):
            self._own(node)
        elif alias.kind == "same" and effects_of(call.target).is_out_variant and _is_resized(given, node):
            self._own(node)
            self.grown[node] = self._tensor[given]
        elif alias.kind == "same":
            self._same_tensor(node, given)
        elif node in self.owners or (self._follows_autograd and self._takes_over(node, given)):
            self._own(node)
        else:
            target = METADATA_OPS.get(call.target, call.target)
            args, kwargs = _with_viewed(alias, given, call.args, call.kwargs)
            if target is AS_STRIDED:
                args, kwargs = (VIEWED, *_strided_arguments(call, given)), {}
            self._view(node, given, target, args, kwargs, index if alias.is_list else None)

    def _takes_over(self, node: torch.fx.Node, given: torch.fx.Node) -> bool:
        """Whether `node` is an `_unsafe_view` and nothing else uses the memory of `given`."""
        whole = self._decomposed.get(node)
        if _aten._unsafe_view.default not in (node.target, None if whole is None else whole.target):
            return False
        while set(given.users) == {node}:
            if self._base[given] is given:
                return given.op == "call_function"
            tensor = self._tensor[given]
            node, given = given, self._called_on[given] if tensor is given else tensor
        return False

    def _set(self, node: torch.fx.Node) -> None:
        source = node.args[1] if len(node.args) > 1 else None
        if not isinstance(source, torch.fx.Node):
            self._own(node)
        elif node.target is _aten.set_.source_Tensor:
            self._view(node, source, _aten.alias.default, (VIEWED,), {}, None)
        else:
            self._as_strided_like(node, source, node)

    def _resize(self, node: torch.fx.Node) -> None:
        """Record a `resize_`: a view if the memory suffices, else larger memory that begins with the old elements."""
        source = node.args[0]
        assert isinstance(source, torch.fx.Node)
        memory, after = self._storage_view(self._tensor[source]).meta["val"], node.meta["val"]
        if after.numel() <= source.meta["val"].numel() or extent_of(after)[1] <= extent_of(memory)[1]:
            self._as_strided_like(node, source, node)
        elif self._enlarges and not has_symbols(memory) and not has_symbols(after):
            self._enlarge(self._base[source], after)
            self._as_strided_like(node, source, node)
        else:
            self._own(node)
            self.grown[node] = self._tensor[source]

    def _enlarge(self, base: torch.fx.Node, after: torch.Tensor) -> None:
        seen = [base.meta["val"], *(view.meta["val"] for view in self.as_strided_views_of(base))]
        room = max(extent_of(value)[1] * value.element_size() for value in seen)
        if extent_of(after)[1] * after.element_size() > room:
            self.enlarged.setdefault(base, room)

    def _as_strided_like(self, node: torch.fx.Node, source: torch.fx.Node, like: torch.fx.Node) -> None:
        value = like.meta["val"]
        args = (VIEWED, list(value.shape), list(value.stride()), value.storage_offset())
        self._view(node, source, AS_STRIDED, args, {}, None)


def is_as_strided(step: ViewStep | None) -> bool:
    """Whether the step is an `as_strided`."""
    return step is not None and step.target is AS_STRIDED


def _with_viewed(alias: ResultAlias, source: torch.fx.Node, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], Any]:
    """The arguments of a view call, with VIEWED in place of the viewed tensor."""
    position, name = alias.parameter.position, alias.parameter.name
    arguments = tuple(VIEWED if arg is source and i == position else arg for i, arg in enumerate(args))
    return arguments, {key: VIEWED if key == name else arg for key, arg in kwargs.items()}


def _is_resized(before: torch.fx.Node, after: torch.fx.Node) -> bool:
    """Whether an `out=` tensor had another shape before the call."""
    a, b = before.meta.get("val"), after.meta.get("val")
    return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and not is_same_shape(a.shape, b.shape)


def _strided_arguments(call: torch.fx.Node, viewed: torch.fx.Node) -> tuple[Any, Any, Any]:
    """Size, stride and offset of an as_strided; the default offset is that of the viewed tensor."""
    names = ("size", "stride", "storage_offset")
    given: list[Any] = [*call.args[1:], None, None, None][:3]
    size, stride, offset = (call.kwargs.get(name, value) for name, value in zip(names, given, strict=True))
    return size, stride, viewed.meta["val"].storage_offset() if offset is None else offset


def view_of(target: Any) -> ResultAlias | None:
    """The alias of a view op's result, or of each tensor in its list of results; None if the op is not a view op."""
    if not isinstance(target, OpOverload) or target in SET_OPS or target in RESIZE_OPS or target in METADATA_OPS:
        return None
    results = effects_of(target).results
    return results[0] if len(results) == 1 and results[0] is not None and results[0].kind == "view" else None


def is_view_call(node: torch.fx.Node) -> bool:
    """Whether the call's result, or all of its results, are views of an argument."""
    if not isinstance(node.target, OpOverload) or node.target in SET_OPS or node.target in RESIZE_OPS:
        return False
    results = effects_of(node.target).results
    return bool(results) and all(alias is not None and alias.kind == "view" for alias in results)
