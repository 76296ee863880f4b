"""Recurrent networks: the hidden state is the caller's, carried or reset."""

from __future__ import annotations

import pytest
import torch

from .cases import CONTEXT, Batch, ids, packed, small

CELLS = ["rnn", "gru", "lstm"]


@pytest.mark.parametrize("name", CELLS)
def test_state_carried_across_windows_equals_one_long_window(name):
    model, inputs = small(name, context_length=48), ids(3, 48)
    state, found = model.init_state(3), []
    for window in inputs.split(12, dim=1):
        hidden, state = model.hidden(window, state=state)
        found.append(hidden)
        state = state.detach()
    torch.testing.assert_close(torch.cat(found, 1), model.hidden(inputs)[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", CELLS)
def test_a_carried_state_is_reset_where_a_document_begins(name):
    """A lane cut into windows, documents across the cuts: equal to the documents on their own."""
    model = small(name, context_length=48)
    whole = packed([[20, 28], [5, 43]], 48)
    wanted = model.hidden(whole.inputs_BT, model.plan(whole))[0]
    state, found = model.init_state(2), []
    for start in range(0, 48, 12):
        part = Batch(*(None if field is None else field[:, start : start + 12] for field in whole))
        hidden, state = model.hidden(part.inputs_BT, model.plan(part), state)
        found.append(hidden)
    torch.testing.assert_close(torch.cat(found, 1), wanted, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", CELLS)
def test_gradients_flow_through_a_state_until_it_is_detached(name):
    model, inputs = small(name), ids(1, 8)
    _, state = model.hidden(inputs, state=model.init_state(1))
    assert all(tensor.requires_grad for tensor in state.tensors.values())
    assert not any(tensor.requires_grad for tensor in state.detach().tensors.values())
    hidden, _ = model.hidden(inputs, state=state)
    hidden.sum().backward()


@pytest.mark.parametrize("name", CELLS)
def test_cells_equal_their_equations(name):
    model, inputs = small(name, layers=1, tied=False).double(), ids(2, CONTEXT)
    p = {key.removesuffix("_l0"): value for key, value in model.recurrent.named_parameters()}
    bias_in, bias_hidden = p.get("bias_ih", 0), p.get("bias_hh", 0)
    x = model.token_embeddings(inputs)
    h = c = torch.zeros(2, 32, dtype=torch.double)
    for t in range(CONTEXT):
        into, over = x[:, t] @ p["weight_ih"].T + bias_in, h @ p["weight_hh"].T + bias_hidden
        if name == "rnn":
            h = torch.tanh(into + over)
        elif name == "gru":
            (ri, zi, ni), (rh, zh, nh) = into.chunk(3, -1), over.chunk(3, -1)
            z = torch.sigmoid(zi + zh)
            h = (1 - z) * torch.tanh(ni + torch.sigmoid(ri + rh) * nh) + z * h
        else:
            i, f, g, o = (into + over).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        torch.testing.assert_close(model.hidden(inputs)[0][:, t], h, atol=1e-10, rtol=1e-10)


def test_an_lstm_begins_by_remembering():
    from fledge.config import ModelConfig
    from fledge.model import build_model

    model = build_model(ModelConfig(architecture="lstm", layers=2, width=8, bias=True), 10, 8)
    assert model.recurrent.bias_ih_l1[8:16].tolist() == [1.0] * 8
    assert model.recurrent.bias_hh_l1.abs().max() == 0


def test_carrying_a_state_compiles_once():
    """Nothing in the state that changes from window to window is compiled in."""
    model, batch = small("lstm").train(), packed([[7, 17], [24]], CONTEXT)
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model.hidden, backend=count, dynamic=False)
    state = model.init_state(2)
    after = []
    for _ in range(6):
        _, state = compiled(batch.inputs_BT, model.plan(batch), state)
        state = state.detach()
        after.append(len(graphs))
    assert after[-1] == after[1]
    assert state.lengths.tolist() == [6 * CONTEXT] * 2


@pytest.mark.parametrize("name", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("carried", [True, False])
def test_layer_by_layer_is_the_same(name, carried):
    """The way that dropout between layers takes on a GPU."""
    model = small(name).train()
    x_BTD = torch.randn(3, 7, model.config.width)
    state = tuple(torch.randn(model.config.layers, 3, model.config.width) for _ in model.parts) if carried else None
    wanted, wanted_final = model._run(x_BTD, state)
    found, final = model._run_layers(x_BTD, state)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(final, wanted_final)
    model.dropout.share = 0.9
    dropped, _ = model._run_layers(x_BTD, state)
    assert not torch.allclose(dropped, wanted)
