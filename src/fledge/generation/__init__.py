"""Text out of a model: sampling strategies and the decode loop."""

from fledge.generation.generate import Alternative, Generation, Piece, Session, generate
from fledge.generation.prepare import prepare

__all__ = ["Alternative", "Generation", "Piece", "Session", "generate", "prepare"]
