"""Records of partitioned programs in JSON: forward and backward graph, and what the wrapper around them does.

Graphs are written as in archives of exported programs (refimpl.export.archive), with more of the nodes' metadata.

Counterpart: torch/_functorch/_aot_autograd/aot_autograd_result.py GenericAOTAutogradResult
Differs: no pickle. The graphs are kept, not what a compiler made of them: the compiler is called again. Expressions are of the
symbols of the request's ShapeEnv.

Note [What of a node's meta is kept]
`val`, `stack_trace`, `torch_fn`, `seq_nr`, `custom`, `original_aten`, `partitioner_tag`, `autograd_backward`, `is_gradient_acc`,
and our own notes but the sources of a draw and of an input, which earlier steps read. `tensor_meta` and `device` follow from
`val`. Module stacks, `source_fn_stack` and `from_node` describe how the graph was made, and are lost. A program with any other
key is not kept.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from refimpl._torch import FakeTensorMode, HigherOrderOperator, OpOverload, creation_meta_named, is_creation_meta
from refimpl.aot.analysis.inputs import Derived, InputPlan, Slot
from refimpl.aot.analysis.metadata import (
    FlatWrite,
    ForwardOutput,
    Geometry,
    InputInfo,
    InputMutation,
    OutputInfo,
    OutputKind,
    ProgramAnalysis,
    ReplayStep,
    TangentInfo,
)
from refimpl.aot.compile_program import PartitionedProgram
from refimpl.aot.joint.decomposed_calls import Decomposed, Operand
from refimpl.aot.rng import RandomStates
from refimpl.compile_cache.bypass import Bypass, Reason
from refimpl.export.archive.errors import ArchiveError, field, identifier, typed
from refimpl.export.archive.fakes import FakeReader, FakeWriter
from refimpl.export.archive.graphs import GraphReader, GraphWriter
from refimpl.export.archive.operators import name_of
from refimpl.export.archive.symbols import SymbolReader, SymbolWriter
from refimpl.export.archive.tensors import TensorReader, TensorWriter
from refimpl.export.archive.values import ValueReader, ValueWriter
from refimpl.functionalize import VIEWED, AliasGroup
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.trace.metadata import Notes, note, notes_of

_RECORDS = {
    cls.__name__: cls
    for cls in (
        ProgramAnalysis, InputInfo, InputMutation, OutputInfo, TangentInfo, FlatWrite, Geometry, ReplayStep, ForwardOutput,
        AliasGroup, InputPlan, Slot, Derived, Decomposed, Operand,
    )
}  # fmt: skip
_FACTS = (
    "analysis", "wrapped", "plan", "replaced", "num_dense_outputs", "offsets", "num_outputs", "dependences", "histories",
    "is_dense",
)  # fmt: skip
_NO_SYMBOLS: Mapping[str, Any] = {"symbols": [], "replacements": [], "guards": [], "asserts": []}
_PLAIN_META = ("stack_trace", "torch_fn", "seq_nr", "custom", "partitioner_tag", "autograd_backward", "is_gradient_acc")
_OTHER_META = ("val", "original_aten", "torch_oracle")
_LOST_META = (
    "tensor_meta", "nn_module_stack", "fwd_nn_module_stack", "source_fn_stack", "fwd_source_fn_stack", "from_node",
)  # fmt: skip
_EARLY_NOTES = {"random_state": None, "source": None}
MOST_CONSTANT_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedProgram:
    """The facts about a program in a file (ProgramFacts)."""

    analysis: ProgramAnalysis
    plan: InputPlan
    replaced: tuple[AliasGroup, ...]
    num_dense_outputs: int
    offsets: frozenset[int]
    layout: None = None
    captured: tuple[()] = ()
    example_tangents: tuple[()] = ()
    random: RandomStates = RandomStates()
    is_specialized: bool = False

    def held_offsets(self) -> frozenset[int]:
        """Positions of arguments whose storage offset is a constant of the compiled code."""
        return self.offsets


def refuse_unkept(partitioned: PartitionedProgram) -> None:
    """Raises Bypass for a program of which a file cannot keep all."""
    program = partitioned.program
    if program.captured:
        raise Bypass(Reason.CAPTURED, f"{len(program.captured)} of them")
    if program.layout is not None:
        raise Bypass(Reason.SUBCLASS, "a result")
    if program.random.forward or program.random.backward:
        raise Bypass(Reason.RANDOM_STATES)
    if program.is_specialized:
        raise Bypass(Reason.SPECIALIZED)
    if partitioned.analysis.refused or program.analysis.refused:
        raise Bypass(Reason.REFUSED_GRADIENT)
    for module in (partitioned.forward, partitioned.backward):
        if module is not None:
            _refuse_graph(module)


def _refuse_graph(module: fx.GraphModule) -> None:
    if module.meta:
        raise Bypass(Reason.NODE_META, f"{sorted(module.meta)} of the traced graph")
    for node in module.graph.nodes:
        if isinstance(node.target, HigherOrderOperator):
            raise Bypass(Reason.HIGHER_ORDER, node.target.name())
        if isinstance(node.target, OpOverload) and node.target.namespace not in ("aten", "prims"):
            raise Bypass(Reason.LIBRARY_OPERATOR, node.target)
        unknown = sorted(set(node.meta) - {*_PLAIN_META, *_OTHER_META, *_LOST_META})
        if unknown:
            raise Bypass(Reason.NODE_META, f"{unknown} of {node.name}")


# --------------------------------------------------------------------------------------------------------------- writing


def program_record(partitioned: PartitionedProgram, env: ShapeEnv | None) -> dict[str, Any]:
    """The record of a program. Raises Bypass for one that cannot be kept, ArchiveError for a value without a record."""
    refuse_unkept(partitioned)
    symbols = SymbolWriter(env)
    fakes = FakeWriter(symbols)
    graphs = _GraphWriter(symbols, fakes)
    modules = {"forward": partitioned.forward, "backward": partitioned.backward}
    written = {name: None if module is None else graphs.module(module) for name, module in modules.items()}
    facts = {name: graphs.facts.record(value, name) for name, value in _facts(partitioned).items()}
    tensors = TensorWriter()
    constants = {name: _constants_record(module, tensors) for name, module in modules.items()}
    data = base64.b64encode(tensors.data()).decode() if any(constants.values()) else None
    if data is not None and len(data) > MOST_CONSTANT_BYTES:
        raise Bypass(Reason.TENSOR_CONSTANT, f"{len(data)} bytes of them")
    return {
        "graphs": written,
        "operators": graphs.operators,
        "facts": facts,
        "fakes": fakes.records,
        "constants": constants,
        "tensors": tensors.record(),
        "data": data,
    }


def _constants_record(module: fx.GraphModule | None, tensors: TensorWriter) -> dict[str, int]:
    """Numbers of the tensors that the trace has made of constants of the program, such as `torch.tensor([1, 2])`, by name."""
    if module is None:
        return {}
    names = dict.fromkeys(str(node.target) for node in module.graph.nodes if node.op == "get_attr")
    return {name: tensors.index(_constant(module, name), f"the constant {name}") for name in names}


def _constant(module: fx.GraphModule, name: str) -> torch.Tensor:
    found = getattr(module, name, None)
    if not isinstance(found, torch.Tensor) or found.requires_grad:
        raise Bypass(Reason.TENSOR_CONSTANT, name)
    return found


def _facts(partitioned: PartitionedProgram) -> dict[str, Any]:
    program = partitioned.program
    return {
        "analysis": program.analysis,
        "wrapped": partitioned.analysis,
        "plan": program.plan,
        "replaced": program.replaced,
        "num_dense_outputs": program.num_dense_outputs,
        "offsets": program.held_offsets(),
        "num_outputs": partitioned.num_outputs,
        "dependences": partitioned.dependences,
        "histories": partitioned.histories,
        "is_dense": partitioned.is_dense,
    }


class _GraphWriter(GraphWriter):
    """Writes graphs with the metadata that compilers and the compiled backward read."""

    def __init__(self, symbols: SymbolWriter, fakes: FakeWriter) -> None:
        super().__init__(symbols, fakes)
        self._name = "the program"
        self._is_input = True  # of all values the memory is kept that they share
        self.facts = ValueWriter(symbols, self._fact)

    def _fact(self, value: Any) -> dict[str, Any] | None:
        if isinstance(value, torch.Tensor):
            return self._fake(value)
        if isinstance(value, OpOverload):
            return {"operator": self._target(value)}
        if isinstance(value, frozenset):
            return {"set": sorted(typed(item, int, "an element of a set") for item in value)}
        if value is VIEWED:
            return {"viewed": True}
        if isinstance(value, OutputKind):
            return {"kind": value.name}
        if is_creation_meta(value):
            return {"creation": value.name}
        if _RECORDS.get(type(value).__name__) is type(value):
            if isinstance(value, AliasGroup):
                value = replace(value, value=None)  # a node, which functionalization reads
            names = [f.name for f in dataclasses.fields(value)]
            return {"record": [type(value).__name__, {n: self.facts.record(getattr(value, n), n) for n in names}]}
        return None

    def _meta(self, node: fx.Node, where: str) -> dict[str, Any]:
        meta = node.meta
        found = {
            key: self._plain.record(meta[key], f"{where}, {key}") for key in _PLAIN_META if meta.get(key) is not None
        }
        if "val" in meta:
            found["val"] = self._results.record(meta["val"], f"{where}, val")
        if "tensor_meta" in meta:
            found["requires_grad"] = meta["tensor_meta"].requires_grad
        if meta.get("original_aten") is not None:
            found["original_aten"] = name_of(meta["original_aten"])
        notes = notes_of(node)._replace(**_EARLY_NOTES)
        changed = {n: v for n, v in notes._asdict().items() if v != Notes._field_defaults[n]}
        if changed:
            found["notes"] = {name: self.facts.record(value, f"{where}, {name}") for name, value in changed.items()}
        return found


# --------------------------------------------------------------------------------------------------------------- reading


def to_partitioned(record: Any, mode: FakeTensorMode, env: ShapeEnv) -> PartitionedProgram:
    """The program of a record, with fake tensors of `mode` and symbols of `env`. Raises ArchiveError for an invalid record."""
    symbols = SymbolReader(_NO_SYMBOLS, env)
    fakes = FakeReader(symbols, field(record, "fakes", list, "the file"), mode)
    tensors = None if record.get("data") is None else TensorReader(record["tensors"], base64.b64decode(record["data"]))
    graphs = _GraphReader(symbols, fakes, field(record, "operators", dict, "the file"))
    modules = field(record, "graphs", dict, "the file")
    given = field(record, "facts", dict, "the file")
    if sorted(given) != sorted(_FACTS):
        raise ArchiveError(seen=f"the facts {sorted(given)}", expected=f"{sorted(_FACTS)}")
    facts = {name: graphs.facts.value(value, name) for name, value in given.items()}
    program = LoadedProgram(
        analysis=typed(facts["analysis"], ProgramAnalysis, "analysis"),
        plan=typed(facts["plan"], InputPlan, "plan"),
        replaced=typed(facts["replaced"], tuple, "replaced"),
        num_dense_outputs=typed(facts["num_dense_outputs"], int, "num_dense_outputs"),
        offsets=typed(facts["offsets"], frozenset, "offsets"),
    )
    built: dict[str, fx.GraphModule | None] = {}
    for name in ("forward", "backward"):
        numbers = field(field(record, "constants", dict, "the file"), name, dict, "constants")
        graphs.constants = {} if tensors is None else {identifier(key, name): tensors[n] for key, n in numbers.items()}
        built[name] = None if modules.get(name) is None else graphs.module(modules[name], name)
    return PartitionedProgram(
        program=program,
        analysis=typed(facts["wrapped"], ProgramAnalysis, "wrapped"),
        forward=typed(built["forward"], fx.GraphModule, "forward"),
        backward=built["backward"],
        num_outputs=typed(facts["num_outputs"], int, "num_outputs"),
        dependences=typed(facts["dependences"], tuple, "dependences"),
        histories=typed(facts["histories"], tuple, "histories"),
        is_dense=typed(facts["is_dense"], bool, "is_dense"),
    )


class _GraphReader(GraphReader):
    """Makes the graphs again from the records that _GraphWriter wrote."""

    def __init__(self, symbols: SymbolReader, fakes: FakeReader, operators: Mapping[str, Any]) -> None:
        super().__init__(symbols, fakes, operators)
        special = {
            "fake": fakes.__getitem__,
            "operator": self._operator,
            "set": lambda items: frozenset(typed(item, int, "an element") for item in typed(items, list, "a set")),
            "viewed": lambda _: VIEWED,
            "kind": lambda name: OutputKind[typed(name, str, "a kind")],
            "creation": lambda name: creation_meta_named(typed(name, str, "a creation")),
            "record": self._record,
        }
        self.facts = ValueReader(symbols, special)
        self.constants: Mapping[str, torch.Tensor] = {}  # of the graph that is read, by name

    def _target(self, op: str, record: Any, root: torch.nn.Module, where: str) -> Any:
        target = record.get("target")
        if op == "get_attr" and target in self.constants:
            setattr(root, target, self.constants[target])
            return target
        return super()._target(op, record, root, where)

    def _record(self, content: Any) -> Any:
        name, fields = typed(content, list, "a record")
        cls = _RECORDS.get(typed(name, str, "a record"))
        if cls is None or sorted(typed(fields, dict, name)) != sorted(f.name for f in dataclasses.fields(cls)):
            raise ArchiveError(seen=f"a record {name} with {sorted(fields)}", expected=f"one of {sorted(_RECORDS)}")
        return cls(**{key: self.facts.value(value, f"{name}.{key}") for key, value in fields.items()})

    def _set_meta(self, node: fx.Node, record: Any, where: str) -> None:
        meta = dict(typed(record, dict, f"{where}.meta"))
        notes = typed(meta.pop("notes", {}), dict, f"{where}.notes")
        super()._set_meta(node, meta, where)
        for key in _PLAIN_META:
            if key in meta:
                node.meta[key] = self._plain.value(meta[key], f"{where}.meta.{key}")
        if notes:
            note(node, **{name: self.facts.value(value, f"{where}.{name}") for name, value in notes.items()})
