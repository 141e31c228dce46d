"""Table of upstream names and the refimpl names that `suites.conformance` substitutes for them. Imports nothing itself."""

from __future__ import annotations

_AOT = "refimpl.aot"
_FUNCTORCH = "torch._functorch"
_LOGGING = f"{_FUNCTORCH}._aot_autograd.logging_utils"
_DYNAMO = "torch._dynamo"
_COMPILER = "torch.compiler"
_PROXY_TENSOR = "torch.fx.experimental.proxy_tensor"
_PUBLIC = "refimpl.capture.public"
_UPSTREAM = "refimpl.upstream"
_ENTRY_POINTS = "refimpl.capture.entry_points"
_GRAPHS = {
    f"{_LOGGING}.get_aot_compilation_context": f"{_AOT}.compile_program.get_aot_compilation_context",
    f"{_FUNCTORCH}.aot_autograd.aot_autograd_decompositions": "refimpl.aot_entry_points.aot_autograd_decompositions",
    f"{_FUNCTORCH}.aot_autograd.AOT_COUNTER": f"{_AOT}.options.AOT_COUNTER",
    f"{_FUNCTORCH}.aot_autograd._aot_export_function": f"{_AOT}.export.function._aot_export_function",
    f"{_FUNCTORCH}.aot_autograd.aot_export_joint_simple": f"{_AOT}.export.joint_simple.aot_export_joint_simple",
    f"{_FUNCTORCH}.aot_autograd.aot_export_module": f"{_AOT}.export.module.aot_export_module",
    f"{_FUNCTORCH}.aot_autograd.run_functionalized_fw_and_collect_metadata": (
        f"{_AOT}.export.view_and_mutation.run_functionalized_fw_and_collect_metadata"
    ),
    f"{_FUNCTORCH}.aot_autograd.aot_function": "refimpl.aot_entry_points.aot_function",
    f"{_FUNCTORCH}.aot_autograd.aot_module": "refimpl.aot_entry_points.aot_module",
    f"{_FUNCTORCH}.aot_autograd.aot_module_simplified": "refimpl.aot_entry_points.aot_module_simplified",
    f"{_FUNCTORCH}.compile_utils.fx_graph_cse": f"{_AOT}.partition.common_subexpressions.fx_graph_cse",
    f"{_FUNCTORCH}.compile_utils.strip_overloads": f"{_UPSTREAM}.compilers.strip_overloads",
    f"{_FUNCTORCH}.compilers.memory_efficient_fusion": f"{_UPSTREAM}.compilers.memory_efficient_fusion",
    f"{_FUNCTORCH}.fx_minifier.minifier": "refimpl.capture.repro.minifier.minifier",
    f"{_FUNCTORCH}.fx_minifier.dump_state": "refimpl.capture.repro.minifier.dump_state",
    f"{_FUNCTORCH}.partitioners.default_partition": f"{_AOT}.partition.default_partition",
    f"{_FUNCTORCH}.partitioners.min_cut_rematerialization_partition": f"{_AOT}.partition.min_cut_rematerialization_partition",
    **{
        f"torch.{name}": f"refimpl.functionalize.functional_tensors.{name.removeprefix('_')}"
        for name in (
            "_disable_functionalization",
            "_enable_functionalization",
            "_freeze_functional_tensor",
            "_from_functional_tensor",
            "_is_functional_tensor",
            "_sync",
            "_to_functional_tensor",
        )
    },
    "torch.func.functionalize": "refimpl.aot.functional_transform.functionalize",
    "torch.fx.experimental.proxy_tensor.make_fx": "refimpl.make_fx",
    **{
        f"{_PROXY_TENSOR}.{name}": f"{_UPSTREAM}.proxy_tensor.{name}"
        for name in (
            "DecompositionInterpreter",
            "ProxyTorchDispatchMode",
            "PythonKeyTracer",
            "decompose",
            "disable_proxy_modes_tracing",
            "dispatch_trace",
            "extract_val",
            "fake_signature",
            "fetch_object_proxy",
            "fetch_sym_proxy",
            "get_innermost_proxy_mode",
            "get_isolated_graphmodule",
            "get_proxy_mode",
            "get_proxy_slot",
            "get_torch_dispatch_modes",
            "handle_sym_dispatch",
            "has_proxy_slot",
            "is_sym_node",
            "maybe_disable_thunkify",
            "maybe_enable_thunkify",
            "maybe_handle_decomp",
            "py_sym_types",
            "selective_decompose",
            "set_meta",
            "set_proxy_slot",
            "thunkify",
            "track_tensor",
            "track_tensor_tree",
            "wrap_key",
            "wrapper_and_args_for_make_fx",
        )
    },
}

