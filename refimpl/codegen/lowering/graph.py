"""Lowers a functional aten graph to steps of the loop IR: nests, and calls of the operators that have no lowering."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import sympy
import torch
from torch.fx.node import map_arg

from refimpl._torch import SYMBOLIC_TYPES, OpOverload, pytree
from refimpl.codegen.indices import ONE, ZERO, product, to_index
from refimpl.codegen.loop_ir import Buffer, Extern, Opaque, Output, SizeExpression, Step, new_axis
from refimpl.codegen.lowering import (
    attention,
    contractions,
    convolutions,
    indexing,
    pointwise,
    random,
    reductions,
    selection,
    views,
    windows,
    writes,
)
from refimpl.codegen.lowering.regions import Region, Regions, drawn_for, find_regions, in_order, reads_no_values
from refimpl.codegen.lowering.state import LoweringState, NotLowered, Rule, are_overlapping, have_strides, whole
from refimpl.codegen.lowering.tiles import lower_region
from refimpl.codegen.options import CodegenOptions, Contractions
from refimpl.codegen.scalars import Load, walk
from refimpl.codegen.sizes import NO_FACTS, SizeFacts, facts_of
from refimpl.codegen.source_lines import line_of, lines_behind
from refimpl.codegen.tensors import Computed, Stored
from refimpl.errors import UnsupportedByRefimpl
from refimpl.trace.refusals import operands_fit

RULES: dict[Any, Rule] = {
    **attention.RULES,
    **contractions.RULES,
    **convolutions.RULES,
    **indexing.RULES,
    **pointwise.RULES,
    **random.RULES,
    **reductions.RULES,
    **selection.RULES,
    **views.RULES,
    **windows.RULES,
    **writes.RULES,
}

# A node with several users is stored in memory if an element of it costs more functions than this,
CHEAP = 2
# unless it costs no more than this, and computing it loads no more than loading it would. Then no kernel needs to store it.
AFFORDABLE = 12
# Operators that copy the whole memory of their argument, gaps and offset included.
COPIES_OF_MEMORY = [
    getattr(torch.ops.aten, name)
    for name in dir(torch)
    if name.endswith("_scatter") and hasattr(torch.ops.aten, name.removesuffix("_scatter"))
]


@dataclass(frozen=True)
class LoweredGraph:
    """The steps in order, with the graph's inputs and outputs.

    `inputs`: a buffer for a tensor, an expression for a number, None for an unused input. `outputs`: a Stored, a SizeExpression,
    an Opaque, or a constant.
    """

    steps: tuple[Step, ...]
    inputs: tuple[Buffer | sympy.Expr | Opaque | None, ...]
    outputs: tuple[Any, ...]
    constants: dict[str, tuple[Buffer, torch.Tensor]]
    """Tensors of the graph module, by buffer name."""
    opaque_constants: dict[str, Any] = field(default_factory=dict)
    lowered: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    """Counts of lowered nodes and of fallbacks, by operator."""
    regions: Counter[str] = field(default_factory=Counter)
    """Counts of attention regions by kind, and reasons why others were not lowered."""
    facts: SizeFacts = NO_FACTS
    lines: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Source lines behind each node, by its name."""
    ones: frozenset[sympy.Expr] = frozenset()
    """Symbolic inputs that guards specialize to 1. Expressions computed from them contain their symbols."""
    offsets: Mapping[str, sympy.Expr] = field(default_factory=dict)
    """Symbolic storage offsets of inputs, and of results of which they are not known before the call, by name: the graph may
    return them, or need them to solve for a symbol."""


def lower_graph(
    graph_module: torch.fx.GraphModule,
    *,
    options: CodegenOptions | None = None,
    measured: Mapping[str, Contractions] | None = None,
) -> LoweredGraph:
    """Lowers a graph whose nodes have `meta["val"]`. With `options.strict` a call without a lowering raises UnsupportedByRefimpl,
    which names the operator and the user's line. `measured`: options of single nodes, by name."""
    return _GraphLowering(graph_module, options=options or CodegenOptions(), measured=measured or {}).run()


