"""Checks of all arguments of a captured call (constants, symbolic numbers, numpy arrays), and specialization of SymInts.

Counterpart: torch/_dynamo/utils.py check_constant_args, check_unspec_python_args, check_unspec_or_constant_args,
check_numpy_ndarray_args, specialize_symnode, guard_if_dyn
Differs: a number that is not constant is a SymInt, SymFloat or SymBool; upstream may wrap it in a 0-dim tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from refimpl._torch import PLAIN_TYPES
from refimpl.capture.values import ArrayValue, ConstantValue, LazyValue, NumberValue, Value

Keywords = Mapping[str, Any]


def _all(args: Iterable[Any], kwargs: Keywords) -> Iterator[Any]:
    for value in (*args, *kwargs.values()):
        assert not isinstance(value, LazyValue), (
            f"{value.source} is a lazy value\n  expected: a value that state.realize returned"
        )
        yield value


def check_constant_args(args: Iterable[Any], kwargs: Keywords) -> bool:
    """Whether all arguments are constants; True without arguments."""
    return all(isinstance(value, ConstantValue) for value in _all(args, kwargs))


def check_unspec_python_args(args: Iterable[Any], kwargs: Keywords) -> bool:
    """Whether at least one argument is a symbolic number, and the others are constants."""
    kinds = [type(value) for value in _all(args, kwargs)]
    return NumberValue in kinds and all(kind in (NumberValue, ConstantValue) for kind in kinds)


def check_unspec_or_constant_args(args: Iterable[Any], kwargs: Keywords) -> bool:
    """Whether each argument is a constant or a symbolic number."""
    return all(isinstance(value, (NumberValue, ConstantValue)) for value in _all(args, kwargs))


def check_numpy_ndarray_args(args: Iterable[Any], kwargs: Keywords) -> bool:
    """Whether at least one argument is a numpy array."""
    return any(isinstance(value, ArrayValue) for value in _all(args, kwargs))


def specialize_symnode(arg: Value) -> Value:
    """Specialize a symbolic number to its present value, with a guard; other values are returned unchanged.

    Raises GuardOnDataDependentSymNode for an unbacked number.
    """
    if not isinstance(arg, NumberValue):
        return arg
    return ConstantValue(PLAIN_TYPES[type(arg.number)](arg.number))


def guard_if_dyn(arg: Any) -> Any:
    """The Python number or object of a constant, or of a specialized symbolic number; other values are returned unchanged."""
    arg = specialize_symnode(arg)
    return arg.value if isinstance(arg, ConstantValue) else arg
