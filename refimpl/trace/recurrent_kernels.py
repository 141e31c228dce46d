"""Kernels of recurrent layers, step by step, for traces: `rnn_tanh`, `rnn_relu`, `gru` and `lstm`.

Each operator has two overloads. `input` takes a tensor of (time, batch, features); `data` takes the rows of a packed sequence,
and how many sequences take part in each step. Parameters are a flat list: for each layer and direction w_ih and w_hh, then b_ih
and b_hh with biases, then w_hr for an `lstm` with projections. Between layers, dropout is that of `torch.dropout`.

Counterpart: torch/_decomp/decompositions.py one_layer_rnn, one_layer_lstm, gru_impl and others; aten/src/ATen/native/RNN.cpp
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch.nn.functional import linear

from refimpl._torch import OpOverload

State = tuple[torch.Tensor, ...]  # of a layer: (hidden,), or (hidden, cell) of an lstm


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Parameters of one layer in one direction."""

    w_ih: torch.Tensor
    w_hh: torch.Tensor
    b_ih: torch.Tensor | None = None
    b_hh: torch.Tensor | None = None
    w_hr: torch.Tensor | None = None


class Cell(Protocol):
    """One step: the state after it. `gates` are `linear(input, w_ih, b_ih)`."""

    def __call__(self, gates: torch.Tensor, state: State, weights: Weights) -> State: ...


def _tanh_cell(gates: torch.Tensor, state: State, weights: Weights) -> State:
    return ((linear(state[0], weights.w_hh, weights.b_hh) + gates).tanh(),)


def _relu_cell(gates: torch.Tensor, state: State, weights: Weights) -> State:
    return ((linear(state[0], weights.w_hh, weights.b_hh) + gates).relu(),)


def _gru_cell(gates: torch.Tensor, state: State, weights: Weights) -> State:
    (hidden,) = state
    reset, update, new = gates.chunk(3, 1)
    own_reset, own_update, own_new = linear(hidden, weights.w_hh, weights.b_hh).chunk(3, 1)
    kept = (own_update + update).sigmoid()
    candidate = (new + own_new * (own_reset + reset).sigmoid()).tanh()
    return ((hidden - candidate) * kept + candidate,)


def _lstm_cell(gates: torch.Tensor, state: State, weights: Weights) -> State:
    hidden, cell = state
    parts = (linear(hidden, weights.w_hh, weights.b_hh) + gates).chunk(4, 1)
    taken, kept, given = parts[0].sigmoid(), parts[1].sigmoid(), parts[3].sigmoid()
    cell = kept * cell + taken * parts[2].tanh()
    hidden = given * cell.tanh()
    return (hidden if weights.w_hr is None else hidden.matmul(weights.w_hr.t())), cell


_CELLS: Mapping[str, Cell] = {"rnn_tanh": _tanh_cell, "rnn_relu": _relu_cell, "gru": _gru_cell, "lstm": _lstm_cell}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layers:
    """All layers of a recurrent operator."""

    cell: Cell
    weights: Sequence[Weights]
    """By layer, then direction."""
    directions: int
    dropout: float
    """Between layers."""

    def run(self, values: torch.Tensor, first: Sequence[State], layer: Any) -> tuple[torch.Tensor, list[State]]:
        """`layer(values, state, weights, cell, is_reversed)` runs one direction. Returns the last values and all last states."""
        last: list[State] = []
        for start in range(0, len(self.weights), self.directions):
            outputs = []
            for direction in range(self.directions):
                place = start + direction
                output, state = layer(values, first[place], self.weights[place], self.cell, direction == 1)
                outputs.append(output)
                last.append(state)
            values = outputs[0] if self.directions == 1 else torch.cat(outputs, outputs[0].dim() - 1)
            if self.dropout and start + self.directions < len(self.weights):
                values = torch.dropout(values, self.dropout, True)
        return values, last


def _over_time(
    values: torch.Tensor, state: State, weights: Weights, cell: Cell, is_reversed: bool
) -> tuple[torch.Tensor, State]:
    """One direction of one layer on values of (time, batch, features). The time must be a number."""
    steps = linear(values, weights.w_ih, weights.b_ih).unbind(0)
    outputs = []
    for gates in reversed(steps) if is_reversed else steps:
        state = cell(gates, state, weights)
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if is_reversed else outputs), state


