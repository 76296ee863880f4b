"""The tree of settings: names, types, defaults and documentation, and which values go together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from fledge.config.refusals import refusal, setting_fields
from fledge.config.sizes import OptimizerName
from fledge.errors import FledgeError
from fledge.files import Format

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


def _one_or_more(value: Any) -> Any:
    texts = (value,) if isinstance(value, str | PurePath) else value
    if isinstance(texts, list | tuple):
        texts = tuple(str(text) if isinstance(text, PurePath) else text for text in texts)
    if isinstance(texts, tuple) and "" in texts:
        raise ValueError("an empty text is not allowed. Leave it out, or give a value.")
    return texts


def _without_nul(name: str) -> str:
    if "\0" in name:
        raise ValueError(f"{name!r} contains a NUL character, which file names can't have.")
    return name


FileName = Annotated[str, AfterValidator(_without_nul)]
FileNames = Annotated[tuple[FileName, ...], BeforeValidator(_one_or_more)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_one_or_more)]
"Several texts, or one: `--set corpus.source=my.txt` needs no brackets."


def needs_of(field: FieldInfo | None) -> list[Needs]:
    return [mark for mark in field.metadata if isinstance(mark, Needs)] if field else []


def documentation(field: FieldInfo) -> str:
    """What is said under a field, in one line, and what it needs to have an effect."""
    return " ".join([*(field.description or "").split(), *(need.words for need in needs_of(field))])


def types_of(annotation: Any) -> list[Any]:
    """A field's type and all that it is made of, such as int within `Positive | None`."""
    return [annotation, *(kind for part in get_args(annotation) for kind in types_of(part))]


@dataclass(frozen=True)
class Needs:
    """Marks a setting that has an effect only while another has one of these values, or none of them."""

    setting: str
    values: tuple[Any, ...]
    one: bool = True
    on: str = "with {setting} = {value}"
    "The end of the sentence that it has no effect."

    @property
    def words(self) -> str:
        """For the documentation of the setting."""
        if self.values in ((None,), ((),)):
            return f"{'Only' if self.one else 'No effect'} without `{self.setting}`."
        *first, last = (f"`{shown(value)}`" for value in self.values)
        which = f"` = {', '.join(first)} or {last}" if first else f" = {last[1:]}"
        return f"{'Only' if self.one else 'No effect'} with `{self.setting}{which}."

    def sentence(self, name: str, value: Any) -> str:
        """That a setting has no effect with this value of the other; empty where it has one."""
        if (value in self.values) is self.one:
            return ""
        on = "without {setting}" if value in (None, ()) else self.on
        return f"{name} has no effect {on.format(setting=self.setting, value=shown(value))}."


def shown(value: Any) -> str:
    return ", ".join(value) if isinstance(value, tuple) else "true" if value is True else str(value)


def only(setting: str, *values: Any, on: str = Needs.on) -> Needs:
    return Needs(setting, values, on=on)


def unless(setting: str, *values: Any) -> Needs:
    return Needs(setting, values, one=False)


class Settings(BaseModel):
    """A frozen group of settings that refuses unknown names and checks every value."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())

    def __init__(self, **values: Any) -> None:
        """Settings made in Python refuse a value in the words that a recipe's do."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise FledgeError(" ".join(refusal(type(self), one) for one in error.errors())) from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # a group within another is not made by it

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, field: ValidationInfo) -> Any:
        if isinstance(value, bool):
            kinds = types_of(cls.model_fields[field.field_name or ""].annotation)
            if bool not in kinds and (int in kinds or float in kinds):
                raise PydanticCustomError("no_number", "give a number")
        return value


