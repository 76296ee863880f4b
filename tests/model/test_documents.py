"""Documents in one row do not see each other, and nothing sees the future."""

from __future__ import annotations

import pytest
import torch

from fledge.errors import FledgeError
from fledge.model.attention import document_blocks, document_mask
from fledge.model.recurrent import cut_pieces

from .cases import ARCHITECTURE_CASES, CASES, CONTEXT, Batch, ids, packed, small

ROWS = [[7, 1, 16], [24], [3, 4, 5, 6], [1, 1, 20]]


@pytest.mark.parametrize("name", CASES)
def test_packing_changes_nothing_for_any_document(name):
    """Every document's logits in a packed, padded row equal those of the document alone."""
    model, batch = small(name), packed(ROWS, CONTEXT)
    with torch.no_grad():
        logits = model(batch.inputs_BT, model.plan(batch))
        for row, sizes in enumerate(ROWS):
            start = 0
            for size in sizes:
                here = slice(start, start + size)
                alone = model(batch.inputs_BT[row : row + 1, here])[0]
                torch.testing.assert_close(logits[row, here], alone, atol=1e-5, rtol=1e-5)
                start += size
    assert logits.isfinite().all()  # the padding's too


@pytest.mark.parametrize("name", CASES)
def test_a_later_token_changes_nothing_before_it(name):
    model, inputs = small(name), ids(2, CONTEXT)
    for place in (1, 11, CONTEXT - 1):
        changed = inputs.clone()
        changed[:, place] = (changed[:, place] + 1) % 61
        with torch.no_grad():
            before, after = model(inputs), model(changed)
        assert torch.equal(before[:, :place], after[:, :place]) or torch.allclose(
            before[:, :place], after[:, :place], atol=1e-6
        )
        assert not torch.allclose(before[:, place], after[:, place], atol=1e-4)


@pytest.mark.parametrize("name", ARCHITECTURE_CASES)
def test_no_gradient_crosses_a_boundary(name):
    model, batch = small(name), packed([[10, 14]], CONTEXT)
    embedded = []
    model.token_embeddings.register_forward_hook(lambda _, __, out: embedded.append(out.requires_grad_()) or None)
    model(batch.inputs_BT, model.plan(batch))[0, 10:].square().sum().backward(inputs=embedded)
    assert embedded[0].grad[0, :10].abs().max() == 0
    assert embedded[0].grad[0, 10].abs().max() > 0


@pytest.mark.parametrize("name", ARCHITECTURE_CASES)
def test_one_document_a_row_is_the_plain_pass(name):
    model, inputs = small(name), ids(2, CONTEXT)
    documents = torch.zeros(2, CONTEXT, dtype=torch.long)
    plan = model.plan(Batch(inputs, None, None, documents))
    with torch.no_grad():
        torch.testing.assert_close(model(inputs, plan), model(inputs), atol=1e-5, rtol=1e-5)
    assert model.plan(Batch(inputs)) is None


def test_padding_attends_to_itself():
    mask = document_mask(packed([[3, 2]], 8).documents_BT)
    assert mask.any(-1).all()
    assert mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0, 0],
        [0, 0, 0, 1, 0, 0, 0, 0],
        [0, 0, 0, 1, 1, 0, 0, 0],
        [0, 0, 0, 0, 0, 1, 0, 0],
        [0, 0, 0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 1, 1, 1],
    ]


