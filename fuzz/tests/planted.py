"""Compilers with planted faults, for the tests of campaigns: each is `compile:fuzz.tests.planted:NAME`."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

Compiled = Callable[..., Any]
_calls = {"wrong_once": 0}


def honest(fn: Compiled, *, dynamic: bool | None = None) -> Compiled:
    return fn


def wrong_for_rank_two(fn: Compiled, *, dynamic: bool | None = None) -> Compiled:
    """Adds one to results of rank two and dtype float32."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return _changed(fn(*args, **kwargs))

    return run


def wrong_in_company(fn: Compiled, *, dynamic: bool | None = None) -> Compiled:
    """Adds one to results of rank two, where the program has results of many programs."""

    def run(*args: Any, **kwargs: Any) -> Any:
        result = fn(*args, **kwargs)
        return _changed(result) if type(result) is tuple and len(result) > 5 else result

    return run


def _changed(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result + 1 if result.dim() == 2 and result.dtype is torch.float32 and result.numel() else result
    if type(result) in (list, tuple):
        return type(result)(map(_changed, result))
    return result


def _is_outlined(fn: Compiled) -> bool:
    return isinstance(fn, FunctionType) and "outlined" in fn.__code__.co_names


def wrong_when_outlined(fn: Compiled, *, dynamic: bool | None = None) -> Compiled:
    """Adds one to every result of a function that calls a helper by this name."""
    if not _is_outlined(fn):
        return fn
    return lambda *args, **kwargs: _one_more(fn(*args, **kwargs))


def _one_more(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result + 1
    return type(result)(map(_one_more, result)) if type(result) in (list, tuple) else result


def dies_when_outlined(fn: Compiled, *, dynamic: bool | None = None) -> Compiled:
    if not _is_outlined(fn):
        return fn
    return lambda *args, **kwargs: ctypes.string_at(0)


def wrong_on_a_cache_hit(fn: Compiled, *, dynamic: bool | None = None) -> Compiled:
    """Keeps on disk which process came first; any other gets results one too large."""
    path = Path(os.environ["PLANTED_CACHE"])
    if not path.exists():
        path.write_text(str(os.getpid()))
    if path.read_text() == str(os.getpid()):
        return fn
    return lambda *args, **kwargs: fn(*args, **kwargs) + 1


def crashes_on_bool(fn: Compiled, *, dynamic: bool | None = None) -> Compiled:
    def run(*args: Any, **kwargs: Any) -> Any:
        if _has(args, lambda tensor: tensor.dtype is torch.bool):
            ctypes.string_at(0)
        return fn(*args, **kwargs)

    return run


def hangs_on_int16(fn: Compiled, *, dynamic: bool | None = None) -> Compiled:
    def run(*args: Any, **kwargs: Any) -> Any:
        if _has(args, lambda tensor: tensor.dtype is torch.int16):
            time.sleep(3600)
        return fn(*args, **kwargs)

    return run


def never_ends(fn: Compiled, *, dynamic: bool | None = None) -> Compiled:
    if fn.__name__ == "_tiny":  # the preflight
        return fn

    def run(*args: Any, **kwargs: Any) -> Any:
        time.sleep(3600)

    return run


def wrong_once(fn: Compiled, *, dynamic: bool | None = None) -> Compiled:
    """Wrong on the third program of a process, whatever it is."""
    _calls["wrong_once"] += 1
    return wrong(fn) if _calls["wrong_once"] == 3 else fn


def wrong(fn: Compiled, *, dynamic: bool | None = None) -> Compiled:
    def run(*args: Any, **kwargs: Any) -> Any:
        fn(*args, **kwargs)
        return "nothing like it"

    return run


def raises(fn: Compiled, *, dynamic: bool | None = None) -> Compiled:
    raise NotImplementedError("no such compiler")


def prints_much(fn: Compiled, *, dynamic: bool | None = None) -> Compiled:
    for _ in range(64):
        sys.stdout.write("x" * (1 << 20) + "\n")
    return fn


def _has(args: tuple[Any, ...], condition: Callable[[torch.Tensor], bool]) -> bool:
    return any(isinstance(arg, torch.Tensor) and condition(arg) for arg in args)
