# The commands of the README. `make chat` and `make test` set up everything they need in .venv.
# BENCH holds options of `make bench`, such as BENCH="--against llama-cpp-python --depth 0,2048".
# `make kernels-wheel` compiles all kernels into a wheel in dist; SYSTEMS holds options for other systems than this one.
# EXTRAS chooses the optional dependencies of the tests: EXTRAS=test,llamacpp compares with llama-cpp-python too.
PYTHON ?= python3
EXTRAS ?= test
BENCH ?=
SYSTEMS ?=
VENV := .venv
BIN := $(VENV)/bin
unexport PYTHONDONTWRITEBYTECODE  # programs that the tests start would compile the package anew each time

.PHONY: chat test check lint bench kernels-wheel clean

chat: $(VENV)/.installed
	@$(BIN)/edgeinfer chat

test: $(VENV)/.installed-$(EXTRAS)
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(VENV)/.installed-$(EXTRAS)
	PYTHON=$(BIN)/python scripts/check

lint: $(VENV)/.installed-$(EXTRAS)
	PYTHON=$(BIN)/python scripts/check --no-tests

bench: $(VENV)/.installed
	$(BIN)/edgeinfer bench $(BENCH)

kernels-wheel: $(VENV)/.installed
	$(BIN)/python scripts/make_kernel_wheel.py dist $(SYSTEMS)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache

$(BIN)/python:
	@echo "setting up $(VENV) (once)" >&2
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "edgeinfer needs Python 3.11 or newer: make PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip >&2

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[app]' >&2
	@touch $@

$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]' >&2
	@touch $@ $(VENV)/.installed
