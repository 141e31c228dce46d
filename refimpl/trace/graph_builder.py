"""Builds the fx graph of a trace: placeholders, calls, constants, output. Knows nothing of the dispatcher.

Counterpart: torch/fx/experimental/proxy_tensor.py PythonKeyTracer, and torch/fx/_symbolic_trace.py Tracer.create_arg
Differs: one `get_attr` node per constant, not one per use.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from refimpl._torch import FakeTensorMode, LazyGraphModule, PyTreeCodeGen, PyTreeInfo, printed_rightly, pytree
from refimpl.errors import UntraceableOutput
from refimpl.trace.metadata import describe

# Values that can be arguments of a node as they are.
LITERALS = (
    bool,
    int,
    float,
    complex,
    str,
    type(None),
    type(...),
    slice,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)

# Named after their overloads, `sym_size_int`, as numbers of tensors and assertions are upstream.
_NAMED_BY_OVERLOAD = frozenset(
    (
        torch.ops.aten.sym_size.int,
        torch.ops.aten.sym_stride.int,
        torch.ops.aten.sym_storage_offset.default,
        torch.ops.aten._assert_scalar.default,
    )
)


class GraphBuilder:
    """Mutable; one per trace."""

    def __init__(self) -> None:
        self.graph = torch.fx.Graph()
        self.root = torch.nn.Module()
        # Each is called with every new call and get_attr node, and writes meta that says where the node comes from.
        self.annotators: list[Callable[[torch.fx.Node], None]] = []
        self._constants: dict[tuple[bool, int], torch.fx.Node] = {}
        self._kept: list[object] = []  # keeps the objects of `_constants` alive, so that no id is used twice
        self._counts: dict[str, int] = {}  # next number of an attribute's name, by stem
        self._names: dict[Any, str] = {}
        self.fake_mode: FakeTensorMode | None = None  # in real mode one that only owns the `val`s of nodes

    def describe(self, node: torch.fx.Node, value: Any) -> None:
        """Write `val` and `tensor_meta` of the value into the node's meta (refimpl.trace.metadata.describe)."""
        if self.fake_mode is None and isinstance(value, (torch.Tensor, list, tuple)):
            self.fake_mode = FakeTensorMode(allow_fallback_kernels=True)
        describe(node, value, self.fake_mode)

    def placeholder(self, name: str, value: Any) -> torch.fx.Node:
        """A placeholder after those made so far."""
        node = self.graph.placeholder(name)
        self.describe(node, value)
        return node

    def late_placeholder(self, name: str, value: Any) -> torch.fx.Node:
        """A placeholder made after calls were recorded, placed after the other placeholders."""
        after = next((node for node in self.graph.nodes if node.op != "placeholder"), None)
        if after is None:  # inserting_before(None) would put it first
            return self.placeholder(name, value)
        with self.graph.inserting_before(after):
            return self.placeholder(name, value)

    def call(self, func: Callable[..., Any], args: Any, kwargs: Any, *, name: str | None = None) -> torch.fx.Node:
        """A call_function node, named after the op (`add`, `add_1`) unless `name` is given. `args` and `kwargs` hold nodes in
        place of tensors."""
        func = printed_rightly(func, args)
        found = self._names.get(func)
        if found is None:
            packet = func if func in _NAMED_BY_OVERLOAD else getattr(func, "overloadpacket", func)
            found = self._names[func] = self.graph._target_to_str(name or packet.__name__)
        node = self.graph.create_node("call_function", func, args, kwargs, name=found)
        for annotate in self.annotators:
            annotate(node)
        return node

    def getitem(self, node: torch.fx.Node, index: int | str, value: Any) -> torch.fx.Node:
        """A getitem node for an element of a list, tuple or dict that a node returns."""
        item = self.graph.call_function(operator.getitem, (node, index))
        self.describe(item, value)
        for annotate in self.annotators:
            annotate(item)
        return item

    def constant(self, value: object) -> torch.fx.Node:
        """The get_attr node of an attribute that holds this very object, so that it still aliases the program's own state."""
        # A script object gets a new Python wrapper each time it is read, and its hash is that of the C++ object.
        key = (True, hash(value)) if isinstance(value, torch.ScriptObject) else (False, id(value))
        node = self._constants.get(key)
        if node is None:
            name = self._free_name(_stem(value))
            setattr(self.root, name, value)
            node = self.graph.get_attr(name)
            self.describe(node, value)
            for annotate in self.annotators:
                annotate(node)
            self._constants[key] = node
            self._kept.append(value)
        return node

    def is_constant(self, value: object) -> bool:
        """Whether the graph already has this very object as an attribute."""
        return id(value) in self._constants

    def output(self, value: Any, *, in_spec: pytree.TreeSpec, names: list[str]) -> None:
        """Set the graph's output; `value` holds nodes in place of tensors. Nested inputs and registered containers need fx's
        pytree code generator, which prints flattening code."""
        leaves, out_spec = pytree.tree_flatten(value)
        for leaf in leaves:
            if not isinstance(leaf, (torch.fx.Node, *LITERALS)):
                raise UntraceableOutput(leaf)
        is_flat = all(child.is_leaf() for child in in_spec.children())
        if is_flat and _is_plain(value):
            self.graph.output(value)
            return
        self.graph.set_codegen(PyTreeCodeGen(PyTreeInfo(names, in_spec, out_spec)))
        self.graph.output(leaves)

    def finish(self, class_name: str) -> torch.fx.GraphModule:
        """The GraphModule. Its Python code is only generated once it is read or run."""
        return LazyGraphModule(self.root, self.graph, class_name)

    def _free_name(self, stem: str) -> str:
        count = self._counts.get(stem, 0)
        while hasattr(self.root, f"{stem}{count}"):
            count += 1
        self._counts[stem] = count + 1
        return f"{stem}{count}"


def _stem(value: object) -> str:
    if isinstance(value, torch.nn.Parameter):
        return "_param_constant"
    return "_tensor_constant" if isinstance(value, torch.Tensor) else "_object_constant"


def _is_plain(value: object) -> bool:
    """Whether the value is nodes and constants in tuples, lists and dicts with string keys, which need no flattening code."""
    if type(value) in (tuple, list):
        return all(map(_is_plain, value))  # type: ignore[call-overload]
    if type(value) is dict:
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return isinstance(value, (torch.fx.Node, *LITERALS))
