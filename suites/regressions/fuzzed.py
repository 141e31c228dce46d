"""What campaigns of the fuzzer have found: rows of the table of regressions. Torch-free."""

from __future__ import annotations

from suites.regressions.rows import Regression, differs

_GUARDS = "capture: no guard on it"

FUZZED: tuple[Regression, ...] = (
    differs(
        "fuzzed/builtin_shadowed_by_global",
        "a global `len` is bound between the calls",
        first_wrong="dynamo",
        where=_GUARDS,
        status="fail_guard",
    ),
    differs(
        "fuzzed/ordered_dict_reordered",
        "`OrderedDict.move_to_end` between the calls",
        first_wrong="dynamo",
        where=_GUARDS,
        status="fail_guard",
    ),
    differs(
        "fuzzed/list_items_become_one",
        "`L[0] is L[1]` of two lists in a list changes",
        first_wrong="dynamo",
        where=_GUARDS,
        status="fail_guard",
    ),
    differs(
        "fuzzed/metaclass_attribute_changed",
        "an attribute from a metaclass changes",
        first_wrong="dynamo",
        where=_GUARDS,
        status="fail_guard",
    ),
    differs(
        "fuzzed/base_of_view_rebound",
        "`view._base is base` of globals changes",
        first_wrong="dynamo",
        where=_GUARDS,
        status="fail_guard",
    ),
    differs(
        "fuzzed/zero_becomes_negative",
        "a number changes from 0.0 to -0.0",
        first_wrong="dynamo",
        where="capture: constants are compared by ==",
        status="fail_guard",
    ),
    differs(
        "fuzzed/method_replaced_on_class",
        "a method is replaced on its class (beside 197860)",
        first_wrong="dynamo",
        where=_GUARDS,
        status="fail_guard",
    ),
    differs(
        "fuzzed/negative_bit_of_argument",
        "an argument with the negative bit is read without it",
        first_wrong="inductor",
        where="inputs of kernels: the bit is ignored",
        status="fail_accuracy",
    ),
)
