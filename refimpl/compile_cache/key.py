"""The key of a compile: the hash of a text of all that its traced and partitioned graphs depend on.

Counterpart: torch/_functorch/_aot_autograd/autograd_cache.py autograd_cache_key, AOTAutogradCacheDetails
Differs: the text is JSON of values that are known to be complete; upstream pickles. Hints of sizes are no part of it: the guards
of a kept program are checked with the hints of the request.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Sequence
from typing import Any

import torch

from refimpl._torch import (
    SYMBOLIC_TYPES,
    FakeTensor,
    PlainCodeGen,
    creation_of_view,
    graph_codegen,
    item_of_fake,
    storage_key,
)
from refimpl.aot.analysis.inputs import base_of
from refimpl.aot.functional_call import parameters_and_buffers
from refimpl.aot.functional_program import ProgramRequest
from refimpl.aot.options import AOTConfig
from refimpl.compile_cache.bypass import Bypass, Reason
from refimpl.compile_cache.callables import Describer, is_code_of_ours, method_record
from refimpl.compile_cache.environment import environment_record, refuse_modes
from refimpl.export.archive.errors import ArchiveError
from refimpl.export.archive.fakes import FakeWriter
from refimpl.export.archive.symbols import SymbolWriter, range_record
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.trace.decompositions.registry import is_registered
from refimpl.trace.metadata import Notes, copied_meta, notes_of

_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
# Options of a compile that its graphs depend on. Compilers are called with the graphs of the file.
_OPTIONS = (
    "partition_fn", "decompositions", "num_params_buffers", "keep_inference_input_mutations", "dynamic_shapes", "no_tangents",
    "record_stack_traces", "functionalization", "disable_functionalization", "specializes_integers", "is_followed",
    "merges_duplicates",
)  # fmt: skip
# Metadata of captured nodes that becomes metadata of the traced ones and is kept, and such that has no effect on what is kept.
_META_IN_KEY = ("stack_trace", "custom")
_META_WITHOUT_EFFECT = (
    "example_value",
    "val",
    "tensor_meta",
    "nn_module_stack",
    "source_fn_stack",
    "from_node",
)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def key_of(request: ProgramRequest) -> str:
    """The key of a request. Raises Bypass if the request cannot be kept."""
    return hashlib.sha256(key_text(request).encode()).hexdigest()


def key_text(request: ProgramRequest) -> str:
    """The text whose hash is the key: JSON of the graph, the arguments, the options and the environment."""
    graph = request.graph
    if graph is None:
        raise Bypass(Reason.PYTHON_FUNCTION)
    if request.config.is_export or request.config.pre_dispatch or request.check is not None or request.is_specialized:
        raise Bypass(Reason.EXPORT)
    refuse_modes()
    env = shape_env_of(request.args)
    symbols = SymbolWriter(env)
    describer = Describer(symbols)
    try:
        record = {
            "graph": _graph_record(graph, describer),
            "arguments": _arguments_record(request, symbols, describer),
            "options": _options_record(request.config, describer),
            "wants_backward": request.wants_backward,
            "symbols": None if env is None else _symbols_record(env, symbols),
            "environment": environment_record(describer, _devices(request)),
        }
        return json.dumps(record, sort_keys=True, allow_nan=False, separators=(",", ":"))
    except (
        ArchiveError,
        RecursionError,
        ValueError,
    ) as error:  # the last two: nested too deep, an integer without a text
        raise Bypass(Reason.NOT_KEPT, str(error).splitlines()[0]) from error


def shape_env_of(args: Sequence[Any]) -> ShapeEnv | None:
    """The ShapeEnv of fake arguments; None if there are none. Raises Bypass for modes that are not refimpl's."""
    modes = {id(arg.fake_mode): arg.fake_mode for arg in args if isinstance(arg, FakeTensor)}
    if not modes:
        return None
    env: Any = next(iter(modes.values())).shape_env
    if len(modes) > 1 or not isinstance(env, ShapeEnv):
        raise Bypass(Reason.FAKE_ARGUMENT)
    if env.unbacked or env.deferred_runtime_asserts:
        raise Bypass(Reason.UNBACKED)
    return env


