"""Set torch configuration options while a subject compiles and runs, and restore them.

Only options of torch's own compilers can be set.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from oracle.errors import UsageError

CONFIG_MODULES = ("torch._dynamo.config", "torch._functorch.config", "torch._inductor.config")


@contextlib.contextmanager
def configured(values: Mapping[str, Any]) -> Iterator[None]:
    """Set options, such as `{"torch._functorch.config.activation_memory_budget": 0.1}`. Raises UsageError for unknown ones."""
    with contextlib.ExitStack() as stack:
        for name, value in values.items():
            module_name = next((module for module in CONFIG_MODULES if name.startswith(module + ".")), None)
            if module_name is None:
                raise UsageError(
                    seen=f"configuration {name!r}",
                    expected=f"an option of {', '.join(CONFIG_MODULES)}",
                    do="correct the program's config",
                )
            option = name[len(module_name) + 1 :]
            module = importlib.import_module(module_name)
            if not hasattr(module, option):
                raise UsageError(
                    seen=f"option {option!r} of {module_name}",
                    expected="an option the installed torch has",
                    do="correct the program's config, or use the torch version it was written for",
                )
            stack.enter_context(module.patch(**{option: value}))
        yield
