"""The wrapper of a compiled graph: one printed Python function that allocates buffers, launches kernels, calls operators and
returns.

Symbolic sizes are read from the inputs; a buffer is dropped after its last use. `CompiledGraph.source` is the text.
"""

from __future__ import annotations

import linecache
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch

from refimpl._torch import pytree
from refimpl.codegen.autotune import TunedLauncherState, TunerState, default_tuner
from refimpl.codegen.configurations import Configuration
from refimpl.codegen.cuda_graphs import CudaRecorder, RecordedCallState, Recorder, why_not
from refimpl.codegen.emulator import KernelError
from refimpl.codegen.kernel import Kernel, Launcher, Level, bound
from refimpl.codegen.loop_ir import Attention, Buffer, Extern, Opaque, Operand, SizeExpression, Tiled, buffers_made
from refimpl.codegen.lowering.graph import LoweredGraph
from refimpl.codegen.memory_plan import (
    MemoryPlan,
    Use,
    has_a_point_for_each_thread,
    needs_view,
    plan_memory,
    use_of_attention,
    use_of_extern,
    use_of_kernel,
)
from refimpl.codegen.options import CodegenOptions
from refimpl.codegen.printing.attention import print_attention
from refimpl.codegen.printing.contractions import print_contraction
from refimpl.codegen.printing.kernels import PrintedKernel, print_kernel
from refimpl.codegen.printing.tiles import print_tiled
from refimpl.codegen.schedule import Scheduled, ScheduledKernel, schedule
from refimpl.codegen.sizes import GivenNumbers, solved_for
from refimpl.codegen.source_lines import first_lines
from refimpl.codegen.tensors import Stored
from refimpl.codegen.traffic import Movement
from refimpl.errors import RefimplError
from refimpl.symbolic.guards import python_source


@dataclass(frozen=True)
class CompiledGraph:
    """A compiled graph as a callable of its inputs, with its kernels and statistics."""

    call: Callable[..., tuple[Any, ...]]
    source: str
    kernels: tuple[Kernel, ...]
    lowered: Counter[str]
    fallbacks: Counter[str]
    printed: tuple[PrintedKernel, ...] = ()
    """Launched kernels in order, with the configurations to choose from. A kernel may occur several times."""
    unrecorded: str | None = None
    """Why the graph is not replayed as a CUDA graph although the options ask for it."""
    movement: Movement | None = None
    """The bytes that each kernel moves."""
    regions: Counter[str] = field(default_factory=Counter)
    """How often attention written in several operators became tiled kernels ("forward", "gradients"), and why it did not ("left:
    ...")."""
    lines: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Source lines behind each kernel, by its name, if the graph's nodes have stack traces."""

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        try:
            return self.call(*inputs)
        except KernelError as error:
            error.name_lines(self.lines.get(error.kernel, ()))
            raise


def plan(
    graph: LoweredGraph,
    level: Level,
    options: CodegenOptions,
    tuner: TunerState | None = None,
    recorder: Recorder | None = None,
) -> CompiledGraph:
    """Schedules and prints a lowered graph, and binds its kernels to launchers. If the options ask for it, `tuner` chooses
    configurations and `recorder` records the graph."""
    made = _Plan(graph, level, options, tuner or default_tuner()).compiled()
    return _recorded(made, graph, recorder or CudaRecorder()) if options.cuda_graphs else made


def _recorded(made: CompiledGraph, graph: LoweredGraph, recorder: Recorder) -> CompiledGraph:
    """The compiled graph, replayed from a recording, or with the reason why it cannot be."""
    reason = why_not(graph, recorder.device_type)
    if reason is not None:
        return replace(made, unrecorded=reason)
    return replace(made, call=RecordedCallState(made.call, recorder))