@dataclass(frozen=True, slots=True)
class _OverPackedRows:
    """One direction of one layer on packed rows: the sequences are sorted, the longest first, and end one by one."""

    batches: tuple[Any, ...]
    """How many sequences take part in each step; not growing."""

    def __call__(
        self, rows: torch.Tensor, state: State, weights: Weights, cell: Cell, is_reversed: bool
    ) -> tuple[torch.Tensor, State]:
        steps = linear(rows, weights.w_ih, weights.b_ih).split(list(self.batches))
        return (self._backwards if is_reversed else self._forwards)(steps, state, weights, cell)

    def _forwards(
        self, steps: Sequence[torch.Tensor], state: State, weights: Weights, cell: Cell
    ) -> tuple[torch.Tensor, State]:
        outputs, ended = [], list[State]()
        count = self.batches[0]
        for gates, batch in zip(steps, self.batches, strict=True):
            if batch < count:
                ended.append(tuple(part.narrow(0, batch, count - batch) for part in state))
                state = tuple(part.narrow(0, 0, batch) for part in state)
            count = batch
            state = cell(gates, state, weights)
            outputs.append(state[0])
        ended.append(state)
        return torch.cat(outputs), tuple(torch.cat(parts) for parts in zip(*reversed(ended), strict=True))

    def _backwards(
        self, steps: Sequence[torch.Tensor], first: State, weights: Weights, cell: Cell
    ) -> tuple[torch.Tensor, State]:
        outputs = []
        count = self.batches[-1]
        state = tuple(part.narrow(0, 0, count) for part in first)
        for gates, batch in zip(reversed(steps), reversed(self.batches), strict=True):
            if batch > count:
                begun = (part.narrow(0, count, batch - count) for part in first)
                state = tuple(torch.cat(parts) for parts in zip(state, begun, strict=True))
            count = batch
            state = cell(gates, state, weights)
            outputs.append(state[0])
        return torch.cat(outputs[::-1]), state


def by_steps() -> dict[OpOverload, Callable[..., Any]]:
    """A kernel for the overload `input` of each operator."""
    return {getattr(torch.ops.aten, name).input: _by_steps(name) for name in _CELLS}


def _by_steps(name: str) -> Callable[..., Any]:
    def kernel(
        input: torch.Tensor, hx: Any, params: Sequence[torch.Tensor], has_biases: bool, num_layers: int,
        dropout: float, train: bool, bidirectional: bool, batch_first: bool,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        layers = _layers(name, hx, params, has_biases, num_layers, dropout if train else 0.0, bidirectional)
        values = input.transpose(0, 1) if batch_first else input
        values, last = layers.run(values, _states(hx), _over_time)
        return (values.transpose(0, 1) if batch_first else values, *_stacked(last))

    return kernel


def by_batch_sizes() -> dict[OpOverload, Callable[..., Any]]:
    """A kernel for the overload `data` of each operator."""
    return {getattr(torch.ops.aten, name).data: _by_batch_sizes(name) for name in _CELLS}


def _by_batch_sizes(name: str) -> Callable[..., Any]:
    def kernel(
        data: torch.Tensor, batch_sizes: torch.Tensor, hx: Any, params: Sequence[torch.Tensor], has_biases: bool,
        num_layers: int, dropout: float, train: bool, bidirectional: bool,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        layers = _layers(name, hx, params, has_biases, num_layers, dropout if train else 0.0, bidirectional)
        values, last = layers.run(data, _states(hx), _OverPackedRows(tuple(batch_sizes.tolist())))
        return (values, *_stacked(last))

    return kernel


def _layers(
    name: str, hx: Any, params: Sequence[torch.Tensor], has_biases: bool, count: int, dropout: float, is_two_way: bool
) -> _Layers:
    has_projection = name == "lstm" and bool(hx[0].shape[2] != hx[1].shape[2])
    size = 2 + 2 * has_biases + has_projection
    directions = 1 + is_two_way
    groups = [params[start : start + size] for start in range(0, count * directions * size, size)]
    weights = [_weights(group, has_biases, has_projection) for group in groups]
    return _Layers(cell=_CELLS[name], weights=weights, directions=directions, dropout=dropout)


def _weights(group: Sequence[torch.Tensor], has_biases: bool, has_projection: bool) -> Weights:
    weights = Weights(w_ih=group[0], w_hh=group[1])
    if has_biases:
        weights = replace(weights, b_ih=group[2], b_hh=group[3])
    return replace(weights, w_hr=group[-1]) if has_projection else weights


def _states(hx: Any) -> list[State]:
    """The first state of each layer and direction, from (layers * directions, batch, features)."""
    given = (hx,) if isinstance(hx, torch.Tensor) else tuple(hx)
    return list(zip(*(part.unbind(0) for part in given), strict=True))


def _stacked(states: Sequence[State]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.stack(parts) for parts in zip(*states, strict=True))
