"""Small models on plain torch: perceptron, convolutional networks, autoencoders, torch's own transformer layers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from suites.models.architecture import VOCABULARY


class MLP(nn.Module):
    """Three layers with batch norm: x (N, 16) -> (N, 5)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 5)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class LeNet(nn.Module):
    """Two convolutions with pooling, three linear layers: x (N, 1, 28, 28) -> (N, 10) log probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 6, 5, padding=2)
        self.second = nn.Conv2d(6, 16, 5)
        self.head = nn.Sequential(nn.Linear(400, 32), nn.Tanh(), nn.Linear(32, 24), nn.Tanh(), nn.Linear(24, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(torch.tanh(self.first(x)), 2)
        x = F.avg_pool2d(torch.tanh(self.second(x)), 2)
        return F.log_softmax(self.head(x.flatten(1)), dim=-1)


class _Residual(nn.Module):
    def __init__(self, width_in: int, width_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width_in, width_out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width_out),
            nn.ReLU(inplace=True),
            nn.Conv2d(width_out, width_out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width_out),
        )
        self.shortcut = (
            nn.Identity()
            if stride == 1 and width_in == width_out
            else nn.Sequential(nn.Conv2d(width_in, width_out, 1, stride, bias=False), nn.BatchNorm2d(width_out))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu_(self.body(x) + self.shortcut(x))


class SmallResNet(nn.Module):
    """Four stages of two residual blocks: x (N, 3, H, W) -> (N, 5)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        widths = (8, 8, 16, 24, 32)
        blocks: list[nn.Module] = []
        for stage in range(4):
            blocks.append(_Residual(widths[stage], widths[stage + 1], 1 if stage == 0 else 2))
            blocks.append(_Residual(widths[stage + 1], widths[stage + 1], 1))
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(widths[-1], 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1).flatten(1))


class MobileBlocks(nn.Module):
    """Depthwise convolutions, squeeze and excitation, hard activations: x (N, 3, H, W) -> (N, 5)."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Conv2d(3, 24, 1)
        self.depthwise = nn.Conv2d(24, 24, 3, padding=1, groups=24, stride=2)
        self.squeeze = nn.Conv2d(24, 6, 1)
        self.excite = nn.Conv2d(6, 24, 1)
        self.norm = nn.GroupNorm(4, 24)
        self.head = nn.Linear(24, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.hardswish(self.norm(self.depthwise(F.relu6(self.expand(x)))))
        gate = F.hardsigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3), keepdim=True)))))
        return self.head((x * gate).amax((2, 3)))


class Autoencoder(nn.Module):
    """Convolutions down, transposed convolutions up: x (N, 3, H, W) -> (N, 3, H, W)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.InstanceNorm2d(8), nn.Conv2d(8, 16, 3, 2, 1), nn.LeakyReLU(0.1)
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.ELU(), nn.Upsample(scale_factor=2), nn.Conv2d(8, 3, 3, 1, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.decoder(self.encoder(x)))


class VariationalAutoencoder(nn.Module):
    """Draws its code in training: x (N, 16) -> reconstruction (N, 16), mean and log variance (N, 4)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(16, 24)
        self.mean = nn.Linear(24, 4)
        self.log_variance = nn.Linear(24, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 24), nn.SiLU(), nn.Linear(24, 16))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden = F.softplus(self.encoder(x))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance) if self.training else mean
        return self.decoder(code), mean, log_variance


def _positions(length: int, width: int, like: torch.Tensor) -> torch.Tensor:
    """Sinusoids (length, width) in the dtype and on the device of `like`."""
    position = torch.arange(length, device=like.device, dtype=like.dtype)[:, None]
    rate = torch.exp(torch.arange(0, width, 2, device=like.device, dtype=like.dtype) * (-math.log(1e4) / width))
    return torch.stack([torch.sin(position * rate), torch.cos(position * rate)], dim=-1).flatten(1)


class Translation(nn.Module):
    """nn.Transformer with a causal mask: source (N, S) and target (N, T) token ids -> (N, T, vocabulary)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.transformer = nn.Transformer(width, 4, 2, 2, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        embedded_source, embedded_target = self.embed(source), self.embed(target)
        causal = torch.full((target.shape[1],) * 2, float("-inf"), device=target.device, dtype=embedded_target.dtype)
        hidden = self.transformer(
            embedded_source + _positions(source.shape[1], embedded_source.shape[-1], embedded_source),
            embedded_target + _positions(target.shape[1], embedded_target.shape[-1], embedded_target),
            tgt_mask=causal.triu(1),
        )
        return self.head(hidden)


class PaddedEncoder(nn.Module):
    """nn.TransformerEncoder with a key padding mask: tokens and keep (N, S) -> (N, S, 32)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 64, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        return self.encoder(self.embed(tokens), src_key_padding_mask=keep == 0)


class LinearAttention(nn.Module):
    """Causal linear attention by cumulative sums: x (N, T, 16) -> (N, T, 16)."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)
        self.norm = nn.RMSNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # (N, T, 2, 8) each
        query, key, value = (part.unflatten(-1, (2, 8)) for part in self.project(self.norm(x)).chunk(3, dim=-1))
        query, key = F.elu(query) + 1, F.elu(key) + 1
        state = torch.cumsum(key[..., :, None] * value[..., None, :], dim=1)  # (N, T, 2, 8, 8)
        total = torch.cumsum(key, dim=1)
        mixed = torch.einsum("nthk,nthkv->nthv", query, state) / (query * total).sum(-1, keepdim=True)
        return x + self.out(mixed.flatten(2))
