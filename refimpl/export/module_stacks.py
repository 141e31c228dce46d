"""Normalises `nn_module_stack` for exported programs: with the root, with paths of modules, on call nodes only.

Counterpart: torch/export/_trace.py _normalize_nn_module_stack, _fixup_key, _strip_root
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import fx

ROOT_KEY = "L__self__"


def normalise_module_stacks(graph_module: fx.GraphModule, root: type) -> None:
    """Normalise the stacks in all graphs. Placeholders and outputs lose `nn_module_stack` and `stack_trace`."""
    root_entry = ("", f"{root.__module__}.{root.__qualname__}")
    for module in graph_module.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        for node in module.graph.nodes:
            if node.op in ("placeholder", "output"):
                node.meta.pop("nn_module_stack", None)
                node.meta.pop("stack_trace", None)
            else:
                node.meta["nn_module_stack"] = _normalised(node.meta.get("nn_module_stack") or {}, root_entry)


def with_root_entry(graph_module: fx.GraphModule, root: Mapping[str, tuple[str, str]]) -> None:
    """The same for a graph made from a normalised one: nodes without a stack get that of the root, if any node has one."""
    for module in graph_module.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        for node in module.graph.nodes:
            if node.op in ("placeholder", "output"):
                node.meta.pop("nn_module_stack", None)
                node.meta.pop("stack_trace", None)
            elif root and not node.meta.get("nn_module_stack"):
                node.meta["nn_module_stack"] = dict(root)


def _normalised(stack: dict[str, Any], root_entry: tuple[str, str]) -> dict[str, tuple[str, str]]:
    found = {ROOT_KEY: root_entry}
    for key, (source, kind) in stack.items():
        path = _path_of_source(source)
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
        if key == ROOT_KEY:  # an exported program exported again: keep the original root
            found[ROOT_KEY] = ("", name)
        elif path:
            _, _, call = str(key).partition("@")
            found[f"{ROOT_KEY}{path}{'@' if call else ''}{call}"] = (path, name)
    return found


_SOURCE_OF_ROOT = "L['self']"
_INDEX = re.compile(r"""\[['"]?([^]'"]+)['"]?\]""")


def _path_of_source(source: str) -> str:
    """Turn the source of a module in capture, `L['self'].a[0]`, into its path `a.0`; a path is returned as it is."""
    if not source.startswith(_SOURCE_OF_ROOT):
        return source
    return _INDEX.sub(r".\1", source.removeprefix(_SOURCE_OF_ROOT)).replace("._modules.", ".").lstrip(".")
