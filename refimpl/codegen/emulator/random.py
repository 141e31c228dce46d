"""Random numbers from a counter: Philox 4x32 with ten rounds, the numbers that Triton draws.

Counterpart: triton/language/random.py
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from refimpl.codegen.emulator.arithmetic import cast, mul
from refimpl.codegen.emulator.types import Type, fp32, int32, uint32, uint64
from refimpl.codegen.emulator.values import Rejected, Value, align, cast_data, cast_value, to_value

_WORD = 0xFFFFFFFF
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
ROUNDS = 10


def _high_and_low(factor: int, words: Tensor) -> tuple[Tensor, Tensor]:
    product = words * factor  # 64 bits; the sign of int64 is the highest of them
    return (product >> 32) & _WORD, product & _WORD


def philox_impl(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any, n_rounds: int = ROUNDS) -> tuple[Value, ...]:
    words = align([cast_value(to_value(c), uint32).data for c in (c0, c1, c2, c3, k0, k1)])
    return tuple(Value(word, uint32) for word in _rounds(words[:4], words[4], words[5], n_rounds))


def _rounds(counter: list[Tensor], k0: Tensor, k1: Tensor, rounds: int) -> tuple[Tensor, ...]:
    c0, c1, c2, c3 = counter
    for _ in range(rounds):
        high0, low0 = _high_and_low(_MULTIPLIERS[0], c0)
        high1, low1 = _high_and_low(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _WORD, (k1 + _KEY_STEPS[1]) & _WORD
    return c0, c1, c2, c3


def philox(seed: Any, c0: Any, c1: Any, c2: Any, c3: Any, n_rounds: int = ROUNDS) -> tuple[Value, ...]:
    key = to_value(seed)
    if not isinstance(key.dtype, Type) or not key.dtype.is_int():
        raise Rejected(f"a seed of {key.type}; expected an integer")
    counters = [to_value(c) for c in (c0, c1, c2, c3)]
    if any(c.dtype.bits != 32 for c in counters):
        raise Rejected("philox of counters that do not have 32 bits")
    bits = cast_data(key.data, key.dtype, uint64)
    words = [cast(c, uint32, bitcast=True).data for c in counters]
    words = align([*words, bits & _WORD, (bits >> 32) & _WORD])
    drawn = _rounds(words[:4], words[4], words[5], n_rounds)
    shape = torch.broadcast_shapes(*(word.shape for word in drawn))
    return tuple(Value(word.expand(shape), uint32) for word in drawn)


def randint4x(seed: Any, offset: Any, n_rounds: int = ROUNDS) -> tuple[Value, ...]:
    place = to_value(offset)
    if not isinstance(place.dtype, Type) or not place.dtype.is_int():
        raise Rejected(f"a random offset of {place.type}; expected integers")
    low = cast_value(place, uint32)
    zero = Value(torch.zeros_like(low.data), uint32)
    high = Value((place.data >> 32) & _WORD, uint32) if place.dtype.bits > 32 else zero
    return philox(seed, low, high, zero, zero, n_rounds)


def randint(seed: Any, offset: Any, n_rounds: int = ROUNDS) -> Value:
    return randint4x(seed, offset, n_rounds)[0]


def uint_to_uniform_float(x: Value) -> Value:
    """Random numbers in [0, 1) from random integers: negative ones are folded to positive ones, and all are scaled."""
    signed = cast(x, int32, bitcast=True).data
    folded = torch.where(signed < 0, -signed - 1, signed)
    return mul(Value(folded, int32), 4.6566127342e-10)


def rand(seed: Any, offset: Any, n_rounds: int = ROUNDS) -> Value:
    return uint_to_uniform_float(randint(seed, offset, n_rounds))


def rand4x(seed: Any, offsets: Any, n_rounds: int = ROUNDS) -> tuple[Value, ...]:
    return tuple(uint_to_uniform_float(word) for word in randint4x(seed, offsets, n_rounds))


def pair_uniform_to_normal(u1: Value, u2: Value) -> tuple[Value, Value]:
    """Box and Muller's transform."""
    radius = torch.sqrt(-2.0 * torch.log(torch.clamp(u1.data, min=1.0e-7)))
    angle = u2.data * (2 * math.pi)
    return Value(radius * torch.cos(angle), fp32), Value(radius * torch.sin(angle), fp32)


def randn(seed: Any, offset: Any, n_rounds: int = ROUNDS) -> Value:
    first, second, _, _ = rand4x(seed, offset, n_rounds)
    return pair_uniform_to_normal(first, second)[0]


def randn4x(seed: Any, offset: Any, n_rounds: int = ROUNDS) -> tuple[Value, ...]:
    u1, u2, u3, u4 = rand4x(seed, offset, n_rounds)
    return (*pair_uniform_to_normal(u1, u2), *pair_uniform_to_normal(u3, u4))
