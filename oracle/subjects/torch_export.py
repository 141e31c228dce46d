"""Convert another implementation's exported program to torch's ExportedProgram, to save it as .pt2, decompose or lower it.

Counterpart: torch/_export/serde/serialize.py GraphModuleDeserializer, which builds one from text
Differs: reads a program in memory, by the fields that all ExportedProgram classes have. Graph, specs, symbols and fake tensors
are created anew; parameters, buffers and constants are shared.

Note [What is created anew]
Sizes in a graph are expressions over symbols of a ShapeEnv. Another implementation has its own ShapeEnv, and its own classes for
FloorDiv and the like. Each symbol becomes one of torch's, with the same name, range and hint; each expression is rebuilt from
torch's functions; each fake tensor is created again in a FakeTensorMode with these symbols.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import sympy
import torch
from torch import fx
from torch._export.verifier import TrainingIRVerifier, Verifier
from torch._guards import ShapeGuard, SLoc, Source
from torch._higher_order_ops.wrap import wrap_with_autocast, wrap_with_set_grad_enabled
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.export import graph_signature as torch_signature
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.node import map_arg
from torch.types import py_sym_types
from torch.utils import _pytree as pytree
from torch.utils._sympy import functions as torch_functions
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from oracle.errors import UsageError

__all__ = ["NotConvertible", "to_torch"]

# Functions of sizes that have another name in torch.
_RENAMED: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "IntAbs": sympy.Abs,
        "FloatAbs": sympy.Abs,
        "FloatAdd": sympy.Add,
        "FloatMul": sympy.Mul,
        "FloatSub": lambda left, right: sympy.Add(left, -right),
        "FloatNeg": lambda value: -value,
        "IsNonOverlappingAndDense": torch_functions.IsNonOverlappingAndDenseIndicator,
        "BitwiseAnd": torch_functions.BitwiseFn_bitwise_and,
        "BitwiseOr": torch_functions.BitwiseFn_bitwise_or,
        "BitwiseXor": torch_functions.BitwiseFn_bitwise_xor,
    }
)
# Higher-order operators that run a graph in another mode, by name.
_REGIONS: Mapping[str, Any] = MappingProxyType(
    {"wrap_with_set_grad_enabled": wrap_with_set_grad_enabled, "wrap_with_autocast": wrap_with_autocast}
)
_META_LEFT_OUT = ("val", "tensor_meta", "unbacked_bindings")  # created again, or made of the other ShapeEnv's symbols


class NotConvertible(UsageError):
    """The program has something without a counterpart in torch's ExportedProgram."""


def to_torch(program: Any) -> ExportedProgram:
    """torch's ExportedProgram of a program with the same fields: graph, signature, state, constants, ranges, calls, guards.

    Parameters, buffers and constants are shared with `program`, whose graph does not change. The result has passed torch's
    verifier. `program` may also be torch's own.

    Raises NotConvertible for objects that are no exported program, tensor subclasses, and nodes that torch does not have.
    """
    missing = [name for name in _FIELDS if not hasattr(program, name)]
    if missing:
        raise NotConvertible(
            seen=f"a {type(program).__module__}.{type(program).__qualname__} without {', '.join(missing)}",
            expected="an exported program",
            do="give what `export` returned",
        )
    conversion = _Conversion(symbol_values=_symbol_values(program))
    for expr, bounds in program.range_constraints.items():
        if expr.is_Symbol:
            conversion.symbol(expr, bounds)
    graph_module = conversion.graph_module(program.graph_module)
    signature = _signature(program.graph_signature)
    state, constants = _state_and_constants(program, signature)
    conversion.add_guards(program, _user_inputs(program, graph_module.graph, signature))
    verifier = TrainingIRVerifier if program.dialect == "TRAINING" else Verifier
    converted = ExportedProgram(
        root=graph_module,
        graph=graph_module.graph,
        graph_signature=signature,
        state_dict=state,
        range_constraints={
            conversion.expression(expr): conversion.range_of(expr, bounds)
            for expr, bounds in program.range_constraints.items()
        },
        module_call_graph=[_module_call(entry) for entry in program.module_call_graph],
        example_inputs=program.example_inputs,
        constants=constants,
        verifiers=[verifier],
    )
    converted._guards_code += getattr(program, "_guards_code", [])
    conversion.finish()
    return converted


_FIELDS = (
    "graph_module", "graph_signature", "state_dict", "constants", "range_constraints", "module_call_graph",
    "example_inputs", "dialect",
)  # fmt: skip


