"""Text out of a model: sampling strategies and the decode loop."""

from fledge.generation.generate import Session, generate
from fledge.generation.prepare import prepare, widen
from fledge.generation.results import Alternative, Generation, Piece

__all__ = ["Alternative", "Generation", "Piece", "Session", "generate", "prepare", "widen"]
