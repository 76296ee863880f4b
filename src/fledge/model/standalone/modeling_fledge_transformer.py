"""A decoder-only Transformer that fledge trained, for transformers. It needs torch and transformers, and nothing else:

    AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)

Each part is a setting in config.json: norms and their place, positions, feed-forward, norms of queries and keys.
Shapes: B texts of T tokens, S with those before them; H heads of K numbers; D numbers a token.
"""

import math

import torch
from torch import nn
from torch.nn import functional
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast


class FledgeTransformerConfig(PretrainedConfig):
    """The keys of config.json, with fledge's names."""

    model_type = "fledge_transformer"
    attribute_map = {"hidden_size": "width", "num_hidden_layers": "layers", "num_attention_heads": "heads"}
    keys_to_ignore_at_inference = ["past_key_values"]

    def __init__(
        self,
        vocab_size=4096,
        max_position_embeddings=256,
        layers=4,
        width=256,
        heads=4,
        kv_heads=4,
        head_size=None,
        hidden=704,
        feed_forward="swiglu",
        norm="rms",
        norm_place="pre",
        norm_epsilon=1e-5,
        position="rope",
        rotary_theta=10_000.0,
        rotary_scaling=None,
        qk_norm=False,
        bias=False,
        dropout=0.0,
        attention_dropout=0.0,
        tie_word_embeddings=False,
        **others,
    ):
        self.vocab_size, self.max_position_embeddings = vocab_size, max_position_embeddings
        self.layers, self.width, self.heads, self.kv_heads = layers, width, heads, kv_heads
        self.head_size = head_size or width // heads
        self.hidden, self.feed_forward = hidden, feed_forward
        self.norm, self.norm_place, self.norm_epsilon = norm, norm_place, norm_epsilon
        self.position, self.rotary_theta, self.rotary_scaling = position, rotary_theta, rotary_scaling
        self.qk_norm, self.bias = qk_norm, bias
        self.dropout, self.attention_dropout = dropout, attention_dropout
        self.tie_word_embeddings = tie_word_embeddings
        super().__init__(tie_word_embeddings=tie_word_embeddings, **others)


def make_norm(config):
    if config.norm == "rms":
        return nn.RMSNorm(config.width, eps=config.norm_epsilon)
    if config.norm == "layer":
        return nn.LayerNorm(config.width, eps=config.norm_epsilon, bias=config.bias)
    if config.norm == "none":
        return nn.Identity()
    raise ValueError(f"norm = {config.norm!r} is not known")


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.size = config, config.head_size
        wide, narrow = config.heads * self.size, config.kv_heads * self.size
        self.q_proj = nn.Linear(config.width, wide, bias=config.bias)
        self.k_proj = nn.Linear(config.width, narrow, bias=config.bias)
        self.v_proj = nn.Linear(config.width, narrow, bias=config.bias)
        self.output_proj = nn.Linear(wide, config.width, bias=config.bias)
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(self.size, eps=config.norm_epsilon)
            self.k_norm = nn.RMSNorm(self.size, eps=config.norm_epsilon)

    def forward(self, x_BTD, angles_BTP, visible_B1TS, cache, layer):
        q, k, v = (
            projected.unflatten(-1, (-1, self.size))
            for projected in (self.q_proj(x_BTD), self.k_proj(x_BTD), self.v_proj(x_BTD))
        )
        if self.config.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        if angles_BTP is not None:
            q, k = rotate(q, angles_BTP), rotate(k, angles_BTP)
        q, k, v = (x_BTHK.transpose(1, 2) for x_BTHK in (q, k, v))
        if cache is not None:
            k, v = cache.update(k, v, layer)
        mixed_BHTK = functional.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=visible_B1TS,
            dropout_p=self.config.attention_dropout if self.training else 0.0,
            enable_gqa=self.config.kv_heads != self.config.heads,
        )
        return self.output_proj(mixed_BHTK.transpose(1, 2).flatten(2))


ACTIVATIONS = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu2": lambda x: functional.relu(x).square(),
}


