"""Shapes with a name, to account for and compare: GPT-2's four sizes with RMSNorm, RoPE and SwiGLU."""

from __future__ import annotations

from dataclasses import dataclass

from fledge.config import ModelConfig


@dataclass(frozen=True)
class Shape:
    """A model's settings with the two facts it is built from."""

    model: ModelConfig
    vocabulary_size: int = 50_257
    context_length: int = 1_024


_SIZES = {"small": (12, 768, 12), "medium": (24, 1024, 16), "large": (36, 1280, 20), "xl": (48, 1600, 25)}


def _course(layers: int, width: int, heads: int) -> ModelConfig:
    """GPT-2's sizes with RMSNorm, RoPE and a SwiGLU of inner size 4·width: three matrices for GPT-2's two."""
    return ModelConfig(layers=layers, width=width, heads=heads, hidden=4 * width)


SHAPES: dict[str, Shape] = {name: Shape(_course(*size)) for name, size in _SIZES.items()}