@dataclass
class _Conversion:
    """State of a conversion: torch's new ShapeEnv and FakeTensorMode, and maps from old objects to new ones."""

    symbol_values: Mapping[Any, int]  # hints of the program's symbols
    shape_env: ShapeEnv = field(default_factory=ShapeEnv)
    ranges: dict[sympy.Symbol, ValueRanges[Any]] = field(default_factory=dict)
    _symbols: dict[Any, sympy.Symbol] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fake_mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=self.shape_env)

    # ----------------------------------------------------------------------------------------------------- symbols

    def symbol(self, old: Any, bounds: Any = None) -> sympy.Symbol:
        """torch's symbol for one of the program's, created when first needed."""
        if old in self._symbols:
            return self._symbols[old]
        value = self.symbol_values.get(old)
        assumptions = {"integer": True} if old.is_integer else {"real": True}
        if value is not None and old.is_positive:
            assumptions["positive"] = True
        new = sympy.Symbol(old.name, **assumptions)
        self._symbols[old] = new
        self.ranges[new] = known = self.range_of(old, bounds)
        # The trace holds for sizes from 2 on, even if the program declares no lower bound.
        lower = max(known.lower, 2) if value is not None and value >= 2 and old.is_positive else known.lower
        self.shape_env.constrain_symbol_range(new, compiler_min=lower, compiler_max=known.upper)
        if value is not None:
            self.shape_env.add_backed_var_to_val(new, value)
        return new

    def range_of(self, old: Any, bounds: Any) -> ValueRanges[Any]:
        """torch's range for the bounds of a number; None if there are none."""
        is_int = bool(old.is_integer)
        if bounds is None:
            return (
                ValueRanges(2 if old.is_positive else -int_oo, int_oo) if is_int else ValueRanges(-sympy.oo, sympy.oo)
            )
        return ValueRanges(_bound(bounds.lower, is_int), _bound(bounds.upper, is_int))

    def expression(self, old: Any) -> Any:
        """The expression rebuilt from torch's symbols and functions."""
        if not isinstance(old, sympy.Basic) or old.is_Atom:
            return self.symbol(old) if isinstance(old, sympy.Symbol) else old
        arguments = [self.expression(argument) for argument in old.args]
        kind = type(old)
        if kind.__module__.startswith(("sympy.", "torch.")):
            return kind(*arguments)
        name = kind.__name__
        made = _RENAMED.get(name) or getattr(torch_functions, name.replace("Math_", "OpaqueUnaryFn_"), None)
        if made is None:
            raise NotConvertible(
                seen=f"the function {name} in the size {old}",
                expected="one of torch.utils._sympy.functions",
                do="export the program without this size, or keep it static",
            )
        return made(*arguments)

    def number(self, old: Any) -> Any:
        """The converted symbolic number; a plain number is returned as it is."""
        if not isinstance(old, py_sym_types):
            return old
        expr = self.expression(old.node.expr)
        if not expr.free_symbols:
            kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(old)]
            return kind(expr)
        hint = self._hint(expr)
        match old:
            case torch.SymInt():
                return self.shape_env.create_symintnode(expr, hint=None if hint is None else int(hint))
            case torch.SymFloat():
                return self.shape_env.create_symfloatnode(expr, hint=None if hint is None else float(hint))
            case _:
                return self.shape_env.create_symboolnode(expr)

    def _hint(self, expr: Any) -> Any:
        known = self.shape_env.backed_var_to_val
        return expr.subs(known) if expr.free_symbols <= set(known) else None

    def finish(self) -> None:
        """Advance the symbol counters, so that symbols of a later trace get new names."""
        numbers = [
            int(symbol.name[1:]) for symbol in self.ranges if symbol.name[0] == "u" and symbol.name[1:].isdigit()
        ]
        self.shape_env.unbacked_symint_counter = max(numbers, default=-1) + 1

    # ----------------------------------------------------------------------------------------------------- values

    def value(self, old: Any) -> Any:
        """The converted metadata of a node: containers of fake tensors and numbers. Other values are kept."""
        return pytree.tree_map(self._leaf, old, is_leaf=lambda leaf: isinstance(leaf, torch.Size))

    def _leaf(self, old: Any) -> Any:
        if isinstance(old, torch.Tensor):
            return self._tensor(old)
        if isinstance(old, torch.Size):
            return torch.Size([self.number(size) for size in old])
        return self.number(old)

    def _tensor(self, old: torch.Tensor) -> torch.Tensor:
        if not isinstance(old, FakeTensor):
            if type(old) not in (torch.Tensor, torch.nn.Parameter):
                raise NotConvertible(
                    seen=f"a {type(old).__qualname__} in a graph",
                    expected="plain tensors",
                    do="export with plain tensors, or unwrap the subclass first",
                )
            return self.fake_mode.from_tensor(old, static_shapes=True)
        options: dict[str, Any] = {"dtype": old.dtype, "device": old.device}
        with self.fake_mode:
            if old.layout is not torch.strided:
                made = torch.empty([self.number(size) for size in old.shape], layout=old.layout, **options)
            else:
                sizes, strides = ([self.number(size) for size in sizes] for sizes in (old.shape, old.stride()))
                made = torch.empty_strided(sizes, strides, **options)
        if isinstance(old, torch.nn.Parameter):
            return torch.nn.Parameter(made, requires_grad=old.requires_grad)
        return made.requires_grad_(old.requires_grad) if old.is_leaf or not old.requires_grad else made

    # ----------------------------------------------------------------------------------------------------- graphs

    def graph_module(self, old: fx.GraphModule) -> fx.GraphModule:
        """A new graph with the same nodes. Submodules, such as the branches of torch.cond, are converted too."""
        children: dict[str, Any] = {}
        for node in old.graph.find_nodes(op="get_attr"):
            held = operator.attrgetter(str(node.target))(old)
            children[str(node.target)] = self.graph_module(held) if isinstance(held, fx.GraphModule) else held
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for node in old.graph.nodes:
            copy = graph.node_copy(node, copies.__getitem__)
            copy.target = _target(node)
            copy.name = node.name  # signatures refer to names, and a new node does not get a builtin's name
            copy.meta = {key: value for key, value in node.meta.items() if key not in _META_LEFT_OUT}
            if "val" in node.meta:
                copy.meta["val"] = self.value(node.meta["val"])
            elif getattr(node.target, "__module__", "") in ("_operator", "math"):  # arithmetic on sizes
                operands, named = map_arg((copy.args, copy.kwargs), lambda inner: inner.meta["val"])
                compute: Any = copy.target
                copy.meta["val"] = compute(*operands, **named)
            if node.meta.get("unbacked_bindings"):
                bindings: Mapping[Any, Any] = node.meta["unbacked_bindings"]
                copy.meta["unbacked_bindings"] = {self.symbol(symbol): path for symbol, path in bindings.items()}
            copies[node] = copy
        return fx.GraphModule(children, graph, class_name=type(old).__name__)

    # ----------------------------------------------------------------------------------------------------- guards

    def add_guards(self, program: Any, inputs: Iterable[tuple[str, Any]]) -> None:
        """Add the program's guards to the ShapeEnv, from where torch takes what `module()` checks, also of decomposed programs.

        inputs: the user inputs, as torch's source names and fake tensors. A size that is an expression, such as `2*s0 + 1`, is
        a guard too: it equals the expression, or, if the symbol is read from it, it has the remainder of `2*s0 + 1`.
        """
        sizes = [
            (text, size.node.expr)
            for path, value in inputs
            for text, size in _sizes_of(path, value)
            if isinstance(size, torch.SymInt)
        ]
        for text, expr in sizes:
            if expr.is_Symbol:
                self._read_from(expr, text)
        for text, expr in sizes:
            if expr.is_Symbol:
                continue
            size = self._read_from(sympy.Symbol(text, integer=True), text)
            symbol, scale, offset = _linear(expr) or (None, 1, 0)
            if symbol is not None and symbol not in self.shape_env.var_to_sources:
                self._read_from(symbol, f"(({text} - {offset}) // {scale})")
                if scale != 1:
                    self._guard(sympy.Eq(torch_functions.PythonMod(size, scale), offset % scale))
            else:
                self._guard(sympy.Eq(size, expr))
        for guard in getattr(program, "guards", ()):
            if isinstance(guard, sympy.Basic):
                self._guard(self.expression(guard))

    def _read_from(self, symbol: sympy.Symbol, text: str) -> sympy.Symbol:
        """Let torch print the symbol as `text` in guards."""
        self.shape_env.var_to_sources.setdefault(symbol, [_InputSource(text)])
        return symbol

    def _guard(self, condition: Any) -> None:
        known = condition.free_symbols
        if known and known <= self.shape_env.var_to_sources.keys():
            self.shape_env.guards.append(ShapeGuard(condition, SLoc("to_torch", None), False))


