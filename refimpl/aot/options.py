"""Options of ahead-of-time compilation: those of one compile (AOTConfig), and those of every compile in a block (AOTSettings).

Counterpart: torch/_functorch/_aot_autograd/schemas.py AOTConfig; torch/_functorch/config.py functionalize_rng_ops,
unlift_effect_tokens, enable_autograd_cache
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from refimpl._torch import is_set_for_aot
from refimpl.trace.options import DecompositionTable

Compiler = Callable[..., Callable[..., Any]]

AOT_COUNTER = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class AOTConfig:
    """Options of one compile. A compiler takes a GraphModule and its example inputs (fake tensors) and returns a callable. If its
    `_boxed_call` is true, the callable takes one list of inputs. `aot_id` numbers the top-level compiles of a process. Callers of
    upstream pass `aot_autograd_arg_pos_to_source`, `enable_log` and `cache_key`, which have no effect."""

    fw_compiler: Compiler | None = None
    bw_compiler: Compiler | None = None
    partition_fn: Callable[..., Any] | None = None
    decompositions: DecompositionTable = field(default_factory=dict)
    num_params_buffers: int = 0
    aot_id: int = -1
    keep_inference_input_mutations: bool = False
    inference_compiler: Compiler | None = None
    dynamic_shapes: bool = False
    aot_autograd_arg_pos_to_source: Any = None
    is_export: bool = False
    no_tangents: bool = False
    pre_dispatch: bool = False
    enable_log: bool = True
    cache_key: Any = None
    record_stack_traces: bool = False
    functionalization: str = "table"
    disable_functionalization: bool = False  # the graphs keep the program's writes (refimpl.aot.recorded_writes)
    keeps_tokens: bool = False  # effect tokens are inputs and outputs, unless `unlift_effect_tokens` is set
    specializes_integers: bool = False  # integer arguments are constants, even with symbolic sizes
    is_followed: bool = False  # more of the program follows, and may write to leaves before the backward
    merges_duplicates: bool = False  # a tensor passed twice has one placeholder, even if nothing is written


@dataclass(frozen=True, slots=True, kw_only=True)
class AOTSettings:
    """Options of every compile in a block.

    functionalize_rng_ops: random ops become functions of the generator's state, an input of the graph (refimpl.aot.rng).
    unlift_effect_tokens: graphs make their effect tokens, which are no inputs then.
    enable_autograd_cache: traced and partitioned graphs are kept in files, and later processes load them
        (refimpl.compile_cache).
    autograd_cache_folder: the folder of these files; None for TORCH_ORACLE_AUTOGRAD_CACHE, or a folder in the user's cache.
    autograd_cache_bytes: the files used last are kept up to this size.
    """

    functionalize_rng_ops: bool = False
    unlift_effect_tokens: bool = False
    enable_autograd_cache: bool = False
    autograd_cache_folder: str | None = None
    autograd_cache_bytes: int = 2**30


_SETTINGS: contextvars.ContextVar[AOTSettings] = contextvars.ContextVar("refimpl_aot_settings")
_DEFAULT = AOTSettings()
_OF_TORCH = ("functionalize_rng_ops", "unlift_effect_tokens")  # read in torch's configuration too


def current_settings() -> AOTSettings:
    """The settings of the innermost `aot_settings` block, and those that the user has switched on in torch's configuration."""
    settings = _SETTINGS.get(_DEFAULT)
    switched_on = {name: True for name in _OF_TORCH if is_set_for_aot(name)}
    return replace(settings, **switched_on) if switched_on else settings


@contextlib.contextmanager
def aot_settings(**changes: Any) -> Iterator[AOTSettings]:
    """Change fields of AOTSettings in a block, for compiles and exports."""
    settings = replace(current_settings(), **changes)
    token = _SETTINGS.set(settings)
    try:
        yield settings
    finally:
        _SETTINGS.reset(token)
