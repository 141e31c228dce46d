"""Backends that make a graph smaller on which another backend fails, and write it to `repro.py`.

Counterpart: torch/_dynamo/repro/after_dynamo.py dynamo_minifier_backend, dynamo_accuracy_minifier_backend, backend_fails
Differs: the graph is made smaller by refimpl's own reducer (minifier.py). Intermediate graphs replace each other.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import Any

from torch import fx

from refimpl.backend_registry import lookup_backend
from refimpl.capture.config import config
from refimpl.capture.repro.accuracy import backend_accuracy_fails, clone_inputs_retaining_gradness, run_fwd_maybe_bwd
from refimpl.capture.repro.backend import innermost_backend
from refimpl.capture.repro.minifier import copied_graph, minifier
from refimpl.capture.repro.scripts import write_repro

_LOG = logging.getLogger("refimpl.capture")
_SIMILAR = 0.5  # of two messages, from which on they are taken for the same error


def dynamo_minifier_backend(
    gm: fx.GraphModule, example_inputs: Sequence[Any], compiler_name: Any
) -> fx.GraphModule:  # fmt: skip
    """Writes the smallest graph found for which the backend raises a similar error. Returns the graph itself.

    Raises ValueError if the backend raises none.
    """
    compiler = innermost_backend(lookup_backend(compiler_name))
    try:
        run_fwd_maybe_bwd(compiler(copied_graph(gm), list(example_inputs)), example_inputs)
    except Exception as error:
        fails = functools.partial(backend_fails, compiler_fn=compiler, orig_failure=str(error))
        _minify(gm, example_inputs, fails, functools.partial(write_repro, compiler_name=compiler_name))
        return gm
    raise ValueError("No issue was detected")


def dynamo_accuracy_minifier_backend(
    gm: fx.GraphModule, example_inputs: Sequence[Any], compiler_name: Any
) -> fx.GraphModule:  # fmt: skip
    """Writes the smallest graph found for which the backend computes other values. Returns the graph itself."""
    compiler = innermost_backend(lookup_backend(compiler_name))

    def fails(gm: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        return backend_accuracy_fails(
            gm, inputs, compiler, only_fwd=config.repro_forward_only, ignore_non_fp=config.repro_ignore_non_fp
        )

    gm.eval()
    if fails(gm, example_inputs):
        write = functools.partial(write_repro, compiler_name=compiler_name, is_accuracy=True)
        _minify(gm, example_inputs, fails, write)
    else:
        _LOG.error("Input graph does not fail accuracy testing")
    return gm


def _minify(
    gm: fx.GraphModule, example_inputs: Sequence[Any], fails: Callable[..., bool], write: Callable[..., str]
) -> None:
    write(copied_graph(gm), example_inputs)
    minifier(gm, list(example_inputs), fails, lambda smaller, inputs: _tell(write(smaller, inputs), smaller))


def _tell(path: str, smaller: fx.GraphModule) -> None:
    _LOG.warning("a graph of %d nodes is written to %s", len(smaller.graph.nodes), path)


def backend_fails(
    gm: fx.GraphModule, example_inputs: Sequence[Any], compiler_fn: Callable[..., Any], orig_failure: str
) -> bool:
    """Whether the graph runs without the backend, and with it raises an error whose message is similar to this one."""
    try:
        run_fwd_maybe_bwd(gm, clone_inputs_retaining_gradness(example_inputs))
    except Exception:  # a graph that raises by itself shows nothing of the backend
        return False
    try:
        compiled = compiler_fn(gm, list(example_inputs))
        run_fwd_maybe_bwd(compiled, clone_inputs_retaining_gradness(example_inputs))
    except Exception as error:
        return SequenceMatcher(None, orig_failure, str(error)).ratio() > _SIMILAR
    return False
