"""Errors of exporting graphs: what an exported graph, which nothing runs around, cannot say.

Counterpart: the RuntimeErrors and AssertionErrors of torch/_functorch/aot_autograd.py aot_export_module, aot_export_joint_simple,
create_aot_state; runtime_wrappers.py AOTDedupeWrapper, AOTSyntheticBaseWrapper. The first line begins as
upstream's does: its tests look for it.
"""

from __future__ import annotations

from refimpl.errors import RefimplError


class ExportError(RefimplError, RuntimeError):
    """Base of these."""

    def __init__(self, seen: str, *, expected: str, do: str) -> None:
        super().__init__(f"{seen}\n  expected: {expected}\n  what to do: {do}")


class InputMetadataMutation(ExportError):
    """An input has another shape, stride, offset or storage afterwards, or requires a gradient only then."""

    def __init__(self, name: str, change: str) -> None:
        super().__init__(
            f"Found an input that received a metadata mutation: {name} {change}",
            expected="inputs, parameters and buffers that keep their geometry",
            do="compute a new tensor instead, and return it",
        )


class DifferentiableInputMutation(ExportError):
    """An input that requires a gradient, or does so afterwards, is written to, and a joint graph was asked for."""

    def __init__(self, name: str, *, required_before: bool) -> None:
        when = "before it is written to" if required_before else "once the program has written to it"
        super().__init__(
            f"Found a graph input that requires gradients, and received a mutation: {name} requires a gradient {when}",
            expected="writes to buffers and inputs only, of values without gradients",
            do="detach what is written, or export without trace_joint",
        )


class DuplicatedMutatedInput(ExportError):
    """One tensor stands at several positions and is written to."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(
            f"Encountered duplicated inputs that are mutated in the graph: {', '.join(names)} are one tensor",
            expected="an input that is written to at one position only",
            do="pass it once",
        )


class AliasedMutatedInput(ExportError):
    """Inputs share memory, and it is written to."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(
            f"Encountered aliased inputs that are mutated in the graph: {', '.join(names)} share memory",
            expected="an input that is written to with memory of its own",
            do="pass the base and make the views inside, or pass copies",
        )


class MemoryBeyondInput(ExportError):
    """The program looks at memory around an input, which the input does not cover."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(
            f"the program reads memory around {', '.join(names)}, through as_strided or the like",
            expected="views that stay within the elements of an input",
            do="pass the tensor that covers all of the memory",
        )


class SubclassInExport(ExportError):
    """A tensor that consists of other tensors goes in or comes out."""

    def __init__(self, where: str, kind: type) -> None:
        super().__init__(
            f"aot_export is not currently supported with traceable tensor subclass: {where} is a {kind.__qualname__}",
            expected="plain tensors",
            do="take it apart outside (__tensor_flatten__)",
        )


class RandomStateInExport(ExportError):
    """Functionalized random numbers, which need inputs and outputs that an exported graph does not have."""

    def __init__(self) -> None:
        super().__init__(
            "Functionalized RNG is not currently supported in the aot_export workflow",
            expected="functionalize_rng_ops = False",
            do="switch it off around the export; random ops stay in the graph as they are",
        )


class OutputNotSequence(ExportError):
    """The module returns something else than a tuple or list."""

    def __init__(self, result: object) -> None:
        super().__init__(
            f"Graph output must be a (). Expected forward output to be a tuple or list of tensors: it is a {type(result)}",
            expected="a module whose forward returns a tuple",
            do="return a tuple, or use aot_module",
        )


class UnknownOutput(ExportError):
    """A leaf of the result is of a class that graphs do not know."""

    def __init__(self, value: object) -> None:
        super().__init__(
            f"Found {type(value)} in output, which is not a known type",
            expected="tensors, numbers, strings, None, dtypes and devices in containers that torch.utils._pytree knows",
            do="register its class with torch.utils._pytree.register_pytree_node if it holds tensors",
        )


class JointWithPreDispatch(ExportError):
    """What is recorded above autograd has no backward."""

    def __init__(self) -> None:
        super().__init__(
            "pre_dispatch is not supported when trace_joint is True.",
            expected="one of the two",
            do="export with pre_dispatch for training elsewhere, or the joint graph",
        )


class LossIndexMissing(ExportError):
    """A joint graph was asked for without saying which output is the loss."""

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
    """The output marked as the loss is none."""


class TangentWanted(ExportError):
    """A joint graph without incoming gradients of a function that has not exactly one differentiable scalar output."""

    def __init__(self, count: int) -> None:
        super().__init__(
            f"no_tangents was asked for, and {count} outputs have gradients",
            expected="one differentiable output, a scalar, whose incoming gradient is 1",
            do="detach the others, or export with tangents",
        )


class GradientMissing(RefimplError, AssertionError):
    """An input requires a gradient, and the loss does not depend on it.

    Counterpart: the AssertionError of aot_export_module
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"Found a parameter that did not receive a gradient: {name}\n"
            "  expected: a loss that depends on every parameter and every input that requires a gradient\n"
            "  what to do: freeze what is not used with requires_grad_(False)"
        )


class ConventionChanged(ExportError):
    """The function needs code around its graph, or flattening, that aot_export_joint_simple promises not to need."""


class BufferAssigned(ExportError):
    """The module assigns to a buffer what cannot be written to it after the graph has run."""

    def __init__(self, name: str, seen: str) -> None:
        super().__init__(
            f"the buffer {name} was assigned {seen}",
            expected="a tensor of the buffer's own shape, dtype and device, which the caller can write to it",
            do="keep the buffer's geometry, or return the value",
        )


class WrittenConstant(ExportError):
    """The program writes to a tensor that it takes from a closure, a global or a plain attribute."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the program writes to a tensor that is no input ({name} of the graph)",
            expected="writes to inputs and buffers, whose new values the graph returns",
            do="register it with register_buffer, or pass it as an argument",
        )
