"""Records of exported programs: one JSON object, and the data of tensors.

Counterpart: torch/_export/serde/serialize.py ExportedProgramSerializer, ExportedProgramDeserializer
"""

from __future__ import annotations

from typing import Any

import torch

from refimpl._torch import FakeTensor, pytree
from refimpl.export.archive.errors import ArchiveError, field, identifier, optional, state_name, strings, typed
from refimpl.export.archive.fakes import FakeReader, FakeWriter
from refimpl.export.archive.graphs import GraphReader, GraphWriter
from refimpl.export.archive.symbols import SymbolReader, SymbolWriter, range_record, to_range
from refimpl.export.archive.tensors import TensorReader, TensorWriter
from refimpl.export.archive.trees import check_call, to_tree, tree_record
from refimpl.export.archive.values import ValueReader, ValueWriter
from refimpl.export.exported_program import ExportedProgram
from refimpl.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
    TokenArgument,
)
from refimpl.export.module_call_graph import ModuleCallEntry, ModuleCallSignature
from refimpl.export.verifier import TrainingIRVerifier, Verifier
from refimpl.symbolic.shape_env import ShapeEnv

_VERIFIERS: dict[str, type[Verifier]] = {kind.dialect: kind for kind in (TrainingIRVerifier, Verifier)}
_ARGUMENTS: dict[str, Any] = {
    "tensor": TensorArgument, "token": TokenArgument, "int": SymIntArgument, "float": SymFloatArgument, "bool": SymBoolArgument,
}  # fmt: skip
_ARGUMENT_NAMES = {kind: name for name, kind in _ARGUMENTS.items()}


def program_record(program: ExportedProgram) -> tuple[dict[str, Any], bytes]:
    """The record and the tensors' data. Raises ArchiveError, with the name, for a value that an archive cannot have."""
    symbols = SymbolWriter(_shape_env(program))
    fakes, tensors = FakeWriter(symbols), TensorWriter()
    graphs, plain = GraphWriter(symbols, fakes), ValueWriter(symbols, lambda value: None)
    if [_VERIFIERS.get(kind.dialect) for kind in program.verifiers] != program.verifiers:
        raise ArchiveError(
            seen=f"the verifiers {[kind.__name__ for kind in program.verifiers]}",
            expected=f"one of {[kind.__name__ for kind in _VERIFIERS.values()]}",
            do="save the program with a dialect of refimpl.export",
        )
    _refuse_objects(program)
    record: dict[str, Any] = {
        "dialects": [kind.dialect for kind in program.verifiers],
        "module": graphs.module(program.graph_module),
        "signature": {
            "inputs": [_spec_record(spec, plain) for spec in program.graph_signature.input_specs],
            "outputs": [_spec_record(spec, plain) for spec in program.graph_signature.output_specs],
        },
        "state_dict": [
            [name, tensors.index(value, f"state_dict[{name!r}]")] for name, value in program.state_dict.items()
        ],
        "constants": [
            [name, tensors.index(value, f"constants[{name!r}]")] for name, value in program.constants.items()
        ],
        "range_constraints": [
            [symbols.expression(symbol), range_record(bounds)] for symbol, bounds in program.range_constraints.items()
        ],
        "guards": [symbols.expression(guard) for guard in program.guards],
        "module_call_graph": [_entry_record(entry, plain) for entry in program.module_call_graph],
        "example_inputs": _examples_record(program, symbols, tensors),
        "input_names": program._input_names,
    }
    record |= {
        "operators": graphs.operators,
        "fakes": fakes.records,
        "tensors": tensors.record(),
        "symbols": symbols.record(),
    }
    return record, tensors.data()


def _shape_env(program: ExportedProgram) -> ShapeEnv | None:
    for node in program.graph.nodes:
        value = node.meta.get("val")
        env = value.fake_mode.shape_env if isinstance(value, FakeTensor) else None
        if isinstance(env, ShapeEnv):
            return env
    return None


def _refuse_objects(program: ExportedProgram) -> None:
    for name, value in program.constants.items():
        if not isinstance(value, torch.Tensor):
            raise ArchiveError(
                seen=f"the constant {name!r}, which is a {type(value).__name__} and no tensor",
                expected="constants that are tensors",
                do="keep what the object holds in tensors of the module",
            )


