"""The tree of settings: names, types, defaults and documentation, and which values go together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args

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
from pydantic_core import PydanticCustomError

from fledge.errors import FledgeError

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


def _one_or_more(value: Any) -> Any:
    texts = (value,) if isinstance(value, str) else value
    if isinstance(texts, list | tuple) and "" in texts:
        raise ValueError("an empty text is not allowed: leave it out, or name something.")
    return texts


def _without_nul(name: str) -> str:
    if "\0" in name:
        raise ValueError(f"{name!r} holds a NUL character, and no file's name does.")
    return name


FileName = Annotated[str, AfterValidator(_without_nul)]
FileNames = Annotated[tuple[FileName, ...], BeforeValidator(_one_or_more)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_one_or_more)]
"Several texts, or one: `--set corpus.source=my.txt` needs no brackets."


def _kinds(annotation: Any) -> list[Any]:
    """A field's type and all that it is made of, such as int within `Positive | None`."""
    return [annotation, *(kind for part in get_args(annotation) for kind in _kinds(part))]


if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)  # which pydantic does not name in public


class _InSentences(ModelMetaclass):
    """Settings made in Python refuse a value in the words that a recipe's do."""

    def __call__(cls, *arguments: Any, **values: Any) -> Any:
        try:
            return super().__call__(*arguments, **values)
        except ValidationError as error:
            from fledge.config.refusals import sentence  # which reads the settings themselves

            kind = cast("type[Settings]", cls)
            raise FledgeError(" ".join(sentence(kind, one) for one in error.errors())) from None