class CorpusConfig(Settings):
    """Where the text comes from, and which part of it is held out."""

    source: FileNames = ("akjv",)
    "Files, folders, globs or fsspec addresses, `-` for standard input, or the name of a corpus (`akjv`)."
    format: Format = "auto"
    "How the source is divided into documents: by separators, by file, by line, JSONL, Parquet, or Bible verses."
    separator: Annotated[str, only("corpus.format", "auto", "text")] = "<|endoftext|>"
    "The text between two documents of a text file."
    field: Annotated[str, only("corpus.format", "auto", "jsonl", "parquet")] = "text"
    "The field of a JSONL line, or the column of a Parquet file, that holds the text."
    book_titles: Annotated[bool, only("corpus.format", "auto", "akjv")] = False
    "Begin each verse with the title of its book."
    validation_fraction: Annotated[float, Field(ge=0, le=0.5), only("corpus.validation_source", ())] = 0.1
    "Share of documents held out for validation, chosen by a hash of each document."
    test_fraction: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    "Share of documents held out for the final figure; no checkpoint or setting is chosen by them."
    validation_source: FileNames = ()
    "Sources used for validation instead of a share of the documents."
    split: Literal["document", "group"] = "group"
    "`group` keeps near-copies in one part, so that no training text has a held-out copy; `document` splits each alone."
    split_seed: Seed = 0
    "Seed that chooses the held-out documents. It has no effect on a text of few documents, which is cut into blocks."
    skip_bad: Annotated[bool, only("corpus.format", "auto", "jsonl")] = False
    "Skip and count broken JSON lines instead of stopping at the first one."
    max_document_bytes: Annotated[int, Field(ge=1, le=1 << 40), unless("corpus.format", "akjv")] = 1 << 28
    "Longer documents are refused, because a document must fit in memory. A text without separators may have any size."

    @model_validator(mode="after")
    def _something_to_train_on(self) -> CorpusConfig:
        if self.validation_fraction + self.test_fraction >= 1:
            raise ValueError(
                f"corpus.validation_fraction = {self.validation_fraction:g} and corpus.test_fraction = "
                f"{self.test_fraction:g} together hold out all of the text. Lower one of them."
            )
        return self


_TRAINED = only("tokenizer.path", None)
_BPE = only("tokenizer.kind", "bpe", on="on a {value} tokenizer")


class TokenizerConfig(Settings):
    """How text becomes ids."""

    kind: Annotated[Literal["bpe", "word", "character"], _TRAINED] = "bpe"
    "Byte-pair encoding, whole words (rare ones are spelled out), or characters."
    path: FileName | None = None
    "An existing tokenizer (a folder, `tokenizer.json`, `.tiktoken`, `hf://owner/name`) to use instead of training one."
    vocabulary_size: Annotated[int, Field(ge=2)] | None = 4096
    "Number of ids, including special tokens and bytes. For BPE, none merges until no pair occurs twice."
    special_tokens: Annotated[Texts, _BPE, _TRAINED] = ("<|endoftext|>",)
    "Texts that get one id each and are never split or merged. They come first in the vocabulary."
    pattern: Annotated[str, _BPE, _TRAINED] = "gpt2"
    "Pre-tokenization pattern: `gpt2`, `cl100k`, `o200k`, or your own regular expression (slower)."
    min_frequency: Annotated[Positive, _TRAINED] = 1
    "Leave out words (word tokenizer) or pairs (BPE) that occur less often than this."
    fit_on: Annotated[Literal["train", "all"], _TRAINED] = "train"
    "Train the tokenizer on the training part only, or on the whole text."


Policy = Literal["stream", "packed", "slide-in", "slide-through", "full", "aligned", "longest", "lanes"]


class TokensConfig(Settings):
    """How windows are cut from the token store."""

    context_length: Annotated[int, Field(ge=1, le=1 << 40)] = 256
    "Tokens in a window, which is what the model sees at once."
    policy: Policy = "stream"
    "How windows are cut from documents; the handbook's page on data explains each policy."
    best_fit: Annotated[bool, only("tokens.policy", "packed")] = False
    "Fit whole documents into windows instead of cutting them at window edges. The padding is reported."
    position_offset: Annotated[Count, only("tokens.policy", "packed")] = 0
    "Start each document's positions at a random offset, at most this large."
    remainder: Annotated[Literal["cut", "pad"], only("tokens.policy", "aligned")] = "pad"
    "Drop the remainder at the end of a document, or pad it on the right."
    lanes: Annotated[Positive | None, only("tokens.policy", "lanes")] = None
    "Number of contiguous streams, which equals training.batch_size."
    store: FileName | None = None
    "An existing token store to use instead of tokenizing the corpus."


