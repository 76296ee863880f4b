"""Fast by construction: nothing is made or moved inside a forward pass. What is wrong is said when a model is built."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from fledge.config import ModelConfig
from fledge.errors import FledgeError
from fledge.model import build_model, registry
from fledge.model.base import VocabularyMatrix
from fledge.run import Run

from .cases import ARCHITECTURE_CASES, CASES, CONTEXT, config, ids, packed, small

MAKERS = [
    "arange",
    "full",
    "ones",
    "zeros",
    "eye",
    "tril",
    "triu",
    "linspace",
    "scalar_tensor",
    "lift_fresh",
    "tril_indices",
    "empty",
    "new_empty",
]


class Watch(TorchDispatchMode):
    """Counts tensors made from nothing, and copies from one device to another."""

    def __init__(self):
        super().__init__()
        self.made, self.moved = [], []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        name = function.overloadpacket.__name__
        result = function(*arguments, **(options or {}))
        tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
        if name in MAKERS and not tensors:
            self.made.append(name)
        if name in ("_to_copy", "copy_") and any(tensor.device != result.device for tensor in tensors):
            self.moved.append(name)
        return result


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("documents", [False, True])
def test_forward_makes_no_mask_and_moves_nothing(name, documents, monkeypatch):
    """On the meta device, which stands for any that is not the CPU: a table left behind would show as a copy."""
    model = small(name).train()
    batch = packed([[7, 17], [24]], CONTEXT)
    plan = model.plan(batch) if documents else None
    recurrent = name in ("rnn", "gru", "lstm")
    if not recurrent:  # torch's recurrent layers have no meta kernels
        model = model.to("meta")
        plan = None if plan is None else _to_meta(plan)
    inputs = batch.inputs_BT if recurrent else batch.inputs_BT.to("meta")
    monkeypatch.setattr(functional, "scaled_dot_product_attention", lambda q, *_, **__: q * 1)  # a kernel
    with Watch() as watch:
        model(inputs, plan)
    allowed = ["zeros"] * 4 if recurrent else []  # the recurrent layer's own first state
    assert watch.moved == []
    assert len(watch.made) <= len(allowed), watch.made


def _to_meta(plan):
    from fledge.model import Plan

    turn = None if plan.rotation is None else tuple(table.to("meta") for table in plan.rotation)
    positions = None if plan.positions_BT is None else plan.positions_BT.to("meta")
    return Plan(positions, turn, plan.mask.to("meta"))


@pytest.mark.parametrize("name", ["transformer", "gpt2", "bdh"])
def test_decoding_makes_its_mask_once_for_all_layers(name, monkeypatch):
    monkeypatch.setattr(functional, "scaled_dot_product_attention", lambda q, *_, **__: q * 1)
    counts = []
    for layers in (1, 4):
        model = small(name, layers=layers)
        state = model.init_state(2)
        _, state = model.hidden(ids(2, 6), state=state, lengths=torch.tensor([3, 6]))
        with Watch() as watch:
            model.hidden(ids(2, 1), state=state)
        counts.append(len(watch.made))
        assert watch.moved == []
    assert counts[0] == counts[1]


@pytest.mark.parametrize("name", ARCHITECTURE_CASES)
def test_tables_follow_the_model_and_stay_wide(name):
    model = small(name)
    names = {key for key, _ in model.named_buffers()}
    assert not names & set(model.state_dict())
    model = model.to(torch.bfloat16)
    for key, buffer in model.named_buffers():
        assert buffer.dtype in (torch.float32, torch.int64), key
    assert model(ids(1, 8)).dtype == torch.bfloat16


def test_a_model_from_the_meta_device_can_be_filled():
    with torch.device("meta"):
        model = build_model(config("transformer"), 61, CONTEXT)
    model = model.to_empty(device="cpu")
    model.make_tables()
    wanted = small("transformer")
    model.load_state_dict(wanted.state_dict())
    assert torch.equal(model(ids(1, 8)), wanted(ids(1, 8)))


@pytest.mark.parametrize("name", ARCHITECTURE_CASES)
def test_autocast_keeps_the_stream_narrow(name):
    model, inputs = small(name), ids(2, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden, _ = model.hidden(inputs)
        logits = model.head(hidden)
    if name in ("transformer", "gpt2", "bdh"):
        assert hidden.dtype == torch.bfloat16
    wanted = model(inputs)
    assert (logits.float() - wanted).norm() / wanted.norm() < 0.05


@pytest.mark.parametrize("name", ARCHITECTURE_CASES)
def test_models_compile_to_one_graph(name):
    if name in ("rnn", "gru", "lstm"):
        pytest.skip("torch's recurrent layers are kernels already")
    model, batch = small(name), packed([[7, 17], [24]], CONTEXT)
    plan = model.plan(batch)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for chosen in (None, plan):
        torch.testing.assert_close(
            compiled(batch.inputs_BT, chosen), model(batch.inputs_BT, chosen), atol=1e-5, rtol=1e-5
        )


def test_bad_settings_are_sentences():
    with pytest.raises(FledgeError, match=r"no model.architecture = 'tranformer'. Did you mean transformer\?"):
        build_model(ModelConfig(architecture="tranformer"), 10, 8)
    with pytest.raises(ValueError, match="model.heads = 3 does not divide model.width = 64"):
        ModelConfig(width=64, heads=3)
    with pytest.raises(ValueError, match="even number of neurons"):
        ModelConfig(architecture="bdh", width=9, heads=3, multiplier=1)
    with pytest.raises(FledgeError, match="at least one token"):
        build_model(ModelConfig(), 0, 8)


def test_an_unknown_architecture_is_refused_before_a_run_has_a_folder(tmp_path):
    text, folder = tmp_path / "text.txt", tmp_path / "run"
    text.write_text("To be or not to be.\n" * 50)
    run = Run("akjv-demo", folder, overrides=[f"corpus.source={text}", "model.architecture=transfomer"], quiet=True)
    with pytest.raises(FledgeError, match="no model.architecture = 'transfomer'. Did you mean transformer"):
        run.train()
    assert not folder.exists()


def test_a_name_belongs_to_one_architecture(monkeypatch):
    monkeypatch.setattr(registry, "ARCHITECTURES", dict(registry.ARCHITECTURES))
    with pytest.raises(FledgeError, match="model.architecture = bdh is fledge.model.bdh.BDH already"):
        registry.register("bdh", registry.Transformer)
    registry.register("bdh", registry.BDH)
    registry.register("new", registry.Transformer)
    assert registry.ARCHITECTURES["new"] is registry.Transformer


def test_key_heads_that_do_not_divide_hear_which_do():
    with pytest.raises(ValueError, match="does not divide model.heads = 4. Known: 1, 2, 4."):
        ModelConfig(heads=4, kv_heads=3)


def test_heads_may_have_a_size_of_their_own():
    assert ModelConfig(width=256, heads=3, head_size=128).attention_width == 384
    with pytest.raises(ValueError, match="needs an even head size, and 7 is odd. Change model.head_size"):
        ModelConfig(heads=4, head_size=7)
    with pytest.raises(ValueError, match="model.heads = 3 does not divide model.width = 64"):
        ModelConfig(architecture="bdh", width=64, heads=3, head_size=32)


@pytest.mark.parametrize("name", ARCHITECTURE_CASES)
def test_inputs_past_the_context_are_refused(name):
    with pytest.raises(FledgeError, match="25 tokens are more than the context length of 24"):
        small(name)(ids(1, 25))


@pytest.mark.parametrize("name", ARCHITECTURE_CASES)
@pytest.mark.parametrize("wrong", [torch.zeros(5).long(), torch.zeros(1, 2, 3).long(), torch.zeros(1, 5)])
def test_ids_are_rows_of_whole_numbers(name, wrong):
    with pytest.raises(FledgeError, match=r"Ids of shape .* are not allowed.*ids\[None\]"):
        small(name)(wrong)


def test_ids_are_checked_where_they_enter():
    model = small("transformer")
    model.check_ids(torch.tensor([0, 60]))
    model.check_ids(torch.tensor([], dtype=torch.long))
    for bad in (61, -1):
        with pytest.raises(FledgeError, match=f"The id {bad} is outside the model's vocabulary of 61"):
            model.check_ids(torch.tensor([3, bad]))


@pytest.mark.parametrize("name", ["transformer", "bdh", "lstm"])
def test_an_id_of_the_padding_is_refused_as_one_beyond_it(name):
    """The matrix is padded from 61 rows to 64: on a CPU, no id of the three passes for a token."""
    model = small(name)
    model(torch.tensor([[0, 60]]))
    for call in (model, model.hidden):
        for bad in (61, 63):
            with pytest.raises(FledgeError, match=f"The id {bad} is outside the model's vocabulary of 61"):
                call(torch.tensor([[3, bad]]))


def test_elsewhere_the_device_looks_at_the_rows_that_stand_for_ids(monkeypatch):
    """On a GPU nobody waits for the values: torch's own check is given the 61 rows, and not the 64."""
    rows, lookup = [], functional.embedding
    monkeypatch.setattr(functional, "embedding", lambda ids, weight: rows.append(len(weight)) or lookup(ids, weight))
    small("transformer").to("meta")(torch.zeros(1, 2, dtype=torch.long, device="meta"))
    assert rows == [61]