class FeedForward(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.kind = config.feed_forward
        self.w1 = nn.Linear(config.width, config.hidden, bias=config.bias)
        if self.kind == "swiglu":
            self.w3 = nn.Linear(config.width, config.hidden, bias=config.bias)
        self.w2 = nn.Linear(config.hidden, config.width, bias=config.bias)

    def forward(self, x_BTD):
        inner = self.w1(x_BTD)
        if self.kind == "swiglu":
            inner = functional.silu(inner) * self.w3(x_BTD)
        else:
            inner = ACTIVATIONS[self.kind](inner)
        return self.w2(inner)


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x)); with post-norm, the norms move outside."""

    def __init__(self, config):
        super().__init__()
        self.pre_norm = config.norm_place == "pre"
        self.ln1, self.attn = make_norm(config), Attention(config)
        self.ln2, self.ffn = make_norm(config), FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BTD, *places):
        if self.pre_norm:
            x_BTD = x_BTD + self.dropout(self.attn(self.ln1(x_BTD), *places))
            return x_BTD + self.dropout(self.ffn(self.ln2(x_BTD)))
        x_BTD = self.ln1(x_BTD + self.dropout(self.attn(x_BTD, *places)))
        return self.ln2(x_BTD + self.dropout(self.ffn(x_BTD)))


def rotary_frequencies(size, theta, scaling):
    """The angle that each pair of numbers turns by from one position to the next; Llama 3 makes slow ones slower."""
    frequencies_P = theta ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
    if scaling is None:
        return frequencies_P
    factor, low, high, first_length = scaling
    turns = first_length * frequencies_P / (2 * math.pi)
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies_P * ((1 - smooth) / factor + smooth)


def rotate(x_BTHK, angles_BTP):
    """Turn the pairs (2i, 2i+1) of every head by the angles of its position."""
    even, odd = x_BTHK.float().unflatten(-1, (-1, 2)).unbind(-1)
    cosines, sines = angles_BTP.cos()[:, :, None], angles_BTP.sin()[:, :, None]
    return torch.stack((even * cosines - odd * sines, even * sines + odd * cosines), dim=-1).flatten(-2).to(x_BTHK)


class FledgeTransformerForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = FledgeTransformerConfig
    _no_split_modules = ["Block"]
    _supports_sdpa = True

    def __init__(self, config):
        super().__init__(config)
        self.token_embeddings = nn.Embedding(config.vocab_size, config.width)
        if config.position == "learned":
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        # A post-norm block already ends in a norm.
        self.ln_final = make_norm(config) if config.norm_place == "pre" else nn.Identity()
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.width, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.token_embeddings

    def get_output_embeddings(self):
        return None if self.config.tie_word_embeddings else self.lm_head

    def forward(
        self,
        input_ids,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        labels=None,
        use_cache=None,
        **others,
    ):
        if past_key_values is None and use_cache:
            past_key_values = DynamicCache()
        batch, steps = input_ids.shape
        length = steps + (0 if past_key_values is None else past_key_values.get_seq_length())
        visible_B1TS, positions_BT = self.places(input_ids, attention_mask, length)
        if position_ids is not None:
            positions_BT = position_ids.expand(batch, steps)
        x_BTD = self.token_embeddings(input_ids)
        angles_BTP = None
        if self.config.position == "rope":
            frequencies_P = rotary_frequencies(
                self.config.head_size, self.config.rotary_theta, self.config.rotary_scaling
            )
            angles_BTP = positions_BT[..., None].float() * frequencies_P.to(positions_BT.device)
        elif self.config.position == "learned":
            x_BTD = x_BTD + self.position_embeddings(positions_BT)
        elif self.config.position == "sinusoidal":
            frequencies_P = rotary_frequencies(self.config.width + self.config.width % 2, 10_000.0, None)
            angles = positions_BT[..., None].float() * frequencies_P.to(positions_BT.device)
            waves = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
            x_BTD = x_BTD + waves[..., : self.config.width].to(x_BTD)
        x_BTD = self.dropout(x_BTD)
        for number, block in enumerate(self.layers):
            x_BTD = block(x_BTD, angles_BTP, visible_B1TS, past_key_values, number)
        head = self.token_embeddings if self.config.tie_word_embeddings else self.lm_head
        logits = functional.linear(self.ln_final(x_BTD), head.weight)
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)

    def places(self, input_ids, attention_mask, length):
        """Which tokens each one sees (itself and earlier ones, padding left out), and where in its text it stands."""
        batch, steps = input_ids.shape
        if attention_mask is None or attention_mask.ndim != 2:
            attention_mask = torch.ones(batch, length, dtype=torch.long, device=input_ids.device)
        places_S = torch.arange(length, device=input_ids.device)
        own_T1 = places_S[-steps:, None]
        visible_BTS = (places_S <= own_T1) & attention_mask[:, None, :length].bool() | (places_S == own_T1)
        positions_BS = (attention_mask[:, :length].cumsum(-1) - 1).clamp(min=0)
        return visible_BTS[:, None], positions_BS[:, -steps:]
