"""Errors of ahead-of-time compilation. Types follow upstream's where callers catch them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from refimpl.errors import RefimplError, user_line


class DoubleBackward(RefimplError, RuntimeError):
    """The gradient of a gradient of a compiled function was asked for.

    Counterpart: the RuntimeError of torch/_functorch/_aot_autograd/runtime_wrappers.py CompiledFunctionBackward
    """

    def __init__(self) -> None:
        super().__init__(
            "the backward of a function compiled with aot_autograd was differentiated: it does not currently support double "
            "backward\n"
            "  expected: gradients of the first order\n"
            "  what to do: run the function without compiling it, or compute the gradient inside of what is compiled"
        )


class DuplicatesExpected(RefimplError, AssertionError):
    """Compiled for arguments that are one tensor, called with different ones.

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
    """Compiled for an argument without gradient, called with one that requires it.

    Counterpart: the AssertionError of torch/_functorch/_aot_autograd/runtime_wrappers.py with debug_assert
    """

    def __init__(self, aot_id: int, position: int) -> None:
        super().__init__(
            f"graph {aot_id} was compiled for an input {position} that does not require grad, and was called with one that does\n"
            "  expected: an argument that does not require grad: the graph has no gradient for it\n"
            "  what to do: compile again for arguments that require grad"
        )


class UnexpectedFake(RefimplError, AssertionError):
    """A fake tensor that is no argument: the compiled program would have no data for it.

    Counterpart: the AssertionError "Unexpected fake" of torch/_functorch/aot_autograd.py
    """

    def __init__(self, tensor: object) -> None:
        super().__init__(
            f"Unexpected fake buffer or captured tensor: {tensor}{user_line()}\n"
            "  expected: arguments that are fake or real; parameters, buffers and tensors from closures that are real\n"
            "  what to do: pass the fake tensor as an argument, or capture the real one"
        )


class GradientInProgram(RefimplError, RuntimeError):
    """The program itself accumulates gradients into its inputs, which a functional graph does not do."""

    def __init__(self, position: int) -> None:
        super().__init__(
            f"the program accumulates a gradient into input {position}, by a call of backward() inside of it\n"
            "  expected: gradients that are returned, or asked for after the compiled function has run\n"
            "  what to do: use torch.autograd.grad inside, or call backward() outside"
        )


class UnexpectedSubclass(RefimplError, RuntimeError):
    """A tensor subclass other than the one a program was compiled for, as argument or as incoming gradient.

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
    """A wrapper subclass that backward needs was written to after forward.

    Counterpart: the RuntimeError of autograd's saved variables, which see the wrapper in eager mode
    """

    def __init__(self, kind: type, shape: tuple[int, ...], version: int, expected: int) -> None:
        super().__init__(
            f"one of the variables needed for gradient computation has been modified by an inplace operation: [{kind.__name__} "
            f"{list(shape)}] is at version {version}; expected version {expected} instead\n"
            "  expected: tensors that are as they were when the forward ran\n"
            "  what to do: write to a copy of the tensor"
        )


class StaleValue(RefimplError, RuntimeError):
    """What a part of a backward needs was written to after forward.

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
    """A backward for a second time, without retain_graph.

    Counterpart: the RuntimeError of autograd's saved variables
    """

    def __init__(self) -> None:
        super().__init__(
            "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
            "freed)\n"
            "  expected: one backward, after which saved values are let go\n"
            "  what to do: specify retain_graph=True for the backwards before the last"
        )


class RandomStateRestored(RefimplError, RuntimeError):
    """Random ops that draw from one state of the generator, which the program has set in between, but not the same numbers."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(
            f"{second} draws from the state of the random generator that {first} has drawn from, on other arguments\n"
            "  expected: a program that restores the generator's state only to compute the same once more, as a checkpoint does\n"
            "  what to do: draw from a torch.Generator of its own, or set the state outside of what is compiled"
        )


# Errors of partitioning.


class UnsplittableJointGraph(RefimplError, RuntimeError):
    """A joint graph that no forward and backward graph can be made of."""

    def __init__(self, *, seen: str, expected: str, do: str) -> None:
        super().__init__(f"the joint graph cannot be split: {seen}\n  expected: {expected}\n  what to do: {do}")


class IllegalPartition(RefimplError, AssertionError):
    """A forward and a backward graph that together are not the joint graph."""

    def __init__(self, problems: Sequence[str]) -> None:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(
            f"the forward and backward graphs are no partition of the joint graph:{listed}\n"
            "  expected: all outputs kept, random and effectful ops run once, a backward that needs only what the forward saves\n"
            "  what to do: report it as a fault of the partitioner that made them, with the joint graph"
        )
