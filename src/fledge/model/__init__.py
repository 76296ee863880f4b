"""Ids to logits: Transformers, BDH and recurrent networks behind one interface."""

from fledge.model.base import Model, Plan, State
from fledge.model.registry import ARCHITECTURES, build_model, register

__all__ = ["ARCHITECTURES", "Model", "Plan", "State", "build_model", "register"]