# ------------------------------------------------------------------------------------------------------------- the graph


def _graph_record(module: torch.fx.GraphModule, describer: Describer) -> dict[str, Any]:
    if any(getattr(module, name, None) for name in _HOOKS):
        raise Bypass(Reason.HOOKS)
    if "forward" in vars(module) or type(graph_codegen(module.graph)) is not PlainCodeGen:
        raise Bypass(Reason.GRAPH_CLASS)
    unknown = sorted(set(module.meta) - {"captured"})
    if unknown:
        raise Bypass(Reason.NODE_META, f"{unknown} of the graph module")
    state = list(parameters_and_buffers(module))
    nodes = [_node_record(node, state, describer) for node in module.graph.nodes]
    return {"nodes": nodes, "state": state, "training": module.training}


def _node_record(node: torch.fx.Node, state: Sequence[str], describer: Describer) -> list[Any]:
    target: Any = str(node.target)
    match node.op:
        case "call_module":
            raise Bypass(Reason.SUBMODULE, node.target)
        case "get_attr" if target not in state:
            owner = node.graph.owning_module
            is_region = owner is not None and target in dict(owner.named_modules())
            raise Bypass(Reason.HIGHER_ORDER if is_region else Reason.TENSOR_CONSTANT, node.target)
        case "call_function":
            target = describer.record(node.target, node.name)
        case "call_method":
            target = method_record(describer, target)
        case _:
            pass
    arguments = [describer.record(part, node.name) for part in (node.args, node.kwargs)]
    return [node.op, node.name, target, *arguments, _meta_record(node, describer)]


def _meta_record(node: torch.fx.Node, describer: Describer) -> dict[str, Any]:
    unknown = sorted(set(node.meta) - {*_META_IN_KEY, *_META_WITHOUT_EFFECT, "torch_oracle"})
    if unknown or notes_of(node)._replace(source=None) != Notes():
        raise Bypass(Reason.NODE_META, f"{unknown or ['notes']} of {node.name}")
    return {name: describer.record(value, node.name) for name, value in copied_meta(node, *_META_IN_KEY).items()}


def _options_record(config: AOTConfig, describer: Describer) -> dict[str, Any]:
    found = {name: getattr(config, name) for name in _OPTIONS}
    table = dict(found.pop("decompositions"))
    # refimpl's own rules are known by their operators: the hash of its sources is in the key.
    own = {op for op, rule in table.items() if is_registered(op, rule) and is_code_of_ours(inspect.unwrap(rule))}
    others = [describer.record(pair, str(pair[0])) for pair in table.items() if pair[0] not in own]
    options = {name: describer.record(value, name) for name, value in found.items()}
    return {**options, "decompositions": {"own": sorted(map(str, own)), "others": others}}


# --------------------------------------------------------------------------------------------------------- the arguments


def _devices(request: ProgramRequest) -> set[torch.device]:
    values = (*request.args, *(request.plain or ()))
    return {value.device for value in values if isinstance(value, torch.Tensor)} | {torch.device("cpu")}


def _arguments_record(request: ProgramRequest, symbols: SymbolWriter, describer: Describer) -> dict[str, Any]:
    fakes = FakeWriter(symbols)
    values = [_value_record(value, fakes, describer) for value in request.args]
    plain = request.plain
    if plain is None:
        if fakes.records:
            raise Bypass(Reason.FAKE_ARGUMENT, "without the tensors that they stand for")
        return {"values": values, "memory": _memory_record(request.args)}
    memory = _memory_record(plain)
    if fakes.records and memory != _memory_of_strangers(plain):
        raise Bypass(Reason.SHARED_MEMORY)
    pairs = zip(plain, request.args, strict=True)
    real = [
        _real_record(value, describer, is_symbolic=isinstance(arg, (FakeTensor, *SYMBOLIC_TYPES)))
        for value, arg in pairs
    ]
    return {"values": values, "fakes": fakes.records, "real": real, "memory": memory}


