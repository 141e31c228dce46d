"""Replaces calls of mutating ops by functional calls, whose results are the new values of the written arguments.

Counterpart: the functionalization kernels of torchgen/gen_functionalization_type.py, and
torch/_higher_order_ops/auto_functionalize.py
Differs: one rule for all ops, by schema. An op without a functional overload is called on clones, by torch's higher-order ops
`auto_functionalized_v2` and `auto_functionalized`, which backends can lower.
"""

from __future__ import annotations

from typing import Any

import torch

from refimpl._torch import FakeTensor
from refimpl.functionalize.emitter import EmitterState, map_nodes
from refimpl.functionalize.errors import CannotFunctionalize, SymbolicMemory
from refimpl.functionalize.functional_forms import FunctionalForm, functional_form
from refimpl.functionalize.geometry import is_dense, is_row_major, is_same_geometry, is_same_layout
from refimpl.functionalize.memory import MemoryState
from refimpl.functionalize.schemas import Parameter, effects_of, nodes_in
from refimpl.functionalize.written_bases import WrittenBases
from refimpl.trace.internal_overlap import updates_overlapping_elements
from refimpl.trace.layouts import is_same_shape
from refimpl.trace.metadata import note, notes_of
from refimpl.trace.read_after_write import reads_what_it_writes
from refimpl.trace.triton_kernels import also_writing

_aten = torch.ops.aten
Node = torch.fx.Node
_RANDOM_FROM = getattr(_aten.random_, "from")
_NORMAL = frozenset(
    {
        _aten.normal_.default,
        *(getattr(_aten.normal, f"{mean}_{std}_out") for mean in ("Tensor", "float") for std in ("Tensor", "float")),
    }
)
_DRAWN_AT_ONCE = 16  # eager draws 16 or more contiguous normal numbers by a vectorized loop, in another order
_MOST_DRAWN_ONE_BY_ONE = 1 << 14

# Ops whose fake kernels return other strides than the real kernels for arguments that are not contiguous. Results of later ops
# depend on the strides, so these results are made contiguous.
_UNCERTAIN_LAYOUTS = frozenset(
    {
        _aten.index_fill.int_Scalar,
        _aten.index_fill.int_Tensor,
        _aten.uniform.default,
        _aten.copysign.Tensor,
        _aten.div.Tensor_mode,
        _aten.floor_divide.default,
    }
)


