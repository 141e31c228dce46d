"""What the arguments of a call are, asked of all of them at once; symbolic numbers as constants, with a guard.

Counterpart: torch/_dynamo/utils.py check_constant_args, check_unspec_python_args, check_unspec_or_constant_args,
check_numpy_ndarray_args, specialize_symnode, guard_if_dyn
Differs: a number that is no constant is a symbol of the shape environment, never a tensor of one element.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from refimpl.capture.values import ArrayValue, ConstantValue, LazyValue, NumberValue, Value

Keywords = Mapping[str, Any]
_PLAIN = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


def _all(args: Iterable[Any], kwargs: Keywords) -> Iterator[Any]:
    for value in (*args, *kwargs.values()):
        assert not isinstance(value, LazyValue), (
            f"{value.source} was not looked at\n  expected: values that state.realize gave"
        )
        yield value


def check_constant_args(args: Iterable[Any], kwargs: Keywords) -> bool:
    """Whether all are constants, also where there are none."""
    return all(isinstance(value, ConstantValue) for value in _all(args, kwargs))


def check_unspec_python_args(args: Iterable[Any], kwargs: Keywords) -> bool:
    """Whether at least one is a number that is a symbol, and the others are constants."""
    kinds = [type(value) for value in _all(args, kwargs)]
    return NumberValue in kinds and all(kind in (NumberValue, ConstantValue) for kind in kinds)


def check_unspec_or_constant_args(args: Iterable[Any], kwargs: Keywords) -> bool:
    """Whether all are constants or numbers that are symbols."""
    return all(isinstance(value, (NumberValue, ConstantValue)) for value in _all(args, kwargs))


def check_numpy_ndarray_args(args: Iterable[Any], kwargs: Keywords) -> bool:
    """Whether at least one is an array of numpy."""
    return any(isinstance(value, ArrayValue) for value in _all(args, kwargs))


def specialize_symnode(arg: Value) -> Value:
    """A symbolic number as the constant that it is now, which a guard holds it to; every other value as it is.

    Raises GuardOnDataDependentSymNode for a number of which no value is known.
    """
    if not isinstance(arg, NumberValue):
        return arg
    return ConstantValue(_PLAIN[type(arg.number)](arg.number))


def guard_if_dyn(arg: Any) -> Any:
    """The Python object of a constant or, guarded, of a symbolic number; every other value as it is."""
    arg = specialize_symnode(arg)
    return arg.value if isinstance(arg, ConstantValue) else arg
