"""Records a compiled graph as a CUDA graph and replays it: one launch in place of many.

Counterpart: torch/_inductor/cudagraph_trees.py, torch/_inductor/cudagraph_utils.py
Differs: one recording per graph. Inputs are copied in and outputs copied out, so that the next call does not overwrite results.
Inputs whose address does not change (parameters) are not copied.

A graph that cannot be recorded runs as it is; `why_not` gives the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import sympy
import torch

from refimpl._torch import OpOverload, has_composite_kernel
from refimpl.codegen.loop_ir import Buffer, Extern, Opaque, buffers_made
from refimpl.codegen.lowering.graph import LoweredGraph
from refimpl.errors import RefimplError

WARM_UPS = 2
"""Calls that run unrecorded first: kernels are compiled, libraries are loaded, and addresses of inputs are compared."""

CAPTURABLE = frozenset(
    {
        "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::convolution",
        "aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_efficient_attention",
        "aten::sort", "aten::topk", "aten::cumsum", "aten::cumprod", "aten::clone", "aten::copy", "aten::_to_copy",
        "aten::max_pool2d_with_indices", "aten::avg_pool2d", "aten::_adaptive_avg_pool2d",
        "aten::upsample_bilinear2d", "aten::upsample_nearest2d", "aten::embedding_dense_backward",
    }
)  # fmt: skip
"""Operators whose kernels neither synchronize with the device nor read host memory; neither do those of their backward operators.
A composite backward is not among these: `cumprod_backward` looks for zeros on the host. No tag says which do: linear algebra
waits for a solver's status, and is not tagged. Trying a kernel takes a GPU, and invalidates the recording if it
synchronizes."""


class Recorder(Protocol):
    """Records work on a device."""

    device_type: str

    def record(self, call: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        """Returns the result of the call, and a function that computes the same again into the same memory."""
        ...


class CudaRecorder:
    """CUDA graphs of the current device."""

    device_type = "cuda"

    def record(self, call: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        """See Recorder. Runs the call once on a side stream first, as capturing requires."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            call()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = call()
        return result, graph.replay


def why_not(graph: LoweredGraph, device_type: str) -> str | None:
    """Why a graph cannot be recorded. None if it can."""
    devices: set[torch.device] = set()
    reasons = [_of_outside(value) for value in graph.inputs]
    buffers = [value for value in graph.inputs if isinstance(value, Buffer)]
    buffers += [buffer for buffer, _ in graph.constants.values()]
    if graph.opaque_constants:
        reasons.append(f"a constant that is not a strided tensor: {next(iter(graph.opaque_constants))}")
    outside = {buffer.name for buffer in buffers}
    for step in graph.steps:
        if isinstance(step, Extern):
            reasons += _of_call(step, outside)
        buffers += buffers_made(step)
    for buffer in buffers:
        devices.add(buffer.device)
        if buffer.device.type != device_type:
            reasons.append(f"a tensor on {buffer.device}: {buffer.name}")
        symbols = _symbols((*buffer.shape, *buffer.strides))
        if symbols:
            reasons.append(f"symbolic sizes: {', '.join(symbols)}")
    if len(devices) > 1:
        reasons.append(f"tensors on {' and '.join(sorted(map(str, devices)))}")
    return next((reason for reason in reasons if reason is not None), None)


def _symbols(numbers: Iterable[sympy.Expr]) -> list[str]:
    return sorted({str(symbol) for number in numbers for symbol in number.free_symbols})


def _of_outside(value: Any) -> str | None:
    if isinstance(value, sympy.Expr):
        return f"symbolic sizes: {value}"
    if isinstance(value, Opaque):
        return f"an input that is not a strided tensor: {value.name}"
    return None


def _of_call(call: Extern, outside: set[str]) -> list[str | None]:
    if call.target is torch.empty_strided:
        return []
    if not isinstance(call.target, OpOverload):
        return [f"a call of {getattr(call.target, '__name__', call.target)}, which is not an operator"]
    if torch.Tag.nondeterministic_seeded in call.target.tags:
        return [f"random numbers of {call.target}"]
    if call.writes & outside:
        return [f"{call.target} writes into an input: {', '.join(sorted(call.writes & outside))}"]
    name = call.target.name().split(".")[0]
    is_backward = name.removesuffix("_backward") in CAPTURABLE and not has_composite_kernel(call.target)
    if name not in CAPTURABLE and not is_backward:
        return [f"{call.target} is not known to be capturable"]
    return []


@dataclass(frozen=True)
class _Recording:
    replay: Callable[[], None]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


class RecordedCallState:
    """A call that is recorded after some warm-up calls, then replayed. Takes and returns what the call does."""

    def __init__(self, call: Callable[..., tuple[Any, ...]], recorder: Recorder) -> None:
        self.call = call
        self.recorder = recorder
        self.recordings = 0
        self._seen: list[tuple[Any, ...]] = []  # addresses of the inputs at each warm-up call
        self._copied: set[int] = set()
        self._recording: _Recording | None = None

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Raises RefimplError for an input of another shape or dtype than before."""
        places = tuple(map(_place, inputs))
        if len(self._seen) < WARM_UPS:
            self._seen.append(places)
            return self.call(*inputs)
        if self._recording is None:
            self._copied = {at for at, place in enumerate(places) if any(seen[at] != place for seen in self._seen)}
        else:
            moved = {
                at for at, place in enumerate(places) if place != _place(self._recording.inputs[at])
            } - self._copied
            if moved:
                self._copied |= moved
                self._recording = None
        with torch.no_grad():
            if self._recording is None:
                self._recording = self._recorded(inputs)
            return self._replayed(self._recording, inputs)

    def _recorded(self, inputs: Sequence[Any]) -> _Recording:
        held = tuple(
            _like(value).copy_(value) if at in self._copied and isinstance(value, torch.Tensor) else value
            for at, value in enumerate(inputs)
        )
        outputs, replay = self.recorder.record(lambda: self.call(*held))
        self.recordings += 1
        return _Recording(replay, held, tuple(outputs))

    def _replayed(self, recording: _Recording, inputs: Sequence[Any]) -> tuple[Any, ...]:
        for at in sorted(self._copied):
            mine, given = recording.inputs[at], inputs[at]
            if not isinstance(mine, torch.Tensor):
                raise RefimplError(f"input {at} was {mine!r} when the graph was recorded, and is {given!r}")
            if mine.shape != given.shape or mine.dtype != given.dtype:
                raise RefimplError(f"input {at} was {_said(mine)} when the graph was recorded, and is {_said(given)}")
            mine.copy_(given)
        recording.replay()
        return tuple(self._given(output, recording, inputs) for output in recording.outputs)

    def _given(self, output: Any, recording: _Recording, inputs: Sequence[Any]) -> Any:
        """A copy of an output. An output that is an input, or a view of one, becomes the caller's tensor or a view of it."""
        if not isinstance(output, torch.Tensor):
            return output
        storage = output.untyped_storage().data_ptr()
        for mine, given in zip(recording.inputs, inputs, strict=True):
            if isinstance(mine, torch.Tensor) and storage == mine.untyped_storage().data_ptr() and output.numel():
                if output is mine or _place(output) == _place(mine):
                    return given
                offset = output.storage_offset() - mine.storage_offset() + given.storage_offset()
                return given.as_strided(output.shape, output.stride(), offset)
        return _like(output).copy_(output)


def _place(value: Any) -> Any:
    """Address, shape, strides and dtype of a tensor. Other values are returned as they are."""
    if isinstance(value, torch.Tensor):
        return value.data_ptr(), value.shape, value.stride(), value.dtype
    return value


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _said(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
