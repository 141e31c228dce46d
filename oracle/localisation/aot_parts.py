"""The parts of AOT autograd that can be left out: what its analysis says of aliases, and how it rewrites a write or a view.

Each is replaced by another way to the same values. Aliases are then those of the program's graph in eager, run on fake tensors.
A write by `op_` is made on a copy, which `copy_` brings back. A view is made by `as_strided`. An operator on lists is called on
one element after the other.

Counterpart: torch/_functorch/_aot_autograd/collect_metadata_analysis.py, torch/_subclasses/functional_tensor.py
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._dynamo.backends import common
from torch._functorch import aot_autograd
from torch._functorch._aot_autograd.schemas import OutputType
from torch._functorch._aot_autograd.subclass_utils import create_subclass_meta
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from oracle.localisation.capture_parts import replaced

ALIASES = "aliases of results"
OBJECTS = "results that are one object"
ANALYSIS = (ALIASES, OBJECTS)
_ANALYSE = "run_functionalized_fw_and_collect_metadata"
_OWN_MEMORY = (OutputType.non_alias, OutputType.unsafe_view_alias)
_OF_INTERMEDIATE = (OutputType.alias_of_intermediate, OutputType.alias_of_intermediate_save_as_output)
_ABOVE_AUTOGRAD = (torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd)
_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
_LISTS = "_foreach_"  # how the names of operators on lists begin

# ---------------------------------------------------------------------------------------------------------------- analysis


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alias:
    """The arguments and results that a result of a graph shares memory with in eager."""

    argument: int | None = None  # number of an argument of the graph
    is_object: bool = False  # it is that argument
    same: int | None = None  # number of the first result that is the same object, if it comes before
    results: tuple[int, ...] = ()  # numbers of other results


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSeen:
    """Facts that AOT autograd may have missed, in words, by the name of the part: "result 0 shares memory with argument 0"."""

    texts: dict[str, dict[str, None]] = field(default_factory=lambda: {name: {} for name in ANALYSIS})


@contextlib.contextmanager
def analysis(not_seen: NotSeen, *, corrected: frozenset[str] = frozenset()) -> Iterator[None]:
    """A context that records what AOT autograd's analysis missed of aliases, and corrects these of ANALYSIS.

    An analysed graph is also run in eager, on fake tensors. A statement about ALIASES is false if a result is taken for memory of
    its own, but shares that of an argument, or that of another result which autograd knows. Of OBJECTS, that are an argument or
    another result, the compiled graph has to return one; corrected, it does.
    """
    analyse_graph, compile_graph = getattr(aot_autograd, _ANALYSE), common.aot_module_simplified
    last: list[_Alias] = []

    @functools.wraps(analyse_graph)
    def prepared(graph: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        analyse = analyse_graph(graph, **options)

        def analysed(*args: Any) -> Any:
            last[:] = _aliases_in_eager(graph, args)
            metadata = analyse(*args)
            better, texts = _corrected(metadata, last)
            not_seen.texts[ALIASES].update(dict.fromkeys(texts))
            return better if ALIASES in corrected else metadata

        return analysed

    @functools.wraps(compile_graph)
    def aot_module_simplified(module: Any, args: Any, **options: Any) -> Any:
        last.clear()
        compiled = compile_graph(module, args, **options)
        aliases = [*last]
        not_seen.texts[OBJECTS].update(_objects(aliases))
        return _with_objects(compiled, aliases) if OBJECTS in corrected else compiled

    with replaced(aot_autograd, _ANALYSE, prepared), replaced(common, "aot_module_simplified", aot_module_simplified):
        yield


def _objects(aliases: Sequence[_Alias]) -> dict[str, None]:
    """Which results are an argument or an earlier result, in words."""
    found: dict[str, None] = {}
    for number, alias in enumerate(aliases):
        if alias.is_object:
            found[f"result {number} is argument {alias.argument}"] = None
        elif alias.same is not None:
            found[f"result {number} is result {alias.same}"] = None
    return found


def _with_objects(compiled: Callable[..., Any], aliases: Sequence[_Alias]) -> Callable[..., Any]:
    """The compiled graph, but results that are an argument or another result in eager are that one."""

    @functools.wraps(compiled)
    def call(*given: Any) -> Any:
        results = [*compiled(*given)]
        for number, alias in enumerate(aliases):
            if alias.is_object and alias.argument is not None:
                results[number] = given[alias.argument]
            elif alias.same is not None:
                results[number] = results[alias.same]
        return results

    return call


def _aliases_in_eager(graph: Callable[..., Any], args: Sequence[Any]) -> list[_Alias]:
    """The aliases of each result of a graph; [] if it cannot be run without its arguments' gradients.

    Operators are decomposed as AOT autograd decomposes them here: a decomposition that copies is no fault of the analysis.
    """
    modes = [arg.fake_mode for arg in args if isinstance(arg, FakeTensor)]
    if not modes:
        return []
    shape_env: ShapeEnv | None = modes[0].shape_env
    quiet = contextlib.nullcontext() if shape_env is None else shape_env.ignore_fresh_unbacked_symbols()
    try:
        with quiet, modes[0]:
            given = _copies(args)
            results = graph(*given)
    except (
        Exception
    ):  # the graph may need what the copies lack, such as a gradient; then nothing is known, and nothing is blamed
        return []
    return [_alias(at, given, results) for at in range(len(results))]


def _copies(args: Sequence[Any]) -> list[Any]:
    """Fake tensors with the same layout that share memory as the arguments do, and do not require grad.

    Raises TypeError for tensors that are not strided, and for memory that tensors of several dtypes share.
    """
    memory: dict[int, torch.Tensor] = {}

    def copied(arg: Any) -> Any:
        if not isinstance(arg, torch.Tensor):
            return arg
        if not isinstance(arg, FakeTensor) or arg.layout is not torch.strided or arg.is_conj() or arg.is_neg():
            raise TypeError(f"a {type(arg).__name__} cannot be copied without its values")
        storage = arg.untyped_storage()
        size = storage.nbytes() // arg.element_size()
        base = memory.setdefault(storage._cdata, torch.empty(size, dtype=arg.dtype, device=arg.device))
        if base.dtype is not arg.dtype:
            raise TypeError(f"memory is shared by tensors of {base.dtype} and {arg.dtype}")
        return base.as_strided(arg.size(), arg.stride(), arg.storage_offset())

    return [copied(arg) for arg in args]


def _alias(at: int, args: Sequence[Any], results: Sequence[Any]) -> _Alias:
    result = results[at]
    own = _memory(result)
    if own is None:
        return _Alias()
    argument = next((number for number, arg in enumerate(args) if _memory(arg) == own), None)
    is_object = any(result is arg for arg in args)
    if is_object:
        argument = next(number for number, arg in enumerate(args) if result is arg)
    same = next(number for number, other in enumerate(results) if other is result)
    others = tuple(number for number, other in enumerate(results) if other is not result and _memory(other) == own)
    return _Alias(argument=argument, is_object=is_object, same=None if same == at else same, results=others)


def _memory(value: Any) -> int | None:
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def _corrected(metadata: Any, aliases: Sequence[_Alias]) -> tuple[Any, list[str]]:
    """The analysis with aliases as they are in eager, and in words what it said wrongly."""
    results, texts = list(metadata.output_info), []
    for number, alias in enumerate(aliases):
        said = metadata.output_info[number]
        found = _base_of(alias, said, metadata.output_info)
        if found is not None:
            kind, base, text = found
            results[number] = replace(said, output_type=kind, base_idx=base, view_meta_sequence=None)
            texts.append(f"result {number} {text}")
    if not texts:
        return metadata, []
    dropped = _tangents_of(metadata, [old is not new for old, new in zip(metadata.output_info, results, strict=True)])
    kept: dict[str, Any] = {
        name: [one for number, one in enumerate(getattr(metadata, name)) if number not in dropped]
        for name in ("traced_tangents", "traced_tangents_descs")
    }
    made = create_subclass_meta(kept["traced_tangents"], count_symints=False, with_memory_format=True)
    return replace(metadata, output_info=results, subclass_tangent_meta=made, **kept), texts


def _base_of(alias: _Alias, said: Any, results: Sequence[Any]) -> tuple[OutputType, int, str] | None:
    """The right type of a result, the number of its base, and a sentence about it; None if the analysis is right already."""
    if said.output_type not in _OWN_MEMORY:
        return None
    if alias.argument is not None:
        kind = OutputType.is_input if alias.is_object else OutputType.alias_of_input
        return kind, alias.argument, f"shares memory with argument {alias.argument}"
    for other in alias.results:
        if results[other].output_type in _OF_INTERMEDIATE:
            return OutputType.alias_of_intermediate, results[other].base_idx, f"shares memory with result {other}"
    return None


def _tangents_of(metadata: Any, is_changed: Sequence[bool]) -> set[int]:
    """The positions in the list of tangents of the results that are changed. Tangents of updated arguments come first."""
    has_tangent = [
        info.output_type in (*_OWN_MEMORY, OutputType.custom_function_view)
        and issubclass(info.raw_type, torch.Tensor)
        and info.requires_grad_for_backward
        for info in metadata.output_info
    ]
    first = len(metadata.traced_tangents) - sum(has_tangent) - metadata.num_intermediate_bases
    positions = [number for number, has in enumerate(has_tangent) if has]
    return {first + at for at, number in enumerate(positions) if is_changed[number]}


# ------------------------------------------------------------------------------------------------------- functionalization


@contextlib.contextmanager
def functionalization(seen: dict[str, None], left_out: Callable[[Any], bool]) -> Iterator[None]:
    """A context that records which writes and views are functionalized, and makes those that are left out in another way."""
    rewriting = _Rewriting(seen=seen, left_out=left_out)
    with rewriting.active():
        yield


@dataclass(slots=True, kw_only=True)
class _Rewriting:
    """The replacements for the functionalization of operators."""

    seen: dict[str, None]
    left_out: Callable[[Any], bool]
    is_inside: bool = False  # of an operator that is made in another way

    def active(self) -> AbstractContextManager[None]:
        original = FunctionalTensorMode.__torch_dispatch__

        @functools.wraps(original)
        def dispatch(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            plain = functools.partial(original, mode, func, types, args, kwargs)
            rewritten = _rewritten(func)
            if self.is_inside or rewritten is None:
                return plain()
            self.seen[str(func)] = None
            if not self.left_out(func):
                return plain()
            self.is_inside = True
            try:
                return rewritten(mode, func, args, kwargs or {}, plain)
            finally:
                self.is_inside = False

        return replaced(FunctionalTensorMode, "__torch_dispatch__", dispatch)


# ----------------------------------------------------------------------------------------------------------- Python kernels


@contextlib.contextmanager
def python_kernels(seen: dict[str, None], left_out: Callable[[Any], bool]) -> Iterator[None]:
    """A context that records which Python kernels take the place of C++ ones in a trace; those left out do not.

    They are the kernels that torch registers above autograd, such as that of `dropout`, where C++ has one too. Eager never uses
    them.
    """
    with contextlib.ExitStack() as stack:
        for overload, key in _overloads_with_python_kernels():
            stack.enter_context(_python_kernel(overload, key, seen, left_out))
        yield


@contextlib.contextmanager
def _python_kernel(overload: Any, key: Any, seen: dict[str, None], left_out: Callable[[Any], bool]) -> Iterator[None]:
    original = overload.py_kernels[key]
    kernel = functools.partial(overload._op_dk, key) if left_out(overload) else original

    @functools.wraps(original)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        seen[str(overload)] = None
        return kernel(*args, **kwargs)

    overload.py_kernels[key] = recorded
    overload._dispatch_cache.clear()
    try:
        yield
    finally:
        overload.py_kernels[key] = original
        overload._dispatch_cache.clear()


@functools.cache
def _overloads_with_python_kernels() -> tuple[tuple[Any, Any], ...]:
    found: list[tuple[Any, Any]] = []
    for full_name in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full_name.partition("::")
        packet, _, overload_name = name.partition(".")
        if namespace != "aten":
            continue
        try:
            overload = getattr(getattr(torch.ops.aten, packet), overload_name or "default")
        except AttributeError:  # an operator for TorchScript only
            continue
        keys = [key for key in overload.py_kernels if key in _ABOVE_AUTOGRAD]
        found += [(overload, key) for key in keys if _has_kernel(overload.name(), key)]
    return tuple(found)


_Rewritten = Callable[[Any, Any, Sequence[Any], Mapping[str, Any], Callable[[], Any]], Any]


def _rewritten(func: Any) -> _Rewritten | None:
    """The other way to make a write or a view, by the operator's schema; None if there is none."""
    if not isinstance(func, torch._ops.OpOverload) or torch.Tag.inplace_view in func.tags:
        return None
    if func is torch.ops.aten.copy_.default:
        return None
    schema = func._schema
    if schema.is_mutable:
        return _list_by_elements if func.name().split("::")[1].startswith(_LISTS) else _write_on_a_copy
    is_view = any(value.alias_info is not None for value in schema.returns)
    return _view_by_strides if is_view and func is not torch.ops.aten.as_strided.default else None


