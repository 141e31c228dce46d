# torch-oracle: `make sweep` and `make test` do all the set-up they need. `make help` lists the rest.
# Variables can be given on the command line, for example: make sweep ARGS="--suite opinfo --match 'add*'"

comma   := ,
PYTHON  ?= python3
VENV    ?= .venv
# Which PyTorch is installed, first and alone. For another build name it here, and its index in PIP_INDEX_URL or
# PIP_EXTRA_INDEX_URL: make setup TORCH=torch==2.11.0
TORCH   ?= torch==2.13.0
TRITON  := $(if $(filter Linux-x86_64,$(shell uname -s)-$(shell uname -m)),$(comma)triton)
EXTRAS  ?= models,serve,dev$(TRITON)
# Test processes. Tests start workers of their own, so more than two rarely helps.
JOBS    ?= 2
ARGS    ?=
CXX     ?= g++
# The commit that `make steady` compares with.
BASE    ?= HEAD

BIN      = $(VENV)/bin
PIP      = $(BIN)/python -m pip --disable-pip-version-check
PYTEST   = $(BIN)/python -m pytest
READY    = $(VENV)/.ready
# A TORCH that was asked for, and is not the one this environment was made with, makes it again.
CHANGED  = $(if $(filter-out file,$(origin TORCH)),$(if $(filter-out $(TORCH),$(shell cat $(READY) 2>/dev/null)),FORCE))

# What runs side by side prints its lines together, with a make that can do it.
SYNC     = $(if $(filter output-sync,$(.FEATURES)),--output-sync)

.DEFAULT_GOAL := help
.PHONY: help setup sweep test test-postgres test-ray lint lint-types lint-code lint-documents fix accept bench battery steady check gpu processors versions clean compiler-check FORCE test-report

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

sweep: $(READY) compiler-check  ## run operators and models through the compilers, print the table (ARGS=...)
	@$(BIN)/torch-oracle sweep $(ARGS)

# Every process that a test starts would compile our modules again where the environment forbids to keep them (some container images).
test check accept: export PYTHONDONTWRITEBYTECODE :=

test: $(READY) compiler-check  ## tests of torch-oracle itself, without the slow ones and those for a GPU
	@$(PYTEST) -m "not slow and not gpu" -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-postgres: $(READY)  ## tests of the results store on a PostgreSQL server, which is installed if absent (Debian, as root)
	@$(PIP) install --quiet -c $(VENV)/constraints.txt -e '.[postgres]'
	@$(BIN)/python docs/tools/postgres.py

test-ray: $(READY)  ## sweeps and campaigns on a ray cluster of two nodes on this machine, one of which is killed
	@$(PIP) install --quiet -c $(VENV)/constraints.txt -e '.[ray]'
	@TORCH_ORACLE_TEST_RAY=1 $(PYTEST) suites/tests/test_ray.py $(ARGS)

lint: $(READY)  ## ruff, layering, types, generated documents
	@$(MAKE) --no-print-directory --keep-going -j $(JOBS) $(SYNC) lint-types lint-code lint-documents

lint-types: $(READY)
	$(BIN)/pyright --pythonpath $(BIN)/python

lint-code: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache

lint-documents: $(READY)
	$(BIN)/python docs/tools/contracts.py --check
	$(BIN)/python docs/tools/correspondence.py --check
	$(BIN)/python docs/tools/known_issues.py --check
	$(BIN)/python docs/tools/figures.py --check
	$(BIN)/python docs/tools/performance.py --check
	$(BIN)/python docs/tools/schema.py --check
	$(BIN)/python docs/tools/independence.py --check

fix: $(READY)  ## fix lint errors and rewrite generated documents
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python docs/tools/contracts.py --write
	$(BIN)/python docs/tools/correspondence.py --write
	$(BIN)/python docs/tools/known_issues.py --write
	$(BIN)/python docs/tools/figures.py --write
	$(BIN)/python docs/tools/performance.py --write
	$(BIN)/python docs/tools/schema.py --write
	$(BIN)/python docs/tools/independence.py --write

accept: $(READY)  ## rewrite goldens with the current output; read the diff before you commit
	$(PYTEST) --accept -m "not slow and not gpu" $(ARGS)
	@git --no-pager diff --stat -- '*/goldens/*' || true

