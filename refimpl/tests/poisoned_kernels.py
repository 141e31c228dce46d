"""What of refimpl changes if one of torch's Python kernels is wrong: the kernels are poisoned one at a time.

    python -m refimpl.tests.poisoned_kernels --write          # all kernels that the corpus and OpInfo reach
    python -m refimpl.tests.poisoned_kernels --again          # only kernels that have changed more than to a refusal
    python -m refimpl.tests.poisoned_kernels --kernel meta_mm # those whose name contains a word, printed only

A Python kernel is a function that torch registers as the meta kernel or the decomposition of an operator. Fake tensors run it.
One that is poisoned raises, or gives results of another shape or dtype. What runs then is what reaches it: traces, compiles and
exports of refimpl. Each is compared with itself without the poison, and what it made is run and compared with eager mode.

A kernel is poisoned by other code in its function object, so all who hold the function run the poison. Each kernel has a process
of its own, forked before anything was traced.
"""

from __future__ import annotations

import argparse
import csv
import inspect
import logging
import multiprocessing
import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from types import CodeType, FunctionType
from typing import Any, Literal, NamedTuple

import torch
from torch._decomp import global_decomposition_table

import refimpl
import refimpl.export
from refimpl._torch import FakeTensorMode, OpOverload, OpOverloadPacket, pytree, storage_key
from refimpl.pipeline import compile_aot
from refimpl.tests.corpus import programs_of
from refimpl.tests.corpus.compare import Seen, assert_same, observe
from refimpl.tests.upstream_code import KERNELS, case_of_operator, part_of
from refimpl.tests.upstream_code import TABLE as INDEPENDENCE
from refimpl.trace import fake_kernels

TABLE = INDEPENDENCE.with_name("independence-poison.csv")
COLUMNS = ("part", "kernel", "operators", "way", "program", "poison", "calls", "changed", "error")
Way = Literal["fake trace", "symbolic trace", "compile", "export"]
WAYS: tuple[Way, ...] = ("fake trace", "symbolic trace", "compile", "export")
Poison = Literal["raises", "shape", "dtype"]
POISONS: tuple[Poison, ...] = ("raises", "shape", "dtype")
NOTHING, METADATA, GRAPH, REFUSED, FAILS, VALUES = CHANGES = (
    "nothing",  # the same graph, with the same shapes and dtypes noted in it
    "metadata",  # the same operators with the same arguments, but other shapes or dtypes noted; the values are eager's
    "graph",  # another graph, with the values of eager
    "refused",  # an error while the graph is made
    "fails when it runs",  # another graph, which raises
    "values",  # another graph, which runs and gives other values than eager
)
NOT_REACHED = "not reached"  # by any program
_NAME, _MODULE = "the kernel's name", "this module's name"  # constants of the code that stands in for a kernel's


class PoisonedKernelError(Exception):
    """A poisoned kernel of torch ran."""


class Kernel(NamedTuple):
    """A Python kernel: the innermost function, and the operators that it is registered for."""

    function: Any
    part: str
    operators: tuple[str, ...]


@cache
def kernels() -> Mapping[str, Kernel]:
    """All Python kernels of torch, by `module.function`, in order of their names."""
    operators: dict[FunctionType, list[str]] = defaultdict(list)
    for table in ("meta", "post_autograd", "pre_autograd"):
        for operator, registered in global_decomposition_table[table].items():
            if isinstance(function := inspect.unwrap(registered), FunctionType):
                operators[function].append(str(operator))
    for packet in list(vars(torch.ops.aten).values()):
        for operator in list(vars(packet).values()) if isinstance(packet, OpOverloadPacket) else ():
            for registered in operator.py_kernels.values() if isinstance(operator, OpOverload) else ():
                if isinstance(function := inspect.unwrap(registered), FunctionType):
                    operators[function].append(str(operator))
    found: dict[str, Kernel] = {}
    for function, names in operators.items():
        part = part_of(function.__code__.co_filename, KERNELS)
        if part is not None:
            name = f"{function.__module__.removeprefix('torch.')}.{function.__name__}"
            if name in found:  # functions made by one decorator have its name
                name = f"{name} of {min(names)}"
            found[name] = Kernel(function, part, tuple(sorted(set(names))))
    return dict(sorted(found.items()))


# ---------------------------------------------------------------------------------------------------------------- poison

Handler = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
_CALLS: Counter[str] = Counter()  # of the kernels that are replaced
_ORIGINALS: dict[str, Callable[..., Any]] = {}
_HANDLERS: dict[str, Handler] = {}


_RUNNING: set[str] = set()  # kernels whose handler runs: a handler may call operators that reach the kernel again


