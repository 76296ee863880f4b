"""The fused loss against the plain one, and the plain one against torch and the formulas."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from fledge import loss as loss_module
from fledge.config import ModelConfig
from fledge.loss import cross_entropy, head_loss
from fledge.model import Model, build_model

OPTIONS = [(0.0, 0.0), (0.1, 0.0), (0.0, 1e-2), (0.3, 1e-3)]


def parts(vocabulary_size: int = 101, tokens: tuple[int, int] = (3, 50), tied: bool = False):
    torch.manual_seed(0)
    model = build_model(ModelConfig(layers=1, width=16, tied=tied), vocabulary_size, 64).double()
    hidden = torch.randn(*tokens, 16, dtype=torch.double, requires_grad=True)
    targets = torch.randint(vocabulary_size, tokens)
    targets[0, :7] = -100
    targets[2, -1] = -100
    return model, hidden, targets


@pytest.mark.parametrize(("smoothing", "z_loss"), OPTIONS)
@pytest.mark.parametrize("vocabulary_size", [101, 2500])
def test_fused_equals_plain(smoothing, z_loss, vocabulary_size, monkeypatch):
    """Loss, count and both gradients, with chunks that do not divide the tokens."""
    model, hidden, targets = parts(vocabulary_size)
    monkeypatch.setattr(loss_module, "_way", lambda _: (loss_module._chunk, 128 * vocabulary_size))
    weight = model.lm_head.weight
    found, count = head_loss(model, hidden, targets, smoothing, z_loss)
    wanted, plain_count = cross_entropy(model.head(hidden), targets, smoothing, z_loss)
    assert int(count) == int(plain_count) == 3 * 50 - 8
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)
    for grad, plain in zip(
        torch.autograd.grad(found * 0.37, (hidden, weight)),
        torch.autograd.grad(wanted * 0.37, (hidden, weight)),
        strict=True,
    ):
        torch.testing.assert_close(grad, plain, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("smoothing", "z_loss"), OPTIONS)
def test_plain_equals_the_formula(smoothing, z_loss):
    model, hidden, targets = parts()
    logits = model.head(hidden).flatten(0, 1).detach()
    total = 0.0
    for row, target in zip(logits, targets.flatten(), strict=True):
        if target != -100:
            normaliser = torch.logsumexp(row, 0)
            likely = (1 - smoothing) * row[target] + smoothing * row.mean()
            total += float(normaliser - likely + z_loss * normaliser**2)
    assert float(cross_entropy(logits, targets, smoothing, z_loss)[0]) == pytest.approx(total, rel=1e-10)


@pytest.mark.parametrize(("smoothing", "z_loss"), OPTIONS)
@pytest.mark.parametrize(("columns", "rows"), [(61, 20), (16, 1), (2, 70), (4096, 300)])
def test_the_native_way_agrees_with_the_formulas(smoothing, z_loss, columns, rows):
    """In both types of number, in place, with as many threads as there are."""
    torch.manual_seed(0)
    exact = torch.randn(rows, columns, dtype=torch.double) * 3
    targets = torch.randint(columns, (rows,))
    targets[rows // 2] = -100
    for dtype, close in ((torch.float32, 1e-6), (torch.bfloat16, 4e-3)):
        logits = exact.to(dtype)
        wanted, slope = loss_module._chunk(logits.double(), targets, columns, smoothing, z_loss, True)
        alone, same = loss_module._chunk_on_cpu(logits, targets, columns, smoothing, z_loss, False)
        assert torch.equal(same, exact.to(dtype))
        found, other = loss_module._chunk_on_cpu(logits, targets, columns, smoothing, z_loss, True)
        assert found == alone
        torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(other.double(), slope, rtol=close, atol=1e-6)
        assert other[rows // 2].abs().max() == 0


def test_the_native_way_tells_what_is_no_number_from_what_is_large():
    targets = torch.tensor([1])
    for bad in (math.nan, math.inf):
        loss, _ = loss_module._chunk_on_cpu(torch.tensor([[0.0, bad, 0.0]]), targets, 3, 0.0, 0.0, True)
        assert not torch.isfinite(loss)
    loss, slope = loss_module._chunk_on_cpu(torch.tensor([[1e4, -3e4, -math.inf]]), targets, 3, 0.0, 0.0, True)
    assert float(loss) == pytest.approx(4e4)
    assert slope.tolist() == [[1.0, -1.0, pytest.approx(0.0, abs=1e-30)]]
    for strange in (3, -1, -101):
        with pytest.raises(IndexError, match="not an id"):
            loss_module._chunk_on_cpu(torch.zeros(1, 3), torch.tensor([strange]), 3, 0.0, 0.0, True)


def test_gradcheck():
    model, hidden, targets = parts(tokens=(3, 8))
    weight = model.lm_head.weight

    def loss(hidden, weight):
        return loss_module._head_cross_entropy(hidden, weight, targets.flatten(), 101, 0.1, 1e-2, True)[0]

    assert torch.autograd.gradcheck(loss, (hidden.flatten(0, 1), weight), fast_mode=True)


def test_a_tied_matrix_gets_both_gradients():
    model, _, targets = parts(tied=True)
    inputs = torch.randint(101, targets.shape)
    grads = []
    for fused in (True, False):
        hidden, _ = model.hidden(inputs)
        total = head_loss(model, hidden, targets) if fused else cross_entropy(model.head(hidden), targets)
        grads.append(torch.autograd.grad(total[0], model.token_embeddings.weight)[0])
    torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-11)


def test_everything_masked_costs_nothing():
    model, hidden, targets = parts()
    total, count = head_loss(model, hidden, torch.full_like(targets, -100))
    assert (float(total), int(count)) == (0.0, 0)
    (grad,) = torch.autograd.grad(total, hidden)
    assert grad.abs().max() == 0


def test_no_gradients_are_made_for_evaluation():
    model, hidden, targets = parts()
    with torch.no_grad():
        total, _ = head_loss(model, hidden, targets)
    assert not total.requires_grad
    torch.testing.assert_close(total, cross_entropy(model.head(hidden), targets)[0].detach())


def test_uniform_logits_cost_the_logarithm_of_the_vocabulary():
    total, count = cross_entropy(torch.zeros(2, 3, 50), torch.zeros(2, 3, dtype=torch.long))
    assert float(total / count) == pytest.approx(math.log(50), rel=1e-6)


def test_bf16_on_the_cpu_stays_near():
    model, hidden, targets = parts()
    model, narrow = model.float(), hidden.detach().bfloat16().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total, _ = head_loss(model, narrow, targets)
    wanted, _ = cross_entropy(model.head(narrow.float()), targets)
    assert total.dtype == torch.float32
    assert float(total.detach()) == pytest.approx(float(wanted.detach()), rel=1e-2)
    total.backward()
    assert narrow.grad.dtype == torch.bfloat16


def test_the_logits_of_the_batch_never_exist():
    """The largest tensor made on the way is one chunk, far below all logits."""
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            out = function(*arguments, **(options or {}))
            sizes.extend(t.numel() for t in (out if isinstance(out, tuple) else (out,)) if isinstance(t, torch.Tensor))
            return out

    hidden, weight = torch.randn(4096, 8), torch.randn(4096, 8)
    targets = torch.randint(4096, (4096,))
    with Watch():
        loss_module._head_cross_entropy._init_fn(hidden, weight, targets, 4096, 0.0, 0.0, True)
    assert max(sizes) <= 1 << 21 < 4096 * 4096


def test_a_head_of_its_own_is_respected():
    class Shifted(Model):
        def head(self, hidden_BTD):
            return super().head(hidden_BTD) + 1.0 * torch.arange(self.vocabulary_size)

    model, hidden, targets = parts()
    model.__class__ = type("Shifted", (Shifted, type(model)), {})
    wanted = functional.cross_entropy(
        model.head(hidden).flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum"
    )
    torch.testing.assert_close(head_loss(model, hidden, targets)[0], wanted)


def test_it_compiles_to_one_graph():
    model, hidden, targets = parts()
    compiled = torch.compile(lambda h: head_loss(model, h, targets), backend="aot_eager", fullgraph=True)
    found, wanted = compiled(hidden), head_loss(model, hidden, targets)
    torch.testing.assert_close(found[0], wanted[0])
    torch.testing.assert_close(
        torch.autograd.grad(found[0], hidden)[0], torch.autograd.grad(wanted[0], hidden)[0], rtol=1e-9, atol=1e-12
    )


def test_no_tokens_cost_nothing():
    model, hidden, targets = parts()
    loss, count = head_loss(model, hidden[:0], targets[:0])
    assert float(loss) == int(count) == 0
    loss.backward()
