"""Which chart a configuration has: the same steps, names and sizes as the model that is built from it."""

from __future__ import annotations

from collections.abc import Callable

from fledge.accounting.diagram.chart import Chart, Node
from fledge.accounting.parameters import Parameters, list_parameters
from fledge.config import ModelConfig
from fledge.config.sizes import RECURRENT_GATES
from fledge.errors import FledgeError, nearest

NORMS = {"rms": "RMSNorm", "layer": "LayerNorm"}
TITLES = {
    "transformer": "Transformer",
    "bdh": "BDH, the Baby Dragon Hatchling",
    "rnn": "recurrent network",
    "gru": "GRU network",
    "lstm": "LSTM network",
}
ACTIVATIONS = {
    "swiglu": "SiLU(gate) × up",
    "silu": "SiLU",
    "gelu": "GELU",
    "gelu_tanh": "GELU (tanh)",
    "relu2": "ReLU²",
}


def model_chart(config: ModelConfig, vocabulary_size: int, context_length: int, name: str = "") -> Chart:
    """The flow chart of a model, ids at the top and logits at the bottom."""
    if config.architecture not in _CHARTS:
        known = nearest(config.architecture, _CHARTS)
        raise FledgeError(f"There is no diagram for the architecture {config.architecture!r}. {known}")
    parameters = list_parameters(config, vocabulary_size, context_length)
    title = TITLES[config.architecture]
    chart = Chart(
        f"{name}: {title}" if name else title, f"{parameters.total:,} parameters · T: up to {context_length:,} tokens"
    )
    _CHARTS[config.architecture](chart, config, parameters, vocabulary_size, context_length)
    return chart


