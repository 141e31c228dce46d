"""What a record of a capture says of the segment that was made, or of what stood in the way.

Counterpart: torch/_dynamo/convert_frame.py _compile
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from refimpl._torch import HigherOrderOperator, OpOverload, OpOverloadPacket
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards import GuardKind
from refimpl.capture.segment import Segment

_OF_TORCH = ("aten", "prims", "prim")


def facts_of_segment(segment: Segment | None) -> dict[str, Any]:
    """Fields of CompilationMetrics: counts of guards and nodes, operators of libraries; nothing but that there is no segment."""
    if segment is None:
        return {"has_guarded_code": False}
    nodes = [] if segment.graph is None else list(segment.graph.graph.nodes)
    by_tag = _custom_operators(nodes)
    return {
        "has_guarded_code": True,
        "guard_count": len(segment.guards),
        "shape_env_guard_count": sum(
            len(guard.seen.shape_env.guards) for guard in segment.guards if guard.kind is GuardKind.SHAPES
        ),
        "graph_op_count": sum(node.op.startswith("call") for node in nodes),
        "graph_node_count": len(nodes),
        "graph_input_count": sum(node.op == "placeholder" for node in nodes),
        "non_compliant_ops": by_tag[False],
        "compliant_custom_ops": by_tag[True],
        "dynamo_time_before_restart_s": segment.restart_seconds,
    }


def facts_of_failure(raised: BaseException | None) -> dict[str, Any]:
    """Fields of CompilationMetrics: class and text of what was raised, and the line of the program, where it is known."""
    if raised is None:
        return {}
    stack = raised.stack if isinstance(raised, GraphBreak) else ()
    found: dict[str, Any] = {"fail_type": type(raised).__name__, "fail_reason": str(raised)}
    if stack:
        found |= {"fail_user_frame_filename": stack[-1].file, "fail_user_frame_lineno": stack[-1].line}
    return found


def _custom_operators(nodes: list[fx.Node]) -> dict[bool, frozenset[str]]:
    """Names of operators of libraries: with and without the tag that says they are fit for compilers."""
    found: dict[bool, set[str]] = {True: set(), False: set()}
    for node in nodes:
        target = node.target
        if isinstance(target, HigherOrderOperator) or not isinstance(target, (OpOverload, OpOverloadPacket)):
            continue
        overloads = (
            [target] if isinstance(target, OpOverload) else [getattr(target, name) for name in target.overloads()]
        )
        if overloads[0].namespace not in _OF_TORCH:
            is_compliant = all(torch.Tag.pt2_compliant_tag in overload.tags for overload in overloads)
            found[is_compliant].add(str(target))
    return {is_compliant: frozenset(names) for is_compliant, names in found.items()}
