"""Outcomes made by hand for tests: what an observer would have written down of these values.

`returned(x, y)` is a program of one call that returns `(x, y)`; `returned_calls([...])` one of several calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from oracle.judge import Evidence, Promises, Runs, judge
from oracle.observe.outcome import (
    AliasGraph,
    CallObservation,
    ExceptionFacts,
    Leaf,
    Outcome,
    Raised,
    Returned,
    TensorFacts,
)
from oracle.program import ComparePolicy
from oracle.verdict import Verdict

NO_POLICY = ComparePolicy()


def facts_of(tensor: Tensor) -> TensorFacts:
    """Metadata of a tensor as the caller of a program sees it."""
    has_strides = tensor.layout is torch.strided and not tensor.is_nested
    kind = type(tensor)
    return TensorFacts(
        type_name="torch.Tensor" if kind is Tensor else f"{kind.__module__}.{kind.__qualname__}",
        shape=() if tensor.is_nested else tuple(tensor.shape),
        stride=tuple(tensor.stride()) if has_strides else None,
        storage_offset=int(tensor.storage_offset()) if has_strides else None,
        dtype=str(tensor.dtype).removeprefix("torch."),
        device=str(tensor.device),
        layout=str(tensor.layout).removeprefix("torch."),
        requires_grad=tensor.requires_grad,
        is_leaf=tensor.is_leaf,
        is_conj=tensor.is_conj() if has_strides else False,
        is_neg=tensor.is_neg() if has_strides else False,
        is_inference=tensor.is_inference(),
        is_coalesced=tensor.is_coalesced() if tensor.layout is torch.sparse_coo else None,
        quantizer=f"{tensor.qscheme()} {tensor.q_scale()} {tensor.q_zero_point()}" if tensor.is_quantized else None,
    )


def leaf(path: str, value: Any) -> Leaf:
    if isinstance(value, Tensor):
        return Leaf(path=path, value=value.detach(), facts=facts_of(value))
    return Leaf(path=path, value=value, facts=None)


def leaves(path: str, value: Any) -> list[Leaf]:
    """Tuples, lists and dicts taken apart."""
    if isinstance(value, (tuple, list)):
        return [found for at, item in enumerate(value) for found in leaves(f"{path}[{at}]", item)]
    if isinstance(value, dict):
        return [found for key, item in value.items() for found in leaves(f"{path}[{key!r}]", item)]
    return [leaf(path, value)]


def structure_of(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}({', '.join(map(structure_of, value))})"
    if isinstance(value, dict):
        return f"dict({', '.join(f'{key!r}: {structure_of(item)}' for key, item in value.items())})"
    return "Tensor" if isinstance(value, Tensor) else type(value).__name__


def alias_graph(named: Mapping[str, Any]) -> AliasGraph:
    """Found out from the tensors themselves."""
    tensors = {path: value for path, value in named.items() if isinstance(value, Tensor)}
    storages: dict[int, list[str]] = {}
    objects: dict[int, list[str]] = {}
    for path, tensor in tensors.items():
        objects.setdefault(id(tensor), []).append(path)
        if tensor.layout is torch.strided and not tensor.is_nested and tensor.untyped_storage().nbytes():
            storages.setdefault(tensor.untyped_storage()._cdata, []).append(path)
    return AliasGraph(
        storages=tuple(sorted(tuple(sorted(group)) for group in storages.values() if len(group) > 1)),
        objects=tuple(sorted(tuple(sorted(group)) for group in objects.values() if len(group) > 1)),
    )


def observation(
    output: Any,
    *,
    args: Sequence[Any] = (),
    gradients: Mapping[str, Any] | None = None,
    state: Mapping[str, Any] | None = None,
    rng: str = "rng",
) -> CallObservation:
    """One call. `args` are the arguments after it; keys of `gradients` are input paths, of `state` names in the module."""
    outputs = leaves("output", output)
    inputs = [found for at, item in enumerate(args) for found in leaves(f"args[{at}]", item)]
    modules = [leaf(f"module.{name}", value) for name, value in (state or {}).items()]
    originals: dict[str, Any] = {}
    _name_originals("output", output, originals)
    for at, item in enumerate(args):
        _name_originals(f"args[{at}]", item, originals)
    originals.update({f"module.{name}": value for name, value in (state or {}).items()})
    return CallObservation(
        structure=structure_of(output),
        outputs=tuple(outputs),
        inputs_after=tuple(inputs),
        gradients=tuple(leaf(f"grad of {path}", value) for path, value in (gradients or {}).items()),
        module_state=tuple(modules),
        aliases=alias_graph(originals),
        rng_digest=rng,
        seconds=0.0,
    )


def _name_originals(path: str, value: Any, named: dict[str, Any]) -> None:
    if isinstance(value, (tuple, list)):
        for at, item in enumerate(value):
            _name_originals(f"{path}[{at}]", item, named)
    elif isinstance(value, dict):
        for key, item in value.items():
            _name_originals(f"{path}[{key!r}]", item, named)
    else:
        named[path] = value


def returned(*output: Any, **parts: Any) -> Returned:
    """A program of one call: `returned(x)` returns a tensor, `returned(x, y)` a tuple. `parts` as in `observation`."""
    return Returned(calls=(observation(output[0] if len(output) == 1 else output, **parts),))


def returned_calls(*calls: CallObservation) -> Returned:
    return Returned(calls=calls)


def raised(
    error: BaseException, *, call: int = 0, phase: str = "call", calls: tuple[CallObservation, ...] = ()
) -> Raised:
    kind = type(error)
    return Raised(
        exception=ExceptionFacts(
            type_name=_qualified(kind),
            ancestry=tuple(_qualified(base) for base in kind.__mro__),
            message=str(error),
            traceback="",
            call=call,
            phase=phase,
        ),
        calls=calls,
    )


def _qualified(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def judged(
    eager: Outcome,
    subject: Outcome,
    *,
    eager_again: Outcome | None = None,
    truth: Outcome | None = None,
    noise: Sequence[Outcome] = (),
    loud_noise: Sequence[Outcome] = (),
    policy: ComparePolicy = NO_POLICY,
    expects_raise: bool = False,
    rng: str = "eager",
    is_random: bool = False,
    eager_draws: bool = False,
    graphs: int | None = None,
    **runs: Any,
) -> Verdict:
    """`judge` with what most tests do not care about filled in: eager agrees with itself, no ground truth, no noise.

    `runs` are further fields of `Runs`.
    """
    return judge(
        Evidence(
            eager=eager,
            again=eager if eager_again is None else eager_again,
            subject=subject,
            runs=Runs(truth=lambda: truth, noise=lambda: noise, loud_noise=lambda: loud_noise, **runs),
            promises=Promises(policy=policy, raises=expects_raise, own_stream=rng == "own"),
            draws=eager_draws,
            is_random=is_random,
            graphs=graphs,
        )
    )


def noisy(tensor: Tensor, *, seed: int, size: float = 1.0) -> Tensor:
    """`tensor` with each element moved by up to `size` eps of its dtype, evenly distributed. Integers are as they were."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    generator = torch.Generator().manual_seed(seed)
    wide = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
    moves = torch.rand(tensor.shape, generator=generator, dtype=torch.float64) * 2 - 1
    return (wide * (1 + moves * size * torch.finfo(tensor.dtype).eps)).to(tensor.dtype)


def noise_runs(run: Callable[..., Any], *inputs: Tensor, runs: int = 4) -> list[Returned]:
    """Monte Carlo arithmetic of one op: float inputs and outputs moved by up to one eps."""
    outcomes = []
    for seed in range(runs):
        output = run(*(noisy(item, seed=100 * seed + at) for at, item in enumerate(inputs)))
        outputs = output if isinstance(output, tuple) else (output,)
        outcomes.append(returned(*(noisy(item, seed=100 * seed + 50 + at) for at, item in enumerate(outputs))))
    return outcomes


def truth_of(run: Callable[..., Any], *inputs: Tensor) -> Returned:
    """The op on inputs widened to fp64 (complex128)."""
    wide = [item.to(torch.complex128 if item.is_complex() else torch.float64) for item in inputs]
    output = run(*wide)
    return returned(*(output if isinstance(output, tuple) else (output,)))
