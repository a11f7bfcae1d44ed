# Targets for working on Holdfast. `make` lists them.
PYTHON ?= python3
BIN := .venv/bin
# Hypothesis keeps its examples beside pytest's cache, not in a directory of its own.
export HYPOTHESIS_STORAGE_DIRECTORY := $(CURDIR)/.pytest_cache/hypothesis
# Without its compiled files, each of the many processes of a test run compiles what it imports anew.
unexport PYTHONDONTWRITEBYTECODE
READY := .venv/.ready-$(notdir $(PYTHON))
CLASSES := .venv/spark-classes.jsa
SEED := $(or $(SEED),$(shell od -An -N4 -tu4 /dev/urandom | tr -d ' '))

.DEFAULT_GOAL := help
.PHONY: help setup java check format test test-clouds demo soak versions bench pins clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo '  make PYTHON=python3.12 ...   use another Python than python3 (3.11 or newer)'
	@echo '  make test ARGS="-k lease"    pass arguments on to pytest (likewise for demo and bench)'

setup: $(READY) ## build .venv with pinned versions of everything

$(READY): pyproject.toml constraints.txt scripts/setup.sh
	@scripts/setup.sh $(PYTHON)
	@touch $@

java: ## say whether a usable Java is here, and how to get one if not
	@scripts/check-java.sh

check: $(READY) ## lint, formatting, types, direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(READY) ## format the code and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: java $(READY) $(CLASSES) ## run the whole test suite
	$(BIN)/pytest -n 3 --dist worksteal $(ARGS)  # more than cores: many tests wait for servers and processes

test-clouds: java $(READY) ## the same on Google Cloud Storage and Azure, on servers of their own (Azure's needs Node)
	$(BIN)/pytest -m 'clouds and not soak' $(ARGS)

demo: java $(READY) ## run the demonstration
	$(BIN)/python examples/demo.py $(ARGS)

$(CLASSES): $(READY)
	@$(BIN)/python tests/pipeline/put_classes_aside.py

soak: java $(READY) $(CLASSES) ## every step killed, every file damaged, random deaths: hours
	@echo 'soak: examples are drawn from seed $(SEED); make soak SEED=$(SEED) draws the same'
	$(BIN)/pytest -m 'soak or hypothesis' --hypothesis-profile=soak --hypothesis-seed=$(SEED)
	$(BIN)/python tests/pipeline/soak.py $(ARGS)

versions: java $(READY) ## a pipeline killed on each supported Spark and Python: many minutes, 5 GB
	$(BIN)/python scripts/versions.py $(ARGS)

bench: $(READY) ## run the benchmarks and print a table
	PYTHONPATH=tests $(BIN)/python -m bench $(ARGS)  # the servers of the tests

pins: $(READY) ## resolve constraints.txt anew from pyproject.toml
	scripts/pin.sh

clean: ## remove .venv and everything generated
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	rm -rf spark-warehouse metastore_db derby.log artifacts
	find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
