"""Helpers of one or a few lines that upstream's tests call.

Counterpart: torch/_dynamo/utils.py make_cell, rot_n_helper, product, Lit, warn_once, DuplicateWarningChecker and others
"""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib
import math
import operator
import pkgutil
import re
import types
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import torch

from refimpl.capture.config import config

dict_keys: type[Any] = type({}.keys())
dict_values: type[Any] = type({}.values())
odict_values: type[Any] = type(collections.OrderedDict[Any, Any]().values())
tuple_iterator: type[Any] = type(iter(()))


null_context = contextlib.nullcontext


def always_false() -> bool:
    """False."""
    return False


def make_cell(val: Any = None) -> types.CellType:
    """A closure cell that holds the value."""
    return types.CellType(val)


@functools.cache
def rot_n_helper(n: int) -> Callable[..., tuple[Any, ...]]:
    """A function that reverses all of its `n` values but the last: (a, b, c) -> (b, a, c). Raises AssertionError if n < 2."""
    assert n > 1, f"n={n}\n  expected: two or more values"

    def rotated(*values: Any) -> tuple[Any, ...]:
        if len(values) != n:
            raise TypeError(f"got {len(values)} values\n  expected: {n}")
        return (*values[-2::-1], values[-1])

    return rotated


def product(it: Iterable[Any]) -> Any:
    """The product; 1 for an empty iterable."""
    return math.prod(it)


def _rest_of(iterator: Any) -> tuple[Any, ...]:
    _, (items,), *index = iterator.__reduce__()
    return tuple(items)[index[0] if index else 0 :]


def tuple_iterator_len(tup: Iterator[Any]) -> int:
    """The number of remaining items."""
    return operator.length_hint(tup)


def tuple_iterator_getitem(tup: Iterator[Any], index: int) -> Any:
    """A remaining item, without advancing the iterator."""
    return _rest_of(tup)[index]


def dict_keys_getitem(d: dict[Any, Any], n: int) -> Any:
    """The n-th key of a dict."""
    return list(d)[n]


def to_subclass(t: torch.Tensor, cls: type[torch.Tensor]) -> torch.Tensor:
    """The tensor as an instance of the subclass."""
    return t.as_subclass(cls)


def nn_module_new(cls: type[torch.nn.Module]) -> torch.nn.Module:
    """A module on which only torch.nn.Module's `__init__` has run, not its class's own."""
    made = object.__new__(cls)
    torch.nn.Module.__init__(made)
    return made


def object_new(cls: type) -> Any:
    """An object made without `__init__`; for a module, `nn_module_new`."""
    return nn_module_new(cls) if issubclass(cls, torch.nn.Module) else object.__new__(cls)


def identity(x: Any) -> Any:
    """Return the value."""
    return x


def nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing."""


@functools.cache
def print_once(*args: Any) -> None:
    """Print, unless the same arguments were printed before."""
    print(*args)


def import_submodule(mod: types.ModuleType) -> None:
    """Import the package's modules, but not its subpackages and private modules."""
    for found in pkgutil.iter_modules(mod.__path__):
        if not found.ispkg and not found.name.startswith("_"):
            importlib.import_module(f"{mod.__name__}.{found.name}")


def ifdynstaticdefault(count1: Any, count2: Any) -> Any:
    """`count1` if `config.assume_static_by_default` is set, else `count2`."""
    return count1 if config.assume_static_by_default else count2


class Lit(str):
    """A string whose repr has no quotes."""

    __slots__ = ()
    __repr__ = str.__str__


_GIVEN: collections.Counter[str] = collections.Counter()  # number of `warn_once` calls by message


def warn_once(msg: str, stacklevel: int = 1) -> None:
    """Warn at the first call with this message, never again. `stacklevel` 1 is the caller's line."""
    _GIVEN[msg] += 1
    if _GIVEN[msg] == 1:
        warnings.warn(msg, UserWarning, 1 + stacklevel)


def strip_color_from_string(text: str) -> str:
    """The text without ANSI color codes."""
    return re.sub(r"\x1b\[[\d;]*m", "", text)


class DuplicateWarningChecker:
    """Remembers the `maxsize` most recently added keys, to warn about each only once."""

    def __init__(self, maxsize: int = 4096) -> None:
        self.maxsize = maxsize
        self._asked: dict[Hashable, None] = {}  # least recently added first

    def add(self, key: Hashable) -> bool:
        """Add a key. Returns whether to warn: the key is new, or `config.verbose` is set."""
        before = len(self._asked)
        self._asked.pop(key, None)
        is_new = len(self._asked) == before
        self._asked[key] = None
        for oldest in list(self._asked)[: max(0, len(self._asked) - self.maxsize)]:
            del self._asked[oldest]
        return is_new or config.verbose

    def reset(self) -> None:
        """Forget all keys."""
        self._asked.clear()


graph_break_dup_warning_checker = DuplicateWarningChecker()