def _called(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What runs in place of a kernel."""
    _CALLS[name] += 1
    if name in _RUNNING:
        return _ORIGINALS[name](*args, **kwargs)
    _RUNNING.add(name)
    try:
        return _HANDLERS[name](_ORIGINALS[name], args, kwargs)
    finally:
        _RUNNING.discard(name)


def _template(*args: Any, **kwargs: Any) -> Any:
    # The globals are those of the kernel's module.
    return __import__("sys").modules["this module's name"]._called("the kernel's name", args, kwargs)


def _stub(name: str, code: CodeType) -> CodeType:
    """Code that calls `_called` with this name, for a function that has this code."""
    names = {_NAME: name, _MODULE: __name__}
    constants = tuple(names.get(one, one) if isinstance(one, str) else one for one in _template.__code__.co_consts)
    return _template.__code__.replace(co_consts=constants, co_freevars=code.co_freevars)


@contextmanager
def replaced(handlers: Mapping[str, Handler]) -> Iterator[Counter[str]]:
    """Within the block these kernels are called through their handlers. Gives how often each was called."""
    codes: dict[str, CodeType] = {}
    _CALLS.clear()
    try:
        for name, handler in handlers.items():
            function = kernels()[name].function
            codes[name] = code = function.__code__
            original = FunctionType(
                code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
            )
            original.__kwdefaults__ = function.__kwdefaults__
            _ORIGINALS[name], _HANDLERS[name] = original, handler
            function.__code__ = _stub(name, code)
        forget_results()
        yield _CALLS
    finally:
        for name, code in codes.items():
            kernels()[name].function.__code__ = code
        forget_results()


def forget_results() -> None:
    """Empties the caches of fake results, torch's and refimpl's."""
    fake_kernels._STATIC_RESULTS.clear()
    FakeTensorMode.cache_clear()


def as_it_is(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The kernel itself."""
    return original(*args, **kwargs)


def raises(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An error in place of the kernel."""
    raise PoisonedKernelError(original.__name__)


def _larger(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.new_empty((*tensor.shape[:-1], tensor.shape[-1] + 1) if tensor.dim() else (2,))


def _other_dtype(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.new_empty(tensor.shape, dtype=torch.float32 if tensor.dtype is not torch.float32 else torch.float64)


def _changing(change: Callable[[torch.Tensor], torch.Tensor]) -> Handler:
    """Changes every tensor among the results that is new: neither an argument nor a view of one."""

    def handler(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        memory = {storage_key(tensor) for tensor in given if tensor.layout is torch.strided}
        result = original(*args, **kwargs)
        return pytree.tree_map_only(
            torch.Tensor,
            lambda leaf: change(leaf) if leaf.layout is torch.strided and storage_key(leaf) not in memory else leaf,
            result,
        )

    return handler


HANDLERS: Mapping[Poison, Handler] = {"raises": raises, "shape": _changing(_larger), "dtype": _changing(_other_dtype)}


# -------------------------------------------------------------------------------------------------------------- what runs


class Made(NamedTuple):
    """What refimpl made of a program: the graphs, without and with what is noted of each node's value, and what runs them."""

    graph: str
    metadata: str
    run: Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A program and the way it goes through refimpl. `make` gives sources and arguments, as for `observe`."""

    way: Way
    program: str
    build: Callable[[], tuple[Callable[..., Any], Callable[[], tuple[Sequence[torch.Tensor], Sequence[Any]]]]]

    @property
    def name(self) -> tuple[str, str]:
        return self.way, self.program


class _Module(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def _text(graphs: Sequence[torch.fx.GraphModule]) -> tuple[str, str]:
    """The nodes of graphs, without and with the metadata of their values."""
    plain, noted = [], []
    for graph in graphs:
        for module in graph.modules():
            for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
                line = f"{node.op} {node.name} {node.target} {node.args} {node.kwargs}"
                values = [_value(leaf) for leaf in pytree.tree_leaves(node.meta.get("val"))]
                plain.append(line)
                noted.append(f"{line} {values}")
    return "\n".join(plain), "\n".join(noted)


def _value(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return str(value)
    strides = tuple(value.stride()) if value.layout is torch.strided else None
    return f"{value.dtype} {tuple(value.shape)} {strides}"


def made(work: Work) -> tuple[Made, Seen, Seen]:
    """What refimpl makes of the program, and what is seen of eager mode and of what was made."""
    function, make = work.build()
    graphs: list[torch.fx.GraphModule] = []
    run: Callable[..., Any]
    torch.manual_seed(0)
    if work.way == "compile":

        def backend(graph: torch.fx.GraphModule, _: Any) -> torch.fx.GraphModule:
            graphs.append(graph)
            return graph

        run = compile_aot(function, dynamic=True, backend=backend)
        actual = observe(run, make)
        if actual.refusals:
            raise _RunError(actual.refusals[0])
    else:
        _, arguments = make()
        if work.way == "export":
            program = refimpl.export.export(_Module(function), tuple(arguments))
            graphs, run = [program.graph_module], program.module()
        else:
            run = refimpl.make_fx(function, tracing_mode="fake" if work.way == "fake trace" else "symbolic")(*arguments)
            graphs = [run]
        try:
            actual = observe(run, make)
        except Exception as error:
            raise _RunError(_told(error)) from error
    return Made(*_text(graphs), run), observe(function, make), actual


class _RunError(Exception):
    """What was made raises when it runs."""


def works() -> list[Work]:
    """Programs of the corpus the ways that it goes, and operators of OpInfo with their gradients, each two ways of the four."""
    from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415  takes seconds to import

    found: list[Work] = []
    for program in programs_of("trace"):
        requires_grad = program.with_gradients == (True,)
        build = lambda program=program, flag=requires_grad: (program.build(), lambda: program.make(flag))  # noqa: E731
        found += [Work(way=way, program=program.name, build=build) for way in WAYS[:2]]
    for program in programs_of("aot"):
        requires_grad = True in program.with_gradients
        build = lambda program=program, flag=requires_grad: (program.build(), lambda: program.make(flag))  # noqa: E731
        found.append(Work(way="compile", program=program.name, build=build))
    operators = sorted((info for info in op_db if torch.float32 in info.dtypes), key=lambda info: info.full_name)
    others = cycle((WAYS[0], WAYS[2], WAYS[3]))
    for info in operators:
        pair: tuple[Way, Way] = ("symbolic trace", next(others))
        for way in pair:
            found.append(Work(way=way, program=info.full_name, build=lambda info=info: _operator(info)))
    return found


def _operator(info: Any) -> Any:
    torch.manual_seed(0)
    function, make = case_of_operator(info)

    def inputs() -> tuple[Sequence[torch.Tensor], Sequence[Any]]:
        tensors = make()
        return [tensor for tensor in tensors if tensor.requires_grad], tensors

    return function, inputs


# Gradients of what traces and exports give are those of the operators in them.
_OF_GRAPHS = ("structure", "results", "arguments", "random_state")
_OF_COMPILES = (*_OF_GRAPHS, "gradients")


def _assert_same(work: Work, expected: Seen, actual: Seen) -> None:
    assert_same(expected, actual, parts=_OF_COMPILES if work.way == "compile" else _OF_GRAPHS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """A work without poison: the kernels that it reached, and its graphs."""

    kernels: frozenset[str]
    graph: str
    metadata: str


def reach(work: Work) -> Reach | None:
    """None for a program that is refused without any poison, or that has no values to compare with eager's."""
    with replaced(dict.fromkeys(kernels(), as_it_is)) as calls:
        try:
            one, expected, actual = made(work)
            _assert_same(work, expected, actual)
        except Exception:  # refused without poison, or values that no two runs share
            return None
        return Reach(kernels=frozenset(calls), graph=one.graph, metadata=one.metadata)


class Outcome(NamedTuple):
    """How often the poisoned kernel ran, what changed, and the error, where there is one."""

    calls: int
    changed: str
    error: str


def poisoned(work: Work, kernel: str, poison: Poison, plain: Reach) -> Outcome:
    """What a work does while a kernel is poisoned, compared with what it does without."""
    with replaced({kernel: HANDLERS[poison]}) as calls:
        try:
            one, expected, actual = made(work)
        except _RunError as error:
            return Outcome(calls[kernel], FAILS, str(error))
        except Exception as error:  # any way to refuse
            return Outcome(calls[kernel], REFUSED, _told(error))
        try:
            _assert_same(work, expected, actual)
        except AssertionError as error:
            return Outcome(calls[kernel], VALUES, _told(error))
        same = (one.graph == plain.graph, one.metadata == plain.metadata)
        changed = NOTHING if all(same) else METADATA if same[0] else GRAPH
        return Outcome(calls[kernel], changed, "")


def _told(error: BaseException) -> str:
    """The class and the first line of the error, without the place in a file that it names."""
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {re.sub(r' ?[(]/[^)]*[)]', '', lines[0])[:80].rstrip()}"


# --------------------------------------------------------------------------------------------------------------- processes


def in_child(function: Callable[..., Any], *args: Any) -> Any:
    """The result of a call in a forked process."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send(function(*args)))
    child.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        child.join()


def all_reached(chosen: Sequence[Work]) -> dict[tuple[str, str], Reach]:
    """What each work reaches; works that have no plain outcome are left out."""
    found = {}
    for at, work in enumerate(chosen, 1):
        plain = reach(work)
        if plain is not None:
            found[work.name] = plain
        if at % 100 == 0:
            print(f"{at} of {len(chosen)} programs", file=sys.stderr, flush=True)
    return found


def selected(kernel: str, reached: Mapping[tuple[str, str], Reach], most: int) -> list[tuple[str, str]]:
    """Works that reach a kernel: one for each way, the one with fewest other kernels, of at most so many ways.

    Which ways come first differs from kernel to kernel.
    """
    found: list[tuple[str, str]] = []
    first = list(kernels()).index(kernel) % len(WAYS)
    for way in (*WAYS[first:], *WAYS[:first]):
        names = [name for name, plain in reached.items() if name[0] == way and kernel in plain.kernels]
        found += sorted(names, key=lambda name: (len(reached[name].kernels), len(reached[name].graph), name))[:1]
    return found[:most]


def outcomes(kernel: str, chosen: Sequence[tuple[Work, Reach]]) -> list[tuple[Any, ...]]:
    """Rows of the table: all poisons of one kernel, in all these works."""
    _, part, operators = kernels()[kernel]
    rows: list[tuple[Any, ...]] = []
    for at, (work, plain) in enumerate(chosen):
        for poison in POISONS if at == 0 else POISONS[1:]:  # an error is an error all ways
            rows.append((part, kernel, " ".join(operators), *work.name, poison, *poisoned(work, kernel, poison, plain)))
    return rows


def _not_reached(kernel: str) -> tuple[Any, ...]:
    _, part, operators = kernels()[kernel]
    return (part, kernel, " ".join(operators), "", "", "", 0, NOT_REACHED, "")


def read_rows() -> list[tuple[str, ...]]:
    """The rows of the table."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        return [tuple(row) for row in csv.reader(file)][1:]


def write(rows: Sequence[tuple[Any, ...]]) -> None:
    """Writes the table."""
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])


