"""A state is a memory of the tokens seen: however they came in, what follows is as in the full forward pass."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fledge.errors import FledgeError
from fledge.model import Model, State

from .cases import ARCHITECTURE_CASES, CASES, CONTEXT, ids, small


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def step_through(model: Model, inputs: Tensor, state: State) -> Tensor:
    found = []
    for token in inputs.split(1, dim=1):
        hidden, state = model.hidden(token, state=state)
        found.append(model.head(hidden))
    return torch.cat(found, dim=1)


@pytest.mark.parametrize("name", CASES)
def test_one_token_at_a_time_equals_the_full_forward_pass(name):
    model, inputs = small(name), ids(3, CONTEXT)
    torch.testing.assert_close(step_through(model, inputs, model.init_state(3)), model(inputs), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_unequal_prompts_go_on_in_one_batch(name):
    """Right-padded prompts, then single tokens, then several at once: each row as if it were alone."""
    model, inputs = small(name), ids(4, CONTEXT)
    full, rows = model(inputs), torch.arange(4)
    lengths = torch.tensor([5, 9, 1, 9])
    hidden, state = model.hidden(inputs[:, :9], state=model.init_state(4), lengths=lengths)
    torch.testing.assert_close(model.head(hidden[rows, lengths - 1]), full[rows, lengths - 1], atol=1e-5, rtol=1e-4)
    for extra in range(3):
        here = lengths + extra
        hidden, state = model.hidden(inputs[rows, here][:, None], state=state)
        torch.testing.assert_close(model.head(hidden[:, 0]), full[rows, here], atol=1e-5, rtol=1e-4)
    places = lengths[:, None] + 3 + torch.arange(6)
    more = torch.tensor([6, 2, 5, 6])
    hidden, state = model.hidden(inputs[rows[:, None], places], state=state, lengths=more)
    for row in range(4):
        wanted = full[row, places[row, : more[row]]]
        torch.testing.assert_close(model.head(hidden[row, : more[row]]), wanted, atol=1e-5, rtol=1e-4)
    assert state.lengths.tolist() == (lengths + 3 + more).tolist()
    here = state.lengths
    hidden, state = model.hidden(inputs[rows, here][:, None], state=state)
    torch.testing.assert_close(model.head(hidden[:, 0]), full[rows, here], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ARCHITECTURE_CASES)
def test_select_and_clone(name):
    """Rows may be dropped, doubled and reordered; a clone goes its own way."""
    model, inputs = small(name), ids(3, 12)
    _, state = model.hidden(inputs[:, :6], state=model.init_state(3))
    kept = state.clone()
    _, state = model.hidden(ids(3, 4, seed=9), state=state)
    chosen = [2, 0, 0]
    hidden, after = model.hidden(inputs[chosen, 6:12], state=kept.select(chosen))
    torch.testing.assert_close(model.head(hidden), model(inputs)[chosen, 6:12], atol=1e-5, rtol=1e-4)
    assert kept.lengths.tolist() == [6, 6, 6]
    assert after.lengths.tolist() == [12, 12, 12]


@pytest.mark.parametrize("name", ARCHITECTURE_CASES)
def test_a_saved_state_goes_on(name):
    model, inputs = small(name), ids(2, 10)
    _, state = model.hidden(inputs[:, :7], state=model.init_state(2))
    saved = {key: value.clone() for key, value in state.tensors.items()}
    loaded = model.init_state(2).load(saved, state.lengths.clone())
    hidden, _ = model.hidden(inputs[:, 7:], state=loaded)
    torch.testing.assert_close(model.head(hidden), model(inputs)[:, 7:], atol=1e-5, rtol=1e-4)
    with pytest.raises(FledgeError, match="another batch size"):
        model.init_state(3).load(saved, state.lengths)


def sliding_reference(model: Model, inputs: Tensor, capacity: int) -> Tensor:
    """The full forward pass of a longer model, each token seeing the last `capacity` ones."""
    from fledge.model import Plan, build_model

    long = build_model(model.config, model.vocabulary_size, inputs.shape[1]).eval()
    long.load_state_dict(model.state_dict())
    back = torch.arange(inputs.shape[1])[:, None] - torch.arange(inputs.shape[1])
    mask = ((back >= 0) & (back < capacity)).expand(len(inputs), 1, -1, -1)
    return long(inputs, Plan(mask=mask))


@pytest.mark.parametrize("name", ["transformer", "grouped heads", "no positions", "sinusoidal positions", "qk-norm"])
@pytest.mark.parametrize("pieces", [[1] * 40, [8] + [1] * 32, [3, 7, 8, 5, 17], [20, 20], [40]])
def test_the_ring_forgets_the_oldest(name, pieces):
    """Past its capacity a state is a sliding window, in whatever pieces the tokens come."""
    model, inputs = small(name), ids(2, 40)
    state, found = model.init_state(2, capacity=8), []
    for piece in inputs.split(pieces, dim=1):
        hidden, state = model.hidden(piece, state=state)
        found.append(model.head(hidden))
    wanted = sliding_reference(model, inputs, 8)
    torch.testing.assert_close(torch.cat(found, dim=1), wanted, atol=1e-5, rtol=1e-4)


def test_unequal_rows_wrap_around_the_ring_on_their_own():
    model, inputs = small("transformer"), ids(3, 40)
    wanted, rows = sliding_reference(model, inputs, 8), torch.arange(3)
    lengths = torch.tensor([10, 3, 6])
    _, state = model.hidden(inputs[:, :10], state=model.init_state(3, capacity=8), lengths=lengths)
    for extra in range(20):
        here = lengths + extra
        hidden, state = model.hidden(inputs[rows, here][:, None], state=state)
        torch.testing.assert_close(model.head(hidden[:, 0]), wanted[rows, here], atol=1e-5, rtol=1e-4)


def test_learned_positions_say_where_they_end():
    model = small("gpt2")
    _, state = model.hidden(ids(1, CONTEXT), state=model.init_state(1))
    assert not model.endless
    with pytest.raises(FledgeError, match="Learned positions end at the context length of 24"):
        model.hidden(ids(1, 1), state=state)


@pytest.mark.parametrize("name", ARCHITECTURE_CASES)
def test_a_narrow_state_is_close(name):
    """A state in bf16 takes half the memory and stays near."""
    model, inputs = small(name), ids(2, 10)
    state = model.init_state(2, dtype=torch.bfloat16)
    found = step_through(model, inputs, state)
    assert (found - model(inputs)).abs().max() < 0.1


@pytest.mark.parametrize("name", ARCHITECTURE_CASES)
def test_a_state_of_another_batch_size_is_refused(name):
    model = small(name)
    with pytest.raises(FledgeError, match="The state is of 3 sequences and the inputs are 2"):
        model.hidden(ids(2, 4), state=model.init_state(3))


def test_learned_positions_count_real_tokens_only():
    """Padding and rows that were dropped take no places."""
    model, inputs = small("gpt2"), ids(2, CONTEXT)
    full, lengths = model(inputs), torch.tensor([2, CONTEXT - 2])
    _, state = model.hidden(inputs[:, :-2], state=model.init_state(2), lengths=lengths)
    found = step_through(model, inputs[:1, 2:], state.select([0]))
    torch.testing.assert_close(found, full[:1, 2:], atol=1e-5, rtol=1e-4)
    _, state = model.hidden(inputs[:, :20], state=model.init_state(2), lengths=torch.tensor([1, 20]))
    later = torch.stack((inputs[0, 1:21], inputs[1, 4:24]))
    hidden, state = model.hidden(later, state=state, lengths=torch.tensor([20, 0]))
    torch.testing.assert_close(model.head(hidden[0]), full[0, 1:21], atol=1e-5, rtol=1e-4)
    assert state.lengths.tolist() == [21, 20]
    with pytest.raises(FledgeError, match="Learned positions end at the context length of 24"):
        model.hidden(later[:, :4], state=state)


@pytest.mark.parametrize("name", ARCHITECTURE_CASES)
def test_impossible_lengths_are_refused(name):
    model = small(name)
    for lengths in ([1, 4], [-1, 2]):
        with pytest.raises(FledgeError, match="a row of these inputs has from 0 to 3 tokens"):
            model.hidden(ids(2, 3), state=model.init_state(2), lengths=torch.tensor(lengths))
    for wrong in (torch.tensor([1, 2, 3]), torch.tensor([1.0, 2.5])):
        with pytest.raises(FledgeError, match="one whole number for each of 2 rows"):
            model.hidden(ids(2, 3), state=model.init_state(2), lengths=wrong)
    with pytest.raises(FledgeError, match="lengths needs a state"):
        model.hidden(ids(2, 3), lengths=torch.tensor([1, 2]))


@pytest.mark.parametrize("name", ARCHITECTURE_CASES)
def test_impossible_states_are_refused(name):
    model = small(name)
    for kind in (torch.int32, "float32"):
        with pytest.raises(FledgeError, match="A state in .*(torch.int32|'float32') is not allowed"):
            model.init_state(2, dtype=kind)
    for sizes in [(-1, None), (1.5, None), (True, None), (2, 0), (2, -3), (2, 1.5), (2, True), (2, "3")]:
        with pytest.raises(FledgeError, match="is not allowed: rows are a whole number from 0 on"):
            model.init_state(sizes[0], capacity=sizes[1])
    state = model.init_state(2)
    for lengths in (torch.tensor([3]), torch.tensor([-3, 2]), torch.tensor([1.0, 2.0])):
        with pytest.raises(FledgeError, match="are not those of a state of 2 rows"):
            state.load(state.tensors, lengths)


def test_rows_are_selected_by_number_or_by_mask():
    model = small("lstm")
    state = model.init_state(3)
    _, state = model.hidden(ids(3, 5), state=state, lengths=torch.tensor([2, 3, 5]))
    assert state.select(torch.tensor([False, True, True])).lengths.tolist() == [3, 5]
    assert state.select([2, 0, 2]).lengths.tolist() == [5, 2, 5]
    assert state.select([]).batch_size == 0
    for rows in (torch.tensor([1.7]), torch.tensor([True]), torch.tensor([[0, 1]]), slice(0, 2), "all", None, [2**70]):
        with pytest.raises(FledgeError, match="name them by number"):
            state.select(rows)
    for outside in ([9], [-1]):
        with pytest.raises(FledgeError, match="the state has rows 0 to 2"):
            state.select(outside)


@pytest.mark.parametrize("name", ARCHITECTURE_CASES)
def test_a_state_of_another_model_is_refused(name):
    model = small(name)
    others = [small(other) for other in ("gru", "rnn", "bdh") if other != name]
    for other in [*others, small(name, width=64), small(name, layers=1)]:
        with pytest.raises(FledgeError, match="The state is of another model"):
            model.hidden(ids(2, 1), state=other.init_state(2))
    _, state = model.hidden(ids(2, 1), state=small(name).init_state(2).select([1, 0]))
    with pytest.raises(FledgeError, match="The state is of another model"):
        others[0].hidden(ids(2, 1), state=state)
