"""ExportedProgram: a whole program as one graph, with its state, signature, range constraints and guards.

Counterpart: torch/export/exported_program.py ExportedProgram
Differs: conditions on sizes are expressions (`guards`); upstream keeps the source text of a function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from refimpl._torch import FakeTensor, PlainCodeGen
from refimpl.export.dense_program import dense_program
from refimpl.export.draft_report import DraftExportReport
from refimpl.export.functional_graph import FunctionalGraph, functional_graph, joint_graph
from refimpl.export.graph_signature import ExportGraphSignature
from refimpl.export.input_contract import InputContract
from refimpl.export.module_call_graph import CallSpec, ModuleCallEntry, check_entries, without_submodule_signatures
from refimpl.export.shapes.range_constraints import call_conditions, refined, unbacked_ranges
from refimpl.export.strict.kept_signatures import with_call_values
from refimpl.export.unlift import arranged, unlifted_module
from refimpl.export.verifier import TrainingIRVerifier, Verifier
from refimpl.symbolic.ranges import Range
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.trace.options import DecompositionTable


class ExportedProgram:
    """The result of `export`. It cannot be called; `module()` returns a module that can."""

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
        """guards: conditions on the symbols of inputs besides their ranges. input_names: names of inputs, for messages.

        Raises SpecViolationError if the graph is not in the dialect of the verifiers, or does not match the signature.
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
        """The assumptions of a draft export (see refimpl.export.draft)."""
        self.validate()

    @property
    def graph_module(self) -> fx.GraphModule:
        """The graph as a module whose flat inputs include the state."""
        return self._graph_module

    def __setattr__(self, name: str, value: Any) -> None:
        found = getattr(type(self), name, None)
        if isinstance(found, property) and found.fset is None:
            raise RuntimeError(f"Unable to set ExportedProgram's {name} attribute")
        super().__setattr__(name, value)

    @property
    def graph(self) -> fx.Graph:
        """The graph of `graph_module`."""
        return self._graph_module.graph

    @property
    def graph_signature(self) -> ExportGraphSignature:
        """The kinds and names of inputs and outputs."""
        return self._graph_signature

    @property
    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and persistent buffers: the tensor objects of the exported module."""
        return self._state_dict

    @property
    def constants(self) -> dict[str, Any]:
        """Other tensors and script objects of the module, and non-persistent buffers."""
        return self._constants

    @property
    def tensor_constants(self) -> dict[str, Any]:
        """Another name for `constants`."""
        return self._constants

    @property
    def range_constraints(self) -> dict[Any, Range]:
        """The range of each symbol."""
        return self._range_constraints

    @property
    def guards(self) -> tuple[Any, ...]:
        """Conditions on symbols, besides the ranges, that inputs must satisfy."""
        return self._guards

    @property
    def module_call_graph(self) -> list[ModuleCallEntry]:
        """The modules of the program; the first entry is the root."""
        return self._module_call_graph

    @property
    def example_inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The inputs it was exported with: (args, kwargs)."""
        return self._example_inputs

    @example_inputs.setter
    def example_inputs(self, value: tuple[tuple[Any, ...], dict[str, Any]] | None) -> None:
        match value:
            case None:
                pass
            case tuple((tuple() as args, dict() as kwargs)):
                whole = self._module_call_graph[0].signature
                names = (whole.forward_arg_names or ()) if whole is not None else ()
                arranged(args, kwargs, self.call_spec.in_spec, names)
            case _:
                raise ValueError(
                    f"Example inputs should be a tuple of arguments (a tuple) and keyword arguments (a dict), not {value!r}"
                )
        self._example_inputs = value

    @property
    def call_spec(self) -> CallSpec:
        """The pytree specs of inputs and outputs."""
        whole = self._module_call_graph[0].signature
        assert whole is not None, "the first entry of module_call_graph has no signature"
        return CallSpec(whole.in_spec, whole.out_spec)

    @property
    def verifier(self) -> type[Verifier]:
        """The first verifier, which defines the dialect."""
        return self._verifiers[0]

    @property
    def verifiers(self) -> list[type[Verifier]]:
        """All verifiers of the graph."""
        return self._verifiers

    @property
    def dialect(self) -> str:
        """TRAINING after `export`, ATEN after `run_decompositions`."""
        return self.verifier.dialect

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """The parameters, in the order of the inputs."""
        for _, parameter in self.named_parameters():
            yield parameter

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """The parameters with their full names."""
        for name in self.graph_signature.parameters:
            yield name, self.state_dict[name]  # type: ignore[misc]

    def buffers(self) -> Iterator[torch.Tensor]:
        """The buffers, in the order of the inputs."""
        for _, buffer in self.named_buffers():
            yield buffer

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The buffers with their full names, including non-persistent ones."""
        absent = set(self.graph_signature.non_persistent_buffers)
        for name in self.graph_signature.buffers:
            yield name, self.constants[name] if name in absent else self.state_dict[name]

    def module(self, check_guards: bool = True) -> torch.nn.Module:
        """A module that is called like the exported one, with the state of this program. It mutates buffers and inputs too.

        Its calls raise InputMismatch for inputs the program was not exported for, unless `check_guards` is False.
        """
        return unlifted_module(self, self.input_contract() if check_guards else None)

    def run_decompositions(self, decomp_table: DecompositionTable | None = None) -> ExportedProgram:
        """The program with a functional graph: new values of mutated buffers and inputs are outputs.

        decomp_table: from operators to their decompositions; composite operators that it does not name are not decomposed.
            None for `default_decompositions()`, which leave a small set of operators.

        Raises an ExportError for effects that a functional graph cannot have, such as resizing an input.
        """
        entries = self._module_call_graph
        program = with_call_values(
            self._graph_module, self._graph_signature, self._state_dict, self._constants, entries
        )
        dense = dense_program(program)
        made = dense.with_wrappers(functional_graph(dense, decomp_table))
        made, entries = program.without_call_values(made, entries)
        check_entries(entries, dense.replaced)
        return self._made_functional(made, entries, dense.state_dict, dense.constants)

    def forward_backward(self, loss_index: int = 0) -> ExportedProgram:
        """The program with a joint functional graph: forward, and the gradients of the user output at `loss_index`.

        Outputs are (tokens, updates, user outputs with the loss, gradients of parameters and of inputs that require grad), as
        `graph_signature.backward_signature` says. `module()` returns the user outputs only.

        Raises an ExportError for a loss that is no scalar or does not require grad, for another output that requires grad, and
        for mutations that require grad; GradientMissing if the loss does not depend on a parameter.
        """
        return self._made_functional(
            joint_graph(self, loss_index),
            without_submodule_signatures(self._module_call_graph),
            self._state_dict,
            self._constants,
        )

    def _made_functional(
        self,
        made: FunctionalGraph,
        entries: list[ModuleCallEntry],
        state_dict: Mapping[str, torch.Tensor],
        constants: Mapping[str, Any],
    ) -> ExportedProgram:
        if "custom" in self._graph_module.meta:
            made.graph_module.meta["custom"] = self._graph_module.meta["custom"]
        env = _shape_env(self.graph)
        ranges, guards = dict(self._range_constraints), self._guards
        if env is not None:  # decompositions may have asked more about sizes than the program did
            ranges = {
                symbol: refined(env, symbol, bounds) for symbol, bounds in ranges.items() if symbol not in env.unbacked
            }
            ranges |= unbacked_ranges(env, made.graph_module.graph.nodes)
            guards = tuple(dict.fromkeys((*guards, *call_conditions(env))))
        return ExportedProgram(
            root=made.graph_module,
            graph=made.graph_module.graph,
            graph_signature=made.signature,
            state_dict=state_dict,
            range_constraints=ranges,
            module_call_graph=entries,
            example_inputs=self._example_inputs,
            constants=constants,
            verifiers=[Verifier],
            guards=guards,
            input_names=self._input_names,
        )

    def _update(
        self,
        graph_module: fx.GraphModule,
        graph_signature: ExportGraphSignature,
        *,
        state_dict: Mapping[str, torch.Tensor] | None = None,
        constants: Mapping[str, Any] | None = None,
        verifiers: Sequence[type[Verifier]] | None = None,
    ) -> ExportedProgram:
        """The program with another graph and signature, by the name that passes of upstream use."""
        made = ExportedProgram(
            root=graph_module,
            graph=graph_module.graph,
            graph_signature=graph_signature,
            state_dict=self._state_dict if state_dict is None else state_dict,
            range_constraints=self._range_constraints,
            module_call_graph=self._module_call_graph,
            example_inputs=self._example_inputs,
            constants=self._constants if constants is None else constants,
            verifiers=self._verifiers if verifiers is None else verifiers,
            guards=self._guards,
            input_names=self._input_names,
        )
        made.report = self.report
        return made

    def _transform_do_not_use(self, *passes: Callable[[fx.GraphModule], Any]) -> ExportedProgram:
        """The program after passes over its graph module, by the name that upstream's own callers use. A pass changes the module,
        or returns a PassResult of fx with another one."""
        module = self._graph_module
        for each in passes:
            result = each(module)
            module = module if result is None else result.graph_module
        return self._update(module, self._graph_signature.of_changed(module.graph))

    @property
    def _report(self) -> DraftExportReport | None:
        """`report` by upstream's name."""
        return self.report

    def input_contract(self) -> InputContract:
        """The checks of the leaves of user inputs."""
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
        """Raises SpecViolationError if the graph is not in its dialect, or does not match the signature."""
        for verifier in self._verifiers:
            verifier().check(self)

    def _validate(self) -> None:
        """`validate`, by the name that upstream's own callers use."""
        self.validate()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "Unable to call ExportedProgram directly\n  what to do: call the module that its `module()` returns"
        )

    def __str__(self) -> str:
        code = self.graph_module.print_readable(print_output=False).replace("\n", "\n    ")
        signature = str(self.graph_signature).replace("\n", "\n    ")
        return (
            f"ExportedProgram:\n    {code}\nGraph signature: {signature}\nRange constraints: {self.range_constraints}\n"
        )


def _shape_env(graph: fx.Graph) -> ShapeEnv | None:
    """The shape env of the graph's fake tensors."""
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        env = value.fake_mode.shape_env if isinstance(value, FakeTensor) else None
        if isinstance(env, ShapeEnv):
            return env
    return None