def _spec_record(spec: InputSpec | OutputSpec, plain: ValueWriter) -> dict[str, Any]:
    record: dict[str, Any] = {"kind": spec.kind.name, "arg": _argument_record(spec.arg, plain), "target": spec.target}
    if isinstance(spec, InputSpec) and spec.persistent is not None:
        record["persistent"] = spec.persistent
    return record


def _argument_record(arg: Any, plain: ValueWriter) -> dict[str, Any]:
    if isinstance(arg, ConstantArgument):
        return {"as": "constant", "name": arg.name, "value": plain.record(arg.value, f"the input or output {arg.name}")}
    kind = _ARGUMENT_NAMES.get(type(arg))
    if kind is None:
        raise ArchiveError(
            seen=f"{arg.name}, a {type(arg).__name__}", expected=f"one of {sorted(_ARGUMENTS)}",
            do="keep what the object holds in tensors of the module",
        )  # fmt: skip
    return {"as": kind, "name": arg.name}


def _entry_record(entry: ModuleCallEntry, plain: ValueWriter) -> dict[str, Any]:
    signature = entry.signature
    if signature is None:
        return {"fqn": entry.fqn}
    where = f"the signature of {entry.fqn or 'the whole'}"
    return {
        "fqn": entry.fqn,
        "signature": {
            "inputs": [_argument_record(arg, plain) for arg in signature.inputs],
            "outputs": [_argument_record(arg, plain) for arg in signature.outputs],
            "in_spec": tree_record(signature.in_spec, plain, where),
            "out_spec": tree_record(signature.out_spec, plain, where),
            "forward_arg_names": signature.forward_arg_names,
        },
    }


def _examples_record(program: ExportedProgram, symbols: SymbolWriter, tensors: TensorWriter) -> Any:
    if program.example_inputs is None:
        return None
    if any(isinstance(leaf, FakeTensor) for leaf in pytree.tree_leaves(program.example_inputs)):
        return None  # the graph's inputs have the same metadata

    def tensor(value: Any) -> dict[str, int] | None:
        return {"tensor": tensors.index(value, "an example input")} if isinstance(value, torch.Tensor) else None

    values = ValueWriter(symbols, tensor)
    leaves, spec = pytree.tree_flatten(program.example_inputs)
    return {
        "spec": tree_record(spec, values, "example_inputs"),
        "leaves": [values.record(leaf, "an example input") for leaf in leaves],
    }


# ------------------------------------------------------------------------------------------------------------ reading


def to_program(record: Any, data: bytes) -> ExportedProgram:
    """Build the program. Raises ArchiveError for an invalid record, and for operators and containers that are not registered."""
    symbols = SymbolReader(field(record, "symbols", dict, "the program"))
    plain = ValueReader(symbols, {})
    tensors = TensorReader(field(record, "tensors", dict, "the program"), data)
    signature = field(record, "signature", dict, "the program")
    inputs = [_input_spec(each, plain) for each in field(signature, "inputs", list, "signature")]
    outputs = [_output_spec(each, plain) for each in field(signature, "outputs", list, "signature")]
    entries = [_entry(each, plain) for each in field(record, "module_call_graph", list, "the program")]
    if not entries or entries[0].signature is None:
        raise ArchiveError(seen="a module_call_graph without the root", expected="its signature in the first entry")
    in_spec = check_call(entries[0].signature.in_spec, "in_spec")
    num_users = sum(spec.kind is InputKind.USER_INPUT for spec in inputs)
    if in_spec.num_leaves != num_users:
        raise ArchiveError(seen=f"{num_users} inputs of the user", expected=f"{in_spec.num_leaves}, as in_spec says")
    fakes = FakeReader(symbols, field(record, "fakes", list, "the program"))
    graphs = GraphReader(symbols, fakes, field(record, "operators", dict, "the program"))
    graph_module = graphs.module(field(record, "module", dict, "the program"), "module")
    return ExportedProgram(
        root=graph_module,
        graph=graph_module.graph,
        graph_signature=ExportGraphSignature(inputs, outputs),
        state_dict=_named_tensors(record, "state_dict", tensors),
        range_constraints={
            symbols.expression(name): to_range(bounds, "range_constraints")
            for name, bounds in field(record, "range_constraints", list, "the program")
        },
        module_call_graph=entries,
        example_inputs=_examples(record, symbols, tensors),
        constants=_named_tensors(record, "constants", tensors),
        verifiers=[_verifier(name) for name in strings(record, "dialects", "the program")],
        guards=[symbols.expression(text) for text in strings(record, "guards", "the program")],
        input_names=strings(record, "input_names", "the program"),
    )


