"""RNN, GRU and LSTM as an ONNX graph: ids and the state before them in, scores and the state after them out.

Written down node by node, since torch's exporter would unroll them to one length. ONNX has operators for all three,
with their gates in another order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fledge.config import ModelConfig

GATES = {"rnn": (0,), "gru": (1, 0, 2), "lstm": (0, 3, 1, 2)}
"Where the operator's gates lie in torch's matrices: update, reset, new; input, output, forget, cell."
VERSION, FORMAT = 17, 9
"Of the operators, and of the file: old enough for the programs of the last years."


def recurrent_graph(config: ModelConfig, weights: Mapping[str, Tensor]) -> Any:
    """The file's content. Weights of 16 bits stay so in it; the operators calculate in 32."""
    from onnx import TensorProto, helper, numpy_helper

    kind, layers, width = config.architecture, config.layers, config.width
    embeddings = weights["token_embeddings.weight"]
    vocabulary_size, halves = embeddings.shape[0], embeddings.dtype == torch.float16
    parts = ("hidden", "cell") if kind == "lstm" else ("hidden",)
    nodes: list[Any] = []
    stored: list[Any] = []

    def node(operator: str, inputs: list[str], outputs: list[str], **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, inputs, outputs, name=f"{operator}:{outputs[0]}", **attributes))
        return outputs[0]

    def stored_as(name: str, tensor: Tensor) -> str:
        stored.append(numpy_helper.from_array(tensor.contiguous().numpy(), name))
        return wide(name) if tensor.dtype == torch.float16 else name

    def wide(name: str) -> str:
        return node("Cast", [name], [f"{name}:wide"], to=TensorProto.FLOAT) if halves else name

    def narrow(name: str, result: str) -> None:
        node("Cast", [name], [result], to=TensorProto.FLOAT16 if halves else TensorProto.FLOAT)

    table = stored_as("token_embeddings", embeddings)
    node("Gather", [table, "input_ids"], ["embedded"], axis=0)
    x_TBD = node("Transpose", ["embedded"], ["layer:0"], perm=[1, 0, 2])
    ones = stored_as("layers", torch.ones(layers, dtype=torch.int64))
    before = {part: [f"{part}:{n}" for n in range(layers)] for part in parts}
    for part, names in before.items():  # each layer's own, with the one direction that the operators count
        node("Split", [wide(part), ones], names, axis=0)
    after: dict[str, list[str]] = {part: [] for part in parts}
    for number in range(layers):
        gates = {
            each: _in_order(weights[f"recurrent.{each}_l{number}"], GATES[kind], width)
            for each in ("weight_ih", "weight_hh")
        }
        inputs = [x_TBD, *(stored_as(f"{name}:{number}", matrix[None]) for name, matrix in gates.items())]
        if config.bias:
            both = [_in_order(weights[f"recurrent.bias_{x}_l{number}"], GATES[kind], width) for x in ("ih", "hh")]
            inputs.append(stored_as(f"bias:{number}", torch.cat(both)[None]))
        else:
            inputs.append("")
        inputs += ["", *(before[part][number] for part in parts)]
        outputs = [f"out:{number}", *(f"{part}:{number}:after" for part in parts)]
        options = {"linear_before_reset": 1} if kind == "gru" else {}
        node(kind.upper(), inputs, outputs, hidden_size=width, **options)
        for part, name in zip(parts, outputs[1:], strict=True):
            after[part].append(name)
        x_TBD = node(
            "Squeeze", [outputs[0], stored_as(f"direction:{number}", torch.tensor([1]))], [f"layer:{number + 1}"]
        )
    for part, names in after.items():
        narrow(node("Concat", names, [f"{part}:after"], axis=0), f"next_{part}")
    node("Transpose", [x_TBD], ["last"], perm=[1, 0, 2])
    head = table if config.tied else stored_as("lm_head", weights["lm_head.weight"])
    node("Transpose", [head], ["head"], perm=[1, 0])
    narrow(node("MatMul", ["last", "head"], ["scores"]), "logits")

    number_type = TensorProto.FLOAT16 if halves else TensorProto.FLOAT
    memory: list[str | int | None] = [layers, "batch", width]
    given = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])]
    given += [helper.make_tensor_value_info(part, number_type, memory) for part in parts]
    found = [helper.make_tensor_value_info("logits", number_type, ["batch", "length", vocabulary_size])]
    found += [helper.make_tensor_value_info(f"next_{part}", number_type, memory) for part in parts]
    graph = helper.make_graph(nodes, kind, given, found, stored)
    return helper.make_model(
        graph, producer_name="fledge", ir_version=FORMAT, opset_imports=[helper.make_opsetid("", VERSION)]
    )


def _in_order(matrix: Tensor, gates: tuple[int, ...], width: int) -> Tensor:
    return torch.cat([matrix[gate * width : (gate + 1) * width] for gate in gates])
