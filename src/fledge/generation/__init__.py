"""Text out of a model: sampling strategies and the decode loop."""

from fledge.generation.generate import Decoding, generate
from fledge.generation.prepare import prepare, widen
from fledge.generation.results import Alternative, Generation, Piece

__all__ = ["Alternative", "Decoding", "Generation", "Piece", "generate", "prepare", "widen"]
