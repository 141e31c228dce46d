"""What placeholders of parameters and buffers say of the calls that use them.

Counterpart: torch/export/_trace.py _get_params_buffers_to_node_meta
Differs: looked up in the final graph, in both modes.
"""

from __future__ import annotations

from torch import fx

from refimpl.export.graph_signature import ExportGraphSignature, InputKind

_FIELDS = ("source_fn_stack", "torch_fn", "quantization_tag")


def note_users(graph_module: fx.GraphModule, signature: ExportGraphSignature) -> None:
    """Puts what the first call that uses it says of its function into the meta of every parameter and buffer."""
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    for spec, node in zip(signature.input_specs, placeholders, strict=True):
        if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER) or not node.users:
            continue
        user = next(iter(node.users))
        for key in _FIELDS:
            if key in user.meta:
                node.meta.setdefault(key, user.meta[key])
