"""Traces higher-order operators (torch.cond, while_loop, scan ...): a rule per operator traces its functions into subgraphs.

Counterpart: the ProxyTorchDispatchMode and FakeTensorMode implementations in torch/_higher_order_ops/
Differs: tensors and sizes that a function closes over become operands, so that no front end has to lift them first; upstream
makes such a tensor a constant. In real mode functions are traced on copies, so that one that mutates its operands does so only
once, when the operator runs.

A rule is a short function `rule(call, *args, **kwargs)` that returns a `Recorded`: the arguments of the node and the result.

| operator | rule | module |
|---|---|---|
| cond | both branches; results are merged, and a size that differs is an unbacked symbol | control_flow |
| while_loop, while_loop_stack_output | condition and body; ints in the carry are unbacked symbols in both | control_flow |
| scan, associative_scan, map_impl | the body on one slice | scans |
| invoke_subgraph | the subgraph, once for each identifier | subgraphs |
| invoke_quant, invoke_quant_packed, foreach_map, tag_activation_checkpoint (of a pre-dispatch trace) | the first argument on the others | subgraphs |
| hints_wrapper, strict_mode, run_const_graph | the first argument on the operands in the second | subgraphs |
| auto_functionalized, auto_functionalized_v2, with_effects, out_dtype, print, run_and_save_rng_state, run_with_rng_state, _export_tracepoint | the default | rules |
| call_torchbind | the call itself; a fake runs the method | rules |
| graphsafe_run_with_rng_state, run_dtensor_rng_op, inline_asm_elementwise | the default; not tested, since they need a GPU | rules |
| wrap, wrap_with_set_grad_enabled, wrap_with_autocast, tag_activation_checkpoint, wrap_activation_checkpoint, dynamo_bypassing_wrapper, flat_apply, autograd_function_apply, custom_function_call, local_map_hop | none: they call their function themselves, and its ops are recorded | |
| flex_attention, flex_attention_backward | the functions of scores and masks, on single elements | attention |
| invoke_leaf_function | the node calls the function; writes to arguments are `copy_` nodes after it | leaf_functions |
| triton_kernel_wrapper_mutation | the call is recorded as a launch of the kernel (refimpl.trace.triton_kernels); triton_kernel_wrapper_functional is refused | rules |
| aoti_call_delegate, executorch_call_delegate, inductor_compiled_code | none yet: register one | |

The default records the call unchanged and runs the operator for its result. It raises UnsupportedByRefimpl for a call with a
function among its arguments, because only a rule knows the arguments of that function.

Writes. A trace for compilation makes functions of cond and while_loop that write to their operands return the new values, and
records the writes after the call (refimpl.trace.higher_order.returned_writes). A while_loop whose condition writes, or whose body
writes to what it carries, becomes another loop first (refimpl.trace.higher_order.loop_writes).

Gradients. The backward of a `torch.cond`, map or while_loop in a trace is refimpl's (refimpl.trace.higher_order.gradients): one
more call of the operator, which computes gradients of operands and of closed-over tensors. A scan that needs gradients is traced
step by step (refimpl.trace.higher_order.flat_calls). Other calls, and a direct call of an operator, use torch's backward. Their autograd implementation runs before any mode sees the call, so the forward call is recorded below autograd, and
the backward call when the trace computes gradients. Torch makes the backward subgraphs (and those of scan's forward) with its
own tracer, and refimpl traces them again. A call is refused if it would lose the gradient of a closed-over tensor.
"""  # noqa: E501

from __future__ import annotations

from refimpl.trace.higher_order.calls import HigherOrderCall, Recorded, Rule, Subgraph
from refimpl.trace.higher_order.rules import call_higher_order, register_higher_order_rule

__all__ = ["HigherOrderCall", "Recorded", "Rule", "Subgraph", "call_higher_order", "register_higher_order_rule"]