class _Plan:
    def __init__(self, graph: LoweredGraph, level: Level, options: CodegenOptions, tuner: TunerState) -> None:
        self.graph = graph
        self.tuner = tuner
        self.options = options
        self.level = level
        self.buffers: dict[str, Buffer] = {}
        self.names: dict[str, Any] = {
            "math": math,
            "torch": torch,
            "empty": torch.empty_strided,
            "as_strided": torch.as_strided,
            "laid_out": _laid_out,
        }
        self.lines: list[str] = []
        self.printed: list[PrintedKernel] = []
        self.kernels: dict[Any, Kernel] = {}  # keyed by everything but their names
        self.lines_of_kernels: dict[str, list[str]] = {}
        self.externs = 0
        self.read_by_place: set[str] = set()  # buffers whose elements are addressed by strides
        self.written: set[str] = set()  # buffers that operators write in place
        self.memory = MemoryPlan({}, {})
        self.movement: Movement | None = None
        self.allocated: set[str] = set()
        self.known: set[Any] = set()  # symbols that have a value before the next line
        self.facts = graph.facts
        self.measured: dict[Any, Any] = {}  # sizes and strides with unsolved symbols: their names or values
        self.given = GivenNumbers()

    def compiled(self) -> CompiledGraph:
        graph = self.graph
        needed = {value.buffer.name for value in graph.outputs if isinstance(value, Stored)}
        for value in graph.inputs:
            if isinstance(value, Buffer):
                self.buffers[value.name] = value
        for name, (buffer, tensor) in graph.constants.items():
            self.buffers[name] = buffer
            self.names[name] = tensor
        self.names.update(graph.opaque_constants)
        self._unpack()
        self.facts = replace(graph.facts, given=self.given)
        entries = schedule(graph.steps, needed)
        for step in graph.steps:
            self.buffers.update({buffer.name: buffer for buffer in buffers_made(step)})
        for entry in entries:
            if isinstance(entry, Extern):
                operands = pytree.tree_leaves((entry.arguments, entry.keywords))
                self.read_by_place |= {o.buffer for o in operands if isinstance(o, Operand) and not o.is_whole}
                self.written |= entry.writes
            elif isinstance(entry, (Attention, Tiled)):
                self.read_by_place |= entry.reads
            else:
                self.read_by_place |= entry.group.reads()
        self.read_by_place |= {v.buffer.name for v in graph.outputs if isinstance(v, Stored) and not v.is_whole}
        made = [entry if isinstance(entry, Extern) else self._print(entry) for entry in entries]
        names = [entry.origin if isinstance(entry, Extern) else entry.kernel.name for entry in made]
        outside = {value.name for value in graph.inputs if isinstance(value, Buffer)} | graph.constants.keys()
        self.movement = Movement(tuple(entries), tuple(names), self.buffers, graph.facts, frozenset(outside), needed)
        self.memory = self._plan_memory(entries, made, needed)
        for value in graph.inputs:
            if isinstance(value, Buffer):
                self.lines += self._laid_out(value)
        for position, entry in enumerate(made):
            if isinstance(entry, Extern):
                self._call(entry)
            else:
                self._launch(entry, self._lines_behind(entries[position], entry))
            last_uses = self.memory.last_uses.items()
            dead = [name for name, last in last_uses if last == position and not self._is_constant(name)]
            if dead:
                self.lines.append(f"del {', '.join(sorted(dead))}")
        self._return()
        return self._function()

    def _function(self) -> CompiledGraph:
        body = "\n".join(f"    {line}" for line in self.lines)
        source = f"def call(*inputs):\n{body}\n"
        filename = f"<refimpl.codegen launch plan {id(self):x}>"
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        exec(compile(source, filename, "exec"), self.names)
        kernels = tuple(self.kernels.values())
        texts = "\n".join(kernel.source for kernel in kernels)
        return CompiledGraph(
            self.names["call"],
            f"{texts}\n{source}",
            kernels,
            self.graph.lowered,
            self.graph.fallbacks,
            tuple(self.printed),
            movement=self.movement,
            regions=self.graph.regions,
            lines={name: first_lines(lines) for name, lines in self.lines_of_kernels.items()},
        )

    def _is_constant(self, name: str) -> bool:
        return name in self.graph.constants

    def _print(self, entry: ScheduledKernel | Attention | Tiled) -> PrintedKernel:
        """Prints a kernel. Entries with the same source share one kernel."""
        name = f"kernel_{len(self.kernels)}"
        if isinstance(entry, Attention):
            printed = print_attention(name, entry, self.buffers, self.facts)
        elif isinstance(entry, Tiled):
            printed = print_tiled(name, entry, self.buffers, self.facts)
        else:
            print_one = print_kernel if entry.group.contraction is None else print_contraction
            printed = print_one(name, entry, self.buffers, self.facts)
        text = (
            re.sub(rf"\b{name}\b", "kernel", printed.kernel.source),
            printed.kernel.parameters,
            printed.configurations,
        )
        kernel = self.kernels.setdefault(text, printed.kernel)
        self.printed.append(printed if kernel is printed.kernel else replace(printed, kernel=kernel))
        return self.printed[-1]

    def _plan_memory(
        self, entries: Sequence[Scheduled], made: Sequence[PrintedKernel | Extern], needed: set[str]
    ) -> MemoryPlan:
        uses: list[Use] = []
        begun: set[str] = set()  # buffers that an earlier kernel has written
        for entry, printed in zip(entries, made, strict=True):
            if isinstance(entry, Extern):
                uses.append(use_of_extern(entry))
            else:
                assert isinstance(printed, PrintedKernel)
                is_whole = isinstance(entry, (Attention, Tiled))
                use = use_of_attention(entry, printed) if is_whole else use_of_kernel(entry.group, printed, begun)
                uses.append(use)
                begun.update(printed.written)
        outside = {value.name for value in self.graph.inputs if isinstance(value, Buffer)} | self.graph.constants.keys()
        # Strides of operators' results are known only for buffers that are copied into the expected layout.
        elsewhere = {name for use in uses for name in use.given} - (self.read_by_place - self.written)
        return plan_memory(
            uses, self.buffers, frozenset(outside | elsewhere), frozenset(needed), reuse=self.options.reuse_buffers
        )

    # ---- sizes

    def _unpack(self) -> None:
        """Names the inputs, and the numbers read from their sizes and strides."""
        names = []
        self.known |= {value for value in self.graph.inputs if isinstance(value, sympy.Symbol)}
        self.measured |= {one: sympy.S.One for one in self.graph.ones if not one.free_symbols <= self.known}
        tensors = [value for value in self.graph.inputs if isinstance(value, (Buffer, Opaque))]
        for position, value in enumerate(self.graph.inputs):
            if isinstance(value, (Buffer, Opaque, sympy.Symbol)):
                names.append(value.name)
            elif isinstance(value, sympy.Expr):
                names.append(self._measure(value).name)
            else:
                names.append(f"unused_{position}")
        if names:
            self.lines.append(f"{''.join(f'{name}, ' for name in names)}= inputs")
        given = [value for value in self.graph.inputs if isinstance(value, sympy.Expr)]
        self.lines += [*self._sizes_of(tensors), *self._symbols_of(given)]
        self.given = solved_for(self.measured, self.known)

    def _symbols_of(self, given: Sequence[sympy.Expr]) -> list[str]:
        """Lines that solve given numbers for a symbol, if all of their other symbols are known."""
        lines = []
        for number in given:
            unknown = number.free_symbols - self.known
            symbol = min(unknown, key=str, default=None)
            solved = _solved(number, symbol) if len(unknown) == 1 else None
            if solved is not None:
                factor, rest = solved
                lines.append(f"{symbol} = ({self.measured[number]} - ({self._number(rest)})) // {factor}")
                self.known.add(symbol)
        return lines

    def _laid_out(self, buffer: Buffer) -> list[str]:
        """A line that brings a tensor from outside into the layout that its kernels expect."""
        if buffer.name not in self.read_by_place or buffer.name in self.written:
            return []
        said = f"{self._numbers(buffer.shape)}, {self._numbers(buffer.strides)}, {buffer.dtype}"
        return [f"{buffer.name} = laid_out({buffer.name}, {said})"]

    def _sizes_of(self, tensors: Sequence[Buffer | Opaque]) -> list[str]:
        """Lines that assign symbols from sizes, strides and offsets. Numbers that contain several unknown symbols get names of
        their own."""
        lines = []
        numbers = [
            (number, f"{tensor.name}.{kind}({dim})")
            for kind in ("size", "stride")
            for tensor in tensors
            for dim, number in enumerate(tensor.shape if kind == "size" else tensor.strides)
        ]
        numbers += [
            (self.graph.offsets[tensor.name], f"{tensor.name}.storage_offset()")
            for tensor in tensors
            if tensor.name in self.graph.offsets
        ]
        for number, text in numbers:
            if isinstance(number, sympy.Symbol) and number not in self.known:
                self.known.add(number)
                lines.append(f"{number.name} = {text}")
        for number, text in numbers:
            unknown = self._in_known(number).free_symbols - self.known
            if not unknown:
                continue
            symbol = min(unknown, key=str)
            solved = _solved(number, symbol) if len(unknown) == 1 else None
            if solved is None:
                lines.append(f"{self._measure(number)} = {text}")
                continue
            factor, rest = solved
            lines.append(f"{symbol} = ({text} - ({self._number(rest)})) // {factor}")
            self.known.add(symbol)
        return lines

    def _measure(self, number: sympy.Expr) -> sympy.Symbol:
        """A name for a number that contains symbols without a value."""
        name = self.measured[number] = sympy.Symbol(f"measured_{len(self.measured)}", integer=True)
        self.known.add(name)
        return name

    def _in_known(self, expr: Any) -> Any:
        expr = sympy.sympify(expr)
        return expr if expr.free_symbols <= self.known else self.given.by_names(expr.xreplace(self.measured))

    def _number(self, expr: Any) -> str:
        return python_source(self._in_known(expr))

    def _numbers(self, values: Iterable[Any]) -> str:
        return f"({''.join(self._number(value) + ', ' for value in values)})"

    # ---- kernels

    def _lines_behind(self, entry: Scheduled, printed: PrintedKernel) -> tuple[str, ...]:
        """Source lines that a launch computes."""
        nests = entry.group.nests if isinstance(entry, ScheduledKernel) else ()
        origins = [name for nest in nests for name in nest.origins]
        if not isinstance(entry, ScheduledKernel):
            origins = [*(entry.origins if isinstance(entry, Tiled) else [entry.origin])]
        lines = first_lines(line for name in dict.fromkeys(origins) for line in self.graph.lines.get(name, ()))
        self.lines_of_kernels.setdefault(printed.kernel.name, []).extend(lines)
        return lines

    def _launch(self, printed: PrintedKernel, behind: Sequence[str]) -> None:
        self.lines += [f"# {line}" for line in behind]
        name = printed.kernel.name
        arguments = [
            argument if isinstance(argument, str) else self._number(argument) for argument in printed.arguments
        ]
        for buffer in printed.written:
            if buffer not in self.allocated:  # several kernels may write to one buffer
                self.allocated.add(buffer)
                self._allocate(self.buffers[buffer])
        configurations = self._configurations(printed)
        if len(configurations) == 1:
            self.names.setdefault(name, bound(self.level, printed.kernel, printed.default.constants))
            grid = self._numbers(printed.grid_for(printed.default))
        else:
            name = f"{name}_of_{len(configurations)}"
            if name not in self.names:
                self.names[name] = self._tuned(printed, configurations)
            grid = f"({''.join(self._numbers(printed.grid_for(made)) + ', ' for made in configurations)})"
        text = f"{name}({grid}, ({''.join(a + ', ' for a in arguments)}))"
        if not printed.points.is_Integer:
            self.lines.append(f"if {self._number(printed.points)} > 0:")
            self.lines.append(f"    {text}")
        elif printed.points > 0:
            self.lines.append(text)

    def _configurations(self, printed: PrintedKernel) -> tuple[Configuration, ...]:
        """The configurations to choose from. A kernel that overwrites its input is launched with at least one point per
        thread."""
        if not self.options.autotune:
            return printed.configurations[:1]
        donors = {self.memory.donors.get(buffer) for buffer in printed.written}
        if donors.isdisjoint(argument for argument in printed.arguments if isinstance(argument, str)):
            return printed.configurations
        return tuple(made for made in printed.configurations if has_a_point_for_each_thread(made))

    def _tuned(self, printed: PrintedKernel, configurations: Sequence[Configuration]) -> Launcher:
        launchers = [bound(self.level, printed.kernel_for(made), made.constants) for made in configurations]
        written = [at for at, argument in enumerate(printed.arguments) if argument in printed.written]
        return TunedLauncherState(printed.kernel, configurations, launchers, written, self.tuner)

    def _allocate(self, buffer: Buffer) -> None:
        donor = self.memory.donors.get(buffer.name)
        if donor is not None:
            shape, strides = self._numbers(buffer.shape), self._numbers(buffer.strides)
            is_view = needs_view(buffer, self.buffers[donor])
            self.lines.append(f"{buffer.name} = {f'as_strided({donor}, {shape}, {strides})' if is_view else donor}")
            return
        device = f"{buffer.device.type}_{buffer.device.index or 0}"
        self.names[device] = buffer.device
        self.lines.append(
            f"{buffer.name} = empty({self._numbers(buffer.shape)}, {self._numbers(buffer.strides)}, "
            f"dtype={buffer.dtype}, device={device})"
        )

    # ---- calls

    def _operand(self, operand: Operand) -> str:
        if operand.is_whole:
            return operand.buffer
        where = f"{operand.buffer}.storage_offset() + {self._number(operand.offset)}"
        return (
            f"as_strided({operand.buffer}, {self._numbers(operand.shape)}, {self._numbers(operand.strides)}, {where})"
        )

    def _call(self, extern: Extern) -> None:
        function = f"call_{self.externs}"
        self.externs += 1
        self.names[function] = extern.target

        def text(value: Any) -> str:
            if isinstance(value, Operand):
                return self._operand(value)
            if isinstance(value, Opaque):
                return value.name
            if isinstance(value, SizeExpression):
                return self._number(value.value)
            if isinstance(value, (list, tuple)):
                items = "".join(text(item) + ", " for item in value)
                return f"[{items}]" if isinstance(value, list) else f"({items})"
            if isinstance(value, (bool, int, str)) or value is None:
                return repr(value)
            name = f"constant_{len(self.names)}"
            self.names[name] = value
            return name

        arguments = [text(value) for value in extern.arguments]
        arguments += [f"{key}={text(value)}" for key, value in extern.keywords.items()]
        results = []
        after = []
        for position, output in enumerate(extern.outputs):
            if output.buffer is not None:
                name = output.buffer.name
                results.append(name)
                after += self._sizes_of([output.buffer])
                after += self._laid_out(output.buffer)
            elif output.symbol is not None:
                self.known.add(output.symbol)
                results.append(output.symbol.name)
            elif output.opaque is not None:
                results.append(output.opaque.name)
                after += self._sizes_of([output.opaque])
            else:
                results.append(f"nothing_{position}")
        left = "".join(f"{name}, " for name in results) if extern.is_list else (results[0] if results else "nothing")
        assignment = f"{left} = " if left else ""
        self.lines += [f"# {line}" for line in self.graph.lines.get(extern.origin, ())[-1:]]
        self.lines.append(f"{assignment}{function}({', '.join(arguments)})  # {extern.origin}: {extern.reason}")
        self.lines += after

    def _return(self) -> None:
        """Prints the return statement. A view that is returned several times is one tensor, since the code that receives
        gradients recognises shared ones by identity."""
        texts = [self._result(value) for value in self.graph.outputs]
        views = [
            text
            for text, value in zip(texts, self.graph.outputs, strict=True)
            if isinstance(value, Stored) and not value.is_whole
        ]
        names = {text: f"view_{at}" for at, text in enumerate(dict.fromkeys(views)) if views.count(text) > 1}
        self.lines += [f"{name} = {text}" for text, name in names.items()]
        self.lines.append(f"return ({''.join(names.get(text, text) + ', ' for text in texts)})")

    def _result(self, value: Any) -> str:
        if isinstance(value, Stored):
            return self._operand(value.as_operand())
        if isinstance(value, SizeExpression):
            return self._number(value.value)
        if isinstance(value, Opaque):
            return value.name
        if value is None or isinstance(value, (bool, int)):
            return repr(value)
        name = f"constant_{len(self.names)}"
        self.names[name] = value
        return name


