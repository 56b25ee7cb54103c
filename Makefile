# Two commands do all the set-up on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV ?= .venv
# TORCH=no leaves the torch peers out.
TORCH ?= yes
TORCH_VERSION := 2.13.0
# What comes with Python 3.11 takes half as long again: it weighs each file of each version of what is pinned.
PIP_VERSION := 26.3
BIN := $(VENV)/bin
# Python compiles what it imports, which is a small part: compiling all takes longer than downloading it.
# It has to keep what it compiled: thousands of processes are started here.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install -q --no-compile

# The CUDA extra that the driver can run: none without an NVIDIA driver.
CUDA_MAJOR := $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p' | head -n 1)
CUDA := $(if $(CUDA_MAJOR),$(if $(filter 11 12,$(CUDA_MAJOR)),cuda12,cuda13))

# What measures on a GPU host, which may have all that it needs without an environment of its own.
MEASURES ?= $(BIN)/python
FIGURES := tests/data/h200
SOURCE := $(VENV)/source/opgauge

.PHONY: run test beside tests postgresql explore lint demo docs site fuzz figures history trust lock clean

# All is compiled and checked by all cores at once before the first is measured; where it is open who is fastest, two
# more processes decide.
run: $(VENV)/.run
	$(BIN)/opgauge run --ahead $$(nproc) --tag seed --remeasure 2

# Two things at once, and tests three at a time on two cores: they wait now and then, for browsers and for what hangs.
test:
	$(MAKE) --no-print-directory --jobs=2 $(VENV)/.test $(VENV)/.browser
	$(MAKE) --no-print-directory --jobs=2 beside tests

# What runs one thing after another beside the tests, so that no processor waits for the last of either.
beside:
	$(MAKE) --no-print-directory lint
	$(MAKE) --no-print-directory postgresql
	$(MAKE) --no-print-directory explore

tests: $(VENV)/.test $(VENV)/.browser
	$(BIN)/python -m pytest -q -n 3

# The store and the service once more, on PostgreSQL, where there are a server's programs.
postgresql: $(VENV)/.test
	$(BIN)/python -m tests.postgresql

explore: $(VENV)/.test
	NUMBA_OPT=2 NUMBA_CACHE_DIR=.pytest_cache/numba $(BIN)/opgauge explore --wrong --device cpu --time 60 \
	  --megabytes 4 --db sqlite:///.pytest_cache/explore.db -o .pytest_cache/found.yaml

lint: $(VENV)/.test $(SOURCE)
	$(BIN)/ruff check -q
	$(BIN)/ruff format -q --check
	$(BIN)/mypy
	PYTHONPATH=$(VENV)/source $(BIN)/lint-imports

# The package as it is installed, for tools that read sources without importing them.
$(SOURCE):
	mkdir -p $@
	ln -s ../../../tools/package/opgauge/__init__.py ../../../tools/package/opgauge/__main__.py $(foreach part,harness ops web,../../../$(part)) $@

# The committed runs in a dashboard, on a machine without a GPU too: an H200, CPUs, a history of commits, self-tests.
demo: demo.db
	$(BIN)/opgauge serve --db sqlite:///demo.db

demo.db: $(VENV)/.run $(wildcard tests/data/*/*.json)
	rm -f demo.db*
	$(BIN)/opgauge import --project opgauge --db sqlite:///demo.db $(sort $(wildcard tests/data/*/*.json))
	-$(BIN)/opgauge project commits opgauge --db sqlite:///demo.db

