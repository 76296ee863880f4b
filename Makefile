# Everything a person needs, each target enough on its own in a fresh clone: `make help`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Compiler warnings are errors in our own builds, never in a user's.
STRICT := $(if $(CI),ON,OFF)
NATIVE := pyproject.toml constraints.txt CMakeLists.txt $(shell find csrc -type f)
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4

COMPILER = @for compiler in "$$CXX" c++ g++ clang++; do test -n "$$compiler" && command -v $$compiler >/dev/null && exit 0; done; echo "fledge needs a C++ compiler for its native core: install g++ or clang, or set CXX."; exit 1

.PHONY: help demo test test-all lint docs bench sanitize kernels windows harness exchange clean
.DEFAULT_GOAL := help

help:            ## list the targets
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

demo: $(VENV)/.demo   ## set up, then train a small model on the Bible and generate verses (a few minutes)
	$(BIN)/fledge demo

test: $(VENV)/.dev    ## set up, then run the test suite
	$(PYTEST) -m "not slow and not gpu"

test-all: $(VENV)/.dev  ## the suite with the slow campaigns (kills, sanitizers, fuzzing, the browser)
	$(PYTEST) -m "not gpu"

lint: $(VENV)/.dev    ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.docs   ## build the handbook as a site in build/site; a broken link fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "Open build/site/index.html."

bench: $(VENV)/.bench  ## measure against the peers, and check every claim
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script --check || failed=1; done; test -z "$$failed"

sanitize: $(VENV)/.dev  ## the native core's own tests under AddressSanitizer and UBSan, and 30 s of fuzzing as C++ and from Python
	PYTHON=$(CURDIR)/$(BIN)/python tests/native/run-sanitized.sh

windows:         ## the native core's tests for Windows: mingw-w64 compiles them, Wine runs them
	tests/native/run-windows.sh

kernels: $(VENV)/.kernels  ## our GPU kernels by Triton's interpreter, without a GPU
	TRITON_INTERPRET=1 $(PYTEST) -m gpu tests/model/test_kernels.py tests/generation/test_decode_kernels.py

harness: $(VENV)/.harness  ## lm_eval on a bundle, from end to end on small tasks of our own
	$(PYTEST) -m slow tests/evaluation

exchange: $(VENV)/.exchange  ## exports in the programs that read them: llama.cpp, transformers and its trainer, onnxruntime
	$(PYTEST) -m "not gpu" tests/bundle/test_matrix.py tests/bundle/test_llama_cpp.py tests/bundle/test_published.py tests/bundle/test_exchange.py tests/bundle/test_onnx.py tests/bundle/test_standalone.py tests/bundle/test_hub.py tests/model/test_exchange.py

clean:           ## remove everything that the other targets made but runs/
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/pip:
	@command -v $(PYTHON) >/dev/null || { echo "fledge needs Python 3.10 or newer: install it, or name it with make PYTHON=…"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "fledge needs Python 3.10 or newer, and $(PYTHON) is $$($(PYTHON) -V): name another with make PYTHON=…"; exit 1; }
	$(COMPILER)
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "Python's venv module is missing: on Debian and Ubuntu, apt install python3-venv."; exit 1; }

# Stamps: a second call skips what is already done, and a changed core or pin installs again.
$(VENV)/.demo: $(VENV)/bin/pip $(NATIVE)
	$(COMPILER)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/bin/pip $(NATIVE)
	$(COMPILER)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt -C cmake.define.FLEDGE_STRICT=$(STRICT) --editable '.[dev]'
	@touch $@ $(VENV)/.demo

$(VENV)/.bench: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --constraint constraints.txt gigatoken rustbpe datasketch datasets click-option-group xxhash tqdm
	$(BIN)/python -m pip install --quiet --no-deps text-dedup  # it pins an older rich, and needs pyspark for other commands
	@touch $@

$(VENV)/.harness: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --constraint constraints.txt lm_eval
	@touch $@

$(VENV)/.exchange: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --constraint constraints.txt accelerate xllamacpp
	@touch $@

$(VENV)/.docs: $(VENV)/bin/pip constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt mkdocs-material 'mkdocstrings[python]'
	@touch $@

$(VENV)/.kernels: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --constraint constraints.txt triton
	@touch $@
