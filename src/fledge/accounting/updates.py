"""The arithmetic of one optimizer step: elementwise for each parameter, and Muon's matrix products."""

from __future__ import annotations

from fledge.accounting.memory import inner_matrix
from fledge.accounting.parameters import Parameter, Parameters
from fledge.config.sizes import NEWTON_SCHULZ_STEPS

TITLES = {"adamw": "AdamW", "sgd": "SGD", "muon": "Muon"}
ELEMENTWISE = {
    "adamw": 14,  # 3 for the mean, 4 for the square, 5 for the update, 2 for the decay
    "sgd": 8,  # 2 for the decay, 2 for the velocity, 2 to look ahead, 2 for the update
    "muon": 13,  # its matrices: 3 for the momentum, 3 to look ahead, 2 for the decay, 3 for the norm, 2 for the update
}
JOINED = {"attn.k_proj": "attn.q_proj", "attn.v_proj": "attn.q_proj", "ffn.w3": "ffn.w1"}
"Matrices that lie in memory, and are updated, as one with another."


def elementwise_flops(optimizer: str, parameters: Parameters) -> int:
    """So small beside a batch's products that no account of time counts it."""
    if optimizer != "muon":
        return ELEMENTWISE[optimizer] * parameters.total
    inner = sum(tensor.count for tensor in parameters.tensors if inner_matrix(tensor))
    return ELEMENTWISE["muon"] * inner + ELEMENTWISE["adamw"] * (parameters.total - inner)


def product_flops(optimizer: str, parameters: Parameters) -> int:
    """Of the Newton–Schulz steps that make each of Muon's matrices orthogonal; other optimizers multiply none."""
    if optimizer != "muon":
        return 0
    rows: dict[str, int] = {}
    found: dict[str, Parameter] = {}
    for tensor in parameters.tensors:
        if inner_matrix(tensor):
            name = next((tensor.name.replace(k, v) for k, v in JOINED.items() if k in tensor.name), tensor.name)
            rows[name] = rows.get(name, 0) + tensor.shape[-2]
            found.setdefault(name, tensor)
    return sum(_newton_schulz(rows[name], tensor) for name, tensor in found.items())


def _newton_schulz(rows: int, tensor: Parameter) -> int:
    """With m the shorter side and n the longer: x·xᵀ is 2·m²·n, its square 2·m³, and their product with x 2·m²·n."""
    columns = tensor.shape[-1]
    matrices = tensor.count // (tensor.shape[-2] * columns)
    short, long = min(rows, columns), max(rows, columns)
    return NEWTON_SCHULZ_STEPS * matrices * (4 * short * short * long + 2 * short**3)
