"""Ids to logits: Transformers, BDH and recurrent networks behind one interface."""

from fledge.model.base import Model
from fledge.model.plan import Plan
from fledge.model.registry import ARCHITECTURES, build_model, register
from fledge.model.state import State

__all__ = ["ARCHITECTURES", "Model", "Plan", "State", "build_model", "register"]