class ModelConfig(Settings):
    """The model's shape. Building the model warns about settings that its architecture does not use."""

    architecture: str = "transformer"
    "`transformer`, `bdh`, `rnn`, `gru`, `lstm`, or an architecture that you registered."
    layers: Positive = 4
    "Number of blocks."
    width: Positive = 256
    "Size of the residual stream (for recurrent networks: of the hidden state)."
    heads: Positive = 4
    "Attention heads; must divide the width, unless `head_size` is set."
    kv_heads: Positive | None = None
    "Key and value heads, each shared by a group of query heads; none for one per query head."
    head_size: Positive | None = None
    "Size of each attention head; none for the width divided by the heads."
    hidden: Positive | None = None
    "Inner size of the feed-forward layer; none for 8/3 of the width if gated (a multiple of 64), otherwise 4 times it."
    feed_forward: Literal["swiglu", "silu", "gelu", "gelu_tanh", "relu2"] = "swiglu"
    "Gated SiLU, or a plain activation between two matrices."
    norm: Literal["rms", "layer", "none"] = "rms"
    "Root-mean-square norm, LayerNorm, or none."
    norm_place: Annotated[Literal["pre", "post"], unless("model.norm", "none")] = "pre"
    "Norm before each sub-layer (`pre`), or after the residual addition (`post`) as in the original Transformer."
    norm_epsilon: PositiveFloat = 1e-5
    "Added to the variance inside each norm."
    position: Literal["rope", "learned", "sinusoidal", "none"] = "rope"
    "Position encoding: rotary, learned, sinusoidal or none."
    rope_theta: Annotated[PositiveFloat, only("model.position", "rope")] = 10_000.0
    "Base of the rotary frequencies."
    rope_scaling: Annotated[
        tuple[PositiveFloat, PositiveFloat, PositiveFloat, PositiveFloat] | None, only("model.position", "rope")
    ] = None
    "Llama 3's longer context: factor, low and high frequency factor, first context length; none for plain RoPE."
    qk_norm: bool = False
    "Normalise the queries and keys of each head before the dot product."
    tied: bool = False
    "Share one matrix between the embeddings and the output head."
    bias: bool = False
    "Add biases to linear layers and LayerNorms."
    dropout: Fraction = 0.0
    "Share of activations dropped during training."
    attention_dropout: Fraction | None = None
    "Share of attention weights dropped during training; none uses `dropout`. 0 is much faster on a GPU."
    layer_dropout: Fraction = 0.0
    "Stochastic depth: share of rows that skip the last layer during training. Earlier layers are skipped less often."
    token_dropout: Fraction = 0.0
    "Drop up to this share of each row's input embeddings during training; each row draws its own share."
    initialisation: Literal["scaled", "gpt2"] = "scaled"
    "Initial weights: truncated normal of variance 2/(in+out), or GPT-2's 0.02 with scaled-down residual outputs."
    embedding_deviation: PositiveFloat | None = None
    "Standard deviation of the initial embeddings; none for 0.02 with `gpt2`, otherwise 1 (1/√width if tied)."
    residual_scaling: bool | None = None
    "Divide the initial weights of residual outputs by √(2·layers); none does so only with `gpt2`."
    multiplier: Positive = 128
    "For `bdh`: total number of neurons, as a multiple of the width."

    @property
    def attention_share(self) -> float:
        """The share of attention weights dropped: `attention_dropout`, or `dropout` where that is not set."""
        return self.dropout if self.attention_dropout is None else self.attention_dropout

    @property
    def head_width(self) -> int:
        """The size of an attention head: `head_size`, or an equal share of the width where that is not set."""
        return self.head_size or self.width // self.heads

    @property
    def attention_width(self) -> int:
        """The size of all heads together, which the last projection turns back into the width."""
        return self.heads * self.head_width

    @property
    def gated(self) -> bool:
        """Whether the feed-forward has two inner matrices, of which one gates the other."""
        return self.feed_forward == "swiglu"

    @property
    def inner_size(self) -> int:
        """The feed-forward's inner size: `hidden`, or what gives gated and plain ones about 8·width² parameters."""
        if self.hidden is not None:
            return self.hidden
        if self.gated:
            return max(64, round(8 * self.width / 3 / 64) * 64)
        return 4 * self.width

    @model_validator(mode="after")
    def _heads_divide(self) -> ModelConfig:
        if self.kv_heads and self.heads % self.kv_heads:
            known = [str(count) for count in range(1, min(self.heads, 256) + 1) if self.heads % count == 0]
            raise ValueError(
                f"model.kv_heads = {self.kv_heads} does not divide model.heads = {self.heads}. "
                f"Known: {', '.join(known)}."
            )
        shared = self.architecture == "bdh" or (self.architecture == "transformer" and self.head_size is None)
        if shared and self.width % self.heads:
            even = 2 if self.architecture == "transformer" and self.position == "rope" else 1  # the size of a head is
            whole = self.width // even
            small = [count for count in range(1, min(math.isqrt(whole), 4096) + 1) if whole % count == 0]
            divisors = {*small, *(whole // count for count in small)}
            allowed = [count for count in divisors if self.width % even == 0 and count % (self.kv_heads or 1) == 0]
            near = sorted(allowed, key=lambda count: (abs(count - self.heads), count))
            below = self.width - self.width % (even * self.heads)
            counts = f"Try {' or '.join(map(str, sorted(near[:2])))}, or set" if near else "Set"
            raise ValueError(
                f"model.heads = {self.heads} does not divide model.width = {self.width}. "
                f"{counts} model.width={below or even * self.heads}."
            )
        if self.architecture == "transformer" and self.position == "rope" and self.head_width % 2:
            size = f"{self.width} / {self.heads} = {self.head_width}" if self.head_size is None else self.head_size
            cause = "model.heads or model.width" if self.head_size is None else "model.head_size"
            raise ValueError(f"model.position = rope needs an even head size, and {size} is odd. Change {cause}.")
        if self.architecture == "bdh" and (self.multiplier * self.width // self.heads) % 2:
            raise ValueError(
                f"model.multiplier · model.width / model.heads = {self.multiplier}·{self.width}/{self.heads} "
                "must be an even number of neurons per head. Change one of the three."
            )
        return self


class OptimizerConfig(Settings):
    """The optimizer, and how it updates the weights."""

    name: OptimizerName = "adamw"
    "AdamW, SGD with momentum, or Muon for the matrices and AdamW for the rest."
    learning_rate: PositiveFloat = 1e-3
    "Peak learning rate, reached after warm-up. Sweeps start at 1/30 of it and end where training diverges."
    weight_decay: NonNegativeFloat = 0.1
    "Decoupled weight decay: each step multiplies the matrices by 1 - decay x their learning rate at that step."
    head_decay: Annotated[NonNegativeFloat | None, unless("model.tied", True)] = None
    "Weight decay of an untied head; none uses `weight_decay`."
    embedding_decay: NonNegativeFloat | None = None
    "Weight decay of embeddings and of a tied head; none for 0, or `weight_decay` with `decay_all`."
    cautious_decay: bool = False
    "Decay only the weights that the update already moves towards zero."
    decay_all: bool = False
    "Apply `weight_decay` to norms, biases and embeddings too."
    beta1: Annotated[Fraction, unless("optimizer.name", "sgd")] = 0.9
    "AdamW: decay rate of the gradient's running mean."
    beta2: Annotated[Fraction, unless("optimizer.name", "sgd")] = 0.95
    "AdamW: decay rate of the squared gradient's running mean."
    epsilon: Annotated[PositiveFloat, unless("optimizer.name", "sgd")] = 1e-8
    "AdamW: added to the denominator."
    momentum: Annotated[Fraction, unless("optimizer.name", "adamw")] = 0.95
    "Momentum of SGD and Muon."
    nesterov: Annotated[bool, unless("optimizer.name", "adamw")] = True
    "Use Nesterov momentum."
    matrix_learning_rate: Annotated[PositiveFloat, only("optimizer.name", "muon")] = 0.02
    "Learning rate of the matrices; other parameters use `learning_rate`."
    clip_norm: PositiveFloat | None = 1.0
    "Clip gradients to this global norm; none does not clip."


class ScheduleConfig(Settings):
    """How the learning rate changes over the run, as a fraction of its peak."""

    name: Literal["cosine", "stable", "linear", "constant"] = "cosine"
    "Cosine decay, warm-up–stable–decay, linear decay, or a constant rate."
    warmup_steps: Count = 100
    "Steps of linear warm-up from zero."
    final_fraction: Annotated[float, Field(ge=0, le=1), unless("schedule.name", "constant")] = 0.1
    "Learning rate at the end, as a fraction of the peak. The step after the last one would have it."
    decay_fraction: Annotated[float, Field(gt=0, le=1), only("schedule.name", "stable")] = 0.2
    "Share of steps in the final decay."
    final_weight_decay_factor: NonNegativeFloat = 1.0
    "Factor on the weight decay at the last step, reached linearly from 1; 1 keeps the decay constant."


class TrainingConfig(Settings):
    """The training loop: its length, its batches, its checkpoints."""

    steps: Positive | None = None
    "Number of optimizer steps; none derives it from `tokens`."
    tokens: Positive | None = None
    "Total tokens to train on (steps = tokens / batch size / context length); none uses `steps`."
    batch_size: Positive = 32
    "Windows per optimizer step, summed over all devices."
    micro_batch: Positive | None = None
    "Windows per device in one forward pass; none uses as many as fit in memory."
    seed: Seed = 0
    "Seed of everything random: initial weights, data order, dropout, samples."
    device: str = "auto"
    "`auto`, `cpu`, `cuda` or `cuda:N` (ROCm too), `xpu`, `mps`."
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    "Precision of activations; `auto` uses bf16 where it is fast, fp16 with scaling on older GPUs, fp32 on CPU and MPS."
    compile: Literal["auto", "on", "off"] = "auto"
    "Compile the model with torch.compile; `auto` does so on a GPU. There, unless `off`, whole steps are recorded, too."
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    "CPU threads for computation; none for one per core. Bit-exact results need the same number."
    recompute: Annotated[bool, unless("model.architecture", "rnn", "gru", "lstm")] = False
    "Recompute activations in the backward pass. This saves memory and costs about a third more compute."
    parallel: Literal["auto", "ddp", "fsdp"] = "auto"
    "With torchrun: replicate the model (ddp) or shard it (fsdp); `auto` replicates."
    start: Literal["random", "pairs"] = "random"
    "Start from random weights, or from a bigram model fitted to the text's token pairs (untied Transformers only)."
    average: Fraction = 0.0
    "Average the weights over about this last share of the steps, and save the better set as the model. 0 turns it off."
    teachers: FileNames = ()
    "Models with the same tokenizer whose averaged prediction is learned in addition to the text (`fledge distill`)."
    teachers_share: Annotated[Fraction, unless("training.teachers", ())] = 0.5
    "Share of the loss that comes from the teachers' prediction; the rest comes from the text."
    label_smoothing: Fraction = 0.0
    "Share of each target spread evenly over the vocabulary."
    z_loss: NonNegativeFloat = 0.0
    "Weight of the squared log-normaliser, a penalty that keeps logits from drifting."
    evaluate_every: Count = 250
    "Steps between evaluations on the validation split; 0 evaluates only at the end."
    evaluate_windows: Positive = 512
    "Validation windows per evaluation; every evaluation uses the same ones."
    save_every: Count = 250
    "Steps between checkpoints; 0 saves only at the end."
    keep_last: Positive = 2
    "Number of newest checkpoints to keep."
    keep_best: bool = True
    "Save a checkpoint at each new minimum of the validation loss, and keep the newest of them as the run's model."
    patience: Annotated[Positive | None, unless("training.evaluate_every", 0)] = None
    "Stop early after this many evaluations in a row without a lower validation loss; none trains to the last step."
    keep_every: Count = 0
    "Also keep every checkpoint at a multiple of this many steps; 0 keeps none."
    sample_every: Count = 500
    "Steps between generated samples; 0 generates them only at the end."
    log_every: Positive = 10
    "Steps between rows of metrics."
    norms: bool = False
    "Add columns for the norms of each part's weights and activations to the metrics."
    trackers: Annotated[tuple[Literal["tensorboard", "wandb", "trackio"], ...], BeforeValidator(_one_or_more)] = ()
    "Additional metric trackers, each of which must be installed. `metrics.csv` is always written."
    on_divergence: Literal["stop", "skip"] = "stop"
    "If the loss diverges: stop with a message, or return to the last checkpoint and skip the batch."
    spike: PositiveFloat | None = None
    "A loss this many nats above its recent mean counts as divergence; none checks for non-finite values only."

    @model_validator(mode="after")
    def _one_length(self) -> TrainingConfig:
        if self.steps is not None and self.tokens is not None:
            raise ValueError(
                f"training.steps = {self.steps} and training.tokens = {self.tokens} are both set. Set one of them, and "
                "the other to none, as in --set training.tokens=none."
            )
        return self


class StrategyConfig(Settings):
    """How a token is chosen by the model's scores. Commands, page and API all take their fields from here."""

    temperature: NonNegativeFloat = 0.8
    "Sampling temperature: 0 always takes the most likely token, 1 leaves the model's probabilities unchanged."
    top_k: Annotated[Positive | None, unless("sampling.temperature", 0)] = None
    "Sample from this many most likely tokens."
    top_p: Annotated[Annotated[float, Field(gt=0, le=1)] | None, unless("sampling.temperature", 0)] = None
    "Sample from the most likely tokens that together reach this probability."
    min_p: Annotated[Annotated[float, Field(gt=0, le=1)] | None, unless("sampling.temperature", 0)] = None
    "Sample from tokens whose probability is at least this fraction of the highest one."
    repetition_penalty: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    "Factor that lowers the scores of tokens that already occurred; 1 for no penalty."


class SamplingConfig(StrategyConfig):
    """How text is sampled from the model."""

    max_tokens: Annotated[int, Field(ge=1, le=1 << 24)] = 128
    "Maximum number of tokens to generate."
    stop: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_one_or_more)] = ()
    "Texts that end generation, in addition to the end token. A special token's text stands for that token."
    stop_at_end: bool = True
    "Stop at the tokenizer's end token; if off, a new document follows."
    seed: Annotated[Seed, unless("sampling.temperature", 0)] = 0
    "The same seed, prompt and model give the same text."
    samples: Annotated[int, Field(ge=1, le=1 << 16)] = 1
    "Number of texts to generate per prompt."
    prompt: str = ""
    "The text to continue; empty starts a new document."


class RunConfig(Settings):
    """Everything a run needs, from text to samples."""

    name: FileName = "run"
    "Name of the run's folder in `runs/`; not a path."
    corpus: CorpusConfig = CorpusConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    tokens: TokensConfig = TokensConfig()
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    training: TrainingConfig = TrainingConfig()
    sampling: SamplingConfig = SamplingConfig()
    imports: FileNames = ()
    "Python files that register your own architectures. They are run only if `--import` allows it or you agree."

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if "/" in name or name in ("", ".", ".."):
            raise ValueError(f"name = {name!r} is a path. Give a plain name: it becomes a folder in runs/.")
        return name

    @model_validator(mode="after")
    def _rows_are_lanes(self) -> RunConfig:
        lanes, rows = self.tokens.lanes, self.training.batch_size
        if self.tokens.policy == "lanes" and lanes not in (None, rows):
            raise ValueError(
                f"tokens.lanes = {lanes} and training.batch_size = {rows} are not allowed together: every row "
                "of a batch is a lane. Leave tokens.lanes out, or set both to the same number."
            )
        return self

    @property
    def steps(self) -> int:
        """Optimizer steps in all, whichever way the length was given."""
        if self.training.tokens is not None:
            return max(1, self.training.tokens // (self.training.batch_size * self.tokens.context_length))
        return self.training.steps or 1000


def setting_paths() -> dict[str, str]:
    """Every leaf setting by its dotted name, with its documentation."""
    return {name: documentation(field) for name, field in setting_fields(RunConfig).items()}
