"""Denoising networks on plain torch: a UNet with time embedding, attention and skip connections, and a transformer."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


def time_embedding(time: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Sinusoids of integer times (N,) -> (N, width)."""
    rate = torch.exp(torch.arange(width // 2, device=time.device) * (-math.log(1e4) / (width // 2)))
    angle = time[:, None] * rate
    return torch.cat([torch.cos(angle), torch.sin(angle)], dim=-1).to(dtype)


class ResidualBlock(nn.Module):
    """Two convolutions, the second scaled and shifted by the time: x (N, C, H, W), time (N, T) -> (N, D, H, W)."""

    def __init__(self, width_in: int, width_out: int, time_width: int) -> None:
        super().__init__()
        self.norm_in = nn.GroupNorm(4, width_in)
        self.first = nn.Conv2d(width_in, width_out, 3, padding=1)
        self.time = nn.Linear(time_width, 2 * width_out)
        self.norm_out = nn.GroupNorm(4, width_out)
        self.second = nn.Conv2d(width_out, width_out, 3, padding=1)
        self.skip = nn.Conv2d(width_in, width_out, 1) if width_in != width_out else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        hidden = self.first(F.silu(self.norm_in(x)))
        scale, shift = self.time(F.silu(time))[:, :, None, None].chunk(2, dim=1)
        hidden = self.norm_out(hidden) * (1 + scale) + shift
        return self.skip(x) + self.second(F.silu(hidden))


class AttentionBlock(nn.Module):
    """Self attention over positions, then over a context if there is one: x (N, C, H, W), context (N, L, K)."""

    def __init__(self, width: int, context_width: int | None, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(4, width)
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.cross = (
            nn.MultiheadAttention(width, heads, kdim=context_width, vdim=context_width, batch_first=True)
            if context_width
            else None
        )

    def forward(self, x: torch.Tensor, context: torch.Tensor | None) -> torch.Tensor:
        tokens = self.norm(x).flatten(2).transpose(1, 2)  # (N, H W, C)
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.project(tokens).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        tokens = self.out(mixed)
        if self.cross is not None and context is not None:
            tokens = tokens + self.cross(tokens, context, context, need_weights=False)[0]
        return x + tokens.transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    """x (N, 3, H, W), time (N,) integers, context (N, L, context_width) or None -> noise (N, 3, H, W)."""

    def __init__(self, width: int = 16, context_width: int | None = None) -> None:
        super().__init__()
        self.width = width
        time_width = 4 * width
        self.time = nn.Sequential(nn.Linear(width, time_width), nn.SiLU(), nn.Linear(time_width, time_width))
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        widths = (width, 2 * width)
        self.down = nn.ModuleList(
            [ResidualBlock(width, width, time_width), ResidualBlock(width, 2 * width, time_width)]
        )
        self.shrink = nn.Conv2d(widths[0], widths[0], 3, stride=2, padding=1)
        self.middle = ResidualBlock(2 * width, 2 * width, time_width)
        self.attention = AttentionBlock(2 * width, context_width)
        self.up = nn.ModuleList(
            [ResidualBlock(4 * width, 2 * width, time_width), ResidualBlock(3 * width, width, time_width)]
        )
        self.grow = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.head = nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, x: torch.Tensor, time: torch.Tensor, context: torch.Tensor | None = None) -> torch.Tensor:
        moment = self.time(time_embedding(time, self.width, x.dtype))
        x = self.stem(x)
        skips = []
        for level, block in enumerate(self.down):
            x = block(x, moment)
            skips.append(x)
            if level == 0:
                x = self.shrink(x)
        x = self.attention(self.middle(x, moment), context)
        for level, block in enumerate(self.up):
            x = block(torch.cat([x, skips.pop()], dim=1), moment)
            if level == 0:
                x = self.grow(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.head(x)


class DiffusionTransformer(nn.Module):
    """Patches with adaptive layer norm: x (N, 3, 16, 16), time (N,), label (N,) below 10 -> noise (N, 3, 16, 16)."""

    def __init__(self, width: int = 32, patch: int = 4) -> None:
        super().__init__()
        self.width, self.patch = width, patch
        self.embed = nn.Conv2d(3, width, patch, stride=patch)
        self.position = nn.Parameter(torch.zeros(1, 16, width))
        self.label = nn.Embedding(10, width)
        self.modulate = nn.ModuleList(nn.Linear(width, 6 * width) for _ in range(2))
        self.attention = nn.ModuleList(nn.MultiheadAttention(width, 4, batch_first=True) for _ in range(2))
        self.feed = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 64), nn.GELU(approximate="tanh"), nn.Linear(64, width)) for _ in range(2)
        )
        self.head = nn.Linear(width, 3 * patch * patch)

    def forward(self, x: torch.Tensor, time: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        tokens = self.embed(x).flatten(2).transpose(1, 2) + self.position
        condition = F.silu(time_embedding(time, self.width, x.dtype) + self.label(label))
        for modulate, attention, feed in zip(self.modulate, self.attention, self.feed, strict=True):
            parts = modulate(condition)[:, None].chunk(6, dim=-1)
            hidden = F.layer_norm(tokens, (self.width,)) * (1 + parts[0]) + parts[1]
            tokens = tokens + parts[2] * attention(hidden, hidden, hidden, need_weights=False)[0]
            hidden = F.layer_norm(tokens, (self.width,)) * (1 + parts[3]) + parts[4]
            tokens = tokens + parts[5] * feed(hidden)
        patches = self.head(F.layer_norm(tokens, (self.width,)))
        return F.fold(patches.transpose(1, 2), x.shape[-2:], self.patch, stride=self.patch)
