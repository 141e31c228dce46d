"""Modules among the inputs as proxies: what is done with one is recorded, and the graph does it with the module it is given.

Counterpart: make_fx(proxy_module_inputs=True) in torch/fx/experimental/proxy_tensor.py wrap_key
Differs: a tensor of the trace that goes into such a call is its node; upstream makes it a constant.

A call through a proxy is not run, and its result is a proxy too: of what follows from it, torch functions are recorded by
fx's rules, as they were called, without aten ops and without `val`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.proxy import GraphAppendingTracer

from refimpl.trace.recording_mode import RecordingMode
from refimpl.trace.symbols import SYMBOLIC_TYPES


def module_proxy(recording: RecordingMode, node: torch.fx.Node) -> torch.fx.Proxy:
    """Stands for the module that the placeholder `node` will be given."""
    return torch.fx.Proxy(node, _ModuleTracer(recording))


class _ModuleTracer(GraphAppendingTracer):
    """Adds what proxies record to the graph of the trace."""

    def __init__(self, recording: RecordingMode) -> None:
        super().__init__(recording.builder.graph)
        self._recording = recording

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, (torch.Tensor, *SYMBOLIC_TYPES)):
            return self._recording.node_of(a)
        return super().create_arg(a)

    def create_node(self, *args: Any, **kwargs: Any) -> torch.fx.Node:
        node = super().create_node(*args, **kwargs)
        for annotate in self._recording.builder.annotators:
            annotate(node)
        return node