_CAPTURE = {
    "torch.compile": "refimpl.capture.compile.compile",
    f"{_COMPILER}.compile": "refimpl.capture.compile.compiler_compile",
    f"{_DYNAMO}.optimize": "refimpl.capture.compile.optimize",
    f"{_DYNAMO}.optimize_assert": "refimpl.capture.compile.optimize_assert",
    f"{_DYNAMO}.explain": f"{_ENTRY_POINTS}.explain.explain",
    f"{_DYNAMO}.export": f"{_ENTRY_POINTS}.export.export",
}
# Settings, decorators, counters and error types that only make sense together with the names above.
_CAPTURE_COMPANIONS = {
    f"{_DYNAMO}.config": "refimpl.capture.config.config",
    f"{_COMPILER}.config": "refimpl.capture.config.config",
    f"{_DYNAMO}.utils.counters": f"{_PUBLIC}.counters.counters",
    **{f"{_DYNAMO}.utils.{name}": f"{_PUBLIC}.same.{name}" for name in ("same", "rmse")},
    **{
        f"{_DYNAMO}.utils.{name}": f"{_PUBLIC}.cloning.{name}"
        for name in ("checkpoint_params", "clone_input", "clone_inputs", "clone_tensor", "defake", "preserve_rng_state")
    },
    **{
        f"{_DYNAMO}.debug_utils.{name}": f"refimpl.capture.repro.accuracy.{name}"
        for name in (
            "AccuracyError", "backend_accuracy_fails", "cast_to_fp64", "clone_inputs_retaining_gradness", "run_fwd_maybe_bwd",
            "same_two_models",
        )
    },
    f"{_DYNAMO}.repro.after_dynamo.wrap_backend_debug": "refimpl.capture.repro.backend.wrap_backend_debug",
    **{
        f"{_DYNAMO}.repro.after_dynamo.{name}": f"refimpl.capture.repro.minifying.{name}"
        for name in ("backend_fails", "dynamo_accuracy_minifier_backend", "dynamo_minifier_backend")
    },
    f"{_DYNAMO}.variables.higher_order_ops": f"{_UPSTREAM}.regions",
    f"{_DYNAMO}.eval_frame.get_compiler_fn": "refimpl.capture.compile.get_compiler_fn",
    f"{_DYNAMO}.list_backends": "refimpl.list_backends",
    **{
        f"{where}.{name}": f"{_UPSTREAM}.backends.{name}"
        for where in (_DYNAMO, f"{_DYNAMO}.backends.registry")
        for name in ("lookup_backend", "register_backend")
    },
    f"{_DYNAMO}.backends.common.aot_autograd": f"{_UPSTREAM}.backends.aot_autograd",
    **{f"{_DYNAMO}.utils.{name}": f"{_UPSTREAM}.measuring.{name}" for name in ("timed", "torchscript")},
    f"{_DYNAMO}.OptimizedModule": f"{_ENTRY_POINTS}.optimized_module.OptimizedModule",
    f"{_DYNAMO}.is_compiling": f"{_PUBLIC}.running.is_compiling",
    f"{_COMPILER}.is_compiling": f"{_PUBLIC}.running.is_compiling",
    f"{_COMPILER}.is_dynamo_compiling": f"{_PUBLIC}.running.is_compiling",
    f"{_COMPILER}.is_exporting": f"{_PUBLIC}.running.is_exporting",
    f"{_COMPILER}.wrap_numpy": "refimpl.capture.higher_order.nonstrict.wrap_numpy",
    **{f"{where}.nonstrict_trace": "refimpl.capture.higher_order.nonstrict.nonstrict_trace" for where in (_DYNAMO, _COMPILER)},
    **{
        f"{where}.substitute_in_graph": f"{_ENTRY_POINTS}.decorators.substitute_in_graph"
        for where in (_DYNAMO, f"{_DYNAMO}.decorators", _COMPILER)
    },
    **{
        f"{_COMPILER}.{name}": f"refimpl.capture.guards.filters.{name}"
        for name in ("skip_guard_on_all_nn_modules_unsafe", "skip_guard_on_inbuilt_nn_modules_unsafe")
    },
    f"{_COMPILER}.set_stance": f"{_PUBLIC}.stances.set_stance",
    f"{_DYNAMO}.set_stance": f"{_PUBLIC}.stances.StanceContext",
    f"{_DYNAMO}.decorators.set_stance": f"{_PUBLIC}.stances.StanceContext",
    f"{_DYNAMO}.mutation_guard.GenerationTracker": f"{_ENTRY_POINTS}.contexts.GenerationTracker",
    f"{_COMPILER}.reset": f"{_ENTRY_POINTS}.reset.reset",
    f"{_DYNAMO}.reset": f"{_ENTRY_POINTS}.reset.reset",
    f"{_DYNAMO}.reset_code_caches": f"{_ENTRY_POINTS}.reset.reset",
    f"{_DYNAMO}.eval_frame.remove_from_cache": f"{_ENTRY_POINTS}.reset.remove_from_cache",
    f"{_DYNAMO}.eval_frame._debug_get_cache_entry_list": f"{_ENTRY_POINTS}.reset.cache_entries",
    **{f"{_DYNAMO}.eval_frame.{name}": f"{_ENTRY_POINTS}.contexts.{name}" for name in ("Unset", "nothing", "unset")},
    **{f"{_DYNAMO}.eval_frame.{name}": f"{_UPSTREAM}.small.{name}" for name in ("always_false", "null_context")},
    f"{_DYNAMO}.eval_frame.innermost_fn": f"{_ENTRY_POINTS}.contexts.innermost_fn",
    **{
        f"{where}.{name}": f"{_ENTRY_POINTS}.decorators.{name}"
        for where, names in (
            (_DYNAMO, (
                "allow_in_graph", "assume_constant_result", "disable", "disable_nested_graph_breaks", "disallow_in_graph",
                "error_on_graph_break", "forbid_in_graph", "graph_break", "mark_dynamic", "mark_static", "mark_static_address",
                "maybe_mark_dynamic", "run", "skip_frame",
            )),
            (f"{_DYNAMO}.decorators", ("mark_unbacked", "skip")),
            (_COMPILER, ("allow_in_graph", "assume_constant_result", "disable")),
        )
        for name in names
    },
    **{
        f"{_DYNAMO}.exc.{name}": f"{_PUBLIC}.errors.{name}"
        for name in (
            "BackendCompilerFailed", "FailOnRecompileLimitHit", "InternalTorchDynamoError", "InvalidBackend", "RecompileError",
            "ResetRequired", "TorchRuntimeError", "Unsupported", "UserError", "UserErrorType",
        )
    },
    f"{_DYNAMO}.exc.UncapturedHigherOrderOpError": "refimpl.errors.UncapturedHigherOrderOp",
}  # fmt: skip
_EXPORT_PACKAGE = "torch.export"
_SAVED_SHAPES = "torch._export.serde.dynamic_shapes"
_SERIALIZE = "torch._export.serde.serialize"
_VERIFIER = "torch._export.verifier"
_OURS = "refimpl.export"
_EXPORT = {
    f"{_EXPORT_PACKAGE}.export": f"{_OURS}.export",
    f"{_EXPORT_PACKAGE}.unflatten.unflatten": f"{_OURS}.unflatten.unflatten",
    f"{_EXPORT_PACKAGE}._trace._export_to_torch_ir": f"{_UPSTREAM}.torch_ir_export._export_to_torch_ir",
    f"{_EXPORT_PACKAGE}.draft_export": f"{_OURS}.draft.draft_export",
    f"{_EXPORT_PACKAGE}.experimental._export_forward_backward": f"{_UPSTREAM}.experimental_export._export_forward_backward",
    f"{_EXPORT_PACKAGE}.experimental._sticky_export": f"{_UPSTREAM}.experimental_export._sticky_export",
    f"{_EXPORT_PACKAGE}._trace._export": f"{_OURS}.entry_points._export",
    f"{_EXPORT_PACKAGE}._trace._export_for_training": f"{_OURS}.entry_points._export_for_training",
    "torch._export.converter.TS2EPConverter": f"{_OURS}.torchscript.converter.TS2EPConverter",
}
# These lack upstream's options for pickle and for versions, because refimpl's archives have neither.
_EXPORT_ARCHIVES = {
    **{f"{_EXPORT_PACKAGE}.{name}": f"{_OURS}.{name}" for name in ("load", "save")},
    **{
        f"{_SERIALIZE}.{name}": f"{_UPSTREAM}.serialized.{name}"
        for name in ("SerializedArtifact", "deserialize", "serialize")
    },
}
# Classes of arguments, results and errors of the functions above.
_SIGNATURE_NAMES = (
    "ConstantArgument", "CustomObjArgument", "ExportBackwardSignature", "ExportGraphSignature", "InputKind", "InputSpec",
    "OutputKind", "OutputSpec", "SymBoolArgument", "SymFloatArgument", "SymIntArgument", "TensorArgument", "TokenArgument",
)  # fmt: skip
_EXPORT_COMPANIONS = {
    **{
        f"{_EXPORT_PACKAGE}.{where}{name}": f"{_OURS}.{name}"
        for where, names in (
            ("", (
                "Dim", "ExportBackwardSignature", "ExportGraphSignature", "ExportedProgram", "ModuleCallEntry",
                "FlatArgsAdapter", "ModuleCallSignature", "ShapesCollection", "UnflattenedModule", "default_decompositions",
            )),
            ("dynamic_shapes.", ("Dim", "ShapesCollection")),
            ("exported_program.", (
                "ExportedProgram", "ModuleCallEntry", "ModuleCallSignature", "default_decompositions",
            )),
            ("exported_program.", tuple(name for name in _SIGNATURE_NAMES if name != "ExportBackwardSignature")),
            ("graph_signature.", _SIGNATURE_NAMES),
        )
        for name in names
    },
    **{
        f"{_EXPORT_PACKAGE}.unflatten.{name}": f"{_OURS}.unflatten.{name}"
        for name in ("FlatArgsAdapter", "InterpreterModule", "InterpreterModuleDispatcher", "UnflattenedModule")
    },
    f"{_EXPORT_PACKAGE}.dims": f"{_OURS}.shapes.dims.dims",
    f"{_EXPORT_PACKAGE}.AdditionalInputs": f"{_OURS}.AdditionalInputs",
    f"{_EXPORT_PACKAGE}.dynamic_shapes.AdditionalInputs": f"{_OURS}.AdditionalInputs",
    f"{_EXPORT_PACKAGE}.dynamic_shapes._IntWrapper": f"{_OURS}.shapes.additional_inputs.IntWrapper",
    f"{_EXPORT_PACKAGE}.dynamic_shapes.refine_dynamic_shapes_from_suggested_fixes": (
        f"{_OURS}.shapes.refining.refine_dynamic_shapes_from_suggested_fixes"
    ),
    **{
        f"{_SAVED_SHAPES}.{name}": f"{_UPSTREAM}.saved_shapes.{name}"
        for name in ("DynamicShapesSpec", "RootDim", "_dump_dynamic_shapes", "_load_dynamic_shapes")
    },
    f"{_EXPORT_PACKAGE}.decomp_utils.CustomDecompTable": f"{_OURS}.decomposition_table.CompositeTable",
    **{
        f"{_EXPORT_PACKAGE}._draft_export.{name}": f"{_OURS}.{name}"
        for name in ("DraftExportReport", "FailureReport", "FailureType")
    },
    f"{_EXPORT_PACKAGE}.dynamic_shapes.dims": f"{_OURS}.shapes.dims.dims",
    f"{_VERIFIER}.SpecViolationError": f"{_OURS}.SpecViolationError",
    **{f"{_VERIFIER}.{name}": f"{_OURS}.verifier.{name}" for name in ("TrainingIRVerifier", "Verifier")},
}  # fmt: skip
# Name of a part -> dotted name of upstream -> dotted name of refimpl.
SUBSTITUTION_PARTS: dict[str, dict[str, str]] = {
    "graphs": _GRAPHS,
    "capture": _CAPTURE,
    "capture companions": _CAPTURE_COMPANIONS,
    "export": {**_EXPORT, **_EXPORT_ARCHIVES},
    "export companions": _EXPORT_COMPANIONS,
}
# The entry points of all parts. They have upstream's signatures.
SUBSTITUTIONS: dict[str, str] = {**_GRAPHS, **_CAPTURE, **_EXPORT}
