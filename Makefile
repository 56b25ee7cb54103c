# Two commands do all the set-up on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV ?= .venv
# TORCH=no leaves the torch peers out.
TORCH ?= yes
TORCH_VERSION := 2.13.0
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# The CUDA extra that the driver can run: none without an NVIDIA driver.
CUDA_MAJOR := $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p' | head -n 1)
CUDA := $(if $(CUDA_MAJOR),$(if $(filter 11 12,$(CUDA_MAJOR)),cuda12,cuda13))

.PHONY: run test lint docs lock clean

run: $(VENV)/.run
	$(BIN)/opgauge run --tag seed

test: $(VENV)/.test lint
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

lint: $(VENV)/.test
	$(BIN)/ruff check -q
	$(BIN)/ruff format -q --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# Help texts and figures in README.md, from the commands and the committed runs.
docs: $(VENV)/.run
	$(BIN)/python -m harness.documentation

# Pinned and hashed, without addresses: an index may be anywhere.
lock:
	for extra in "" cuda12 cuda13 test; do \
	  uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-annotate --no-header --python-version 3.11 \
	    $${extra:+--extra $$extra} --extra build pyproject.toml -o requirements/$${extra:-run}.txt; \
	done

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache opgauge.db*

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "opgauge needs Python 3.11 or later; $(PYTHON) is older. Name another: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.run: $(VENV)/.python requirements/$(or $(CUDA),run).txt pyproject.toml
	$(PIP) install -q --require-hashes -r requirements/$(or $(CUDA),run).txt
	$(PIP) install -q --no-deps --no-build-isolation -e .
	$(if $(filter yes,$(TORCH)),$(PIP) install -q "torch==$(TORCH_VERSION)")
	touch $@

$(VENV)/.test: $(VENV)/.run requirements/test.txt
	$(PIP) install -q --require-hashes -r requirements/test.txt
	touch $@
