"""An RNN, GRU or LSTM that fledge trained, for transformers. It needs torch and transformers, and nothing else:

    AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)

What it remembers is `state`: the hidden state of all layers, and an LSTM's cells, each of layers x texts x width.
Shapes: B texts of T tokens; D numbers a token.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

KINDS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


class FledgeRecurrentConfig(PretrainedConfig):
    """The keys of config.json, with fledge's names."""

    model_type = "fledge_recurrent"
    attribute_map = {"hidden_size": "width", "num_hidden_layers": "layers"}
    keys_to_ignore_at_inference = ["state"]

    def __init__(
        self,
        vocab_size=4096,
        max_position_embeddings=256,
        architecture="lstm",
        layers=4,
        width=256,
        bias=False,
        dropout=0.0,
        tie_word_embeddings=False,
        **others,
    ):
        self.vocab_size, self.max_position_embeddings = vocab_size, max_position_embeddings
        self.architecture, self.layers, self.width = architecture, layers, width
        self.bias, self.dropout = bias, dropout
        self.tie_word_embeddings = tie_word_embeddings
        super().__init__(tie_word_embeddings=tie_word_embeddings, **others)


@dataclass
class RecurrentOutput(ModelOutput):
    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    state: tuple[torch.Tensor, ...] | None = None


class FledgeRecurrentForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = FledgeRecurrentConfig
    _is_stateful = True

    def __init__(self, config):
        super().__init__(config)
        self.token_embeddings = nn.Embedding(config.vocab_size, config.width)
        self.recurrent = KINDS[config.architecture](
            config.width,
            config.width,
            num_layers=config.layers,
            bias=config.bias,
            batch_first=True,
            dropout=config.dropout if config.layers > 1 else 0.0,
        )
        self.dropout = nn.Dropout(config.dropout)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.width, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.token_embeddings

    def get_output_embeddings(self):
        return None if self.config.tie_word_embeddings else self.lm_head

    def forward(self, input_ids, attention_mask=None, state=None, labels=None, **others):
        out_BTD, state = self.run(self.dropout(self.token_embeddings(input_ids)), attention_mask, state)
        head = self.token_embeddings if self.config.tie_word_embeddings else self.lm_head
        logits = functional.linear(self.dropout(out_BTD), head.weight)
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        return RecurrentOutput(loss=loss, logits=logits, state=state)

    def run(self, x_BTD, attention_mask, state):
        """The outputs and the state after them. Padding is left out, on whichever side it is."""
        carried = state if state is None or len(state) == 2 else state[0]
        if attention_mask is None or attention_mask.shape != x_BTD.shape[:2] or bool(attention_mask.all()):
            out_BTD, after = self.recurrent(x_BTD, carried)
            return out_BTD, after if isinstance(after, tuple) else (after,)
        order_BT1 = torch.argsort(attention_mask, dim=1, descending=True, stable=True)[..., None]
        real_first = torch.take_along_dim(x_BTD, order_BT1, dim=1)
        lengths = attention_mask.sum(1).clamp(min=1).cpu()
        packed = pack_padded_sequence(real_first, lengths, batch_first=True, enforce_sorted=False)
        out, after = self.recurrent(packed, carried)
        out_BTD, _ = pad_packed_sequence(out, batch_first=True, total_length=x_BTD.shape[1])
        out_BTD = torch.take_along_dim(out_BTD, torch.argsort(order_BT1, dim=1), dim=1)
        return out_BTD, after if isinstance(after, tuple) else (after,)

    @classmethod
    def _supports_default_dynamic_cache(cls):
        return False  # there are no keys and values to keep

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, state=None, **others):
        if state is not None:  # it holds all tokens but the newest, which is never padding
            input_ids, attention_mask = input_ids[:, -1:], None
        return {"input_ids": input_ids, "attention_mask": attention_mask, "state": state}
