"""Hand-written kernels on refimpl's emulator, or in the interpreter as refimpl repairs it.

Apart from `oracle.subjects.refimpl`, so that `torch-oracle kernel` starts without capture, autograd and export.
"""

from __future__ import annotations

from refimpl.codegen.emulator import triton_emulated
from refimpl.codegen.levels.user_modules import interpret_triton, is_kernel, kind_of_error, launches_watched

__all__ = ["interpret_triton", "is_kernel", "kind_of_error", "launches_watched", "triton_emulated"]
