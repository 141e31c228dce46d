"""All examples of the documentation, and those that refimpl does not run right, with the reason."""

from __future__ import annotations

from types import MappingProxyType

from refimpl.tests.documentation import (
    breaks,
    compiling,
    controlling,
    exporting,
    operating,
    recompiling,
    tracing,
    transforming,
)
from refimpl.tests.documentation.example import Page

_MODULES = (breaks, recompiling, compiling, exporting, transforming, controlling, operating, tracing)
EXAMPLES = tuple(
    example for module in _MODULES for example in Page.examples if example.run.__module__ == module.__name__
)
_REASONS: dict[str, tuple[str, ...]] = {
    "refimpl has no stances": (
        "graph breaks/an_error_shows_under_force_eager",
        "recompilation and dynamic sizes/guards_are_left_out_after_warming_up",
        "recompilation and dynamic sizes/the_compiler_is_turned_off",
        "recompilation and dynamic sizes/a_stance_inside_is_refused",
        "recompilation and dynamic sizes/a_recompilation_is_an_error",
        "recompilation and dynamic sizes/eager_in_place_of_a_recompilation",
        "recompilation and dynamic sizes/eager_first",
    ),
    "calls of reorderable_logging_functions end a graph": ("graph breaks/printing_is_moved_to_the_end",),
    "refimpl has no regions in which a break is an error": (
        "graph breaks/a_break_is_allowed_in_one_function",
        "graph breaks/a_break_is_allowed_in_a_block",
        "graph breaks/a_method_of_a_library_is_wrapped",
        "graph breaks/a_break_is_forbidden_in_one_function",
        "graph breaks/a_setting_holds_for_nested_calls",
        "graph breaks/fullgraph_is_stronger",
    ),
    "a break ends the graph before the outermost call that it is in": (
        "graph breaks/nested_breaks_make_two_graphs",
        "graph breaks/nested_breaks_are_turned_off",
    ),
    "capture has no transforms of torch.func": (
        "torch.compile/a_gradient_inside",
        "torch.compile/a_vmap_inside",
        "control flow/sums_and_products",
        "control flow/a_scan_of_pairs",
        "custom operators/an_operator_under_vmap",
        "torch.func/a_second_derivative",
        "torch.func/vmap_of_a_product",
        "torch.func/vmap_of_a_gradient",
        "torch.func/a_vector_jacobian_product",
        "torch.func/a_jacobian_vector_product",
        "torch.func/jacobians_backward_and_forward",
        "torch.func/a_hessian",
        "torch.func/an_output_by_a_side_effect",
        "torch.func/an_in_place_write_under_vmap",
        "torch.func/randomness_of_a_batch",
        "torch.func/a_jacobian_by_vmap",
        "torch.func/two_hessians",
        "torch.func/a_batch_of_jacobians",
        "torch.func/a_hessian_vector_product",
        "torch.func/gradients_of_each_sample",
        "torch.func/models_as_one",
        "torch.func/models_as_one_for_one_batch",
        "torch.func/a_kernel_of_jacobians",
        "torch.func/a_kernel_of_products",
        "torch.func/a_gradient_and_its_value",
        "torch.func/vmap_of_other_dimensions",
        "torch.func/parameters_are_given",
    ),
    "refimpl has no wrap_numpy": ("torch.compile/numpy_for_tensors",),
    "refimpl has no substitute_in_graph": ("torch.compile/a_function_substituted",),
    "refimpl has no is_exporting": ("torch.compile/who_is_compiling",),
    "export has no AdditionalInputs": ("torch.export/sizes_by_more_inputs",),
    "a table of the program is not used for composite operators": ("torch.export/a_table_of_one_s_own",),
    "a draft's report is no attribute of the program": ("torch.export/a_draft_without_a_fake_kernel",),
    "an int of a module is always a constant": ("recompilation and dynamic sizes/a_counter_as_a_symbol",),
    "guards cannot be left out by a filter": ("recompilation and dynamic sizes/guards_on_modules_are_left_out",),
    "install_free_tensors has no effect": ("recompilation and dynamic sizes/free_tensors_are_attributes",),
    "sources cannot be named dynamic": ("recompilation and dynamic sizes/sources_named_dynamic",),
}
FAILING = MappingProxyType({name: reason for reason, names in _REASONS.items() for name in names})