def _value_record(value: Any, fakes: FakeWriter, describer: Describer) -> Any:
    if isinstance(value, FakeTensor):
        if item_of_fake(value) is not None:  # the record of a fake does not say which symbol it holds
            raise Bypass(Reason.FLOAT)
        return {"fake": fakes.index(value, "an argument", is_input=True)}
    if isinstance(value, SYMBOLIC_TYPES):
        return describer.record(value, "an argument")
    return _real_record(value, describer, is_symbolic=False)


def _real_record(value: Any, describer: Describer, *, is_symbolic: bool) -> Any:
    """The record of a tensor or number; without its sizes or value if it has a symbolic counterpart."""
    if not isinstance(value, torch.Tensor):
        if value is not None and type(value) not in (bool, int, float, complex, str):
            raise Bypass(Reason.ARGUMENT, type(value).__name__)
        return {"type": type(value).__name__, "value": None if is_symbolic else describer.record(value, "an argument")}
    _refuse_kind(value)
    geometry = None if is_symbolic else _geometry(value)
    nbytes = None if is_symbolic else value.untyped_storage().nbytes()
    base = None
    if value._base is not None:
        _refuse_kind(value._base)
        base = [*_flags(value._base), None if is_symbolic else _geometry(value._base), str(creation_of_view(value))]
    return {"tensor": _flags(value), "geometry": geometry, "nbytes": nbytes, "base": base}


def _flags(tensor: torch.Tensor) -> list[Any]:
    return [
        type(tensor).__name__, str(tensor.dtype), str(tensor.device), tensor.requires_grad, tensor.is_leaf, tensor.is_conj(),
        tensor.is_neg(), tensor.is_inference(), getattr(tensor, "persistent", None),
    ]  # fmt: skip


def _geometry(tensor: torch.Tensor) -> list[Any]:
    return [list(tensor.shape), list(tensor.stride()), tensor.storage_offset()]


def _refuse_kind(tensor: torch.Tensor) -> None:
    if type(tensor) not in _PLAIN_TENSORS:
        raise Bypass(Reason.SUBCLASS, type(tensor).__name__)
    is_plain = tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized
    has_names = getattr(tensor, "has_names", None)  # torch 2.13 has no named tensors
    if not is_plain or tensor.is_mkldnn or (has_names is not None and has_names()) or tensor._is_zerotensor():
        raise Bypass(Reason.TENSOR_KIND, tensor.layout)
    if tensor.device.type not in ("cpu", "cuda"):
        raise Bypass(Reason.DEVICE, tensor.device)


def _memory_record(values: Sequence[Any]) -> list[Any]:
    """For each tensor the first one that is the same object, is in the same storage, or is of the same base."""
    first: dict[Any, int] = {}
    found: list[Any] = []
    for position, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            places = (("object", id(value)), ("storage", storage_key(value)), ("base", id(base_of(value))))
            found.append([first.setdefault(place, position) for place in places])
    return found


def _memory_of_strangers(values: Sequence[Any]) -> list[Any]:
    return [[position] * 3 for position, value in enumerate(values) if isinstance(value, torch.Tensor)]


# ----------------------------------------------------------------------------------------------------------- the symbols


def _symbols_record(env: ShapeEnv, writer: SymbolWriter) -> dict[str, Any]:
    """All symbols and all that is known of them, hints excepted: also of symbols that the program has none of, since facts about
    them may decide conditions on others."""
    return {
        "settings": dataclasses.asdict(env.settings),
        "symbols": [
            [writer.expression(s), range_record(found), s in env.facts.size_like]
            for s, found in env.facts.ranges.items()
        ],
        "assumptions": sorted(f"{s}: {sorted(map(str, s.assumptions0.items()))}" for s in env.facts.ranges),
        "replacements": [[writer.expression(s), writer.expression(e)] for s, e in env.replacements.items()],
        "guards": [writer.expression(guard.expr) for guard in env.guards],
    }
