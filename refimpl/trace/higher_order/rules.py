"""The table of rules for higher-order operators, and recording of a call by its rule.

Counterpart: HigherOrderOperator.py_impl(ProxyTorchDispatchMode) in torch/_ops.py; call_torchbind in
torch/_higher_order_ops/torchbind.py
Differs: keyed by the operator's name, because not every version of torch has every operator. Methods of script objects whose
class has a registered fake are recorded in every trace, not only inside enable_torchbind_tracing.
"""

from __future__ import annotations

from typing import Any

import torch

from refimpl._torch import HigherOrderOperator, OpOverload, fake_object, has_fake_class, pytree
from refimpl.errors import UnsupportedByRefimpl
from refimpl.trace.higher_order import attention, control_flow, leaf_functions, scans, subgraphs
from refimpl.trace.higher_order.calls import HigherOrderCall, Recorded, Recording, Rule
from refimpl.trace.metadata import note
from refimpl.trace.triton_kernels import relaunch


def _refused_launch(call: HigherOrderCall, **kwargs: Any) -> Recorded:
    raise UnsupportedByRefimpl(
        seen=f"{call.operator}, a launch of a Triton kernel that torch has made functional",
        supported="launches in the program, and in graphs that torch has captured",
        do="trace the graph as it was before torch's functionalization",
    )


def _method_of_script_object(call: HigherOrderCall, given: Any, method: str, *args: Any, **kwargs: Any) -> Recorded:
    """The call itself. In a trace with fake tensors a fake runs the method: the object itself changes when the graph runs."""
    runs = given
    if call.fake_mode is not None and isinstance(given, torch.ScriptObject) and has_fake_class(given):
        fakes = call.recording.fakes_of_objects
        runs = fakes.get(hash(given))
        if runs is None:
            runs = fakes[hash(given)] = fake_object(call.fake_mode, given)
    return Recorded(args=(given, method, *args), kwargs=kwargs, result=call.run(runs, method, *args, **kwargs))


_RULES: dict[str, Rule] = {
    "cond": control_flow.cond,
    "while_loop": control_flow.while_loop,
    "while_loop_stack_output": control_flow.while_loop_stack_output,
    "scan": scans.scan,
    "associative_scan": scans.associative_scan,
    "map_impl": scans.map_impl,
    "invoke_subgraph": subgraphs.invoke_subgraph,
    "invoke_quant": subgraphs.function_first("subgraph"),
    "invoke_quant_packed": subgraphs.function_first("subgraph"),
    "foreach_map": subgraphs.function_first("subgraph"),
    "tag_activation_checkpoint": subgraphs.function_first("wrap_body"),
    "hints_wrapper": subgraphs.hints_wrapper,
    "flex_attention": attention.flex_attention,
    "flex_attention_backward": attention.flex_attention_backward,
    "invoke_leaf_function": leaf_functions.invoke_leaf_function,
    "call_torchbind": _method_of_script_object,
    "strict_mode": subgraphs.operands_second("strict_graph_"),
    "triton_kernel_wrapper_functional": _refused_launch,
    "run_const_graph": subgraphs.operands_second("_const_graph"),
}


def register_higher_order_rule(operator: HigherOrderOperator, rule: Rule) -> None:
    """Trace calls of `operator` by `rule(call, *args, **kwargs)` from now on, in place of the rule it had.

    The rule runs with recording off. It traces functions with `call.trace(function, operands)`, makes the subgraphs submodules
    with `call.attach`, and returns the node's arguments and the result as a `Recorded`.
    """
    _RULES[operator.name()] = rule


def call_higher_order(recording: Recording, operator: HigherOrderOperator, args: Any, kwargs: Any) -> Any:
    """Record one call. Raises UnsupportedByRefimpl if an argument is a function and the operator has no rule."""
    if operator.name() == "triton_kernel_wrapper_mutation":
        with recording:
            return relaunch(**kwargs)
    rule = _RULES.get(operator.name(), as_it_stands)
    recorded = rule(HigherOrderCall(operator, recording), *args, **kwargs)
    node = recording.builder.call(operator, recording.node_of(recorded.args), recording.node_of(recorded.kwargs))
    if recorded.gives_written:
        note(node, gives_written=True)
    result = pytree.tree_map_only(torch.Tensor, lambda tensor: _own(tensor, recording), recorded.result)
    recording.bind_fresh_symbols(result, node)
    recording.track_result(result, node)
    return result if recorded.seen_of is None else recorded.seen_of(result)


def _own(tensor: torch.Tensor, recording: Recording) -> torch.Tensor:
    """A result as a new tensor, so that it can be tracked by the operator's node."""
    if recording.can_find(tensor):  # a branch returned its operand itself, but another run may take the other branch
        return tensor.detach()
    if recording.fake_mode is not None and type(tensor) is torch.Tensor:  # a generator's state, which is never fake
        return recording.fake_mode.from_tensor(tensor, static_shapes=True)
    return tensor


def as_it_stands(call: HigherOrderCall, *args: Any, **kwargs: Any) -> Recorded:
    """The default rule: the node has the call's own arguments, and the operator itself computes the result."""
    functions = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if _is_function(leaf)]
    if functions:
        raise UnsupportedByRefimpl(
            seen=f"the higher-order operator {call.operator}, called with {functions[0]!r}",
            supported="operators with a rule, if a function is among the arguments (see refimpl.trace.higher_order)",
            do="register a rule with refimpl.trace.higher_order.register_higher_order_rule(operator, rule)",
        )
    return Recorded(args=args, kwargs=kwargs, result=call.run(*args, **kwargs))


def _is_function(value: object) -> bool:
    return callable(value) and not isinstance(value, (OpOverload, HigherOrderOperator, torch.ScriptObject, type))
