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
    "a table of the program is not used for composite operators": ("torch.export/a_table_of_one_s_own",),
}
FAILING = MappingProxyType({name: reason for reason, names in _REASONS.items() for name in names})
