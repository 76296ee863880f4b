"""The Transformer: embedding, n blocks, a final norm. Ids in, hidden states out; no loss, no sampling.

GPT-2 and Llama are settings of it. Every ablation is one setting.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from fledge.config import ModelConfig
from fledge.errors import FledgeError
from fledge.model.attention import Attention, Ring, additive, document_blocks, document_mask, has_flex
from fledge.model.base import Model, VocabularyMatrix, compute_dtype
from fledge.model.checks import check_batch, check_inputs, state_place
from fledge.model.dropout import Dropout, RowDropout, TokenDropout
from fledge.model.layers import FeedForward, form, initialise, make_norm, rotary_frequencies, rotation, sinusoids
from fledge.model.plan import Documents, Plan, places_within
from fledge.model.state import State


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x)); with post-norm, the norms move outside."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.pre_norm = config.norm_place == "pre"
        self.ln1 = make_norm(config)
        self.attn = Attention(config)
        self.ln2 = make_norm(config)
        self.ffn = FeedForward(config)
        # Deeper layers are left out more often: the first ones are what all others build on.
        skipped = RowDropout(config.layer_dropout * (layer + 1) / config.layers)
        self.dropout = (
            nn.Sequential(Dropout(config.dropout), skipped) if config.layer_dropout else Dropout(config.dropout)
        )

    def forward(
        self,
        x_BTD: Tensor,
        turn: tuple[Tensor, Tensor] | None,
        plan: Plan | None,
        ring: Ring | None,
        layer: int,
    ) -> Tensor:
        if self.pre_norm:
            x_BTD = x_BTD + self.dropout(self.attn(self.ln1(x_BTD), turn, plan, ring, layer))
            return x_BTD + self.dropout(self.ffn(self.ln2(x_BTD)))  # type: ignore[no-any-return]
        x_BTD = self.ln1(x_BTD + self.dropout(self.attn(x_BTD, turn, plan, ring, layer)))
        return self.ln2(x_BTD + self.dropout(self.ffn(x_BTD)))  # type: ignore[no-any-return]


class Transformer(Model):
    """A decoder-only Transformer with every part a setting."""

    recorded = True
    settings = frozenset(ModelConfig.model_fields) - {"architecture", "multiplier"}
    rotary_frequencies: Tensor
    cosines_TP: Tensor
    sines_TP: Tensor
    sinusoid_frequencies: Tensor
    sinusoids_TD: Tensor

    def __init__(self, config: ModelConfig, vocabulary_size: int, context_length: int) -> None:
        super().__init__(config, vocabulary_size, context_length)
        self.endless = config.position != "learned"
        self.token_embeddings = VocabularyMatrix(vocabulary_size, config.width)
        if config.position == "learned":
            self.position_embeddings = nn.Embedding(context_length, config.width)
        self.dropout = Dropout(config.dropout)
        self.token_dropout = TokenDropout(config.token_dropout)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        # A post-norm block already ends in a norm.
        self.ln_final = make_norm(config) if config.norm_place == "pre" else nn.Identity()
        self.lm_head = None if config.tied else VocabularyMatrix(vocabulary_size, config.width)
        initialise(self, config, config.layers)
        self.make_tables()

    def tables(self) -> dict[str, Tensor]:
        config, places = self.config, torch.arange(self.context_length)
        if config.position == "rope":
            frequencies = rotary_frequencies(config.head_width, config.rope_theta, config.rope_scaling)
            cosines, sines = rotation(places, frequencies)
            return {"rotary_frequencies": frequencies, "cosines_TP": cosines, "sines_TP": sines}
        if config.position == "sinusoidal":
            frequencies = rotary_frequencies(config.width + config.width % 2, 10_000.0)
            return {
                "sinusoid_frequencies": frequencies,
                "sinusoids_TD": sinusoids(places, frequencies, config.width),
            }
        return form({"learned": {}, "none": {}}, "position", config.position)

    def hidden(
        self,
        inputs_BT: Tensor,
        plan: Plan | None = None,
        state: State | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, State | None]:
        check_inputs(self, inputs_BT, plan, state, lengths)
        steps = inputs_BT.shape[1]
        ring = None
        if state is not None:
            if plan is not None:
                raise FledgeError("A Transformer takes a plan or a state, not both: decode each document on its own.")
            ring = Ring(state, steps, lengths, compute_dtype(self.token_embeddings.weight))
        x_BTD = self.token_dropout(self.token_embeddings(inputs_BT))
        x_BTD, turn = self._place(x_BTD, plan, state, steps, lengths)
        x_BTD = self.dropout(x_BTD.to(compute_dtype(x_BTD)))
        for number, block in enumerate(self.layers):
            if self.recompute and self.training and ring is None:
                x_BTD = checkpoint(block, x_BTD, turn, plan, None, number, use_reentrant=False)
            else:
                x_BTD = block(x_BTD, turn, plan, ring, number)
        if state is not None:
            state.advance(steps, lengths)
        return self.ln_final(x_BTD), state

    def _place(
        self, x_BTD: Tensor, plan: Plan | None, state: State | None, steps: int, lengths: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Tell the model where its tokens stand: added to the embedding, or as the angles of RoPE."""
        kind = self.config.position
        if kind == "none":
            return x_BTD, None
        start, positions = 0, None if plan is None else plan.positions_BT
        if state is not None:
            if (
                kind == "learned"
                and state.longest + steps > self.context_length
                and not self._fits(state, steps, lengths)
            ):
                raise FledgeError(
                    f"Learned positions end at the context length of {self.context_length}. "
                    "Start again from the last tokens with a new state, or train with model.position=rope."
                )
            if state.even and state.longest + steps <= self.context_length:
                start = state.longest
            else:
                positions = state.lengths[:, None] + torch.arange(steps, device=x_BTD.device)
        if kind == "rope":
            if plan is not None and plan.rotation is not None:
                return x_BTD, plan.rotation
            if positions is not None:
                return x_BTD, rotation(positions, self.rotary_frequencies)
            return x_BTD, (self.cosines_TP[start : start + steps], self.sines_TP[start : start + steps])
        if positions is None:
            table = self.position_embeddings.weight if kind == "learned" else self.sinusoids_TD
            return x_BTD + table[start : start + steps].to(x_BTD.dtype), None
        if (
            kind == "learned"
        ):  # a padded place past the end of a row is never read; it only must not index past the table
            positions = positions.clamp(max=self.context_length - 1)
        return self.add_places(x_BTD, positions), None

    def add_places(self, x: Tensor, places: Tensor) -> Tensor:
        """Embeddings with what their places add to them, which is nothing where there are rotary positions or none."""
        kind = self.config.position
        if kind == "learned":
            return x + functional.embedding(places, self.position_embeddings.weight).to(x.dtype)
        if kind == "sinusoidal":
            return x + sinusoids(places, self.sinusoid_frequencies, self.config.width).to(x.dtype)
        return form({"rope": x, "none": x}, "position", kind)

    def _fits(self, state: State, steps: int, lengths: Tensor | None) -> bool:
        """Whether learned positions reach to the end of every row, its padding left out."""
        state.measure()
        ends = state.lengths + (steps if lengths is None else lengths)
        return bool((ends <= self.context_length).all())

    def plan(self, batch: Documents) -> Plan | None:
        if batch.positions_BT is None and batch.documents_BT is None:
            return None
        check_batch(batch)
        positions, documents = batch.positions_BT, batch.documents_BT
        device = batch.inputs_BT.device
        if positions is None and documents is not None and self.config.position in ("learned", "sinusoidal"):
            positions = places_within(documents)
        if positions is not None and self.config.position == "learned" and device.type == "cpu":
            first, furthest = int(positions.min()), int(positions.max())
            if first < 0 or furthest >= self.context_length:
                raise FledgeError(
                    f"The position {min(first, 0) or furthest} does not fit model.position = learned with a context "
                    f"length of {self.context_length}. Set tokens.position_offset=0, or use model.position=rope."
                )
        turn = None
        if positions is not None and self.config.position == "rope":
            turn = rotation(positions, self.rotary_frequencies.to(device))
        mask = blocks = None
        if documents is not None:
            if has_flex(device) and not self.config.attention_share:
                blocks = document_blocks(documents)
            else:
                mask = additive(document_mask(documents), compute_dtype(self.token_embeddings.weight))
        return Plan(positions, turn, mask, blocks, kind=self.plan_kind, shape=tuple(batch.inputs_BT.shape))

    def init_state(
        self,
        batch_size: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        capacity: int | None = None,
    ) -> State:
        place, kind = state_place(self, batch_size, device, dtype, capacity)
        capacity = self.context_length if capacity is None else capacity
        heads, size = self.config.kv_heads or self.config.heads, self.config.head_width
        # One slot more than the ring holds: what is not to be kept is written there.
        shape = (batch_size, heads, capacity + 1, size)
        tensors = {
            f"layers.{number}.{name}": torch.zeros(shape, device=place, dtype=kind)
            for number in range(len(self.layers))
            for name in ("keys", "values")
        }
        return State(tensors, torch.zeros(batch_size, device=place, dtype=torch.long), capacity, kind=self.state_kind)
