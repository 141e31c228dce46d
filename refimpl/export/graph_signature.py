"""The signature of an exported graph: the kind and the name of every input and output.

Counterpart: torch/export/graph_signature.py
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from torch import fx


@dataclass(frozen=True)
class TensorArgument:
    """A tensor, by its node's name."""

    name: str


@dataclass(frozen=True)
class TokenArgument:
    """A token, which orders side effects."""

    name: str


@dataclass(frozen=True)
class SymIntArgument:
    """A SymInt, by its node's name."""

    name: str


@dataclass(frozen=True)
class SymFloatArgument:
    """A SymFloat, by its node's name."""

    name: str


@dataclass(frozen=True)
class SymBoolArgument:
    """A SymBool, by its node's name."""

    name: str


@dataclass(frozen=True)
class CustomObjArgument:
    """A script object of class `class_fqn`, and its fake."""

    name: str
    class_fqn: str
    fake_val: Any = None


@dataclass(frozen=True)
class ConstantArgument:
    """A number, string or None that is the same at every call. The name is empty for an output."""

    name: str
    value: int | float | bool | str | None


ArgumentSpec = (
    TensorArgument
    | SymIntArgument
    | SymFloatArgument
    | SymBoolArgument
    | ConstantArgument
    | CustomObjArgument
    | TokenArgument
)
ARGUMENT_TYPES = (
    TensorArgument,
    SymIntArgument,
    SymFloatArgument,
    SymBoolArgument,
    ConstantArgument,
    CustomObjArgument,
    TokenArgument,
)


class InputKind(Enum):
    """The kind of an input."""

    USER_INPUT = auto()
    PARAMETER = auto()
    BUFFER = auto()
    CONSTANT_TENSOR = auto()
    CUSTOM_OBJ = auto()
    TOKEN = auto()


class OutputKind(Enum):
    """The kind of an output."""

    USER_OUTPUT = auto()
    LOSS_OUTPUT = auto()
    BUFFER_MUTATION = auto()
    PARAMETER_MUTATION = auto()
    GRADIENT_TO_PARAMETER = auto()
    GRADIENT_TO_USER_INPUT = auto()
    USER_INPUT_MUTATION = auto()
    TOKEN = auto()


def _check_argument(arg: object) -> None:
    assert isinstance(arg, ARGUMENT_TYPES), (
        f"got {type(arg)}\n  expected: one of {', '.join(kind.__name__ for kind in ARGUMENT_TYPES)}"
    )


@dataclass
class InputSpec:
    """One placeholder. `target` is the name of a parameter, buffer or constant; `persistent` is set for buffers only."""

    kind: InputKind
    arg: ArgumentSpec
    target: str | None
    persistent: bool | None = None

    def __post_init__(self) -> None:
        if self.kind is InputKind.BUFFER:
            assert self.persistent is not None, (
                f"buffer {self.target!r} with persistent=None\n  expected: True or False"
            )
        _check_argument(self.arg)

    def __str__(self) -> str:
        shown = f"{self.arg.name}: {self.kind.name}"
        shown += "" if self.target is None else f" target={self.target!r}"
        return shown if self.persistent is None else f"{shown} persistent={self.persistent}"


@dataclass
class OutputSpec:
    """One output. `target` of an update or gradient is the name of its parameter, buffer or user input."""

    kind: OutputKind
    arg: ArgumentSpec
    target: str | None

    def __post_init__(self) -> None:
        _check_argument(self.arg)

    def __str__(self) -> str:
        shown = f"{self.arg.name}: {self.kind.name}"
        return shown if self.target is None else f"{shown} target={self.target!r}"


@dataclass(frozen=True)
class ExportBackwardSignature:
    """The outputs of a joint graph that are gradients (output name -> target), and the loss."""

    gradients_to_parameters: dict[str, str]
    gradients_to_user_inputs: dict[str, str]
    loss_output: str