class Settings(BaseModel, metaclass=_InSentences):
    """A group of settings: unknown names are refused, values are checked, and nothing changes afterwards."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, field: ValidationInfo) -> Any:
        if isinstance(value, bool):
            kinds = _kinds(cls.model_fields[field.field_name or ""].annotation)
            if bool not in kinds and (int in kinds or float in kinds):
                raise PydanticCustomError("no_number", "give a number")
        return value

    @model_validator(mode="before")
    @classmethod
    def _none_by_name(cls, values: Any) -> Any:
        """`none` on a command line is nothing, except where it is one of the names to choose from, as in model.norm."""
        if not isinstance(values, Mapping):
            return values
        named = {name for name, field in cls.model_fields.items() if "none" in get_args(field.annotation)}
        return {key: "none" if value is None and key in named else value for key, value in values.items()}


class CorpusConfig(Settings):
    """Where the text comes from, and which part of it is held out."""

    source: FileNames = ("akjv",)
    "Files, folders, globs or fsspec addresses, `-` for standard input, or the name of a corpus (`akjv`)."
    format: Literal["auto", "text", "files", "lines", "jsonl", "parquet", "akjv"] = "auto"
    "How documents lie in the source: one text with separators, one per file, one per line, JSONL, Parquet, verses."
    separator: str = "<|endoftext|>"
    "What stands between documents in a text file."
    field: str = "text"
    "The field of a JSONL line, or the column of a Parquet file, that holds the text."
    book_titles: bool = False
    "For `akjv`: begin each verse with the title of its book."
    validation_fraction: Annotated[float, Field(ge=0, le=0.5)] = 0.1
    "The share of the documents held out, chosen by a hash of each document."
    test_fraction: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    "The share of the documents held out for the final figure alone: no checkpoint or setting is chosen by it."
    validation_source: FileNames = ()
    "Sources held out as they are, instead of a share of the documents."
    split: Literal["document", "group"] = "group"
    "Hold out each document by itself, or near-copies together, so that no copy of a training text is held out."
    split_seed: Seed = 0
    "Which documents are held out: each seed holds out others. Blocks of a few documents lie where they do."
    skip_bad: bool = False
    "Skip broken JSON lines, and count them, instead of stopping at the first."
    max_document_bytes: Annotated[int, Field(ge=1, le=1 << 40)] = 1 << 28
    "A longer document is refused, for a document has to fit in memory; a text without separators may be of any size."

    @model_validator(mode="after")
    def _something_to_train_on(self) -> CorpusConfig:
        if self.validation_fraction + self.test_fraction >= 1:
            raise ValueError(
                f"corpus.validation_fraction = {self.validation_fraction:g} and corpus.test_fraction = "
                f"{self.test_fraction:g} together hold out all of the text. Lower one of them."
            )
        return self


class TokenizerConfig(Settings):
    """How text becomes ids."""

    kind: Literal["bpe", "word", "character"] = "bpe"
    "Byte-pair encoding, whole words with spelled-out rest, or characters."
    path: FileName | None = None
    "An existing tokenizer (a folder, `tokenizer.json`, `.tiktoken`, `hf://owner/name`) to use instead of training one."
    vocabulary_size: Annotated[int, Field(ge=2)] | None = 4096
    "Ids in all, special tokens and bytes included; for BPE, none merges until no pair occurs twice."
    special_tokens: Texts = ("<|endoftext|>",)
    "For BPE: texts that are one id each, never split and never merged across. Their ids come first."
    pattern: str = "gpt2"
    "Pre-tokenization: `gpt2`, `cl100k`, `o200k`, or a regular expression of your own (slower)."
    min_frequency: Positive = 1
    "Leave out words (word tokenizer) or pairs (BPE) seen fewer times than this."
    fit_on: Literal["train", "all"] = "train"
    "Train the tokenizer on the training part alone, or on all of the text."


Policy = Literal["stream", "packed", "slide-in", "slide-through", "full", "aligned", "longest", "lanes"]


class TokensConfig(Settings):
    """How windows are cut from the token store."""

    context_length: Annotated[int, Field(ge=1, le=1 << 40)] = 256
    "Tokens in a window: what the model sees at once."
    policy: Policy = "stream"
    "How windows lie on documents: see the handbook's page on data."
    best_fit: bool = False
    "For `packed`: fill windows by best fit instead of cutting documents at their edges; the waste is reported."
    position_offset: Count = 0
    "For `packed`: start each document's positions at a random offset of up to this many."
    remainder: Literal["cut", "pad"] = "pad"
    "For `aligned`: drop what is left over at a document's end, or pad it once on the right."
    lanes: Positive | None = None
    "For `lanes`: how many contiguous streams there are; as many as training.batch_size."
    store: FileName | None = None
    "An existing token store to use instead of tokenizing the corpus."


class ModelConfig(Settings):
    """The model's shape. A setting that the chosen architecture does not use is named when the model is built."""

    architecture: str = "transformer"
    "`transformer`, `bdh`, `rnn`, `gru`, `lstm`, or one you registered."
    layers: Positive = 4
    "Blocks, one after the other."
    width: Positive = 256
    "Size of the residual stream (for recurrent networks: of the hidden state)."
    heads: Positive = 4
    "Attention heads; must divide the width."
    kv_heads: Positive | None = None
    "Heads of keys and values, shared by groups of query heads; none for one per query head."
    hidden: Positive | None = None
    "Inner size of the feed-forward; none for 8/3 of the width where gated (to a multiple of 64), else 4 times it."
    feed_forward: Literal["swiglu", "silu", "gelu", "gelu_tanh", "relu2"] = "swiglu"
    "Gated SiLU, or a plain activation between two matrices."
    norm: Literal["rms", "layer", "none"] = "rms"
    "Root-mean-square norm, LayerNorm, or none."
    norm_place: Literal["pre", "post"] = "pre"
    "Before each sub-layer, or after the residual addition as in 2017."
    norm_epsilon: PositiveFloat = 1e-5
    "Added to the variance inside each norm."
    position: Literal["rope", "learned", "sinusoidal", "none"] = "rope"
    "How the model knows where a token stands."
    rope_theta: PositiveFloat = 10_000.0
    "Base of the rotary frequencies."
    rope_scaling: tuple[PositiveFloat, PositiveFloat, PositiveFloat, PositiveFloat] | None = None
    "Llama 3's longer context: factor, low and high frequency factor, first context length; none for plain RoPE."
    qk_norm: bool = False
    "Normalise queries and keys of each head before their product."
    tied: bool = False
    "Use the embedding matrix as the output head too."
    bias: bool = False
    "Give linear layers and LayerNorms a bias."
    dropout: Fraction = 0.0
    "Share of activations dropped while training."
    attention_dropout: Fraction | None = None
    "Share of attention weights dropped while training; none for `dropout`. 0 is much faster on a GPU."
    layer_dropout: Fraction = 0.0
    "Stochastic depth: the share of rows for which the last layer is skipped while training; earlier layers less."
    token_dropout: Fraction = 0.0
    "Drop up to this share of each row's input embeddings while training; each row draws its own share."
    initialisation: Literal["scaled", "gpt2"] = "scaled"
    "Truncated normal of variance 2/(in+out), or GPT-2's 0.02 with scaled-down residual outputs."
    embedding_deviation: PositiveFloat | None = None
    "Standard deviation of fresh embeddings; none for 0.02 (`gpt2`), or 1 (1/√width where tied)."
    residual_scaling: bool | None = None
    "Divide fresh residual outputs by √(2·layers); none to do so with `gpt2` only."
    multiplier: Positive = 128
    "For `bdh`: neurons in all, as a multiple of the width."

    @property
    def attention_share(self) -> float:
        """The share of attention weights dropped: `attention_dropout`, or `dropout` where that is not set."""
        return self.dropout if self.attention_dropout is None else self.attention_dropout

    @property
    def inner_size(self) -> int:
        """The feed-forward's inner size: `hidden`, or what gives gated and plain ones about 8·width² parameters."""
        if self.hidden is not None:
            return self.hidden
        if self.feed_forward == "swiglu":
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
        if self.architecture in ("transformer", "bdh") and self.width % self.heads:
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
        if self.architecture == "transformer" and self.position == "rope" and (self.width // self.heads) % 2:
            raise ValueError(
                f"model.position = rope needs an even head size, and {self.width} / {self.heads} = "
                f"{self.width // self.heads} is odd. Change model.heads or model.width."
            )
        if self.architecture == "bdh" and (self.multiplier * self.width // self.heads) % 2:
            raise ValueError(
                f"model.multiplier · model.width / model.heads = {self.multiplier}·{self.width}/{self.heads} "
                "must be an even number of neurons per head. Change one of the three."
            )
        return self


class OptimizerConfig(Settings):
    """How weights follow gradients."""

    name: Literal["adamw", "sgd", "muon"] = "adamw"
    "AdamW, SGD with momentum, or Muon for the matrices and AdamW for the rest."
    learning_rate: PositiveFloat = 1e-3
    "Peak learning rate, reached after warm-up. Sweeps start a factor of 30 below and end where training diverges."
    weight_decay: NonNegativeFloat = 0.1
    "Decoupled decay: each step multiplies the matrices by 1 - learning rate x decay, with their rate of that step."
    head_decay: NonNegativeFloat | None = None
    "Decay of an untied head; none for `weight_decay`."
    embedding_decay: NonNegativeFloat | None = None
    "Decay of embeddings, a tied head among them; none for 0, or `weight_decay` with `decay_all`."
    cautious_decay: bool = False
    "Decay only those weights that the update moves towards zero anyway."
    decay_all: bool = False
    "Decay norms, biases and embeddings by `weight_decay` too."
    beta1: Fraction = 0.9
    "AdamW: memory of the gradient's mean."
    beta2: Fraction = 0.95
    "AdamW: memory of the gradient's square."
    epsilon: PositiveFloat = 1e-8
    "AdamW: added to the denominator."
    momentum: Fraction = 0.95
    "SGD and Muon: memory of the update."
    nesterov: bool = True
    "SGD and Muon: look ahead along the momentum."
    matrix_learning_rate: PositiveFloat = 0.02
    "Muon: learning rate of the matrices (the rest uses `learning_rate`)."
    clip_norm: PositiveFloat | None = 1.0
    "Scale gradients down to this global norm; none to leave them."


class ScheduleConfig(Settings):
    """How the learning rate moves over the run, as a factor of its peak."""

    name: Literal["cosine", "stable", "linear", "constant"] = "cosine"
    "Cosine decay, warm-up–stable–decay, linear decay, or none."
    warmup_steps: Count = 100
    "Steps of linear rise from zero."
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1
    "What is left of the peak at the end: the rate that the step after the last one would have."
    decay_fraction: Annotated[float, Field(gt=0, le=1)] = 0.2
    "For `stable`: the share of the steps spent on the final decay."
    final_weight_decay_factor: NonNegativeFloat = 1.0
    "Factor of the weight decay at the last step, reached on a straight line from 1; 1 keeps the decay constant."


class TrainingConfig(Settings):
    """The loop: how long, how much at once, and what is kept."""

    steps: Positive | None = None
    "Optimizer steps; none to follow `tokens`."
    tokens: Positive | None = None
    "Tokens to train on in all (steps = tokens / batch size / context length); none to follow `steps`."
    batch_size: Positive = 32
    "Windows per optimizer step, over all devices."
    micro_batch: Positive | None = None
    "Windows per device at once; none to find what fits the memory."
    seed: Seed = 0
    "Everything random follows from it: weights, order of the data, dropout, samples."
    device: str = "auto"
    "`auto`, `cpu`, `cuda` or `cuda:N` (ROCm too), `xpu`, `mps`."
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    "Of the activations; `auto` takes bf16 where it is fast, fp16 with scaling on older GPUs, fp32 on CPU and MPS."
    compile: Literal["auto", "on", "off"] = "auto"
    "Compile the model; `auto` does so on a GPU."
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    "CPU threads for the mathematics; none for one per core. Bits are promised for an equal number."
    recompute: bool = False
    "Recompute activations in the backward pass: less memory, about a third more work."
    parallel: Literal["auto", "ddp", "fsdp"] = "auto"
    "Under torchrun: replicate the model, or shard it; `auto` replicates."
    start: Literal["random", "pairs"] = "random"
    "Begin with random weights, or as a bigram model fitted to counts of neighbouring tokens (an untied Transformer)."
    average: Fraction = 0.0
    "Average the weights over about this latest share of the steps. A checkpoint's model is the better set; 0: off."
    teachers: FileNames = ()
    "Models with the same tokenizer: their averaged prediction is learned beside the text (`fledge distill`)."
    teachers_share: Fraction = 0.5
    "Share of the loss that the teachers' prediction has; the text has the rest."
    label_smoothing: Fraction = 0.0
    "Share of the target spread over the whole vocabulary."
    z_loss: NonNegativeFloat = 0.0
    "Weight of the squared log-normaliser, which keeps logits from drifting."
    evaluate_every: Count = 250
    "Steps between evaluations on the validation split; 0 for only at the end."
    evaluate_windows: Positive = 512
    "Validation windows per evaluation: the same ones each time."
    save_every: Count = 250
    "Steps between checkpoints; 0 for only at the end."
    keep_last: Positive = 2
    "Newest checkpoints kept."
    keep_best: bool = True
    "Save each evaluation that is the lowest so far, and keep the last of them: it is the run's model."
    patience: Positive | None = None
    "End training after this many evaluations in a row without a lower validation loss; none trains to the last step."
    keep_every: Count = 0
    "Keep every checkpoint at a multiple of this many steps; 0 for none."
    sample_every: Count = 500
    "Steps between generated samples; 0 for only at the end."
    log_every: Positive = 10
    "Steps between lines of metrics."
    norms: bool = False
    "Write the norms of each part's weights and activations with every line of metrics, in columns of their own."
    trackers: Annotated[tuple[Literal["tensorboard", "wandb", "trackio"], ...], BeforeValidator(_one_or_more)] = ()
    "Where metrics go besides `metrics.csv`, which is always written: each must be installed."
    on_divergence: Literal["stop", "skip"] = "stop"
    "When the loss is not finite or jumps: stop with a message, or go back to the last checkpoint and skip the batch."
    spike: PositiveFloat | None = None
    "A loss this many nats above its recent mean counts as divergence; none to look for non-finite values only."

    @model_validator(mode="after")
    def _one_length(self) -> TrainingConfig:
        if self.steps is not None and self.tokens is not None:
            raise ValueError(
                f"training.steps = {self.steps} and training.tokens = {self.tokens} are both set. Set one of them, and "
                "the other to none, as in --set training.tokens=none."
            )
        return self


class SamplingConfig(Settings):
    """How text is drawn from the model."""

    temperature: NonNegativeFloat = 0.8
    "0 takes the likeliest token each time; 1 samples from the model as it is."
    top_k: Positive | None = None
    "Keep this many of the likeliest tokens."
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    "Keep the likeliest tokens that together reach this probability."
    min_p: Annotated[float, Field(gt=0, le=1)] | None = None
    "Keep tokens at least this likely relative to the likeliest."
    repetition_penalty: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    "Divide the scores of tokens that already occurred; 1 for none."
    max_tokens: Annotated[int, Field(ge=1, le=1 << 24)] = 128
    "Tokens to generate at most."
    stop: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_one_or_more)] = ()
    "Texts at which generation ends, besides the end token; the text of a special token stands for that token."
    stop_at_end: bool = True
    "End at the tokenizer's end token; off to go on with a new document."
    seed: Seed = 0
    "The same seed, prompt and model give the same text."
    samples: Annotated[int, Field(ge=1, le=1 << 16)] = 1
    "Texts to generate for each prompt."
    prompt: str = ""
    "The text to go on from; empty to begin a new document."