# A history for `make demo`: the latest commits that changed ops, on the CPU, with two planted slowdowns. Half an hour.
history: $(VENV)/.run
	rm -f tests/data/history/*.json
	$(BIN)/python -m tools.history --commits 24 --plant lerp:0.25:9:5 --plant sign:0.3:20:4

# Self-tests for `make demo`, on the CPU: cheats, equal code, a planted slowdown. Six minutes.
TRUST := sqlite:///.pytest_cache/trust.db
QUICK := --device cpu --op scale --op sign --op mean --op flatten --db $(TRUST)
trust: $(VENV)/.test
	rm -f .pytest_cache/trust.db*
	$(BIN)/python -m tests.cheats --db $(TRUST) >/dev/null
	$(BIN)/opgauge aa --runs 4 $(QUICK)
	$(BIN)/opgauge inject --slowdown 0.1 $(QUICK)
	$(BIN)/opgauge export --self-tests --db $(TRUST) -o tests/data/trust/cpu.json

# Generated documentation, from the commands and the committed runs.
docs: $(VENV)/.run
	$(BIN)/python -m tools.documentation

# Coverage-guided fuzzing of every reader of files, a minute in all.
FUZZED := cases policy waivers configuration tuning imports submissions bodies messages
.PHONY: $(FUZZED:%=fuzz-%)
fuzz: $(FUZZED:%=fuzz-%)

$(FUZZED:%=fuzz-%): fuzz-%: $(VENV)/.test
	$(BIN)/python -m tests.fuzz $* -max_total_time=7 -verbosity=0

# The pages of docs/ as a site in build/site; a broken link is an error.
site: $(VENV)/.test $(SOURCE)
	$(BIN)/mkdocs build --quiet --strict

# On an H200, anew: the runs and counters that docs/performance.md shows. Takes about 20 minutes; called again
# after it was interrupted, it goes on, where there are results.
RESUMED = $$($(MEASURES) -m opgauge show --db sqlite:///$(1) >/dev/null 2>&1 && echo --resume last)
figures:
	$(MEASURES) -m opgauge run $(call RESUMED,figures.db) --db sqlite:///figures.db --ahead $$(nproc) \
	  --tag seed --tag full -i optimized -i tf32 -i torch -i torch_compile -i torchvision --budget 0.05 --remeasure 4
	$(MEASURES) -m opgauge export --db sqlite:///figures.db --samples -o $(FIGURES)/full.json
	$(MEASURES) -m tools.counters $(FIGURES)/full.json $(FIGURES)-counters.json
	$(MEASURES) -m opgauge run $(call RESUMED,figures-seed.db) --db sqlite:///figures-seed.db --ahead $$(nproc) --tag seed
	$(MEASURES) -m opgauge export --db sqlite:///figures-seed.db --samples -o $(FIGURES)/seed.json
	rm -f figures*.db*

# Pinned and hashed, without addresses: an index may be anywhere.
LOCK := uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-annotate --no-header --python-version 3.11
lock:
	for extra in "" cuda12 cuda13 profile "test --extra site --extra fuzz"; do \
	  $(LOCK) $${extra:+--extra $$extra} --extra build pyproject.toml -o requirements/$$(echo $${extra:-run} | cut -d" " -f1).txt; \
	done
	printf 'nvidia-cuda-nvrtc-cu12==12.4.99\nnvidia-cuda-nvrtc==13.0.48\n' | $(LOCK) - -o requirements/oldest.txt

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache opgauge.db* demo.db* figures*.db*

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "opgauge needs Python 3.11 or later; $(PYTHON) is older. Name another: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) "pip==$(PIP_VERSION)"
	touch $@

$(VENV)/.run: $(VENV)/.python requirements/$(or $(CUDA),run).txt pyproject.toml
	$(INSTALL) --require-hashes -r requirements/$(or $(CUDA),run).txt
	$(INSTALL) --no-deps --no-build-isolation -e .
	$(if $(filter yes,$(TORCH)),$(INSTALL) "torch==$(TORCH_VERSION)")
	$(BIN)/opgauge schema --output cases/schema/case.schema.json
	touch $@

# The oldest NVRTC of each CUDA version lies apart: it has the names of the newest.
$(VENV)/.test: $(VENV)/.run requirements/test.txt requirements/oldest.txt
	$(INSTALL) --require-hashes -r requirements/test.txt
	$(INSTALL) --require-hashes --target $(VENV)/oldest -r requirements/oldest.txt
	touch $@

# The browser tests want Debian's chromium; without one, and without the right to install it, they are skipped.
$(VENV)/.browser: $(VENV)/.python
	@command -v chromium >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
	  echo "no chromium: the browser tests will be skipped"
	touch $@
