"""Memory that comes back when nobody holds it, and never before."""

from __future__ import annotations

import runpy
import sys

import numpy as np
import torch

from fledge.tokens import scratch as module
from fledge.tokens.scratch import KEPT, Pool


def test_memory_in_use_is_never_given_out_again():
    pool = Pool()
    held = [pool.take(1000, np.int64) for _ in range(3 * KEPT)]
    for number, array in enumerate(held):
        array.fill(number)
    assert [int(array[0]) for array in held] == list(range(3 * KEPT))
    tensors = [torch.from_numpy(pool.take(1000, np.int64).reshape(2, 500)).unbind()[1] for _ in range(2 * KEPT)]
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)
    assert [int(tensor[0]) for tensor in tensors] == list(range(2 * KEPT))


def test_memory_comes_back():
    pool = Pool()
    array = pool.take(1000, np.int64)
    address = array.ctypes.data
    part = torch.from_numpy(array)[10:20]
    del array
    assert pool.take(1000, np.int64).ctypes.data != address
    del part
    assert address in {pool.take(1000, np.uint16).ctypes.data, pool.take(900, np.int64).ctypes.data}


def test_memory_in_use_is_known_however_python_counts(monkeypatch):
    """Python 3.14 counts one reference less: what a call is given is lent to it."""
    count = sys.getrefcount
    monkeypatch.setattr(sys, "getrefcount", lambda buffer: count(buffer) - 2)  # one of them for this function's own
    pool = runpy.run_path(module.__file__)["Pool"]()
    held = [pool.take(1000, np.int64) for _ in range(3)]
    assert len({array.ctypes.data for array in held}) == 3
    address = held.pop().ctypes.data
    assert pool.take(1000, np.int64).ctypes.data == address
