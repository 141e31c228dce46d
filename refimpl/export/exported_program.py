"""A whole program as one graph, with its state, what its inputs and outputs are, and for which sizes it holds.

Counterpart: torch/export/exported_program.py ExportedProgram
Differs: conditions on sizes are kept as expressions (`guards`), not as source text of a function.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from refimpl._torch import FakeTensor, PlainCodeGen
from refimpl.export.draft_report import DraftExportReport
from refimpl.export.functional_graph import FunctionalGraph, functional_graph, joint_graph
from refimpl.export.graph_signature import ExportGraphSignature
from refimpl.export.input_contract import InputContract
from refimpl.export.module_call_graph import CallSpec, ModuleCallEntry, without_submodule_signatures
from refimpl.export.shapes.range_constraints import unbacked_ranges
from refimpl.export.strict.kept_signatures import showing
from refimpl.export.unlift import unlifted_module
from refimpl.export.verifier import TrainingIRVerifier, Verifier
from refimpl.symbolic.ranges import Range
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.trace.options import DecompositionTable


class ExportedProgram:
    """What `export` returns. Not called itself: `module()` gives what can be called."""

    def __init__(
        self,
        root: torch.nn.Module | Mapping[str, Any],
        graph: fx.Graph,
        graph_signature: ExportGraphSignature,
        state_dict: Mapping[str, torch.Tensor],
        range_constraints: Mapping[Any, Range],
        module_call_graph: list[ModuleCallEntry],
        example_inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
        constants: Mapping[str, Any] | None = None,
        *,
        verifiers: Sequence[type[Verifier]] | None = None,
        guards: Sequence[Any] = (),
        input_names: Sequence[str] | None = None,
    ) -> None:
        """guards: conditions on the symbols of inputs that the ranges do not say. input_names: of inputs, for messages.

        Raises SpecViolationError where the graph is not in the dialect of the verifiers, or does not fit the signature.
        """
        graph.set_codegen(PlainCodeGen())
        graph_module = fx.GraphModule(dict(root) if isinstance(root, Mapping) else root, graph)
        if isinstance(root, fx.GraphModule):
            graph_module.meta.update(root.meta)
        self._graph_module = graph_module
        self._graph_signature = graph_signature
        self._state_dict = dict(state_dict)
        self._range_constraints = dict(range_constraints)
        self._module_call_graph = module_call_graph
        self._example_inputs = example_inputs
        self._constants = dict(constants or {})
        self._verifiers = list(verifiers or [TrainingIRVerifier])
        self._guards = tuple(guards)
        self._input_names = list(input_names or [])
        self.report: DraftExportReport | None = None
        """What had to be assumed, of a draft (see refimpl.export.draft)."""
        self.validate()

    @property
    def graph_module(self) -> fx.GraphModule:
        """The graph as a module that takes all inputs flat, state included."""
        return self._graph_module

    @property
    def graph(self) -> fx.Graph:
        """Of `graph_module`."""
        return self._graph_module.graph

    @property
    def graph_signature(self) -> ExportGraphSignature:
        """What inputs and outputs are."""
        return self._graph_signature

    @property
    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and persistent buffers, the very tensors of the module that was exported."""
        return self._state_dict

    @property
    def constants(self) -> dict[str, Any]:
        """Tensors and objects that are neither, and buffers that are not persistent."""
        return self._constants

    @property
    def tensor_constants(self) -> dict[str, Any]:
        """Another name for `constants`."""
        return self._constants

    @property
    def range_constraints(self) -> dict[Any, Range]:
        """From symbols to the numbers they may be."""
        return self._range_constraints

    @property
    def guards(self) -> tuple[Any, ...]:
        """Conditions on symbols, besides the ranges, that hold for all inputs it may be called with."""
        return self._guards

    @property
    def module_call_graph(self) -> list[ModuleCallEntry]:
        """The modules it was made of; the first entry is the whole."""
        return self._module_call_graph

    @property
    def example_inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """What it was exported with: (args, kwargs)."""
        return self._example_inputs

    @example_inputs.setter
    def example_inputs(self, value: tuple[tuple[Any, ...], dict[str, Any]] | None) -> None:
        match value:
            case None | tuple((tuple(), dict())):
                self._example_inputs = value
            case _:
                raise ValueError(f"example inputs {value!r}\n  expected: (args, kwargs), a tuple and a dict, or None")

    @property
    def call_spec(self) -> CallSpec:
        """Containers of the inputs and of the result."""
        whole = self._module_call_graph[0].signature
        assert whole is not None, "the first entry of module_call_graph has no signature"
        return CallSpec(whole.in_spec, whole.out_spec)

    @property
    def verifier(self) -> type[Verifier]:
        """What says whether the graph is in its dialect."""
        return self._verifiers[0]

    @property
    def verifiers(self) -> list[type[Verifier]]:
        """All of them."""
        return self._verifiers

    @property
    def dialect(self) -> str:
        """TRAINING as exported, ATEN once decomposed."""
        return self.verifier.dialect

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """In the order of the inputs."""
        for _, parameter in self.named_parameters():
            yield parameter

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """With full names."""
        for name in self.graph_signature.parameters:
            yield name, self.state_dict[name]  # type: ignore[misc]

    def buffers(self) -> Iterator[torch.Tensor]:
        """In the order of the inputs."""
        for _, buffer in self.named_buffers():
            yield buffer

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """With full names, those that are not persistent included."""
        absent = set(self.graph_signature.non_persistent_buffers)
        for name in self.graph_signature.buffers:
            yield name, self.constants[name] if name in absent else self.state_dict[name]

    def module(self, check_guards: bool = True) -> torch.nn.Module:
        """A module that is called like the one exported, on the state of this program. Updates of buffers and inputs happen.

        Its calls raise InputMismatch for inputs the program was not exported for, unless `check_guards` is False.
        """
        return unlifted_module(self, self.input_contract() if check_guards else None)

    def run_decompositions(self, decomp_table: DecompositionTable | None = None) -> ExportedProgram:
        """The program with a functional graph: no operator writes, updates of buffers and inputs are outputs.

        decomp_table: from operators to functions that take their place; composite operators that it does not name stay whole.
            None for all there is (`default_decompositions()`), down to a small set of operators.

        Raises an ExportError for what such a graph cannot say, as that an input is resized.
        """
        entries = self._module_call_graph
        program = showing(self._graph_module, self._graph_signature, self._state_dict, self._constants, entries)
        made, entries = program.finished(functional_graph(program, decomp_table), entries)
        return self._made_functional(made, entries)

    def forward_backward(self, loss_index: int = 0) -> ExportedProgram:
        """The program with a functional graph that gives gradients too, of the user's output at `loss_index`.

        Outputs are (tokens, updates, the user's with the loss among them, gradients of parameters and of inputs that require
        them); `graph_signature.backward_signature` says which is which. `module()` gives the user's outputs only.

        Raises an ExportError for a loss that is no scalar with a gradient, for a second output with one, and for writes with a
        history; GradientMissing where the loss does not depend on a parameter.
        """
        return self._made_functional(
            joint_graph(self, loss_index), without_submodule_signatures(self._module_call_graph)
        )

    def _made_functional(self, made: FunctionalGraph, entries: list[ModuleCallEntry]) -> ExportedProgram:
        env = _shape_env(self.graph)
        ranges = dict(self._range_constraints)
        if env is not None:
            ranges = {symbol: bounds for symbol, bounds in ranges.items() if symbol not in env.unbacked}
            ranges |= unbacked_ranges(env, made.graph_module.graph.nodes)
        return ExportedProgram(
            root=made.graph_module,
            graph=made.graph_module.graph,
            graph_signature=made.signature,
            state_dict=self._state_dict,
            range_constraints=ranges,
            module_call_graph=entries,
            example_inputs=self._example_inputs,
            constants=self._constants,
            verifiers=[Verifier],
            guards=self._guards,
            input_names=self._input_names,
        )

    def input_contract(self) -> InputContract:
        """What checks the leaves of the user's inputs."""
        users = {name for name, kind in self._kinds() if kind == "USER_INPUT"}
        placeholders = [node for node in self.graph.find_nodes(op="placeholder") if node.name in users]
        names = self._input_names or [node.name for node in placeholders]
        values = [node.meta.get("val") for node in placeholders]
        updated = set(self.graph_signature.user_inputs_to_mutate.values())
        written = [index for index, node in enumerate(placeholders) if node.name in updated]
        return InputContract(names, values, self._range_constraints, self._guards, written)

    def _kinds(self) -> Iterator[tuple[str, str]]:
        for spec in self.graph_signature.input_specs:
            yield spec.arg.name, spec.kind.name

    def validate(self) -> None:
        """Raises SpecViolationError where the graph is not in its dialect, or does not fit the signature."""
        for verifier in self._verifiers:
            verifier().check(self)

    def _validate(self) -> None:
        """`validate`, by the name that upstream's own callers use."""
        self.validate()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "Unable to call ExportedProgram directly\n  what to do: call the module that its `module()` gives"
        )

    def __str__(self) -> str:
        code = self.graph_module.print_readable(print_output=False).replace("\n", "\n    ")
        ranges = ", ".join(
            f"{symbol}: VR[{bounds.lower}, {bounds.upper}]" for symbol, bounds in self.range_constraints.items()
        )
        guards = f"Guards: {list(self._guards)}\n" if self._guards else ""
        return f"ExportedProgram:\n    {code}\nGraph signature: {self.graph_signature}\nRange constraints: {{{ranges}}}\n{guards}"


def _shape_env(graph: fx.Graph) -> ShapeEnv | None:
    """Of the tensors without data in the graph."""
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        env = value.fake_mode.shape_env if isinstance(value, FakeTensor) else None
        if isinstance(env, ShapeEnv):
            return env
    return None
