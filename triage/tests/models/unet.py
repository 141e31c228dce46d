"""A small U-Net."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Sequential):
    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__(
            nn.Conv2d(channels_in, channels_out, 3, padding=1),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(),
            nn.Conv2d(channels_out, channels_out, 3, padding=1),
            nn.ReLU(),
        )


class Up(nn.Module):
    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.narrow = nn.Conv2d(channels_in, channels_out, 1)
        self.block = Block(2 * channels_out, channels_out)

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        x = F.interpolate(self.narrow(x), size=skip.shape[-2:], mode="nearest")
        return self.block(torch.cat([x, skip], dim=1))


class UNet(nn.Module):
    def __init__(self, channels: int = 3, classes: int = 2, width: int = 4) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.first = Block(channels, widths[0])
        self.downs = nn.ModuleList(Block(a, b) for a, b in pairwise(widths))
        self.ups = nn.ModuleList(Up(b, a) for a, b in reversed(list(pairwise(widths))))
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.first(image)
        skips = []
        for down in self.downs:
            skips.append(x)
            x = down(F.max_pool2d(x, 2))
        for up in self.ups:
            x = up(x, skips.pop())
        return self.head(x).sigmoid()
