"""Operators that take functions: one rule each, which traces the functions into graphs of their own.

Counterpart: the ProxyTorchDispatchMode and FakeTensorMode implementations in torch/_higher_order_ops/
Differs: what a function uses from around it, tensors and sizes alike, becomes an operand, and so the graph is right without a
front end that has lifted it before; upstream burns such a tensor in. In real mode functions are traced on copies, so that one
that writes to its operands writes once, when the operator runs.

A rule is a short function `rule(call, *args, **kwargs)` that gives a `Recorded`: the arguments of the node and the result.

| operator | rule | module |
|---|---|---|
| cond | both branches; results merged, a size that differs is an unbacked symbol | control_flow |
| while_loop, while_loop_stack_output | condition and body; ints in the carry are unbacked symbols in both | control_flow |
| scan, associative_scan, map_impl | the body on one slice | scans |
| invoke_subgraph | the subgraph, once for each identifier | subgraphs |
| invoke_quant, invoke_quant_packed, foreach_map, tag_activation_checkpoint (of a pre-dispatch trace) | the first argument on the others | subgraphs |
| hints_wrapper, strict_mode, run_const_graph | the first argument on the operands in the second | subgraphs |
| auto_functionalized, auto_functionalized_v2, with_effects, out_dtype, print, run_and_save_rng_state, run_with_rng_state, _export_tracepoint | the default | rules |
| call_torchbind, graphsafe_run_with_rng_state, run_dtensor_rng_op, inline_asm_elementwise, triton kernels | the default; shown by no test, since they need a GPU or classes that no release has | rules |
| wrap, wrap_with_set_grad_enabled, wrap_with_autocast, tag_activation_checkpoint, wrap_activation_checkpoint, dynamo_bypassing_wrapper, flat_apply, autograd_function_apply, custom_function_call | none: they call their function themselves, and what it does is recorded | |
| flex_attention, flex_attention_backward, local_map_hop, invoke_leaf_function, aoti_call_delegate, executorch_call_delegate, inductor_compiled_code | none yet: register one | |

The default records the call as it stands and runs the operator for its result. It is refused (UnsupportedByRefimpl) for a call
with a function among its arguments, since only a rule knows what the operator calls it with.

Gradients. A `torch.cond` in a trace has refimpl's (refimpl.trace.higher_order.gradients): a second cond, of operands and of
what the branches use from around them. Any other operator, and the operator of cond called by itself, has the gradient that
torch gives it: its autograd implementation runs before any mode sees the call, so that what is recorded is the forward call below
autograd, and the backward call when gradients are asked for in the trace. For the backward functions torch's implementation
makes graphs with torch's own tracer, which refimpl traces again; scan does so for the forward call too. A gradient that such a
call would lose, of something that is lifted, is refused.
"""  # noqa: E501

from __future__ import annotations

from refimpl.trace.higher_order.calls import HigherOrderCall, Recorded, Rule, Subgraph
from refimpl.trace.higher_order.rules import call_higher_order, register_higher_order_rule

__all__ = ["HigherOrderCall", "Recorded", "Rule", "Subgraph", "call_higher_order", "register_higher_order_rule"]
