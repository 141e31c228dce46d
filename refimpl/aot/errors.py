"""Errors of ahead-of-time compilation. Those that callers catch have upstream's types."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from refimpl.errors import RefimplError, user_line


class DoubleBackward(RefimplError, RuntimeError):
    """A backward of a compiled function was differentiated.

    Counterpart: the RuntimeError of torch/_functorch/_aot_autograd/runtime_wrappers.py CompiledFunctionBackward
    """

    def __init__(self) -> None:
        super().__init__(
            "torch.compile with aot_autograd does not currently support double backward: the backward of a compiled function "
            "was differentiated\n"
            "  expected: gradients of the first order\n"
            "  what to do: run the function without compiling it, or compute the gradient inside the compiled function"
        )


class DuplicatesExpected(RefimplError, AssertionError):
    """A function compiled for two arguments that are one tensor was called with two tensors.

    Counterpart: the AssertionError of AOTDedupeWrapper
    """

    def __init__(self, aot_id: int, position: int, original: int) -> None:
        super().__init__(
            f"graph {aot_id} was compiled for an input {position} that is the same tensor as input {original}, and "
            "was called with another tensor there\n"
            "  expected: the same tensor at both positions, since the program changes it\n"
            "  what to do: compile again for arguments that differ"
        )


class GradientNotExpected(RefimplError, AssertionError):
    """A function compiled for an argument that requires no gradient was called with one that does.

    Counterpart: the AssertionError of torch/_functorch/_aot_autograd/runtime_wrappers.py with debug_assert
    """

    def __init__(self, aot_id: int, position: int) -> None:
        super().__init__(
            f"graph {aot_id} was compiled for an input {position} that does not require grad, and was called with one that does\n"
            "  expected: an argument that does not require grad: the graph has no gradient for it\n"
            "  what to do: compile again for arguments that require grad"
        )


class UnexpectedFake(RefimplError, AssertionError):
    """A fake tensor that is not an argument: the compiled program would have no data for it.

    Counterpart: the AssertionError "Unexpected fake" of torch/_functorch/aot_autograd.py
    """

    def __init__(self, tensor: object) -> None:
        super().__init__(
            f"Unexpected fake buffer or captured tensor: {tensor}{user_line()}\n"
            "  expected: arguments that are fake or real; parameters, buffers and tensors from closures that are real\n"
            "  what to do: pass the fake tensor as an argument, or capture the real one"
        )


class GradientInProgram(RefimplError, RuntimeError):
    """The program calls backward(), which accumulates gradients into its inputs. A functional graph cannot do that."""

    def __init__(self, position: int) -> None:
        super().__init__(
            f"the program accumulates a gradient into input {position}, by a call of backward() inside of it\n"
            "  expected: gradients that are returned, or computed after the compiled function has run\n"
            "  what to do: use torch.autograd.grad inside, or call backward() outside"
        )


class UnexpectedSubclass(RefimplError, RuntimeError):
    """An argument or tangent is of another tensor subclass than the program was compiled for.

    Counterpart: the RuntimeError of torch/_functorch/_aot_autograd/runtime_wrappers.py _raise_tangent_metadata_error
    """

    def __init__(self, what: str, *, seen: str, expected: str) -> None:
        super().__init__(
            f"{what} of a compiled function is {seen}; when it was compiled it was taken to be {expected}.\n"
            "  expected: the class, and the metadata of __tensor_flatten__, that the graph was traced with\n"
            "  what to do: convert the tensor, or compile again; for a gradient, the class it has may define "
            "__coerce_same_metadata_as_tangent__(metadata, type)"
        )


class StaleWrapper(RefimplError, RuntimeError):
    """A wrapper subclass that the backward needs was modified after the forward.

    Counterpart: the RuntimeError of autograd's saved variables, which hold the wrapper in eager
    """

    def __init__(self, kind: type, shape: tuple[int, ...], version: int, expected: int) -> None:
        super().__init__(
            f"one of the variables needed for gradient computation has been modified by an inplace operation: [{kind.__name__} "
            f"{list(shape)}] is at version {version}; expected version {expected} instead\n"
            "  expected: tensors that are as they were when the forward ran\n"
            "  what to do: write to a copy of the tensor"
        )


class StaleValue(RefimplError, RuntimeError):
    """A saved tensor that a part of a backward needs was modified after the forward.

    Counterpart: the RuntimeError of autograd's saved variables
    """

    def __init__(self, tensor: torch.Tensor, expected: int) -> None:
        super().__init__(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"[{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; expected version {expected} instead\n"
            "  expected: tensors that are as they were when the forward ran\n"
            "  what to do: write to a copy of the tensor"
        )


class FreedGraph(RefimplError, RuntimeError):
    """A backward ran a second time without retain_graph.

    Counterpart: the RuntimeError of autograd's saved variables
    """

    def __init__(self) -> None:
        super().__init__(
            "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
            "freed)\n"
            "  expected: one backward, after which saved tensors are freed\n"
            "  what to do: specify retain_graph=True for the backwards before the last"
        )


class RandomStateRestored(RefimplError, RuntimeError):
    """Two random ops draw different numbers from one generator state, which the program restored in between."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(
            f"{second} draws from the state of the random generator that {first} has drawn from, with other arguments\n"
            "  expected: a program that restores the generator's state only to repeat a computation, as a checkpoint does\n"
            "  what to do: draw from a separate torch.Generator, or set the state outside the compiled function"
        )


# Errors of partitioning.


class UnsplittableJointGraph(RefimplError, RuntimeError):
    """A joint graph that cannot be split into a forward and a backward graph."""

    def __init__(self, *, seen: str, expected: str, do: str) -> None:
        super().__init__(f"the joint graph cannot be split: {seen}\n  expected: {expected}\n  what to do: {do}")


class IllegalPartition(RefimplError, AssertionError):
    """A forward and a backward graph that together do not compute what the joint graph computes."""

    def __init__(self, problems: Sequence[str]) -> None:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(
            f"the forward and backward graphs are no partition of the joint graph:{listed}\n"
            "  expected: all outputs kept, random and effectful ops run once, a backward that needs only what the forward saves\n"
            "  what to do: report it as a fault of the partitioner that made them, with the joint graph"
        )