# The ratios become a run of a results database, unless they are written elsewhere, or nothing is measured.
BENCH_DB ?= benchmarks.db
bench: $(READY) compiler-check  ## run benchmarks of our parts and their peers, into benchmarks.db (ARGS='NAME... --repeat N', ARGS=--list)
	@$(BIN)/python -m benchmarks $(if $(filter --db% --json% --csv% --list --help -h,$(ARGS)),,--db '$(BENCH_DB)') $(ARGS)

battery: $(READY)  ## the judge's error rates on wrong and right compilers, and the smallest bias found (ARGS=...)
	@$(BIN)/python -m oracle.tests.battery.run $(ARGS)

steady: $(READY)  ## compare refimpl on a fixed corpus with the commit BASE, and list differences (docs/steady.md)
	@$(BIN)/python -m suites.steady against $(BASE) $(ARGS)

check: lint test  ## lint, test, and the slow tests and those for a GPU
	@$(PYTEST) -m "slow or gpu" $(ARGS) || [ $$? -eq 5 ]  # 5: there are none

test-report: $(READY)  ## tests of the HTML report in a headless Chromium and of `serve`; installs Chromium on Debian if it is absent
	@command -v chromium >/dev/null 2>&1 && command -v chromedriver >/dev/null 2>&1 || { \
	  echo "installing chromium and chromium-driver with apt-get"; apt-get update -qq && apt-get install -y -qq chromium chromium-driver >/dev/null; } || { \
	  echo "error: Chromium and its driver are needed: apt-get install chromium chromium-driver (as root)" >&2; exit 1; }
	@$(PIP) install --quiet -c $(VENV)/constraints.txt -e '.[serve]'
	@$(PYTEST) -m "slow or not slow" results/tests/test_html.py results/tests/test_html_browser.py results/tests/test_serve.py $(ARGS)

gpu:  ## on a machine with a GPU: run its tests, sweeps and benchmarks with the installed packages (docs/gpu.md)
	@$(PYTHON) docs/tools/gpu.py $(ARGS)

processors: $(READY)  ## run tests that depend on kernels with the settings of other processors
	@$(BIN)/python docs/tools/processors.py --jobs $(JOBS) $(ARGS)

versions:  ## run tests and a small sweep with each supported torch and Python; writes docs/versions.md
	@$(PYTHON) docs/tools/versions.py $(ARGS)

setup: $(READY)  ## create the virtual environment

clean:  ## remove the environment, caches and build outputs (databases of results stay)
	rm -rf $(VENV) build dist .ruff_cache .import_linter_cache .hypothesis ./*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

compiler-check:
	@command -v $(firstword $(CXX)) >/dev/null 2>&1 || { \
	  echo "warning: no C++ compiler: '$(CXX)' was not found." >&2; \
	  echo "  Inductor compiles C++ when it runs on the CPU: sweeps that name inductor, the default one too, refuse to start." >&2; \
	  echo "  Without it: make sweep ARGS='--subject dynamo,aot_eager'" >&2; \
	  echo "  To install one: apt-get install g++ | dnf install gcc-c++ | apk add g++ | xcode-select --install" >&2; \
	  echo "  One under another name: make ... CXX=clang++" >&2; }

# The stamp is newer than what the environment was made from, so a second run costs nothing.
$(READY): pyproject.toml requirements/constraints.txt $(CHANGED)
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || { \
	  echo "error: Python 3.10 to 3.13 is needed; $(PYTHON) is $$($(PYTHON) -V 2>&1)." >&2; \
	  echo "  Name another one: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "error: $(PYTHON) cannot make a virtual environment (on Debian and Ubuntu: apt-get install python3-venv)." >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip --upgrade
	# torch first and alone, so that the choice of its build is not up to the resolver
	grep -viE '^(torch|triton)==' requirements/constraints.txt > $(VENV)/constraints.txt
	$(PIP) install --quiet -c $(VENV)/constraints.txt '$(TORCH)'
	# then the rest, around that torch and the triton it may have brought
	@$(PIP) freeze | grep -iE '^(torch|triton)==' > $(VENV)/brought.txt || true
	@grep -qi '^triton==' $(VENV)/brought.txt || grep -i '^triton==' requirements/constraints.txt >> $(VENV)/brought.txt
	cat $(VENV)/brought.txt >> $(VENV)/constraints.txt
	$(PIP) install --quiet -c $(VENV)/constraints.txt -e '.[$(EXTRAS)]'
	@echo '$(TORCH)' > $@

FORCE:
