"""What is shown of a model's inside is what hooks on the model find, for every architecture and ablation."""

from __future__ import annotations

from threading import Thread, current_thread, main_thread

import pytest
import torch
from torch.nn import functional

from fledge.config import ModelConfig
from fledge.errors import FledgeError
from fledge.model import Model, build_model
from fledge.model.inside import Inside, Text, look_inside, speak, speak_at

TRANSFORMERS: list[dict[str, object]] = [
    {},
    {"position": "learned", "norm": "layer", "bias": True, "feed_forward": "gelu_tanh", "tied": True},
    {"kv_heads": 2, "head_size": 12, "qk_norm": True, "norm_place": "post"},
    {"position": "sinusoidal", "norm": "none", "dropout": 0.5},
]
OTHERS: list[dict[str, object]] = [
    {"architecture": "bdh", "multiplier": 4},
    *({"architecture": name, "bias": bias} for name in ("rnn", "gru", "lstm") for bias in (True, False)),
]
ONE, SEVERAL = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3]], [[3, 1, 4, 1], [5, 9, 2], [6, 5, 3]]


def make(shape: dict[str, object]) -> Model:
    torch.manual_seed(0)
    model = build_model(ModelConfig(**{"layers": 3, "width": 32, "heads": 4, **shape}), 50, 16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


def look(model: Model, documents: list[list[int]]) -> tuple[Text, Inside]:
    text = Text.of(documents, torch.device("cpu"))
    return text, look_inside(model, text)


@pytest.mark.parametrize("documents", [ONE, SEVERAL], ids=["one", "several"])
@pytest.mark.parametrize(
    "shape", [*TRANSFORMERS, *OTHERS], ids=lambda shape: "-".join(map(str, shape.values())) or "plain"
)
@torch.inference_mode()
def test_the_last_layer_says_what_the_model_says_and_each_document_stands_alone(
    shape: dict[str, object], documents: list[list[int]]
) -> None:
    model = make(shape)
    text, inside = look(model, documents)
    assert len(inside.hidden) == 4
    wanted = model(text.inputs_BT, model.plan(text))[0]
    torch.testing.assert_close(model.head(inside.hidden[-1]), wanted, rtol=1e-4, atol=1e-5)
    spoken = speak(model, inside.hidden[-1], text, 50)
    for place in range(len(ONE[0])):
        each = [speak(model, hidden, text, 50) for hidden in inside.hidden]
        for name, found in speak_at(model, inside, text, 50, place)._asdict().items():
            alone = torch.stack([getattr(layer, name)[place] for layer in each])
            torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-5, equal_nan=True)
    start = 0
    for ids in documents:
        alone = model(torch.tensor([ids]))[0].log_softmax(-1)
        for place, token in enumerate(ids):
            here = start + place
            assert spoken.ids_TK[here, 0] == alone[place].argmax()
            if place + 1 < len(ids):
                assert float(spoken.next_logprob_T[here]) == pytest.approx(
                    float(alone[place, ids[place + 1]]), abs=1e-4
                )
            else:
                assert spoken.next_logprob_T[here].isnan()
            assert token == text.inputs_BT[0, here]
        start += len(ids)


@pytest.mark.parametrize("documents", [ONE, SEVERAL], ids=["one", "several"])
@pytest.mark.parametrize("shape", TRANSFORMERS, ids=lambda shape: "-".join(map(str, shape.values())) or "plain")
@torch.inference_mode()
def test_attention_is_what_the_layer_mixes_its_values_by(shape: dict[str, object], documents: list[list[int]]) -> None:
    """The weights times the values, through the layer's own projection, are what a hook finds behind the layer."""
    model = make(shape)
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    for block in model.layers:
        block.attn.register_forward_hook(lambda layer, given, out: found.append((layer.qkv(given[0])[0], out[0])))
    _, inside = look(model, documents)
    assert len(inside.attention) == len(found) == 3
    for block, heads, (fused_TC, out_TD) in zip(model.layers, inside.attention, found, strict=True):
        layer = block.attn
        values = fused_TC.view(len(fused_TC), -1, layer.head_size)[:, layer.heads + layer.kv_heads :]
        mixed = [heads(h) @ values[:, h // (layer.heads // layer.kv_heads)] for h in range(layer.heads)]
        torch.testing.assert_close(layer.output_proj(torch.cat(mixed, dim=-1)), out_TD, rtol=1e-4, atol=1e-5)
        weights = heads(0)
        torch.testing.assert_close(weights.sum(-1), torch.ones(len(weights)))
        assert not weights.triu(1).any()
        torch.testing.assert_close(heads(0, slice(4, 5)), weights[4:5])
        start = 0
        for ids in documents:
            assert not weights[start : start + len(ids), :start].any()
            start += len(ids)


@torch.inference_mode()
def test_bdh_scores_and_neurons_follow_from_its_equation() -> None:
    model = make({"architecture": "bdh", "multiplier": 4})
    _, inside = look(model, ONE)
    x = inside.hidden[1]
    for head in range(4):
        u = functional.relu(x @ model.encoder[head])
        angles = model.frequencies * torch.arange(len(x))[:, None] * 2 * torch.pi
        even, odd = u.view(len(x), -1, 2).unbind(-1)
        q = torch.stack(
            (even * angles.cos() - odd * angles.sin(), odd * angles.cos() + even * angles.sin()), -1
        ).flatten(1)
        scores = torch.tril(q @ q.T, diagonal=-1)
        torch.testing.assert_close(inside.attention[1](head), scores, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(inside.attention[1](head, slice(4, 5)), scores[4:5], rtol=1e-4, atol=1e-5)
        read = functional.layer_norm(scores @ x, x.shape[-1:])
        gated = u * functional.relu(read @ model.encoder_v[head])
        layer = inside.neurons[1]
        for place in range(len(x)):
            torch.testing.assert_close(gated[place, layer.strongest_hTK[head, place]], layer.strength_hTK[head, place])
            assert layer.strength_hTK[head, place, 0] == pytest.approx(float(gated[place].max()), rel=1e-4, abs=1e-6)
        growth = (u.T @ x).norm(dim=1)
        torch.testing.assert_close(growth[layer.grown_hK[head]], layer.growth_hK[head], rtol=1e-4, atol=1e-5)
    every = torch.stack([(x @ model.encoder[head] > 0).float().mean(1) for head in range(4)]).mean(0)
    torch.testing.assert_close(inside.neurons[1].share_T, every)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@torch.inference_mode()
def test_gates_make_the_states(kind: str) -> None:
    """The next state follows from the gates alone and what they let through."""
    model = make({"architecture": kind, "bias": True})
    _, inside = look(model, ONE)
    x = inside.hidden[0]
    for gates, weights in zip(inside.gates, model.recurrent.all_weights, strict=True):
        hidden, width = gates["hidden"], model.config.width
        before = functional.pad(hidden[:-1], (0, 0, 1, 0))
        fresh = functional.linear(x, weights[0], weights[2])
        carried = functional.linear(before, weights[1], weights[3])
        if kind == "gru":
            new = torch.tanh(fresh[:, 2 * width :] + gates["reset"] * carried[:, 2 * width :])
            wanted = (1 - gates["update"]) * new + gates["update"] * before
        else:
            new = torch.tanh((fresh + carried)[:, 2 * width : 3 * width])
            cell = gates["forget"] * functional.pad(gates["cell"][:-1], (0, 0, 1, 0)) + gates["input"] * new
            torch.testing.assert_close(gates["cell"], cell, rtol=1e-4, atol=1e-5)
            wanted = gates["output"] * torch.tanh(cell)
        torch.testing.assert_close(hidden, wanted, rtol=1e-4, atol=1e-5)
        x = hidden


@torch.inference_mode()
def test_what_another_thread_reads_with_the_model_is_not_seen() -> None:
    """The page looks inside a model while it generates with it."""
    model = make({})
    _, alone = look(model, ONE)

    def elsewhere(*_: object) -> None:
        if current_thread() is main_thread():
            other = Thread(target=lambda: model(torch.tensor([[7, 7, 7]])))
            other.start()
            other.join()

    model.layers[1].register_forward_pre_hook(elsewhere)
    _, seen = look(model, ONE)
    torch.testing.assert_close(seen.hidden, alone.hidden)
    for found, wanted in zip(seen.attention, alone.attention, strict=True):
        torch.testing.assert_close(found(1), wanted(1))


def test_too_long_a_text_and_a_strange_model_are_refused() -> None:
    model = make({})
    with pytest.raises(FledgeError, match="17 tokens, and this model sees 16"):
        look(model, [[1] * 17])
    with pytest.raises(FledgeError, match="50"):
        look(model, [[50]])

    class Strange(type(model)):  # type: ignore[misc]
        pass

    model.__class__ = Strange
    with pytest.raises(FledgeError, match="The view Inside does not support"):
        look(model, ONE)