@dataclass(frozen=True)
class _InputSource(Source):
    """A size of an input, by its text."""

    text: str

    @property
    def _name_template(self) -> str:
        return self.text


def _sizes_of(path: str, value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, torch.Tensor):
        return [(path, value)]
    return [(f"{path}.size()[{dim}]", size) for dim, size in enumerate(value.shape)]


def _linear(expr: Any) -> tuple[sympy.Symbol, int, int] | None:
    """(symbol, scale, offset) of `scale * symbol + offset` with a positive scale; None for other expressions."""
    if len(expr.free_symbols) != 1:
        return None
    (symbol,) = expr.free_symbols
    if not expr.is_polynomial(symbol) or sympy.degree(expr, symbol) != 1:
        return None
    scale, offset = sympy.Poly(expr, symbol).all_coeffs()
    return (symbol, int(scale), int(offset)) if scale > 0 else None


def _user_inputs(
    program: Any, graph: fx.Graph, signature: torch_signature.ExportGraphSignature
) -> list[tuple[str, Any]]:
    """Torch's source names and the values of the user inputs."""
    users = {spec.arg.name for spec in signature.input_specs if spec.kind is torch_signature.InputKind.USER_INPUT}
    values = [node.meta.get("val") for node in graph.find_nodes(op="placeholder") if node.name in users]
    return list(zip(_input_paths(program), values, strict=False))