class RunConfig(Settings):
    """Everything a run needs, from text to samples."""

    name: FileName = "run"
    "The run's folder below `runs/`: a name, and not a path."
    corpus: CorpusConfig = CorpusConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    tokens: TokensConfig = TokensConfig()
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    training: TrainingConfig = TrainingConfig()
    sampling: SamplingConfig = SamplingConfig()
    imports: FileNames = ()
    "Python files that register an architecture of your own. They are run only where `--import` or you agree."

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if "/" in name or name in ("", ".", ".."):
            raise ValueError(f"name = {name!r} is a path, and a plain name is needed: it becomes a folder below runs/.")
        return name

    @model_validator(mode="after")
    def _rows_are_lanes(self) -> RunConfig:
        lanes, rows = self.tokens.lanes, self.training.batch_size
        if self.tokens.policy == "lanes" and lanes not in (None, rows):
            raise ValueError(
                f"tokens.lanes = {lanes} and training.batch_size = {rows} are not allowed together: every row of a "
                "batch is a lane. Leave tokens.lanes out, or set both alike."
            )
        return self

    @property
    def steps(self) -> int:
        """Optimizer steps in all, whichever way the length was given."""
        if self.training.tokens is not None:
            return max(1, self.training.tokens // (self.training.batch_size * self.tokens.context_length))
        return self.training.steps or 1000