class _GraphLowering:
    def __init__(
        self,
        graph_module: torch.fx.GraphModule,
        *,
        options: CodegenOptions,
        measured: Mapping[str, Contractions],
    ) -> None:
        self.graph_module = graph_module
        self.options = options
        self.measured = measured
        placeholders = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
        self.state = LoweringState(options, facts=facts_of(node.meta.get("val") for node in placeholders))
        self.bases = _bases(graph_module.graph)
        self.values: dict[torch.fx.Node, Any] = {}
        self.drawn: set[torch.fx.Node] = set()
        self.returned: set[torch.fx.Node] = set()
        self.outputs = set(graph_module.graph.output_node().all_input_nodes)
        self.inputs: list[Buffer | sympy.Expr | Opaque | None] = []
        self.constants: dict[str, tuple[Buffer, torch.Tensor]] = {}
        self.opaque_constants: dict[str, Any] = {}
        self.opaque_count = 0
        self.ones: set[sympy.Expr] = set()
        self.offsets: dict[str, sympy.Expr] = {}
        self.lowered: Counter[str] = Counter()
        self.fallbacks: Counter[str] = Counter()
        self.regions: Counter[str] = Counter()

    def run(self) -> LoweredGraph:
        outputs: tuple[Any, ...] = ()
        graph = self.graph_module.graph
        regions = find_regions(graph) if self.options.fuse_attention else Regions()
        self.drawn = drawn_for(regions.found)
        self.regions.update(f"left: {reason}" for reason in regions.left)
        for node in in_order(graph, regions.found) if regions.found else graph.nodes:
            if isinstance(node, Region):
                self._region(node)
            elif node.op == "placeholder":
                self.values[node] = self._placeholder(node)
            elif node.op == "get_attr":
                self.values[node] = self._constant(node)
            elif node.op == "output":
                items = _as_sequence(node.args[0])
                self.returned.update(item for item in items if isinstance(item, torch.fx.Node))
                self.returned.update(self._viewed_twice())
                outputs = tuple(self._output(item) for item in items)
            else:
                self.values[node] = self._kept(node, self._call(node))
        return LoweredGraph(
            steps=(*self.state.seeds.values(), *self.state.steps),
            inputs=tuple(self.inputs),
            outputs=outputs,
            constants=self.constants,
            opaque_constants=self.opaque_constants,
            lowered=self.lowered,
            fallbacks=self.fallbacks,
            regions=self.regions,
            facts=self.state.facts,
            lines=lines_behind(self.graph_module.graph, self.values),
            ones=frozenset(self.ones),
            offsets=self.offsets,
        )

    # ---- values from outside

    def _placeholder(self, node: torch.fx.Node) -> Any:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            expr = self._number(value)
            self.inputs.append(None if expr.is_Integer else expr)
            return expr
        if value is not None and not isinstance(value, (bool, int, float, str, torch.Tensor)):
            self.inputs.append(Opaque(node.name))
            return self.inputs[-1]
        if not isinstance(value, torch.Tensor):
            self.inputs.append(None)
            return value
        if value.layout is torch.strided and isinstance(value.storage_offset(), torch.SymInt):
            self.offsets[node.name] = self._number(value.storage_offset())
        made = self._outside(node.name, value)
        self.inputs.append(made if isinstance(made, Opaque) else made.buffer)
        return made

    def _outside(self, name: str, fake: torch.Tensor) -> Stored | Opaque:
        if not _is_plain(fake):
            return _opaque(name, fake)
        buffer = Buffer(
            name,
            tuple(self._number(size) for size in fake.shape),
            tuple(self._number(step) for step in fake.stride()),
            fake.dtype,
            fake.device,
        )
        self.state.buffers[name] = buffer
        return whole(buffer)

    def _number(self, value: Any) -> Any:
        expr = to_index(value)
        if expr == 1 and isinstance(value, torch.SymInt):
            self.ones.add(value.node.expr)
        return expr

    def _constant(self, node: torch.fx.Node) -> Any:
        value: Any = self.graph_module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            return value
        made = self._outside(f"constant_{node.name}", value)
        if isinstance(made, Opaque):
            self.opaque_constants[made.name] = value
        else:
            self.constants[made.buffer.name] = made.buffer, value
        return made

    # ---- calls

    def _call(self, node: torch.fx.Node) -> Any:
        if node.target is operator.getitem:
            source, position = cast(Any, node.args)
            return self.values[source][position]
        value = node.meta.get("val")
        if isinstance(value, SYMBOLIC_TYPES) or (
            isinstance(value, (int, float, bool)) and not isinstance(node.target, OpOverload)
        ):
            if isinstance(value, torch.SymInt) and not _has_unbacked(node):
                return to_index(value)
            if isinstance(value, (int, float, bool)):
                return value
        arguments, keywords = self._lowered_arguments(node)
        function = RULES.get(node.target)
        reason = "no rule"
        if any(isinstance(leaf, Opaque) for leaf in pytree.tree_leaves((arguments, keywords))):
            function, reason = None, "an argument that is no strided tensor and no whole number"
        if function is not None and _has_unbacked(node):
            function, reason = None, "a result of which the call says the size or the offset"
        if _is_on_meta(value) or any(_is_on_meta(source.meta.get("val")) for source in node.all_input_nodes):
            function, reason = None, "tensors on the meta device"
        if node in self.bases and getattr(node.target, "overloadpacket", None) in COPIES_OF_MEMORY:
            function, reason = None, "as_strided, which reads what lies around it"
        if function is not None and not operands_fit(node.target, *_examples((node.args, node.kwargs))):
            function, reason = None, "operands that the operator refuses"
        if function is not None:
            mark = len(self.state.steps), len(self.state.buffers)
            if self.measured:
                chosen = self.measured.get(node.name, self.options.contractions)
                self.state.options = replace(self.options, contractions=chosen)
            try:
                result = function(self.state, node, *arguments, **keywords)
            except NotLowered as not_lowered:
                reason = str(not_lowered)
                self._undo(mark)
            else:
                self.lowered[str(node.target)] += 1
                return result
        return self._extern(node, arguments, keywords, reason)

    def _region(self, region: Region) -> None:
        """Lowers a region to tiled kernels, or node by node if that fails."""
        mark = len(self.state.steps), len(self.state.buffers)
        try:
            made = lower_region(self.state, region, self.values, RULES.get)
        except NotLowered as not_lowered:
            self._undo(mark)
            self.regions[f"left: {not_lowered}"] += 1
            for node in region.nodes:
                self.values[node] = self._kept(node, self._call(node))
        else:
            self.regions[region.kind] += 1
            self.values.update(made)
            self.lowered.update(str(node.target) for node in region.nodes)

    def _undo(self, mark: tuple[int, int]) -> None:
        del self.state.steps[mark[0] :]
        for name in list(self.state.buffers)[mark[1] :]:
            del self.state.buffers[name]

    def _lowered_arguments(self, node: torch.fx.Node) -> Any:
        if reads_no_values(node):  # its inputs may have no values in memory
            return torch.fx.map_arg((node.args, dict(node.kwargs)), self.values.get)
        return torch.fx.map_arg((node.args, dict(node.kwargs)), lambda argument: self.values[argument])

    def _kept(self, node: torch.fx.Node, value: Any) -> Any:
        """Stores a value in memory if computing it for every user is expensive, or if `as_strided` reads its memory."""
        if not isinstance(value, Computed):
            return value
        is_costly = len(node.users) > 1 and value.cost > CHEAP and not self._is_affordable(value)
        if is_costly or node in self.bases or node in self.drawn:
            return self.state.store(value, storable_strides(node.meta["val"]), (node.name,))
        if (
            node in self.outputs
            and len(node.users) > 1
            and not _is_view(_call_of(node))
            and self._reads_more_than(value, 7 / 8)
        ):
            return self._in_memory(value, node.meta["val"], node.name)  # it will be in memory anyway
        return value

    def _is_affordable(self, value: Computed) -> bool:
        """Whether every user may compute the value for itself."""
        is_cheap = value.cost <= AFFORDABLE and ZERO not in value.shape
        return is_cheap and not self._reads_more_than(value, 9 / 8)  # allows for one number per row in addition

    def _reads_more_than(self, value: Computed, share: float) -> bool:
        """Whether computing the whole value loads more than this share of its size, or through indirect indices."""
        axes = [new_axis(size) for size in value.shape]
        loads: set[tuple[str, sympy.Expr]] = set()
        read = 0
        for part in walk(value.at(tuple(axis.symbol for axis in axes))):
            if not isinstance(part, Load) or (part.buffer, part.index) in loads:
                continue
            if part.indirect:
                return True
            loads.add((part.buffer, part.index))
            points = product(axis.size for axis in axes if axis.symbol in part.index.free_symbols)
            read += self.state.facts.guess(points) * part.dtype.itemsize
        whole = self.state.facts.guess(product(value.shape)) * value.dtype.itemsize
        return read > whole * share

    def _extern(self, node: torch.fx.Node, arguments: Any, keywords: Any, reason: str) -> Any:
        if self.options.strict:
            line = line_of(node)
            raise UnsupportedByRefimpl(
                seen=f"{node.target} in a kernel: {reason}" + (f"\n  called at: {line}" if line else ""),
                supported="operators that become kernels, in strict mode",
                do="compile without strict, which calls the operator's own kernel",
            )
        self.fallbacks[str(node.target)] += 1
        schema = getattr(node.target, "_schema", None)
        is_mutating = schema.is_mutable if schema is not None else not _is_arithmetic(node.target)
        if is_mutating:
            self._settle()
        sources = {id(self.values[source]): source for source in node.all_input_nodes}
        may_share = schema is not None and not is_mutating and not any(result.alias_info for result in schema.returns)
        reads: set[str] = set()

        def operand(value: Any) -> Any:
            if isinstance(value, (Stored, Computed)):
                source = sources.get(id(value))
                if source is None:
                    stored = self.state.store(value, None, (node.name,))
                elif may_share:
                    stored = self._readable(source)
                else:
                    fake = source.meta.get("val")
                    strides = None if fake is None else storable_strides(fake, value)
                    stored = self.state.store(value, strides, (source.name,))
                reads.add(stored.buffer.name)
                return stored.as_operand()
            return SizeExpression(value) if isinstance(value, sympy.Expr) else value

        made_arguments, made_keywords = pytree.tree_map(operand, (tuple(arguments), keywords), is_leaf=_is_lowered)
        value = node.meta.get("val")
        is_list = isinstance(value, (list, tuple))
        used = _used_results(node)
        results = [
            self._result(fake if used is None or position in used else None, node)
            for position, fake in enumerate(value if is_list else [value])
        ]
        writes = frozenset(reads) if is_mutating else frozenset()
        self.state.steps.append(
            Extern(
                target=node.target,
                arguments=made_arguments,
                keywords=made_keywords,
                outputs=tuple(output for output, _ in results),
                is_list=is_list,
                reads=frozenset(reads),
                writes=writes,
                origin=node.name,
                reason=reason,
            )
        )
        lowered = [result for _, result in results]
        return lowered if is_list else lowered[0]

    def _readable(self, node: torch.fx.Node) -> Stored:
        """The value as an argument of a call that neither mutates nor returns it: in its present memory, or stored once for all
        calls that read it or views of it."""
        value = self.values[node]
        fake = node.meta.get("val")
        strides = None if fake is None else storable_strides(fake, value)
        stored = None if strides is None else self.state.in_memory(value)
        if strides is None or stored is None or not have_strides(stored, strides):
            stored = None if strides is None else self._of_base(node, strides)
            stored = self.state.store(value, strides, (node.name,)) if stored is None else stored
            self.values[node] = stored
        return stored

    def _of_base(self, node: torch.fx.Node, strides: Sequence[Any]) -> Stored | None:
        """A view with these strides, after storing its base. None if there is no such view."""
        chain = self._views_up_from(node)
        if not chain:
            return None
        base, fake = chain[-1], chain[-1].meta["val"]
        steps = storable_strides(fake)
        if steps is None:
            return None
        shape = tuple(to_index(size) for size in fake.shape)
        buffer = Buffer("", shape, tuple(map(to_index, steps)), fake.dtype, fake.device)
        viewed = self._viewed(chain, whole(buffer))
        if viewed is None or not have_strides(viewed, strides):
            return None
        self.values[base] = self.state.store(self.values[base], steps, (base.name,))
        return self._viewed(chain, self.values[base])

    def _views_up_from(self, node: torch.fx.Node) -> list[torch.fx.Node]:
        """The node, its base, the base of that, and so on, while these are computed and have equally many elements."""
        chain = [node]
        while _lies_in_its_input(chain[-1]) and isinstance(chain[-1].args[0], torch.fx.Node):
            base = chain[-1].args[0]
            value, mine = self.values[base], self.values[node]
            if not isinstance(value, Computed) or product(value.shape) != product(mine.shape):
                break
            chain.append(base)
        return chain if len(chain) > 1 else []

    def _viewed_twice(self) -> list[torch.fx.Node]:
        """Common bases of several results, which must share memory although the base is not a result."""
        chains = [self._views_up_from(node) for node in self.returned if isinstance(self.values[node], Computed)]
        sources = Counter(chain[-1] for chain in chains if chain)
        return [source for source, count in sources.items() if count > 1]

    def _viewed(self, chain: Sequence[torch.fx.Node], base: Stored) -> Stored | None:
        """Applies the views of a chain to a base in memory."""
        viewed: Any = base
        for call in reversed(chain[:-1]):
            arguments, keywords = self._lowered_arguments(call)
            viewed = RULES[call.target](self.state, call, viewed, *arguments[1:], **keywords)
            if not isinstance(viewed, Stored):
                return None
        return viewed

    def _result(self, fake: Any, node: torch.fx.Node) -> tuple[Output, Any]:
        if isinstance(fake, torch.Tensor) and _is_plain(fake):
            buffer = self.state.new_buffer(fake.shape, fake.dtype, fake.device, fake.stride())
            if _has_unbacked(node) and isinstance(fake.storage_offset(), torch.SymInt):
                self.offsets[buffer.name] = to_index(fake.storage_offset())
            return Output(buffer=buffer), whole(buffer)
        if isinstance(fake, torch.SymInt) and isinstance(to_index(fake), sympy.Symbol):
            return Output(symbol=to_index(fake)), to_index(fake)
        if fake is None or isinstance(fake, (int, float, bool)):
            return Output(), fake
        self.opaque_count += 1
        opaque = _opaque(f"opaque_{self.opaque_count}_{node.name}", fake)
        return Output(opaque=opaque), opaque

    def _settle(self) -> None:
        """Stores all computed values before a call that mutates memory, because they may read that memory."""
        for node, value in self.values.items():
            if isinstance(value, Computed):
                self.values[node] = self.state.store(value, None, (node.name,))

    def _in_memory(self, value: Stored | Computed, fake: torch.Tensor, origin: str) -> Stored:
        """Stores a result with its fake tensor's strides. Elements that are expanded along a dimension are stored once."""
        repeated = repeated_dims(fake) if isinstance(value, Computed) else []
        if not repeated:
            return self.state.store(value, storable_strides(fake, value), (origin,))
        once = tuple(ONE if dim in repeated else size for dim, size in enumerate(value.shape))
        sizes = [1 if dim in repeated else size for dim, size in enumerate(fake.shape)]
        strides = apart(sizes, fake.stride())
        made = self.state.store(Computed(once, value.dtype, value.device, value.at, value.cost), strides, (origin,))
        steps = tuple(
            to_index(said) if dim in repeated or size == ONE else step
            for dim, (size, step, said) in enumerate(zip(value.shape, made.strides, fake.stride(), strict=True))
        )
        return Stored(made.buffer, value.shape, steps, made.offset, is_whole=False)

    def _in_place(self, node: torch.fx.Node) -> Stored | None:
        """A result that is a view of an input or of another result, or whose elements overlap. None if it is not."""
        value: Any = self.values[node]
        if isinstance(value, Stored):
            return value
        call, position = cast(Any, node.args) if node.target is operator.getitem else (node, None)
        source = call.args[0] if _is_view(call) else None
        if not isinstance(value, Computed) or not isinstance(source, torch.fx.Node):
            return None
        if isinstance(self.values[source], Computed) and (source in self.returned or shares_places(node.meta["val"])):
            self._output(source)
        base = self._in_place(source)
        if base is None or not have_strides(base, source.meta["val"].stride()):
            return None
        if call.target is torch.ops.aten.view.default:
            fake = node.meta["val"]
            shape, steps = (tuple(to_index(number) for number in numbers) for numbers in (fake.shape, fake.stride()))
            return Stored(base.buffer, shape, steps, base.offset, is_whole=False)
        arguments, keywords = self._lowered_arguments(call)
        viewed = RULES[call.target](self.state, call, base, *arguments[1:], **keywords)
        viewed = viewed if position is None else viewed[position]
        return viewed if isinstance(viewed, Stored) else None

    def _output(self, item: Any) -> Any:
        if not isinstance(item, torch.fx.Node):
            return item
        value: Any = self._in_place(item) or self.values[item]
        if isinstance(value, (Stored, Computed)):
            self.values[item] = self._in_memory(
                value, item.meta["val"], item.name
            )  # stored once even if it is several outputs
            return self.values[item]
        return SizeExpression(value) if isinstance(value, sympy.Expr) else value


