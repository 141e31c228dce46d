"""The shortest runner that honours a call plan, for tests of the suites alone; the product's is oracle.observe."""

from __future__ import annotations

import contextlib
import itertools
import linecache
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from oracle.program import Program

_serial = itertools.count()


def load(program: Program) -> types.ModuleType:
    """Executes the source in a fresh module, with the generators seeded."""
    name = f"suite_program_{next(_serial)}"
    filename = f"<{program.name}#{name}>"
    module = types.ModuleType(name)
    sys.modules[name] = module
    linecache.cache[filename] = (len(program.source), None, program.source.splitlines(True), filename)
    torch.manual_seed(program.seed)
    exec(compile(program.source, filename, "exec"), vars(module))
    return module


def run(program: Program, wrap: Callable[[Any], Any] = lambda target: target) -> list[Any]:
    """What each call of the plan showed: outputs, inputs afterwards, gradients, module state; or the exception's type.

    All tensors are detached copies. `wrap` compiles the target.
    """
    module = load(program)
    namespace = vars(module)
    torch.manual_seed(program.seed)
    target = namespace["program"]() if program.is_module else namespace["program"]
    compiled = wrap(target)
    namespace["target"] = target
    seen = []
    for index, call in enumerate(program.calls):
        torch.manual_seed(program.seed + 1 + index)
        args, kwargs = namespace["inputs"](index)
        if call.training is not None:
            target.train(call.training)
        exec(call.before, namespace)
        leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if "derive" in namespace:
            args, kwargs = namespace["derive"](*args, **kwargs)
        try:
            with _grad_mode(call.grad_mode):
                output = compiled(*args, **kwargs)
        except Exception as error:  # an exception is what the program showed, whatever it is
            seen.append(type(error).__name__)
            break
        shown = [snapshot(output), snapshot((args, kwargs))]
        if isinstance(target, torch.nn.Module):
            leaves += list(target.parameters())
        if call.backward:
            _differentiate(output, seed=program.seed)
            shown.append([snapshot(leaf.grad) for leaf in leaves if leaf.is_leaf and leaf.requires_grad])
            for leaf in leaves:
                leaf.grad = None
        if isinstance(target, torch.nn.Module):
            shown.append(snapshot(dict(target.state_dict())))
        seen.append(shown)
    return seen


def _grad_mode(name: str) -> contextlib.AbstractContextManager[Any]:
    return {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}[name]()


def _differentiate(output: Any, *, seed: int) -> None:
    outputs = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    generator = torch.Generator().manual_seed(seed)
    tangents = [torch.randn(leaf.shape, generator=generator).to(leaf.device, leaf.dtype) for leaf in outputs]
    torch.autograd.backward(outputs, tangents)


def snapshot(value: Any) -> Any:
    """A copy that nothing changes later: tensors as (shape, stride, dtype, requires_grad, values)."""
    if isinstance(value, torch.Tensor):
        if value.device.type == "meta":
            return (tuple(value.shape), str(value.dtype))
        copied = value.detach().clone().cpu().resolve_conj()
        facts = (tuple(value.shape), tuple(value.stride()), str(value.dtype), value.requires_grad)
        return (*facts, copied.float().numpy() if copied.dtype == torch.bfloat16 else copied.numpy())
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(key): snapshot(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [snapshot(item) for item in value]
    return repr(value)


def same(left: Any, right: Any, *, rtol: float = 0.0, atol: float = 0.0) -> bool:
    """Equality of two snapshots, NaN equal to NaN."""
    if isinstance(left, np.ndarray):
        return isinstance(right, np.ndarray) and np.allclose(left, right, rtol=rtol, atol=atol, equal_nan=True)
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key], rtol=rtol, atol=atol) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(
            same(a, b, rtol=rtol, atol=atol) for a, b in zip(left, right, strict=True)
        )
    return bool(left == right)
