"""llama.cpp as a judge of GGUF files, through xllamacpp from PyPI; tests that need it are skipped without it."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor


class LlamaCpp:
    """One file, opened by llama.cpp's own server on this machine."""

    def __init__(self, path: Path, context_length: int) -> None:
        module = pytest.importorskip("xllamacpp", exc_type=ImportError)
        options = module.CommonParams()
        options.model.path = str(path)
        options.n_ctx, options.n_parallel, options.warmup, options.verbosity = context_length, 1, False, -1
        options.cache_type_k = options.cache_type_v = module.ggml_type.GGML_TYPE_F32
        options.flash_attn_type = module.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.server = module.Server(options)

    def _ask(self, route: str, **body: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            self.server.listening_address + route, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            found: dict[str, Any] = json.load(reply)
        return found

    def encode(self, text: str, special: bool = True) -> list[int]:
        ids: list[int] = self._ask("/tokenize", content=text, add_special=False, parse_special=special)["tokens"]
        return ids

    def log_probabilities(self, ids: list[int], size: int, letter: int) -> Tensor:
        """Of every token after `ids`. The server gives them with a text, so it is made to write `letter`, any ASCII."""
        reply = self._ask(
            "/completion",
            prompt=ids,
            n_predict=1,
            n_probs=size,
            temperature=-1,
            cache_prompt=False,
            logit_bias=[[letter, 1000]],
        )
        found = torch.full((size,), torch.nan)
        for entry in reply["completion_probabilities"][0]["top_logprobs"]:
            found[entry["id"]] = entry["logprob"]
        return found

    def greedy(self, ids: list[int], count: int) -> list[int]:
        reply = self._ask(
            "/completion", prompt=ids, n_predict=count, temperature=-1, cache_prompt=False, return_tokens=True
        )
        tokens: list[int] = reply["tokens"]
        return tokens