@pytest.mark.parametrize("name", ["transformer", "bdh"])
def test_a_plan_and_a_state_together_are_refused(name):
    model, batch = small(name), packed([[10, 14]], CONTEXT)
    with pytest.raises(FledgeError, match="a plan or a state, not both"):
        model.hidden(batch.inputs_BT, model.plan(batch), model.init_state(1))


def test_a_setting_without_effect_is_named():
    with pytest.warns(UserWarning, match="model.qk_norm = True, model.multiplier = 64 have no effect") as caught:
        build_model(ModelConfig(architecture="lstm", qk_norm=True, multiplier=64), 10, 8)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in CASES:
            build_model(config(name), 10, 8)


def test_every_architecture_says_what_it_reads():
    for kind in registry.ARCHITECTURES.values():
        assert kind.settings <= set(ModelConfig.model_fields)


def test_padding_rows_never_train():
    model = small("transformer").train()
    model(ids(2, 8)).square().sum().backward()
    for module in model.modules():
        if isinstance(module, VocabularyMatrix):
            assert module.weight.grad[61:].abs().max() == 0


def test_empty_batches_and_wrong_sizes_are_refused():
    model = small("transformer")
    for shape in ((0, 3), (2, 0)):
        with pytest.raises(FledgeError, match="at least one"):
            model(torch.zeros(shape, dtype=torch.long))
    for sizes in (("10", 10), (10.5, 10), (None, 10), (10, 0)):
        with pytest.raises(FledgeError, match="A model needs at least one token and one place"):
            build_model(ModelConfig(), *sizes)
    with pytest.raises(FledgeError, match="it is a class made from fledge's Model"):
        registry.register("toy", dict)
    for ids_of_another_kind in ([3.0, 1.5], torch.tensor([1.0])):
        with pytest.raises(FledgeError, match="they are whole numbers"):
            model.check_ids(ids_of_another_kind)
    model.check_ids(torch.tensor([1, 2], dtype=torch.uint16))
    model.check_ids([0, 1])


def test_weights_that_do_not_fit_their_part_are_refused():
    model = small("transformer")
    weights = model.state_dict()
    first, third = "layers.0.ffn.w1.weight", "layers.0.ffn.w3.weight"
    moved = torch.cat((weights[first], weights[third])).split([len(weights[first]) - 4, len(weights[third]) + 4])
    with pytest.raises(FledgeError, match=rf"{first} is of shape \[\d+, \d+\], and this model's is of shape \["):
        model.load_state_dict({**weights, first: moved[0], third: moved[1]})
    for wrong, words in ((weights[first][:, :-1], "of shape"), (weights[first][0], "of shape"), ("no", "no tensor")):
        with pytest.raises(FledgeError, match=f"{first} is {words}"):
            model.load_state_dict({**weights, first: wrong})
    with pytest.raises(FledgeError, match=f"The weights lack {first}"):
        model.load_state_dict({name: tensor for name, tensor in weights.items() if name != first})
    name = "token_embeddings.weight"
    padded = model.token_embeddings.weight.detach()
    assert len(padded) > len(weights[name])
    with pytest.raises(FledgeError, match="If the rest is padding, cut it off"):
        model.load_state_dict({**weights, name: padded})