def _laid_out(tensor: Any, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Any:
    """The tensor in the layout and dtype that the graph states, copied if it differs: operators may lay out results differently
    from their fake kernels, and hooks on saved tensors may change the dtype."""
    try:
        if tensor.stride() == strides and tensor.shape == shape and tensor.dtype == dtype:
            return tensor
    except AttributeError:  # not a tensor: an undefined gradient
        return tensor
    if tuple(tensor.shape) != shape:
        raise RefimplError(f"a tensor of shape {tuple(tensor.shape)} where the compiled graph says {shape}")
    is_as_said = all(
        size == 1 or mine == said for size, mine, said in zip(shape, tensor.stride(), strides, strict=True)
    )
    if (is_as_said or tensor.numel() == 0) and tensor.dtype == dtype:
        return tensor
    return torch.empty_strided(shape, strides, dtype=dtype, device=tensor.device).copy_(tensor)


def _solved(number: sympy.Expr, symbol: Any) -> tuple[int, Any] | None:
    """The integer factor and the rest, if the number is symbol * factor + rest."""
    expanded: Any = number.expand()
    factor = expanded.coeff(symbol)
    rest = (expanded - factor * symbol).expand()
    if not factor.is_Integer or factor == 0 or symbol in rest.free_symbols:
        return None
    return int(factor), rest