def measured_again(rows: Sequence[tuple[str, ...]]) -> list[tuple[Any, ...]]:
    """The rows, with those measured again of each kernel that changed a graph, its metadata or values."""
    by_name = {work.name: work for work in works()}
    changing = {row[1] for row in rows if row[7] in (METADATA, GRAPH, FAILS, VALUES)}
    chosen = {kernel: list(dict.fromkeys((row[3], row[4]) for row in rows if row[1] == kernel)) for kernel in changing}
    needed = dict.fromkeys(name for names in chosen.values() for name in names)
    reached = in_child(all_reached, [by_name[name] for name in needed])
    found: list[tuple[Any, ...]] = []
    for kernel in dict.fromkeys(row[1] for row in rows):
        if kernel in changing:
            found += in_child(outcomes, kernel, [(by_name[name], reached[name]) for name in chosen[kernel]])
        else:
            found += [row for row in rows if row[1] == kernel]
    return found


def main() -> None:
    """Entry point of `python -m`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kernel", default="", help="only kernels whose name contains this")
    parser.add_argument("--program", default="", help="only programs whose name contains this")
    parser.add_argument("--most", type=int, default=2, help="ways for each kernel")
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name}")
    parser.add_argument("--again", action="store_true", help="measure kernels of the table again that change something")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable()  # torch logs the errors of fake kernels
    torch.set_num_threads(1)
    if options.again:
        write(measured_again(read_rows()))
        return
    all_works = {work.name: work for work in works() if options.program in work.program}
    reached = in_child(all_reached, list(all_works.values()))
    print(f"{len(reached)} of {len(all_works)} works", file=sys.stderr, flush=True)
    rows: list[tuple[Any, ...]] = []
    changes: Counter[tuple[str, str]] = Counter()
    for kernel in kernels():
        names = selected(kernel, reached, options.most) if options.kernel in kernel else []
        chosen = [(all_works[name], reached[name]) for name in names]
        of_kernel = in_child(outcomes, kernel, chosen) if names else [_not_reached(kernel)]
        rows += of_kernel
        changes.update((row[5], row[7]) for row in of_kernel)
        for row in of_kernel:
            if row[7] in (VALUES, FAILS) or (not options.write and row[7] != NOT_REACHED):
                print(*row, sep=" | ", flush=True)
    print({f"{poison}, {changed}": number for (poison, changed), number in sorted(changes.items())})
    if options.write:
        write(rows)


if __name__ == "__main__":
    main()