def _bases(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Nodes whose memory `as_strided` reads: its arguments, and their bases."""
    found: set[torch.fx.Node] = set()
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.as_strided.default):
        base = node.args[0]
        while isinstance(base, torch.fx.Node) and base not in found:
            found.add(base)
            call = _call_of(base)
            base = call.args[0] if _is_view(call) else None
    return found


def _call_of(node: torch.fx.Node) -> torch.fx.Node:
    """The call that a value is the result of, or a part of the result."""
    return node.all_input_nodes[0] if node.target is operator.getitem else node


def _is_view(node: torch.fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and any(result.alias_info for result in node.target._schema.returns)


def _lies_in_its_input(node: torch.fx.Node) -> bool:
    """Whether the result shares memory with the input, also by a view that autograd does not track."""
    return _is_view(node) or node.target is torch.ops.aten._unsafe_view.default


def _opaque(name: str, fake: Any) -> Opaque:
    if not isinstance(fake, torch.Tensor):
        return Opaque(name)
    strides = fake.stride() if fake.layout is torch.strided else ()
    return Opaque(name, tuple(to_index(size) for size in fake.shape), tuple(to_index(step) for step in strides))


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is a strided tensor that is neither quantized nor lazily conjugated or negated."""
    return tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


def _examples(arguments: Any) -> Any:
    """The arguments with fake tensors and symbolic numbers in place of nodes."""
    return map_arg(arguments, lambda node: node.meta.get("val"))


def _is_on_meta(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) and leaf.device.type == "meta" for leaf in pytree.tree_leaves(value))


