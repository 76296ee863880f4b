"""How the kernels for decoding cut their matrices, and which of them take one."""

from __future__ import annotations

import pytest
import torch

from fledge.generation.decode_step import Cut, cut, on_matrix_units


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("columns", [32, 768, 1600, 2048, 2049, 6400, 8192, 16_384])
def test_a_programs_weights_fit_its_registers(columns: int, itemsize: int) -> None:
    """Half of the 255 that a thread has at most: the rest is for sums, inputs and addresses."""
    for rows in (64, 768, 2304, 4800, 6400, 50_304):
        for batch in (1, 8):
            how = cut(rows, columns, itemsize, batch)
            held = how.rows * -(-columns // how.block) * how.block * itemsize
            assert held / (how.warps * 32) <= 4 * 128
            assert how.rows >= 1


def test_matrices_are_cut_as_was_measured() -> None:
    """Those of GPT-2 and of its XL shape, and the same with more programs than the chip holds."""
    small = {(2304, 768): (16, 256, 8), (768, 768): (4, 256, 4), (3072, 768): (32, 256, 8), (768, 3072): (2, 1024, 4)}
    large = {(4800, 1600): (16, 256, 4), (1600, 1600): (8, 256, 4), (6400, 1600): (16, 256, 4)}
    heads = {(50_304, 768): (16, 256, 4), (50_304, 1600): (8, 256, 4), (6416, 1600): (8, 256, 4)}
    for shape, wanted in {**small, **large, **heads}.items():
        assert cut(*shape) == Cut(*wanted), shape


def test_matrix_units_are_for_one_text_and_wide_bf16_matrices() -> None:
    def taken(rows: int, columns: int, dtype: torch.dtype = torch.bfloat16, batch: int = 1, early: bool = True) -> bool:
        return on_matrix_units(torch.empty(rows, columns, dtype=dtype, device="meta"), batch, early)

    assert all(taken(*shape) for shape in [(1600, 6400), (325, 5128), (1, 6656)])
    assert not any(taken(*shape) for shape in [(768, 3072), (1024, 4096), (1280, 5120), (1600, 6402), (1600, 6664)])
    assert not taken(1600, 6400, torch.float16)
    assert not taken(1600, 6400, torch.float32)
    assert not taken(1600, 6400, batch=2)
    assert not taken(1600, 6400, early=False)
    shifted = torch.empty(6400 * 1600 + 2, dtype=torch.bfloat16, device="meta")[2:].view(1600, 6400)
    assert not on_matrix_units(shifted, 1, True)