def _verifier(name: str) -> type[Verifier]:
    if name not in _VERIFIERS:
        raise ArchiveError(seen=f"the dialect {name!r}", expected=f"one of {sorted(_VERIFIERS)}")
    return _VERIFIERS[name]


def _named_tensors(record: Any, name: str, tensors: TensorReader) -> dict[str, torch.Tensor]:
    return {state_name(key, name): tensors[index] for key, index in field(record, name, list, "the program")}


def _target(record: Any, where: str) -> str | None:
    target = optional(record, "target", str, where)
    return None if target is None else state_name(target, where)


def _input_spec(record: Any, plain: ValueReader) -> InputSpec:
    kind = field(record, "kind", str, "an input")
    persistent = optional(record, "persistent", bool, "an input")
    if kind not in InputKind.__members__ or (kind == "BUFFER" and persistent is None):
        raise ArchiveError(
            seen=f"an input of kind {kind!r}",
            expected=f"one of {list(InputKind.__members__)}; buffers persistent or not",
        )
    arg = _argument(field(record, "arg", dict, "an input"), plain)
    return InputSpec(InputKind[kind], arg, _target(record, "an input"), persistent)


def _output_spec(record: Any, plain: ValueReader) -> OutputSpec:
    kind = field(record, "kind", str, "an output")
    if kind not in OutputKind.__members__:
        raise ArchiveError(seen=f"an output of kind {kind!r}", expected=f"one of {list(OutputKind.__members__)}")
    arg = _argument(field(record, "arg", dict, "an output"), plain)
    return OutputSpec(OutputKind[kind], arg, _target(record, "an output"))


def _argument(record: Any, plain: ValueReader) -> Any:
    kind, name = field(record, "as", str, "an argument"), field(record, "name", str, "an argument")
    if kind == "constant":
        return ConstantArgument(name=name, value=plain.value(record.get("value"), name))
    if kind not in _ARGUMENTS:
        raise ArchiveError(seen=f"an argument of kind {kind!r}", expected=f"constant or one of {sorted(_ARGUMENTS)}")
    return _ARGUMENTS[kind](name=name)


def _entry(record: Any, plain: ValueReader) -> ModuleCallEntry:
    fqn = field(record, "fqn", str, "a module")
    found = optional(record, "signature", dict, "a module")
    if fqn:
        state_name(fqn, "a module")
    if found is None:
        return ModuleCallEntry(fqn=fqn)
    where = f"the signature of {fqn or 'the whole'}"
    names = optional(found, "forward_arg_names", list, where)
    signature = ModuleCallSignature(
        inputs=[_argument(each, plain) for each in field(found, "inputs", list, where)],
        outputs=[_argument(each, plain) for each in field(found, "outputs", list, where)],
        in_spec=to_tree(found.get("in_spec"), plain, where),
        out_spec=to_tree(found.get("out_spec"), plain, where),
        forward_arg_names=None if names is None else [identifier(name, where) for name in names],
    )
    return ModuleCallEntry(fqn=fqn, signature=signature)


def _examples(record: Any, symbols: SymbolReader, tensors: TensorReader) -> Any:
    found = optional(record, "example_inputs", dict, "the program")
    if found is None:
        return None
    values = ValueReader(symbols, {"tensor": tensors.__getitem__})
    spec = check_call(to_tree(found.get("spec"), values, "example_inputs"), "example_inputs")
    leaves = [values.value(leaf, "an example input") for leaf in typed(found.get("leaves"), list, "example_inputs")]
    if len(leaves) != spec.num_leaves:
        raise ArchiveError(seen=f"{len(leaves)} example inputs", expected=f"{spec.num_leaves}")
    return pytree.tree_unflatten(leaves, spec)
