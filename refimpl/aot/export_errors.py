"""Errors of AOT export: an exported graph runs without code around it, and cannot express these programs.

Counterpart: the RuntimeErrors and AssertionErrors of torch/_functorch/aot_autograd.py aot_export_module, aot_export_joint_simple,
create_aot_state; runtime_wrappers.py AOTDedupeWrapper, AOTSyntheticBaseWrapper. The first line begins as
upstream's does: its tests look for it.
"""

from __future__ import annotations

from refimpl.errors import RefimplError


class ExportError(RefimplError, RuntimeError):
    """Base class of the errors of AOT export."""

    def __init__(self, seen: str, *, expected: str, do: str) -> None:
        super().__init__(f"{seen}\n  expected: {expected}\n  what to do: {do}")


class InputMetadataMutation(ExportError):
    """The program changes an input's shape, strides, offset or storage, or makes it require a gradient."""

    def __init__(self, name: str, change: str) -> None:
        super().__init__(
            f"Found an input that received a metadata mutation: {name} {change}",
            expected="inputs, parameters and buffers that keep their shape, strides and storage",
            do="compute a new tensor instead, and return it",
        )


class DifferentiableInputMutation(ExportError):
    """A joint graph was requested, and the program mutates an input that requires a gradient, before or after the mutation."""

    def __init__(self, name: str, *, required_before: bool) -> None:
        when = "before it is written to" if required_before else "once the program has written to it"
        super().__init__(
            f"Found a graph input that requires gradients, and received a mutation: {name} requires a gradient {when}",
            expected="writes to buffers and inputs only, of values without gradients",
            do="detach the value that is written, or export without trace_joint",
        )


class DuplicatedMutatedInput(ExportError):
    """A tensor that is passed several times is mutated."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(
            f"Encountered duplicated inputs that are mutated in the graph: {', '.join(names)} are one tensor",
            expected="an input that is written to at one position only",
            do="pass the tensor once",
        )


class AliasedMutatedInput(ExportError):
    """Inputs share memory that the program mutates."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(
            f"Encountered aliased inputs that are mutated in the graph: {', '.join(names)} share memory",
            expected="mutated inputs that share memory with no other input",
            do="pass the base and make the views inside, or pass copies",
        )


class MemoryBeyondInput(ExportError):
    """The program reads memory outside an input's elements, in the same storage."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(
            f"the program reads memory outside the elements of {', '.join(names)}, by as_strided or a similar op",
            expected="views that stay within the elements of an input",
            do="pass the tensor that covers all of the memory",
        )


class SubclassInExport(ExportError):
    """An input or output is a wrapper subclass."""

    def __init__(self, where: str, kind: type) -> None:
        super().__init__(
            f"aot_export is not currently supported with traceable tensor subclass: {where} is a {kind.__qualname__}",
            expected="plain tensors",
            do="flatten it outside the program (__tensor_flatten__)",
        )


class RandomStateInExport(ExportError):
    """Functionalized random numbers need generator states as inputs and outputs, which an exported graph does not have."""

    def __init__(self) -> None:
        super().__init__(
            "Functionalized RNG is not currently supported in the aot_export workflow",
            expected="functionalize_rng_ops = False",
            do="switch it off around the export; random ops stay in the graph as they are",
        )


class OutputNotSequence(ExportError):
    """The module returns neither a tuple nor a list."""

    def __init__(self, result: object) -> None:
        super().__init__(
            f"Graph output must be a (). Expected forward output to be a tuple or list of tensors: it is a {type(result)}",
            expected="a module whose forward returns a tuple",
            do="return a tuple, or use aot_module",
        )


class UnknownOutput(ExportError):
    """An output is an object that a graph cannot return."""

    def __init__(self, value: object) -> None:
        super().__init__(
            f"Found {type(value)} in output, which is not a known type",
            expected="tensors, numbers, strings, None, dtypes and devices in containers that torch.utils._pytree knows",
            do="register its class with torch.utils._pytree.register_pytree_node if it holds tensors",
        )


class JointWithPreDispatch(ExportError):
    """A pre-dispatch graph, which is recorded above autograd, has no backward."""

    def __init__(self) -> None:
        super().__init__(
            "pre_dispatch is not supported when trace_joint is True.",
            expected="one of the two",
            do="export with pre_dispatch and let autograd differentiate the graph, or export the joint graph",
        )


class LossIndexMissing(ExportError):
    """A joint graph was requested, but not which output is the loss."""

    def __init__(self, count: int) -> None:
        super().__init__(
            "If trace_joint=True it is required that one of your forward outputs must be a scalar loss: nothing says which of "
            f"the {count} outputs is the loss",
            expected="output_loss_index, a position in what forward returns",
            do="pass output_loss_index",
        )


class SecondDifferentiableOutput(ExportError):
    """An output besides the loss requires a gradient."""

    def __init__(self, position: int, loss_index: int) -> None:
        super().__init__(
            "Found an output of the forward that requires gradients, that was not the scalar loss: the output at index "
            f"{position} requires gradients; output index {loss_index} is the loss.",
            expected="one output that requires gradients, since the graph's backward starts there",
            do="return output.detach() for each output that is not the loss",
        )


class BadLoss(ExportError):
    """The output at `output_loss_index` cannot be a loss."""


class TangentWanted(ExportError):
    """A joint graph without tangents was requested, of a function that does not have exactly one differentiable scalar output."""

    def __init__(self, count: int) -> None:
        super().__init__(
            f"no_tangents was asked for, and {count} outputs have gradients",
            expected="one differentiable output, a scalar, whose tangent is 1",
            do="detach the others, or export with tangents",
        )


class GradientMissing(RefimplError, AssertionError):
    """The loss does not depend on an input that requires a gradient.

    Counterpart: the AssertionError of aot_export_module
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"Found a parameter that did not receive a gradient: {name}\n"
            "  expected: a loss that depends on every parameter and every input that requires a gradient\n"
            "  what to do: call requires_grad_(False) on parameters that are not used"
        )


class ConventionChanged(ExportError):
    """The function needs flattening, or code around its graph, which aot_export_joint_simple does not generate."""


class BufferAssigned(ExportError):
    """The module assigns a value to a buffer that cannot be copied into the buffer after the graph has run."""

    def __init__(self, name: str, seen: str) -> None:
        super().__init__(
            f"the buffer {name} was assigned {seen}",
            expected="a tensor of the buffer's shape, dtype and device, which the caller can copy into it",
            do="assign a tensor like the buffer, or return the value",
        )


class WrittenConstant(ExportError):
    """The program mutates a tensor from a closure, a global or a plain attribute."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the program writes to a tensor that is no input ({name} of the graph)",
            expected="writes to inputs and buffers, whose new values the graph returns",
            do="register it with register_buffer, or pass it as an argument",
        )