def _write_on_a_copy(
    mode: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], plain: Callable[[], Any]
) -> Any:
    written: list[tuple[torch.Tensor, torch.Tensor]] = []

    def copy(tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        written.append((tensor, torch.ops.aten.clone.default(tensor)))
        return written[-1][1]

    with mode:
        given, named = _changed(func, args, kwargs, copy)
        results = func(*given, **named)
        for tensor, new in written:
            torch.ops.aten.copy_.default(tensor, new)

    def returned(result: Any) -> Any:
        return next((tensor for tensor, new in written if new is result), result)

    return pytree.tree_map(returned, results)


def _list_by_elements(
    mode: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], plain: Callable[[], Any]
) -> Any:
    lists = [arg for arg in args if isinstance(arg, (list, tuple))]
    with mode:
        for number in range(len(lists[0])):
            one = [[arg[number]] if isinstance(arg, (list, tuple)) else arg for arg in args]
            func(*one, **kwargs)
    return None if not func._schema.returns else lists[0]


def _view_by_strides(
    mode: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], plain: Callable[[], Any]
) -> Any:
    results = plain()
    base = args[0] if args else None

    def again(result: Any) -> Any:
        if not isinstance(result, torch.Tensor) or not isinstance(base, torch.Tensor):
            return result
        if (result.dtype, result.is_conj(), result.is_neg()) != (base.dtype, base.is_conj(), base.is_neg()):
            return result
        if _layout(result) == _layout(base):  # a view such as `detach`, which does more than give strides
            return result
        return torch.ops.aten.as_strided.default(base, result.size(), result.stride(), result.storage_offset())

    with mode:
        return pytree.tree_map(again, results)


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.size(), tensor.stride(), tensor.storage_offset()


def _changed(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], change: Callable[[Any], Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of an operator, with those that it writes changed."""
    given, named = list(args), dict(kwargs)
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        if number < len(given):
            given[number] = pytree.tree_map(change, given[number])
        elif argument.name in named:
            named[argument.name] = pytree.tree_map(change, named[argument.name])
    return given, named
