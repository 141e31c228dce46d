"""Reasons for which a program is compiled without the cache.

Counterpart: torch/_functorch/_aot_autograd/autograd_cache.py BypassAOTAutogradCache
Differs: the reasons are a closed list, so that they can be counted.
"""

from __future__ import annotations

import enum


class Reason(enum.Enum):
    """Why a program is neither looked up nor kept."""

    PYTHON_FUNCTION = "what is compiled is a Python function, not a graph"
    PYTHON_CALLABLE = "a callable that is not torch's or refimpl's own"
    HIGHER_ORDER = "a higher-order operator"
    LIBRARY_OPERATOR = "an operator that a library defines"
    SUBMODULE = "a call of a submodule"
    TENSOR_CONSTANT = "a tensor that is a constant of the graph"
    CONSTANT = "a constant that has no text"
    HOOKS = "hooks on the graph module"
    GRAPH_CLASS = "a graph module with code of its own"
    NODE_META = "metadata of a node that files do not keep"
    SUBCLASS = "an argument of a tensor subclass"
    TENSOR_KIND = "a sparse, nested, quantized, named or memoryless tensor"
    DEVICE = "a device other than CPU and CUDA"
    ARGUMENT = "an argument that is neither a tensor nor a number"
    FAKE_ARGUMENT = "fake tensors of a mode that is not refimpl's"
    SHARED_MEMORY = "arguments with symbolic sizes that share memory"
    UNBACKED = "symbols of values that are known at run time only"
    FLOAT = "floats that are symbols"
    MODES = "an active mode or transform"
    OVERRIDDEN = "kernels of torch's operators that the process has replaced"
    CHANGED_SOURCES = "sources of refimpl that have changed since the process began"
    EXPORT = "a trace for export"
    RANDOM_STATES = "generator states as inputs (functionalize_rng_ops)"
    REFUSED_GRADIENT = "a gradient for which autograd raises"
    CAPTURED = "a tensor of a closure or a global variable"
    SPECIALIZED = "sizes that the trace made static"
    NOT_KEPT = "a part that files do not keep"


class Bypass(Exception):
    """The program is compiled without the cache. Not an error."""

    def __init__(self, reason: Reason, detail: object = "") -> None:
        super().__init__(f"{reason.value}: {detail}" if str(detail) else reason.value)
        self.reason = reason
