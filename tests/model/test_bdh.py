"""BDH against a direct transcription of its equations."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import layer_norm

from fledge.model.bdh_layer import kept

from .cases import CONTEXT, ids, packed, small


def transcription(model, inputs, same=None):
    """The published equations, a head and a layer at a time, for one batch."""
    settings, weights = model.config, dict(model.named_parameters())
    width, heads = settings.width, settings.heads
    neurons = settings.multiplier * width // heads
    length = inputs.shape[1]

    def norm(x):
        return layer_norm(x, (width,), eps=1e-5)

    index = torch.arange(neurons, dtype=torch.float32)
    frequencies = 65536.0 ** (-2 * torch.floor(index / 2) / neurons) / (2 * math.pi)
    angles = 2 * math.pi * ((torch.arange(length, dtype=torch.float32)[:, None] * frequencies) % 1)

    def rope(v):
        turned = torch.stack((-v[..., 1::2], v[..., ::2]), dim=-1).flatten(-2)
        return v * angles.cos() + turned * angles.sin()

    x = norm(weights["token_embeddings.weight"][inputs])
    decoder = weights["decoder"].view(heads, neurons, width)
    for _ in range(settings.layers):
        added = 0
        for head in range(heads):
            u = torch.relu(x @ weights["encoder"][head])
            q = rope(u)
            scores = torch.tril(q @ q.transpose(1, 2), diagonal=-1)
            if same is not None:
                scores = scores * same
            w = torch.relu(norm(scores @ x) @ weights["encoder_v"][head])
            added = added + (u * w) @ decoder[head]
        x = norm(x + norm(added))
    return x @ weights["lm_head.weight"][: model.vocabulary_size].T


@pytest.mark.parametrize("shape", [{"heads": 4}, {"heads": 1, "layers": 3}, {"heads": 2, "multiplier": 3, "width": 24}])
def test_logits_and_gradients_equal_the_equations(shape):
    model, inputs = small("bdh", **shape).double(), ids(2, CONTEXT)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    names, parameters = zip(*model.named_parameters(), strict=True)
    seed = torch.randn(2, CONTEXT, 61, dtype=torch.double)
    wanted = transcription(model, inputs)
    wanted_grads = torch.autograd.grad((wanted * seed).sum(), parameters)
    for keep in (False, True):
        model.keep_neurons = keep
        found = model(inputs)
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-6)
        grads = torch.autograd.grad((found * seed).sum(), parameters)
        for name, grad, wanted_grad in zip(names, grads, wanted_grads, strict=True):
            torch.testing.assert_close(grad, wanted_grad, atol=1e-6, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_documents_multiply_the_scores():
    model, batch = small("bdh"), packed([[7, 1, 16], [24]], CONTEXT)
    same = batch.documents_BT[:, :, None] == batch.documents_BT[:, None, :]
    found = model(batch.inputs_BT, model.plan(batch))
    torch.testing.assert_close(found, transcription(model, batch.inputs_BT, same), atol=1e-5, rtol=1e-5)


def test_the_first_token_attends_to_nothing():
    model = small("bdh")
    alone, followed = model(ids(1, 1)), model(ids(1, 6))
    torch.testing.assert_close(followed[:, 0], alone[:, 0], atol=1e-6, rtol=1e-5)


def test_dropout_is_the_same_in_both_directions():
    """The gradient by hand equals a finite difference through the same seed."""
    model, inputs = small("bdh", dropout=0.3).double().train(), ids(1, 6)
    direction = torch.randn_like(model.decoder)

    def loss():
        torch.manual_seed(5)
        return model(inputs).square().sum()

    (grad,) = torch.autograd.grad(loss(), [model.decoder])
    with torch.no_grad():
        step = 1e-6
        model.decoder.add_(direction, alpha=step)
        above = loss()
        model.decoder.add_(direction, alpha=-2 * step)
        slope = (above - loss()) / (2 * step)
    torch.testing.assert_close((grad * direction).sum(), slope, rtol=1e-5, atol=1e-7)


def test_dropout_keeps_its_share_evenly():
    like = torch.empty(4, 64, 256)
    factor = kept(like, torch.tensor(123), 0.25)
    assert float(factor.mean()) == pytest.approx(1.0, abs=0.02)
    assert float((factor == 0).float().mean()) == pytest.approx(0.25, abs=0.01)
    for dimension in (0, 1, 2):
        rest = [d for d in range(3) if d != dimension]
        assert (factor.mean(dim=rest) - 1).abs().max() < 0.17
    other = kept(like, torch.tensor(124), 0.25)
    agreement = ((factor == 0) & (other == 0)).float().mean()
    assert float(agreement) == pytest.approx(0.25**2, abs=0.01)


def test_bf16_stays_near():
    model, inputs = small("bdh"), ids(2, CONTEXT)
    wanted = model(inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden, _ = model.hidden(inputs)
        assert hidden.dtype == torch.bfloat16
    narrow = model.head(hidden.float())
    assert (narrow - wanted).norm() / wanted.norm() < 0.03
    narrow.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_no_neurons_are_kept_unless_asked():
    """Between the passes nothing of tokens × neurons is kept; with keep_neurons, two such tensors a layer are."""
    model, inputs = small("bdh"), ids(2, CONTEXT)
    for keep in (False, True):
        model.keep_neurons, saved = keep, []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, saved=saved: saved.append(t.shape) or t, lambda t: t):
            model(inputs)
        of_neurons = [shape for shape in saved if CONTEXT in shape and model.neurons in shape]
        assert len(of_neurons) == (2 * model.config.layers if keep else 0)


@pytest.mark.parametrize("steps", [1, 5])
def test_synapses_are_written_in_place_unless_a_gradient_is_wanted(steps):
    model, inputs = small("bdh"), ids(2, 10)
    with torch.no_grad():
        _, state = model.hidden(inputs[:, :3], state=model.init_state(2))
        kept = state.clone()
        before = dict(kept.tensors)
        hidden, after = model.hidden(inputs[:, 3 : 3 + steps], state=state)
    free, recorded = model.hidden(inputs[:, 3 : 3 + steps], state=kept)
    torch.testing.assert_close(free, hidden, atol=1e-6, rtol=1e-5)
    for name, synapses in recorded.tensors.items():
        assert after.tensors[name].data_ptr() == state.tensors[name].data_ptr()
        assert synapses is not before[name]
        torch.testing.assert_close(synapses, after.tensors[name], atol=1e-6, rtol=1e-5)
    free.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


def test_a_state_keeps_its_precision_under_autocast():
    model = small("bdh")
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        _, state = model.hidden(ids(2, 5), state=model.init_state(2))
        _, state = model.hidden(ids(2, 1), state=state)
    assert all(tensor.dtype == torch.float32 for tensor in state.tensors.values())