def test_block_masks_are_the_dense_mask():
    """The blocks kept for FlexAttention, widened again, are exactly those with something in them."""
    generator = torch.Generator().manual_seed(0)
    for length in (512, 640, 500):
        starts = torch.rand(6, length, generator=generator) < torch.tensor([0, 0.001, 0.004, 0.02, 0.1, 1.0])[:, None]
        documents = starts.long().cumsum(1)
        documents[1, 300:] = -1
        documents[0] = -1
        documents[0, 150:180] = 0  # a short document in the middle of its padding
        blocks, dense = document_blocks(documents), document_mask(documents)[:, 0]
        count = -(-length // 128)
        padded = torch.zeros(6, count * 128, count * 128, dtype=torch.bool)
        padded[:, :length, :length] = dense
        tiles = padded.view(6, count, 128, count, 128)
        some, every = tiles.any(4).any(2), tiles.all(4).all(2)
        for row in range(6):
            for query in range(count):
                partial = blocks.kv_indices[row, 0, query, : blocks.kv_num_blocks[row, 0, query]].tolist()
                full = blocks.full_kv_indices[row, 0, query, : blocks.full_kv_num_blocks[row, 0, query]].tolist()
                assert sorted(partial + full) == some[row, query].nonzero()[:, 0].tolist()
                assert set(full) <= set(every[row, query].nonzero()[:, 0].tolist())


def test_flex_attention_equals_the_dense_mask():
    """On the CPU FlexAttention runs forward only, which is enough to judge the block mask."""
    from torch.nn.attention.flex_attention import flex_attention
    from torch.nn.functional import scaled_dot_product_attention

    torch.manual_seed(0)
    rows = [[0] * 40 + [1] * 150 + [2] * 66, [0] * 200 + [-1] * 56, [-1] * 150 + [0] * 30 + [-1] * 76]
    documents = torch.tensor(rows)
    q, k, v = (torch.randn(3, 2, 256, 16) for _ in range(3))
    found = flex_attention(q, k, v, block_mask=document_blocks(documents))
    wanted = scaled_dot_product_attention(q, k, v, attn_mask=document_mask(documents))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_pieces_cover_the_batch_without_padding():
    batch = packed(ROWS, CONTEXT)
    pieces = cut_pieces(batch.documents_BT, batch.positions_BT, torch.device("cpu"))
    assert sorted(pieces.order.tolist()) == list(range(4 * CONTEXT))
    assert torch.equal(pieces.order[pieces.inverse], torch.arange(4 * CONTEXT))
    assert int(pieces.sizes.sum()) == 4 * CONTEXT
    assert pieces.counts.tolist() == [24, 24, 18, 22]


def test_positions_that_do_not_fit_are_refused():
    model = small("gpt2")
    batch = Batch(ids(1, 4), None, torch.tensor([[22, 23, 24, 25]]), None)
    with pytest.raises(FledgeError, match="position 25 does not fit"):
        model.plan(batch)
    with pytest.raises(FledgeError, match="position -1 does not fit"):
        model.plan(batch._replace(positions_BT=torch.tensor([[0, 1, 2, -1]])))


def test_rotary_positions_may_start_anywhere():
    """Only differences of positions count, also past the context length."""
    model, inputs = small("transformer"), ids(1, 8)
    far = model.plan(Batch(inputs, None, torch.arange(100, 108)[None], None))
    with torch.no_grad():
        torch.testing.assert_close(model(inputs, far), model(inputs), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ARCHITECTURE_CASES)
def test_a_document_in_two_pieces_is_refused(name):
    model, inputs = small(name), ids(2, CONTEXT)
    documents = torch.zeros_like(inputs)
    documents[1, 4:8] = 1
    with pytest.raises(FledgeError, match="A document of row 1 lies in several pieces"):
        model.plan(Batch(inputs, inputs, None, documents))
    documents[1, 8:] = 2
    documents[0, :3], documents[0, -3:] = -1, -1  # padding may lie anywhere
    model(inputs, model.plan(Batch(inputs, inputs, None, documents)))


@pytest.mark.parametrize("name", ["transformer", "gpt2", "sinusoidal positions"])
def test_documents_without_positions_count_from_their_own_beginning(name):
    model, inputs = small(name), ids(1, CONTEXT)
    documents = (torch.arange(CONTEXT) >= 6).long()[None]
    packed_logits = model(inputs, model.plan(Batch(inputs, inputs, None, documents)))
    torch.testing.assert_close(packed_logits[:, 6:], model(inputs[:, 6:]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ARCHITECTURE_CASES)
def test_a_plan_of_another_model_or_batch_is_refused(name):
    model, inputs = small(name), ids(2, CONTEXT)
    batch = Batch(inputs, inputs, None, torch.zeros_like(inputs))
    other = small("lstm" if name != "lstm" else "transformer")
    with pytest.raises(FledgeError, match="The plan is of another model"):
        model(inputs, other.plan(batch))
    with pytest.raises(FledgeError, match="The plan is of a batch of shape"):
        model(inputs[:1], model.plan(batch))
    with pytest.raises(FledgeError, match="documents of shape .* do not fit inputs of shape"):
        model.plan(batch._replace(documents_BT=batch.documents_BT[:, 1:]))


@pytest.mark.parametrize("change", [{"rope_theta": 100.0}, {"position": "learned"}, {"context_length": 2 * CONTEXT}])
def test_a_plan_of_other_positions_is_refused(change):
    inputs = ids(1, CONTEXT)
    plan = small("transformer", **change).plan(Batch(inputs, inputs, None, torch.zeros_like(inputs)))
    with pytest.raises(FledgeError, match="The plan is of another model"):
        small("transformer")(inputs, plan)