def _is_arithmetic(target: Any) -> bool:
    return getattr(target, "__module__", None) in ("_operator", "math") or getattr(target, "__name__", "").startswith(
        "sym_"
    )


def _used_results(node: torch.fx.Node) -> set[int] | None:
    """The used positions of a list result. None if it is used as a whole."""
    positions: set[int] = set()
    for user in node.users:
        if user.target is not operator.getitem:
            return None
        positions.add(cast(int, user.args[1]))
    return positions


def _is_lowered(value: Any) -> bool:
    return isinstance(value, (Stored, Computed))


def _as_sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else (value,)


def _has_unbacked(node: torch.fx.Node) -> bool:
    return bool(node.meta.get("unbacked_bindings"))


# Strides that a result is stored with: its fake tensor's, except that overlapping elements are stored once.


def repeated_dims(fake: torch.Tensor) -> list[int]:
    """Dimensions along which a tensor is expanded (stride 0)."""
    return [
        dim
        for dim, (size, step) in enumerate(zip(fake.shape, fake.stride(), strict=True))
        if isinstance(step, int) and step == 0 and not (isinstance(size, int) and size <= 1)
    ]


def storable_strides(fake: torch.Tensor, value: Any = None) -> Any:
    """The fake tensor's strides. None, which means contiguous, if elements would overlap. A tensor that is in memory keeps its
    strides."""
    return fake.stride() if isinstance(value, Stored) else apart(fake.shape, fake.stride())


def shares_places(fake: torch.Tensor) -> bool:
    """Whether elements overlap other than by expansion, as windows of a tensor do (`unfold`)."""
    repeated = repeated_dims(fake)
    return apart([1 if dim in repeated else size for dim, size in enumerate(fake.shape)], fake.stride()) is None


def apart(shape: Sequence[Any], strides: Sequence[Any]) -> Any:
    """The strides, or None if elements overlap."""
    if any(not isinstance(number, int) for number in (*shape, *strides)):
        return strides if 0 not in strides else None
    return None if are_overlapping(shape, strides) else strides
