"""Settings of upstream's that have no effect in refimpl, by the reason why: what always happens instead.

Counterpart: torch/_dynamo/config.py, torch/compiler/config.py
Differs: a setting that is given another value than its default warns and says the reason.
"""

from __future__ import annotations

import os
from types import MappingProxyType
from typing import Any

import torch

_NOTHING = "no part of torch 2.13 reads it"
_GUARDS = "guards are one Python function, which reads each attribute, dictionary and tensor that the graph depends on"
_CACHES = "nothing of capture is kept between processes"
_FAKES = "graphs run on fake tensors without their cache and outside of inference mode"
_REPORTS = (
    "capture writes no profile, record or generated text; refimpl.explain and the log refimpl.capture tell what it did"
)
_DISTRIBUTED = "each process captures alone, and graphs are not split for collectives"
_CUDA_GRAPHS = "there are no CUDA graphs"
_REPEATED = "equal parts of graphs are kept apart"
_NUMBERS = "integers and numbers of modules follow the rules for arguments"
_TESTING = "refimpl has no part that this switch of upstream's own tests turns off"

# reason -> setting -> default
_BY_REASON: dict[str, dict[str, Any]] = {
    _NOTHING: {
        "allowed_functions_module_string_ignorelist": {
            f"torch.{name}" for name in ("distributions", "testing", "_refs", "_prims", "_decomp")
        },
        "dead_code_elimination": None,
        "minimum_call_count": 1,
        "raise_on_unsafe_aot_autograd": False,
        "report_guard_failures": True,
        "skip_torchrec": True,
        "skipfiles_inline_module_allowlist": {},
    },
    _GUARDS: {
        "assume_dunder_attributes_remain_unchanged": True,
        "enable_cpp_framelocals_guard_eval": True,
        "enable_cpp_guard_manager": True,
        "enable_cpp_symbolic_shape_guards": False,
        "guard_nn_modules": True,
        "guard_nn_modules_using_dict_tags": True,
        "max_saved_pointers_for_recursive_dict_tags_check": 256,
        "skip_guards_on_constant_func_defaults": False,
        "skip_nnmodule_hook_guards": True,
        "skip_no_tensor_aliasing_guards_on_parameters": True,
        "skip_tensor_guards_with_matching_dict_tags": True,
        "use_lamba_guard_for_object_aliasing": True,
        "use_recursive_dict_tags_for_guards": False,
    },
    _CACHES: {
        "automatic_dynamic_local_pgo": True,
        "automatic_dynamic_remote_pgo": None,
        "cache_key_tag": "",
        "caching_precompile": False,
        "force_disable_caches": False,
        "job_id": None,
        "pgo_extra_read_key": None,
        "pgo_extra_write_key": None,
        "strict_precompile": False,
        "_save_config_ignore": {
            "constant_functions", "repro_after", "repro_level", "skipfiles_inline_module_allowlist",
        },
    },
    _FAKES: {
        "fake_tensor_cache_crosscheck_enabled": False,
        "fake_tensor_cache_enabled": True,
        "fake_tensor_disable_inference_mode": True,
        "invalidate_compile_context_weakrefs": None,
    },
    _REPORTS: {
        "base_dir": os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__))),
        "cprofile": False,
        "debug_disable_compile_counter": False,
        "dynamo_profiler": False,
        "generate_pycode": False,
        "log_graph_in_out_metadata": False,
        "pt2_compile_id_prefix": None,
        "record_compile_time_instruction_count": False,
        "record_runtime_overhead": True,
        "replay_record_enabled": False,
        "_custom_ops_profile": None,
    },
    _DISTRIBUTED: {
        "enable_compiler_collectives": False,
        "enable_p2p_compilation": False,
        "optimize_ddp": True,
        "optimize_ddp_lazy_compile": False,
        "skip_fsdp_guards": True,
        "_unsafe_skip_fsdp_module_guards": False,
    },
    _CUDA_GRAPHS: {
        "cudagraph_backend_keep_input_mutation": False,
        "cudagraph_backend_support_input_mutation": False,
        "force_cudagraph_gc": False,
    },
    _REPEATED: {
        "graph_deduplication_lint": False,
        "track_nodes_for_deduplication": False,
        "use_graph_deduplication": False,
    },
    _NUMBERS: {
        "allow_unspec_int_on_nn_module": False,
        "force_unspec_int_unbacked_size_like_on_torchrec_kjt": False,
    },
    _TESTING: {
        "debug_force_graph_break_on_leaf_return": False,
        "debug_force_nested_calls": False,
        "enable_invoke_subgraph_regional_compile": False,
        "inject_BUILD_SET_unimplemented_TESTING_ONLY": False,
    },
    "a graph without operators is not compiled": {"allow_empty_graphs": False},
    "captured functions have no aot_compile": {"enable_aot_compile": True},
    "torch.autograd.grad and Tensor.backward end the graph": {"trace_autograd_ops": False},
    "the backend that is called inductor has options, and no settings": {"debug_inductor_config_override": ""},
    "attributes of tensors may be read in the backward of an autograd function": {
        "_autograd_backward_strict_mode_banned_ops": ["layout", "is_neg", "is_conj", "is_pinned"],
        "_autograd_backward_strict_mode_conditional_banned_ops": ["stride", "storage_offset", "is_contiguous"],
    },
    "functions of numpy give the types of numpy, which are these": {
        "numpy_default_complex": "complex128",
        "numpy_default_float": "float64",
        "numpy_default_int": "int64",
    },
    "sizes are marked on tensors": {"_shapes_spec": None},
    "autograd functions are captured": {"capture_autograd_function": True},
    "transforms of torch.func are captured where that is supported": {"capture_func_transforms": True},
    "record_function is not in graphs": {"capture_profiler_record_function": False},
    "sparse tensors are captured like others": {"capture_sparse_compute": True},
    "code of every module is captured": {"dont_skip_tracing": False},
    "assume_static_by_default and automatic_dynamic_shapes decide": {"dynamic_shapes": True},
    "graphs hold the functions that the program calls": {"enable_dynamo_decompositions": True},
    "generators always stop and go on where the program's do": {"enable_faithful_generator_behavior": True},
    "context managers of contextlib are interpreted": {"enable_trace_contextlib": True},
    "class statements that only define names are captured": {"enable_trace_load_build_class": False},
    "code of unittest is captured like other code": {"enable_trace_unittest": False},
    "nothing is hooked into the interpreter that compiled code could call back": {
        "error_on_dynamo_callback_in_fullgraph_compiled_code": False,
    },
    "torch.jit.trace of a captured function raises": {"error_on_nested_jit_trace": True},
    "a graph ends before a parameter is made": {"graph_break_on_nn_param_ctor": True},
    "modules of torch are interpreted": {"inline_inbuilt_nn_modules": True},
    "a dispatch mode that is active sees each operator of a captured function": {"inline_torch_dispatch_torch_compile": True},
    "there is no such warning": {"issue_3_13_0_warning": True},
    "what is assumed of sizes is guarded": {"prefer_deferred_runtime_asserts_over_guards": False},
    "parameters are inputs": {"prepare_freezing": False},
    "an assert on a tensor ends the graph": {"rewrite_assert_with_torch_assert": True},
    "no garbage is collected": {"run_gc_after_compile": True},
    "past the limit, functions that are called are captured": {"skip_code_recursive_on_recompile_limit_hit": True},
    "wrappers are captured; predicates.istensor reads it": {"traceable_tensor_subclasses": set()},
    "graphs make their code when it is needed": {"use_lazy_graph_module": True},
    "random functions of numpy end the graph": {"use_numpy_random_stream": False},
    "the function itself is captured": {"wrap_top_frame": False},
}  # fmt: skip

ACCEPTED = MappingProxyType(
    {name: (default, reason) for reason, settings in _BY_REASON.items() for name, default in settings.items()}
)