@dataclass
class ExportGraphSignature:
    """Inputs and outputs of a graph, in order. Updates precede user outputs."""

    input_specs: list[InputSpec]
    output_specs: list[OutputSpec]

    def _targets(self, kind: InputKind) -> tuple[str, ...]:
        return tuple(spec.target for spec in self.input_specs if spec.kind is kind and spec.target is not None)

    def _inputs_to(self, kind: InputKind) -> Mapping[str, str]:
        return {s.arg.name: s.target for s in self.input_specs if s.kind is kind and s.target is not None}

    def _outputs_to(self, kind: OutputKind) -> Mapping[str, str]:
        return {s.arg.name: s.target for s in self.output_specs if s.kind is kind and s.target is not None}

    @property
    def parameters(self) -> Collection[str]:
        """Full names of parameters, in the order of the inputs."""
        return self._targets(InputKind.PARAMETER)

    @property
    def buffers(self) -> Collection[str]:
        """Full names of buffers, in the order of the inputs."""
        return self._targets(InputKind.BUFFER)

    @property
    def non_persistent_buffers(self) -> Collection[str]:
        """Full names of non-persistent buffers."""
        return tuple(s.target for s in self.input_specs if s.persistent is False and s.target is not None)

    @property
    def lifted_tensor_constants(self) -> Collection[str]:
        """Names of constant tensors in `constants`."""
        return self._targets(InputKind.CONSTANT_TENSOR)

    @property
    def lifted_custom_objs(self) -> Collection[str]:
        """Names of script objects in `constants`."""
        return self._targets(InputKind.CUSTOM_OBJ)

    @property
    def user_inputs(self) -> Collection[Any]:
        """Names of the placeholders of user inputs; for a constant its value."""
        args = (spec.arg for spec in self.input_specs if spec.kind is InputKind.USER_INPUT)
        return tuple(arg.value if isinstance(arg, ConstantArgument) else arg.name for arg in args)

    @property
    def user_outputs(self) -> Collection[Any]:
        """Names of the nodes of user outputs; for a constant its value."""
        kinds = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
        args = (spec.arg for spec in self.output_specs if spec.kind in kinds)
        return tuple(arg.value if isinstance(arg, ConstantArgument) else arg.name for arg in args)

    @property
    def inputs_to_parameters(self) -> Mapping[str, str]:
        """Placeholder name -> full name of the parameter."""
        return self._inputs_to(InputKind.PARAMETER)

    @property
    def inputs_to_buffers(self) -> Mapping[str, str]:
        """Placeholder name -> full name of the buffer."""
        return self._inputs_to(InputKind.BUFFER)

    @property
    def inputs_to_lifted_tensor_constants(self) -> Mapping[str, str]:
        """Placeholder name -> name in `constants`."""
        return self._inputs_to(InputKind.CONSTANT_TENSOR)

    @property
    def inputs_to_lifted_custom_objs(self) -> Mapping[str, str]:
        """Placeholder name -> name in `constants`."""
        return self._inputs_to(InputKind.CUSTOM_OBJ)

    @property
    def buffers_to_mutate(self) -> Mapping[str, str]:
        """Name of an output's node -> full name of the mutated buffer."""
        return self._outputs_to(OutputKind.BUFFER_MUTATION)

    @property
    def parameters_to_mutate(self) -> Mapping[str, str]:
        """Name of an output's node -> full name of the mutated parameter."""
        return self._outputs_to(OutputKind.PARAMETER_MUTATION)

    @property
    def user_inputs_to_mutate(self) -> Mapping[str, str]:
        """Name of an output's node -> placeholder name of the mutated user input."""
        return self._outputs_to(OutputKind.USER_INPUT_MUTATION)

    @property
    def backward_signature(self) -> ExportBackwardSignature | None:
        """The gradients of a joint graph; None for others."""
        losses = [spec.arg.name for spec in self.output_specs if spec.kind is OutputKind.LOSS_OUTPUT]
        if not losses:
            return None
        return ExportBackwardSignature(
            gradients_to_parameters=dict(self._outputs_to(OutputKind.GRADIENT_TO_PARAMETER)),
            gradients_to_user_inputs=dict(self._outputs_to(OutputKind.GRADIENT_TO_USER_INPUT)),
            loss_output=losses[0],
        )

    @property
    def assertion_dep_token(self) -> Mapping[int, str] | None:
        """None: assertions are not ordered by tokens."""
        return None

    @property
    def input_tokens(self) -> Collection[str]:
        """Names of the placeholders of tokens."""
        return tuple(spec.arg.name for spec in self.input_specs if spec.kind is InputKind.TOKEN)

    @property
    def output_tokens(self) -> Collection[str]:
        """Names of the nodes of returned tokens."""
        return tuple(spec.arg.name for spec in self.output_specs if spec.kind is OutputKind.TOKEN)

    def replace_all_uses(self, old: str, new: str) -> None:
        """Rename a node in all specs of inputs and outputs."""
        for name in (old, new):
            assert isinstance(name, str), f"names are strings, not {name!r}"

        def renamed(spec: Any) -> None:
            if spec.arg.name == old and old:
                spec.arg = replace(spec.arg, name=new)

        for spec in (*self.input_specs, *self.output_specs):
            renamed(spec)
        for output in self.output_specs:
            if output.kind is OutputKind.USER_INPUT_MUTATION and output.target == old:
                output.target = new

    def of_changed(self, graph: fx.Graph) -> ExportGraphSignature:
        """The signature after a pass over the graph: nodes of inputs and outputs may have other names. Raises AssertionError for
        other numbers of them."""
        inputs = graph.find_nodes(op="placeholder")
        outputs: Any = graph.output_node().args[0]
        for what, specs, nodes in (("inputs", self.input_specs, inputs), ("outputs", self.output_specs, outputs)):
            assert len(specs) == len(nodes), f"the graph has {len(nodes)} {what} after the pass, and had {len(specs)}"
        names = {spec.arg.name: node.name for spec, node in zip(self.input_specs, inputs, strict=True)}

        def renamed(arg: ArgumentSpec, value: Any) -> ArgumentSpec:
            return replace(arg, name=value.name) if isinstance(value, fx.Node) else arg

        def target_of(spec: OutputSpec) -> str | None:
            is_input = spec.kind in (OutputKind.USER_INPUT_MUTATION, OutputKind.GRADIENT_TO_USER_INPUT)
            return names.get(spec.target or "", spec.target) if is_input else spec.target

        return ExportGraphSignature(
            [replace(spec, arg=renamed(spec.arg, node)) for spec, node in zip(self.input_specs, inputs, strict=True)],
            [
                replace(spec, arg=renamed(spec.arg, value), target=target_of(spec))
                for spec, value in zip(self.output_specs, outputs, strict=True)
            ],
        )

    def get_replace_hook(self, replace_inputs: bool = False) -> Callable[[Any, str, Any], None]:
        """A GraphModule replace hook that renames outputs with their nodes, and inputs if `replace_inputs`."""

        def hook(old: Any, new: str, user: Any) -> None:
            if user.op == "output" or (replace_inputs and old.op == "placeholder"):
                self.replace_all_uses(old.name, new)

        return hook

    def __str__(self) -> str:
        inputs = "\n".join(map(str, self.input_specs))
        outputs = "\n".join(map(str, self.output_specs))
        return f"\n# inputs\n{inputs}\n\n# outputs\n{outputs}\n"