def _input_paths(program: Any) -> list[str]:
    """Torch's source names of the user inputs' leaves, in order: "L['x'][0]"."""
    if program.example_inputs is None:
        return []
    args, kwargs = program.example_inputs
    whole = program.module_call_graph[0].signature
    names = list(whole.forward_arg_names or []) if whole is not None else []
    if len(names) < len(args):
        return []
    named = {**dict(zip(names, args, strict=False)), **kwargs}
    return [f"L{pytree.keystr(path)}" for path, _ in pytree.tree_leaves_with_path(named)]


def _bound(bound: Any, is_int: bool) -> Any:
    """A bound of a range; an unlimited integer's bound is torch's int_oo."""
    if is_int and (bound in (sympy.oo, int_oo) or bound == math.inf):
        return int_oo
    if is_int and (bound in (-sympy.oo, -int_oo) or bound == -math.inf):
        return -int_oo
    return int(bound) if is_int else sympy.sympify(bound)


def _symbol_values(program: Any) -> Mapping[Any, int]:
    """The hints of the symbols, from the ShapeEnv of the program's fake tensors."""
    for node in program.graph_module.graph.nodes:
        for leaf in pytree.tree_leaves(node.meta.get("val")):
            if isinstance(leaf, FakeTensor) and leaf.fake_mode.shape_env is not None:
                known = leaf.fake_mode.shape_env.backed_var_to_val
                return {symbol: int(value) for symbol, value in known.items() if symbol.is_integer}
    return {}


def _target(node: fx.Node) -> Any:
    """The target for torch's graph: the same, or torch's higher-order operator of that name."""
    module = getattr(node.target, "__module__", "") or ""  # C functions may have None
    if node.op != "call_function" or not module or module.startswith(("torch", "_operator", "math", "builtins")):
        return node.target
    name = getattr(node.target, "__name__", "")
    if name not in _REGIONS:
        raise NotConvertible(
            seen=f"node {node.name} calls {module}.{name}",
            expected="operators of torch and functions of Python",
            do="decompose the program first: program.run_decompositions()",
        )
    return _REGIONS[name]


def _argument(old: Any) -> Any:
    kind = getattr(torch_signature, type(old).__name__)
    names = ("name", "class_fqn", "fake_val", "value")
    return kind(**{name: getattr(old, name) for name in names if hasattr(old, name)})


def _signature(old: Any) -> torch_signature.ExportGraphSignature:
    """The graph signature with torch's classes."""
    return torch_signature.ExportGraphSignature(
        input_specs=[
            torch_signature.InputSpec(
                kind=torch_signature.InputKind[spec.kind.name],
                arg=_argument(spec.arg),
                target=spec.target,
                persistent=spec.persistent,
            )
            for spec in old.input_specs
        ],
        output_specs=[
            torch_signature.OutputSpec(
                kind=torch_signature.OutputKind[spec.kind.name], arg=_argument(spec.arg), target=spec.target
            )
            for spec in old.output_specs
        ],
    )


def _state_and_constants(
    program: Any, signature: torch_signature.ExportGraphSignature
) -> tuple[dict[str, Any], dict[str, Any]]:
    """State dict and constants. A parameter among the constants becomes state, since torch's constants are no parameters."""
    state, constants = dict(program.state_dict), dict(program.constants)
    for spec in signature.input_specs:
        held = constants.get(spec.target) if spec.target is not None else None
        if spec.kind is torch_signature.InputKind.CONSTANT_TENSOR and isinstance(held, torch.nn.Parameter):
            spec.kind = torch_signature.InputKind.PARAMETER
            state[str(spec.target)] = constants.pop(spec.target)
    return state, constants


def _module_call(old: Any) -> ModuleCallEntry:
    signature = old.signature
    if signature is None:
        return ModuleCallEntry(fqn=old.fqn)
    return ModuleCallEntry(
        fqn=old.fqn,
        signature=ModuleCallSignature(
            inputs=[_argument(arg) for arg in signature.inputs],
            outputs=[_argument(arg) for arg in signature.outputs],
            in_spec=signature.in_spec,
            out_spec=signature.out_spec,
            forward_arg_names=signature.forward_arg_names,
        ),
    )