class CallWriter:
    """Adds the functional form of mutating calls. Puts results that are new tensors into `results`, by (call, index)."""

    def __init__(self, emit: EmitterState, memory: MemoryState, results: dict[tuple[Node, int | None], Node]) -> None:
        self.emit = emit
        self.memory = memory
        self.results = results

    def write_call(self, node: Node, map_argument: Any) -> None:
        """Emit the functional form of the call and write its new values."""
        self._check_order(node)
        effects = effects_of(node.target)
        lists = [parameter.of(node.args, node.kwargs) for parameter in effects.written]
        # No other op's lists are independent.
        is_foreach = str(getattr(node.target, "_opname", "")).startswith("_foreach")
        if is_foreach and not effects.results and any(isinstance(given, (list, tuple)) for given in lists):
            count = max(len(given) for given in lists if isinstance(given, (list, tuple)))
            if count > 1 and self._may_share_memory(node, lists):
                for index in range(count):
                    self._write_one(
                        node, _items(node.args, index, count), _items(node.kwargs, index, count), map_argument
                    )
                return
        self._write_one(node, node.args, node.kwargs, map_argument)

    def _check_order(self, node: Node) -> None:
        """Raises CannotFunctionalize if the result depends on the order in which the kernel reads and writes elements."""

        def value_of(given: Node) -> Any:
            return given.meta.get("val")

        args, kwargs = map_nodes(node.args, value_of), map_nodes(node.kwargs, value_of)
        if reads_what_it_writes(node.target, args, kwargs):
            raise CannotFunctionalize(
                node,
                seen="it writes to memory that it also reads as another argument, so the order of reads and writes matters",
                expected="arguments that do not share memory",
                do="pass a clone of one argument",
            )
        if not updates_overlapping_elements(node.target, args, kwargs):
            return
        raise CannotFunctionalize(
            node,
            seen="it updates a tensor whose elements overlap in memory, so the order in which elements are computed matters",
            expected="a tensor without overlapping elements",
            do="write to a clone of the tensor",
        )

    def _may_share_memory(self, node: Node, written: list[Any]) -> bool:
        """Whether a tensor that a foreach op writes to shares a base with another argument. The kernel goes item by item."""
        base_of = self.memory.aliases.base_of
        bases = [base_of(item) for item in nodes_in(written)]
        others = [base_of(item) for item in nodes_in([*node.args, *node.kwargs.values()]) if self.memory.is_known(item)]
        return any(others.count(base) > 1 for base in bases)

    def _write_one(self, node: Node, given_args: Any, given_kwargs: Any, map_argument: Any) -> None:
        target: Any = node.target
        if target is _RANDOM_FROM:
            self._draw(given_args, map_argument)
            return
        form = functional_form(target)
        if form is None:
            self._call_on_clones(node, given_args, given_kwargs, map_argument)
            return
        args, kwargs = form.arguments(target, given_args, given_kwargs)
        args, kwargs = map_nodes(args, map_argument), map_nodes(kwargs, map_argument)
        if target in _NORMAL and self._draw_one_by_one(node, given_args, args, kwargs):
            return
        if not _is_removable(form) and self._draw_in_memory_order(node, given_args, form, args, kwargs):
            return
        if form.options:
            out = next(n for p in effects_of(target).written for n in nodes_in(p.of(given_args, given_kwargs)))
            like = out.meta["val"]
            kwargs.update({name: getattr(like, name) for name in ("dtype", "device") if name in form.options})
        call = self.emit.call(form.target, *args, is_extra=_is_removable(form), **kwargs)
        if form.target in _UNCERTAIN_LAYOUTS and not all(map(_is_contiguous, nodes_in([*args, *kwargs.values()]))):
            call = self.emit.call(_aten.clone.default, call, memory_format=torch.contiguous_format)
        elif args and isinstance(args[0], Node) and _is_first(form.returns):
            note(call, has_strides_of_first=True)
        is_single = len(form.returns) == 1
        values = [call] if is_single else [self.emit.element(call, i) for i in range(len(form.returns))]
        self._write_results(node, given_args, given_kwargs, form.returns, values)

    def _draw(self, args: Any, map_argument: Any) -> None:
        """`random_(from, to)`. The overload `from` cannot be printed as Python; `random_(to - from) + from` draws the same."""
        self_, first, end = args
        value = map_argument(self_)
        if end is None:
            raise CannotFunctionalize(
                self.emit.origin,
                seen="random_ is given only a lower bound",
                expected="both bounds, or neither",
                do="pass the upper bound too",
            )
        value = self.emit.call(_aten.random.to, value, end - first, is_extra=False)
        if first != 0:
            value = self.emit.call(_aten.add.Tensor, value, first)
        self._write_tensor(self_, value)

    def _draw_one_by_one(self, node: Node, given_args: Any, args: Any, kwargs: Any) -> bool:
        """Draw normal numbers for a tensor that is not contiguous: eager draws them in the order of memory, by its scalar loop.

        To get that loop, draw parts of fewer than 16 numbers each. False if eager uses its vectorized loop.
        """
        written = next(n for p in effects_of(node.target).written for n in nodes_in(p.of(given_args, node.kwargs)))
        like = written.meta["val"]
        sizes = (*like.shape, *like.stride())
        if like.device.type != "cpu" or like.dtype.is_complex:
            return False
        if any(type(size) is not int for size in sizes):
            raise SymbolicMemory(
                node,
                seen="normal numbers are drawn in the order of memory, which depends on symbolic sizes and strides",
                expected="integer sizes",
                do="draw into a new tensor, and copy it",
            )
        is_in_place = node.target is _aten.normal_.default
        value = args[0].meta["val"] if is_in_place else None
        if value is not None and is_same_geometry(like, value) and is_dense(value):
            return False  # the functional op uses the same loop
        count = like.numel()
        if count < _DRAWN_AT_ONCE or is_row_major(like):
            return False
        if count > _MOST_DRAWN_ONE_BY_ONE:
            raise CannotFunctionalize(
                node,
                seen=f"{count} normal numbers are drawn into a tensor that is not contiguous",
                expected=f"at most {_MOST_DRAWN_ONE_BY_ONE} numbers, or a contiguous tensor",
                do="draw into a new tensor, and copy it",
            )
        mean, std = _normal_arguments(args[1:] if is_in_place else args, kwargs)
        if isinstance(std, Node):  # the op checks that no standard deviation in the tensor is negative
            raise CannotFunctionalize(
                node,
                seen="normal numbers with a tensor `std` are drawn into a tensor that is not contiguous",
                expected="a number as `std`, or a contiguous tensor",
                do="draw into a new tensor, and copy it",
            )
        drawn_mean = 0.0 if isinstance(mean, Node) else mean  # a tensor of means is added afterwards, as the op does
        generator = {"generator": kwargs["generator"]} if kwargs.get("generator") is not None else {}
        parts = self._parts_drawn(like, drawn_mean, std, generator)
        order = sorted(range(like.dim()), key=lambda d: -like.stride(d))
        drawn = self.emit.call(_aten.cat.default, parts)
        drawn = self.emit.call(_aten.view.default, drawn, [like.shape[d] for d in order])
        drawn = self.emit.call(_aten.permute.default, drawn, [order.index(d) for d in range(like.dim())])
        if isinstance(mean, Node):
            drawn = self.emit.call(_aten.add.Tensor, drawn, mean)
        self._write_tensor(written, drawn)
        return True

    def _parts_drawn(self, like: torch.Tensor, mean: Any, std: Any, generator: dict[str, Any]) -> list[Node]:
        """Vectors of fewer than 16 normal numbers each, together as many as `like` has elements."""
        parts: list[Node] = []
        for start in range(0, like.numel(), _DRAWN_AT_ONCE - 1):
            empty = self.emit.call(
                _aten.empty.memory_format,
                [min(_DRAWN_AT_ONCE - 1, like.numel() - start)],
                dtype=like.dtype,
                device=like.device,
            )
            part = self.emit.call(_aten.normal_functional.default, empty, mean, std, is_extra=False, **generator)
            if (state := notes_of(part).random_state) is not None:
                note(part, random_state=(state, len(parts)))
            parts.append(part)
        return parts

    def _draw_in_memory_order(self, node: Node, given_args: Any, form: FunctionalForm, args: Any, kwargs: Any) -> bool:
        """Draw for a tensor that is not contiguous: draw for its contiguous permutation, then permute back.

        False if the tensor is contiguous, or its memory order is not known.
        """
        written = given_args[0] if given_args else None
        if len(form.returns) != 1 or not isinstance(written, Node) or not isinstance(args[0], Node):
            return False
        like, value = written.meta["val"], args[0].meta["val"]
        strides = like.stride()
        if form.target is _aten.normal_functional.default and is_same_geometry(like, value) and is_dense(value):
            return False  # eager uses the vectorized loop for such tensors, and the op keeps their strides
        if like.dim() < 2 or any(type(s) is not int or s == 0 for s in strides):
            return False
        order = sorted(range(like.dim()), key=lambda d: -strides[d])
        if order == list(range(like.dim())) and is_row_major(value):
            return False
        tensors = nodes_in([*args, *kwargs.values()])
        if any(t.meta["val"].dim() != like.dim() for t in tensors if isinstance(t.meta.get("val"), torch.Tensor)):
            return False

        def reordered(argument: Node) -> Node:
            if not isinstance(argument.meta.get("val"), torch.Tensor):
                return argument
            moved = self.emit.call(_aten.permute.default, argument, order)
            return self.emit.call(_aten.clone.default, moved, memory_format=torch.contiguous_format)

        drawn = self.emit.call(form.target, *map_nodes(args, reordered), is_extra=False, **map_nodes(kwargs, reordered))
        back = [order.index(d) for d in range(len(order))]
        self._write(written, self.emit.call(_aten.permute.default, drawn, back))
        return True

    def _call_on_clones(self, node: Node, given_args: Any, given_kwargs: Any, map_argument: Any) -> None:
        target: Any = node.target
        names = [argument.name for argument in target._schema.arguments]
        given = dict(zip(names, given_args, strict=False)) | dict(given_kwargs)
        for argument in target._schema.arguments:
            if argument.name not in given and argument.has_default_value():
                given[argument.name] = argument.default_value
        shared = self._read_with_written(target, given)
        target = also_writing(target, shared) or target
        if self._call_on_bases(node, target, given, map_argument):
            return
        if target is not node.target:
            raise CannotFunctionalize(
                node,
                seen=f"a Triton kernel reads {', '.join(shared)} in memory that it writes as another argument, which is a view "
                "of a tensor with gaps or with permuted dimensions",
                expected="views of contiguous tensors, or arguments that do not share memory",
                do="pass a clone of one argument",
            )
        effects = effects_of(target)
        kwargs = map_nodes(given, self._as_in_program(map_argument))
        call = self.emit.call(torch.ops.higher_order.auto_functionalized, target, is_extra=False, **kwargs)
        count = max(1, len(effects.results))
        for index, alias in enumerate(effects.results):
            if alias is None:
                key = None if len(effects.results) == 1 else index
                self.results[node, key] = self.emit.element(call, index)
            elif alias.kind == "view":
                raise CannotFunctionalize(
                    node,
                    seen="it writes to an argument and returns a view of it",
                    expected="an op that returns the written argument itself, or a new tensor",
                    do="return nothing from the op, and take the view outside of it",
                )
        for position, parameter in enumerate(effects.written):
            if parameter.of(given_args, given_kwargs) is not None:
                self._write(parameter.of(given_args, given_kwargs), self.emit.element(call, count + position))

    def _read_with_written(self, target: Any, given: dict[str, Any]) -> list[str]:
        """The arguments that the op does not write, but that are views of the same base as one that it writes."""
        base_of = self.memory.aliases.base_of
        written = {parameter.name for parameter in effects_of(target).written}
        bases = {base_of(item) for name in written for item in nodes_in(given[name])}
        nodes = {name: value for name, value in given.items() if name not in written and isinstance(value, Node)}
        return [name for name, value in nodes.items() if self.memory.is_known(value) and base_of(value) in bases]

    def _as_in_program(self, map_argument: Any) -> Any:
        """Maps arguments of an opaque op, which may depend on strides: each has those that it has in the program."""

        def mapped(argument: Node) -> Any:
            value, like = map_argument(argument), argument.meta.get("val")
            now = value.meta.get("val") if isinstance(value, Node) else None
            if not isinstance(now, torch.Tensor) or not isinstance(like, torch.Tensor) or is_same_layout(now, like):
                return value
            return self.memory.views.with_layout(value, like)

        return mapped

    def _call_on_bases(self, node: Node, target: Any, given: dict[str, Any], map_argument: Any) -> bool:
        """Call the op on copies of the bases of what it writes to: two views of one base are copied together.

        False if the op returns an argument, or if a view has no description.
        """
        effects = effects_of(target)
        if any(alias is not None for alias in effects.results):
            return False
        types = {argument.name: str(argument.type) for argument in target._schema.arguments}
        bases = WrittenBases(self.memory)
        names = [parameter.name for parameter in effects.written]
        described = bases.described([(name, "List[" in types[name], given[name]) for name in names])
        if described is None:
            return False
        read = {name: value for name, value in given.items() if name not in names}
        others = map_nodes(read, self._as_in_program(map_argument))
        values = [map_argument(base) for base in bases.nodes]
        operator = torch.ops.higher_order.auto_functionalized_v2
        kwargs = {**others, **self.emit.number(described), "_all_bases": values}
        call = self.emit.call(operator, target, is_extra=False, **kwargs)
        count = len(effects.results)
        for index in range(count):
            self.results[node, None if count == 1 else index] = self.emit.element(call, index)
        new = [self.emit.element(call, max(1, count) + index) for index in range(len(bases.nodes))]
        written = bases.written  # each written argument is a write to its base
        if target is not node.target:
            own = {parameter.name for parameter in effects_of(node.target).written}
            written = [base for name, base in zip(names, written, strict=True) if name in own]
        for base in written:
            self._write_tensor(base, new[bases.nodes.index(base)])
        return True

    def _write_results(
        self, node: Node, args: Any, kwargs: Any, returns: tuple[int | Parameter, ...], values: list[Node]
    ) -> None:
        results = effects_of(node.target).results
        for returned, value in zip(returns, values, strict=True):
            if isinstance(returned, Parameter):
                self._write(returned.of(args, kwargs), value)
            else:
                self.results[node, None if len(results) == 1 else returned] = value

    def _write(self, given: Any, value: Node) -> None:
        if isinstance(given, (list, tuple)):
            for index, item in enumerate(given):
                if isinstance(item, Node):
                    self._write_tensor(item, self.emit.element(value, index))
        elif isinstance(given, Node):
            self._write_tensor(given, value)

    def _write_tensor(self, node: Node, value: Node) -> None:
        grown = self.memory.aliases.grown_by(node, self.emit.origin)
        like = (grown or node).meta["val"]
        value = self._converted(node, value, like)
        if grown is None:
            self.memory.write(node, value)
            return
        self.memory.outgrow(self.memory.aliases.tensor_of(node), grown)
        self.memory.own(grown, value)

    def _converted(self, node: Node, value: Node, like: Any) -> Node:
        """Convert the value to the dtype and shape of the tensor that is written to."""
        now = value.meta["val"]
        if not isinstance(now, FakeTensor) or not isinstance(like, torch.Tensor):
            return value
        if now.dtype != like.dtype:
            value = self.emit.call(_aten._to_copy.default, value, dtype=like.dtype, layout=like.layout)
        if not is_same_shape(now.shape, like.shape):
            if now.dim() > like.dim():
                raise CannotFunctionalize(
                    node,
                    seen=f"it writes a value of shape {tuple(now.shape)} to a tensor of shape {tuple(like.shape)}",
                    expected="a value that can be expanded to the shape of the written tensor",
                    do="resize the tensor first",
                )
            value = self.emit.call(_aten.expand.default, value, self.emit.number(like.shape))
        return value


def _is_first(returns: tuple[int | Parameter, ...]) -> bool:
    """Whether the only result is the new value of the first argument."""
    return len(returns) == 1 and isinstance(returns[0], Parameter) and returns[0].position == 0


def _normal_arguments(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Mean and standard deviation, passed by position or by name."""
    mean = args[0] if args else kwargs.get("mean", 0.0)
    return mean, args[1] if len(args) > 1 else kwargs.get("std", 1.0)


def _is_contiguous(node: Node) -> bool:
    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or is_row_major(value)


def _items(value: Any, index: int, count: int) -> Any:
    """The arguments with every list of `count` items replaced by a list of its item at `index`."""
    if isinstance(value, dict):
        return {key: _item(item, index, count) for key, item in value.items()}
    return tuple(_item(item, index, count) for item in value)


def _item(value: Any, index: int, count: int) -> Any:
    return [value[index]] if isinstance(value, (list, tuple)) and len(value) == count else value


def _is_removable(form: FunctionalForm) -> bool:
    return torch.Tag.nondeterministic_seeded not in form.target.tags
