"""Draws configurations: dynamic shapes, and options of torch's compilers that must not change results."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any

from fuzz.draw.choices import Draw
from fuzz.draw.settings import Settings
from fuzz.program.structure import FuzzProgram, OpCall, walk
from oracle.configure import CONFIG_MODULES

_DYNAMO, _FUNCTORCH, _INDUCTOR = CONFIG_MODULES
# Options by module; each value differs from torch's own choice. Only what is said to change how, and not what, is computed:
# neither fast math nor freezing, nor options that switch guards off, nor cpp.force_inline_kernel (g++ refuses every kernel).
OPTIONS: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    _DYNAMO: {
        "assume_static_by_default": (False,),
        "automatic_dynamic_shapes": (False,),
        "specialize_int": (True,),
        "specialize_float": (True,),
        "force_parameter_static_shapes": (False,),
        "force_nn_module_property_static_shapes": (False,),
        "allow_unspec_int_on_nn_module": (True,),
        "capture_scalar_outputs": (True,),
        "capture_dynamic_output_shape_ops": (True,),
        "prefer_deferred_runtime_asserts_over_guards": (True,),
        "guard_nn_modules_using_dict_tags": (False,),
        "nested_graph_breaks": (True,),
        "skip_tensor_guards_with_matching_dict_tags": (False,),
        "enable_cpp_symbolic_shape_guards": (True,),
        "use_graph_deduplication": (True,),
    },
    _FUNCTORCH: {
        "activation_memory_budget": (0.5, 0.1, 0.0),
        "treat_parameters_as_free_to_save": (False,),
        "cse": (False,),
        "view_replay_for_aliased_outputs": (False,),
        "max_dist_from_bw": (1,),
        "ban_recompute_used_far_apart": (False,),
        "ban_recompute_long_fusible_chains": (False,),
        "ban_recompute_materialized_backward": (False,),
        "ban_recompute_reductions": (False,),
        "recompute_views": (True,),
        "aggressive_recomputation": (True,),
        "donated_buffer": (False,),
        "guess_tangent_strides_as_outputs": (False,),
        "static_weight_shapes": (False,),
    },
    _INDUCTOR: {
        "cpp.simdlen": (1,),
        "cpp.min_chunk_size": (1,),
        "cpp.no_redundant_loops": (False,),
        "cpp.max_horizontal_fusion_size": (0, 2),
        "cpp.fallback_scatter_reduce_sum": (False,),
        "cpp.enable_tiling_heuristics": (False,),
        "cpp.enable_loop_tail_vec": (False,),
        "cpp.enable_concat_linear": (True,),
        "cpp.use_two_step_variance_threshold": (1,),
        "inplace_buffers": (False,),
        "allow_buffer_reuse": (False,),
        "memory_planning": (True,),
        "pattern_matcher": (False,),
        "epilogue_fusion": (False,),
        "split_cat_fx_passes": (False,),
        "batch_fusion": (False,),
        "group_fusion": (True,),
        "permute_fusion": (True,),
        "reorder_for_locality": (False,),
        "reorder_for_peak_memory": (False,),
        "pick_loop_orders": (False,),
        "layout_optimization": (False,),
        "force_layout_optimization": (True,),
        "realize_reads_threshold": (1, 64),
        "realize_opcount_threshold": (1, 200),
        "fallback_random": (True,),
        "aggressive_fusion": (True,),
        "loop_ordering_after_fusion": (False,),
        "loop_index_inversion_in_fusion": (False,),
        "max_fusion_size": (1, 2),
        "force_pointwise_cat": (True,),
        "max_pointwise_cat_inputs": (0,),
        "unroll_reductions_threshold": (1, 64),
        "split_reductions": (False,),
        "conv_1x1_as_mm": (True,),
        "constant_and_index_propagation": (False,),
        "joint_graph_constant_folding": (False,),
        "optimize_scatter_upon_const_tensor": (False,),
        "compute_all_bounds": (True,),
        "size_asserts": (False,),
        "comprehensive_padding": (False,),
        "shape_padding": (False,),
        "dce": (True,),
        "use_pre_grad_passes": (False,),
        "use_joint_graph_passes": (False,),
        "graph_partition": (False,),
        "combo_kernels": (True,),
        "online_softmax": (False,),
        "emulate_precision_casts": (True,),
        "decompose_mem_bound_mm": (True,),
        "efficient_conv_bn_eval_fx_passes": (True,),
        "expand_dimension_for_pointwise_nodes": (True,),
    },
}
_HAS_CONFIG: Mapping[str, float] = {"all": 0.05, "autograd": 0.12, "python": 0.04, "guards": 0.1, "dynamic": 0.15}
_DYNAMIC: Mapping[str, Mapping[bool | None, float]] = {
    "dynamic": {None: 4, True: 5, False: 1},
    "export": {None: 5, True: 5},
    "guards": {None: 7, True: 2, False: 1},
}


def draw_dynamic(draw: Draw, settings: Settings) -> bool | None:
    """The `dynamic` option of the compile; None leaves it to the subject."""
    return draw.weighted(_DYNAMIC.get(settings.focus, {None: 17, True: 2, False: 1}))


def draw_config(draw: Draw, settings: Settings, program: FuzzProgram) -> dict[str, Any]:
    """Mostly no options. For programs with gradients and random numbers the memory budget is likely, since masks must not be
    recomputed.
    """
    if settings.focus == "export":
        return {}
    if any(call.backward for call in program.calls) and _is_random(program) and draw.chance(0.3):
        return {f"{_FUNCTORCH}.activation_memory_budget": draw.choice(OPTIONS[_FUNCTORCH]["activation_memory_budget"])}
    if not draw.chance(_HAS_CONFIG.get(settings.focus, 0.03)):
        return {}
    config: dict[str, Any] = {}
    for _ in range(draw.weighted({1: 6, 2: 3, 3: 1})):
        module = draw.weighted({_INDUCTOR: 5, _FUNCTORCH: 3, _DYNAMO: 2})
        known = known_options(module)
        option = draw.choice([*known])
        config[f"{module}.{option}"] = draw.choice(known[option])
    return config


@functools.cache
def known_options(module: str) -> dict[str, tuple[Any, ...]]:
    """The options of the module that the installed torch has."""
    config = importlib.import_module(module)
    return {option: values for option, values in OPTIONS[module].items() if hasattr(config, option)}


def _is_random(program: FuzzProgram) -> bool:
    return "random" in program.families or any(
        "dropout" in statement.target.lower() for statement in walk(program.statements) if isinstance(statement, OpCall)
    )
