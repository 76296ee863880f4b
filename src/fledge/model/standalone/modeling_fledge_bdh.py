"""BDH, Pathway's Baby Dragon Hatchling, that fledge trained, for transformers. It needs torch and transformers only:

    AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)

The weights have the names of the published code. What it remembers is `state`: how many tokens each text has, and the
synapses, a matrix of neurons x width for every layer, text and head.
Shapes: B texts of T tokens; h heads of N neurons; D numbers a token.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

THETA = 2.0**16


class FledgeBDHConfig(PretrainedConfig):
    """The keys of config.json, with fledge's names."""

    model_type = "fledge_bdh"
    attribute_map = {"hidden_size": "width", "num_hidden_layers": "layers", "num_attention_heads": "heads"}
    keys_to_ignore_at_inference = ["state"]

    def __init__(
        self,
        vocab_size=4096,
        max_position_embeddings=256,
        layers=6,
        width=256,
        heads=4,
        multiplier=128,
        dropout=0.0,
        **others,
    ):
        self.vocab_size, self.max_position_embeddings = vocab_size, max_position_embeddings
        self.layers, self.width, self.heads, self.multiplier = layers, width, heads, multiplier
        self.dropout = dropout
        super().__init__(**{**others, "tie_word_embeddings": False})


@dataclass
class BDHOutput(ModelOutput):
    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    state: tuple[torch.Tensor, ...] | None = None


def normalise(x):
    return functional.layer_norm(x, x.shape[-1:])


def rotate(x_BhTN, positions_BT):
    """Turn the pairs (2i, 2i+1) of neurons by the angle of their position; whole turns are dropped first."""
    neurons = x_BhTN.shape[-1]
    even = torch.arange(0, neurons, 2, dtype=torch.float32, device=x_BhTN.device)
    turns_BTP = positions_BT[..., None].float() * (THETA ** (-even / neurons) / (2 * math.pi))
    angles_B1TP = (2 * math.pi * (turns_BTP % 1.0))[:, None]
    cosines, sines = angles_B1TP.cos(), angles_B1TP.sin()
    first, second = x_BhTN.unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((first * cosines - second * sines, first * sines + second * cosines), dim=-1)
    return turned.flatten(-2).to(x_BhTN)


class FledgeBDHForCausalLM(PreTrainedModel, GenerationMixin):
    """x <- norm(x + norm(sum over heads of (u * w) . decoder)), `layers` times with the same weights."""

    config_class = FledgeBDHConfig
    _is_stateful = True

    def __init__(self, config):
        super().__init__(config)
        neurons = config.multiplier * config.width // config.heads
        self.embed = nn.Embedding(config.vocab_size, config.width)
        self.encoder = nn.Parameter(torch.zeros(config.heads, config.width, neurons))
        self.encoder_v = nn.Parameter(torch.zeros(config.heads, config.width, neurons))
        self.decoder = nn.Parameter(torch.zeros(config.heads * neurons, config.width))
        self.lm_head = nn.Parameter(torch.zeros(config.width, config.vocab_size))
        self.dropout = nn.Dropout(config.dropout)
        self.post_init()

    def get_input_embeddings(self):
        return self.embed

    def get_output_embeddings(self):
        return None  # the head is a matrix, not a layer

    def forward(self, input_ids, attention_mask=None, state=None, labels=None, use_cache=None, **others):
        if attention_mask is None or attention_mask.shape != input_ids.shape:
            attention_mask = torch.ones_like(input_ids)
        seen_B = input_ids.new_zeros(len(input_ids)) if state is None else state[0]
        positions_BT = seen_B[:, None] + (attention_mask.cumsum(-1) - 1).clamp(min=0)
        real_B1T1 = attention_mask[:, None, :, None]
        x_BTD, after = normalise(self.embed(input_ids)), []
        decoder_hND = self.decoder.unflatten(0, (self.config.heads, -1))
        for layer in range(self.config.layers):
            x_B1TD = x_BTD[:, None]
            u_BhTN = functional.relu(x_B1TD @ self.encoder)
            q_BhTN = rotate(u_BhTN, positions_BT)
            k_BhTN = q_BhTN * real_B1T1
            # Each token reads what strictly earlier ones wrote: linear attention, in which queries are keys.
            read_BhTD = torch.tril(q_BhTN @ k_BhTN.transpose(-1, -2), diagonal=-1) @ x_B1TD
            if state is not None:
                read_BhTD = read_BhTD + q_BhTN @ state[1][layer]
            if use_cache:
                written_BhND = k_BhTN.transpose(-1, -2) @ x_B1TD
                after.append(written_BhND if state is None else state[1][layer] + written_BhND)
            w_BhTN = functional.relu(normalise(read_BhTD) @ self.encoder_v)
            mixed_BTD = (self.dropout(u_BhTN * w_BhTN) @ decoder_hND).sum(1)
            x_BTD = normalise(x_BTD + normalise(mixed_BTD))
        logits, loss = x_BTD @ self.lm_head, None
        if labels is not None:
            loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        state = (seen_B + attention_mask.sum(1), torch.stack(after)) if use_cache else None
        return BDHOutput(loss=loss, logits=logits, state=state)

    @classmethod
    def _supports_default_dynamic_cache(cls):
        return False  # there are no keys and values to keep

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, state=None, **others):
        if state is not None:  # it holds all tokens but the newest, which is never padding
            input_ids, attention_mask = input_ids[:, -1:], None
        return {"input_ids": input_ids, "attention_mask": attention_mask, "state": state, "use_cache": True}