def _transformer(
    chart: Chart, config: ModelConfig, parameters: Parameters, vocabulary_size: int, context_length: int
) -> None:
    width = config.width
    last = _embed(chart, config, vocabulary_size, context_length)
    per_block = sum(tensor.count // tensor.times for tensor in parameters.tensors if "N" in tensor.name)
    with chart.group(f"block × {config.layers:,}, {per_block:,} parameters each"):
        last = _sub_layer(chart, config, last, "1", lambda source: _attention(chart, config, source))
        last = _sub_layer(chart, config, last, "2", lambda source: _feed_forward(chart, config, source))
    if config.norm != "none" and config.norm_place == "pre":
        last = chart.step(_norm("ln_final", config, "final "), last, label=f"T × {width:,}")
    kept = 2 * config.layers * config.head_width * (config.kv_heads or config.heads)
    chart.notes.append(f"While generating, keys and values of the past are kept: {kept:,} numbers a token.")
    _finish(chart, config, vocabulary_size, last)


def _sub_layer(chart: Chart, config: ModelConfig, source: str, number: str, inside: Callable[[str], str]) -> str:
    """x + inside(norm(x)), or norm(x + inside(x)): the residual path runs around it."""
    dot = chart.step(Node(f"split{number}", "", shape="dot", left=5.9, right=6.1), source)
    last = dot
    if config.norm != "none" and config.norm_place == "pre":
        last = chart.step(_norm(f"ln{number}", config), last)
    last = inside(last)
    add = chart.step(Node(f"add{number}", "+", shape="sign", left=5.7, right=6.3), last)
    chart.link(dot, add, style="residual", lane="left")
    if config.norm != "none" and config.norm_place == "post":
        return chart.step(_norm(f"ln{number}", config), add)
    return add


def _attention(chart: Chart, config: ModelConfig, source: str) -> str:
    width, heads = config.width, config.heads
    kv_heads = config.kv_heads or heads
    size = config.head_width
    projections = []
    for key, title, count, left in (
        ("q_proj", "queries", heads, 0.0),
        ("k_proj", "keys", kv_heads, 4.1),
        ("v_proj", "values", kv_heads, 8.2),
    ):
        title = f"{title}, {count:,} head{'s' * (count > 1)} of {size:,}"
        projections.append(_linear(key, title, width, count * size, config.bias, "attention", left, left + 3.8))
        chart.link(source, key)
    chart.row(*projections)
    q, k = "q_proj", "k_proj"
    if config.qk_norm:
        chart.row(
            Node("q_norm", "RMSNorm per head", f"{size:,} parameters", "norm", 0, 3.8),
            Node("k_norm", "RMSNorm per head", f"{size:,} parameters", "norm", 4.1, 7.9),
        )
        chart.link(q, "q_norm")
        chart.link(k, "k_norm")
        q, k = "q_norm", "k_norm"
    if config.position == "rope":
        chart.row(Node("rope", "RoPE", "turns each pair by an angle that grows with the position", "attention", 0, 7.9))
        chart.link(q, "rope", at=1.9)
        chart.link(k, "rope", at=6.0)
        q = k = "rope"
    detail = f"{heads:,} × T × T scores · each token sees itself and the past"
    if kv_heads < heads:
        detail = f"{heads // kv_heads:,} query heads share each head of keys and values · causal"
    chart.row(Node("scores", f"softmax(q · kᵀ / √{size:,})", detail, "attention", 0, 7.9))
    chart.link(q, "scores", at=1.9)
    chart.link(k, "scores", at=6.0)
    chart.row(Node("mix", "weights · values", f"heads joined again: T × {config.attention_width:,}", "attention"))
    chart.link("scores", "mix", f"{heads:,} × T × T", at=3.95)
    chart.link("v_proj", "mix", at=10.1)
    joined = _linear("output_proj", "output projection", config.attention_width, width, config.bias, "attention")
    return chart.step(joined, "mix")


def _feed_forward(chart: Chart, config: ModelConfig, source: str) -> str:
    width, inner = config.width, config.inner_size
    activation = ACTIVATIONS.get(config.feed_forward, config.feed_forward)
    if config.gated:
        chart.row(
            _linear("w1", "gate w1", width, inner, config.bias, "feed", 0, 5.9),
            _linear("w3", "up w3", width, inner, config.bias, "feed", 6.1, 12),
        )
        chart.link(source, "w1")
        chart.link(source, "w3")
        chart.row(Node("gated", activation, "SwiGLU", "feed"))
        chart.link("w1", "gated", f"T × {inner:,}")
        chart.link("w3", "gated")
        return chart.step(_linear("w2", "down w2", inner, width, config.bias, "feed"), "gated")
    chart.step(_linear("w1", "w1", width, inner, config.bias, "feed"), source)
    chart.step(Node("activation", activation, "", "feed", 3, 9), "w1", label=f"T × {inner:,}")
    return chart.step(_linear("w2", "w2", inner, width, config.bias, "feed"), "activation")


def _bdh(chart: Chart, config: ModelConfig, parameters: Parameters, vocabulary_size: int, context_length: int) -> None:
    width, heads = config.width, config.heads
    neurons = config.multiplier * width // heads
    last = _embed(chart, config, vocabulary_size, context_length)
    last = chart.step(Node("ln_in", "LayerNorm", "no weights of its own", "norm", 2, 10), last)
    matrix = f"{heads:,} heads · {width:,} × {neurons:,} · {heads * width * neurons:,} parameters"
    with chart.group(f"layer × {config.layers:,}: the same weights every time"):
        dot = chart.step(Node("split", "", shape="dot", left=5.9, right=6.1), last)
        u = chart.step(Node("encoder", "u = ReLU(x · encoder)", matrix, "neuron"), dot, label=f"x: T × {width:,}")
        chart.row(Node("rope", "q = RoPE(u)", "queries and keys are the same", "neuron", 0, 9))
        chart.link(u, "rope", f"{heads:,} × T × {neurons:,} neurons", at=4.5)
        chart.row(
            Node("scores", "A = q · qᵀ", "strictly the past: no softmax, no scale, no diagonal", "attention", 0, 9)
        )
        chart.link("rope", "scores")
        chart.row(
            Node(
                "read", "a = LayerNorm(A · x)", f"the values are x itself: {heads:,} × T × {width:,}", "attention", 0, 9
            )
        )
        chart.link("scores", "read", f"{heads:,} × T × T")
        chart.link(dot, "read", lane="left")
        chart.row(Node("encoder_v", "w = ReLU(a · encoder_v)", matrix, "neuron", 0, 9))
        chart.link("read", "encoder_v")
        chart.row(Node("gate", "u × w", "few neurons are active at once", "neuron"))
        chart.link("encoder_v", "gate", at=4.5)
        chart.link(u, "gate", "u", at=10.5)
        size = heads * neurons
        detail = f"{size:,} × {width:,} · {size * width:,} parameters"
        chart.step(Node("decoder", "decoder", detail, "neuron"), "gate")
        chart.step(Node("ln_mix", "LayerNorm", "", "norm", 3, 9), "decoder")
        add = chart.step(Node("add", "+", shape="sign", left=5.7, right=6.3), "ln_mix")
        chart.link(dot, add, style="residual", lane="left")
        last = chart.step(Node("ln_out", "LayerNorm", "", "norm", 3, 9), add)
        chart.link("read", "scores", f"S: {neurons:,} × {width:,} per head", style="state", lane="right")
    chart.notes += [
        "While generating, each head of each layer keeps its synapses S instead of all past tokens:",
        "it reads a = q · S, and then writes S ← S + qᵀ · x for the next token.",
    ]
    _finish(chart, config, vocabulary_size, last)


def _recurrent(
    chart: Chart, config: ModelConfig, parameters: Parameters, vocabulary_size: int, context_length: int
) -> None:
    width, kind = config.width, config.architecture
    outputs = RECURRENT_GATES[kind] * width
    last = _embed(chart, config, vocabulary_size, context_length)
    per_layer = sum(tensor.count // tensor.times for tensor in parameters.tensors if "N" in tensor.name)
    cells = {
        "rnn": ("h′ = tanh(input + memory)", "one new state from both"),
        "gru": ("gates: reset r, update z, candidate n", "h′ = (1 − z) · n + z · h"),
        "lstm": ("gates: input i, forget f, cell g, output o", "c′ = f · c + i · g, and h′ = o · tanh(c′)"),
    }
    with chart.group(f"layer × {config.layers:,}, {per_layer:,} parameters each: one token after the other"):
        chart.row(
            _linear("weight_ih", "input x · W_ih", width, outputs, config.bias, "recurrent", 0, 5.9),
            _linear("weight_hh", "memory h · W_hh", width, outputs, config.bias, "recurrent", 6.1, 12),
        )
        chart.link(last, "weight_ih", at=2.95)
        chart.row(Node("cell", *cells[kind], "recurrent"))
        chart.link("weight_ih", "cell", f"{outputs:,}")
        chart.link("weight_hh", "cell", f"{outputs:,}")
        last = chart.step(Node("state", "h′", f"hidden state, {width:,} numbers", "recurrent", 3, 9), "cell")
        chart.link("state", "weight_hh", "h for the next token", style="state", lane="right")
        if kind == "lstm":
            chart.link("cell", "cell", "c for the next token", style="state", lane="left")
    _finish(chart, config, vocabulary_size, last)


def _embed(chart: Chart, config: ModelConfig, vocabulary_size: int, context_length: int) -> str:
    width = config.width
    chart.row(Node("ids", "token ids", f"T of them, each below {vocabulary_size:,}", "plain", 2, 10))
    table = Node(
        "token_embeddings",
        "token embeddings",
        f"{vocabulary_size:,} × {width:,} · {vocabulary_size * width:,} parameters",
        "embedding",
    )
    if config.architecture != "transformer" or config.position not in ("learned", "sinusoidal"):
        return chart.step(table, "ids")
    places = f"{context_length:,} × {width:,} · "
    places += f"{context_length * width:,}" if config.position == "learned" else "fixed sines, 0"
    chart.row(
        Node(
            table.key,
            table.title,
            f"{vocabulary_size:,} × {width:,} · {vocabulary_size * width:,}",
            "embedding",
            0,
            5.9,
        ),
        Node("position_embeddings", "position embeddings", places, "embedding", 6.1, 12),
    )
    chart.link("ids", table.key, at=2.95)
    chart.link("ids", "position_embeddings", at=9.05)
    chart.row(Node("add_positions", "+", shape="sign", left=5.7, right=6.3))
    chart.link(table.key, "add_positions", at=2.95)
    chart.link("position_embeddings", "add_positions", at=9.05)
    return "add_positions"


def _finish(chart: Chart, config: ModelConfig, vocabulary_size: int, last: str) -> None:
    width = config.width
    tied = config.tied and config.architecture != "bdh"
    cost = "the embedding matrix again (tied)" if tied else f"{vocabulary_size * width:,} parameters"
    head = Node("lm_head", "head", f"{width:,} → {vocabulary_size:,} · {cost}", "head")
    chart.step(head, last, label=f"T × {width:,}")
    chart.step(Node("logits", "logits", "softmax of a row: the next token", "plain", 2, 10), "lm_head",
               label=f"T × {vocabulary_size:,}")  # fmt: skip
    if config.dropout:
        chart.notes.append(f"While training, {config.dropout:.0%} of the activations are dropped.")


def _norm(key: str, config: ModelConfig, prefix: str = "") -> Node:
    count = config.width * (2 if config.norm == "layer" and config.bias else 1)
    return Node(key, f"{prefix}{NORMS[config.norm]}", f"{count:,} parameters", "norm")


def _linear(
    key: str, title: str, inputs: int, outputs: int, bias: bool, kind: str, left: float = 0, right: float = 12
) -> Node:
    count = inputs * outputs + (outputs if bias else 0)
    detail = f"{inputs:,} → {outputs:,} · {count:,}" + (" parameters" if right - left > 5 else "")
    return Node(key, title, detail, kind, left, right)


_CHARTS: dict[str, Callable[[Chart, ModelConfig, Parameters, int, int], None]] = {
    "transformer": _transformer,
    "bdh": _bdh,
    "rnn": _recurrent,
    "gru": _recurrent,
    "lstm": _recurrent,
}
