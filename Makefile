# The commands of the README. `make chat` and `make test` set up everything they need in .venv; `make setup` does that alone.
# `make docs` builds the documentation site into site, and checks its links and the spelling of everything.
# BENCH holds options of `make bench`, such as BENCH="--against llama-cpp-python --depth 0,2048".
# `make kernels-wheel` compiles all kernels into a wheel in dist; SYSTEMS holds options for other systems than this one.
# `make audit` looks for known holes in what `edgeinfer[all]` installs, `make licences` writes docs/LICENCES.md, and
# `make sbom` a bill of materials into dist; all three ask the package index.
# `make release-check` builds sdist and wheel, checks, installs and uses them; RELEASE holds options for it, such as
# RELEASE="--tag v0.2.0". `make check-kernels` looks at wheels of kernels in dist.
# EXTRAS chooses the optional dependencies of the tests: EXTRAS=test,llamacpp compares with llama-cpp-python too.
PYTHON ?= python3
EXTRAS ?= test
BENCH ?=
SYSTEMS ?=
RELEASE ?=
VENV := .venv
BIN := $(VENV)/bin
TOOLS := .venv-tools
CLEAN := .venv-clean
SITE := .venv-docs
SPELLED := $(wildcard *.md) Makefile docs edgeinfer examples scripts
unexport PYTHONDONTWRITEBYTECODE  # programs that the tests start would compile the package anew each time

.PHONY: chat setup test check lint bench kernels-wheel check-kernels release-check audit licences sbom clean

chat: $(VENV)/.installed
	@$(BIN)/edgeinfer chat

setup: $(VENV)/.installed-$(EXTRAS)

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

check-kernels: $(TOOLS)/.installed
	$(TOOLS)/bin/python -m twine check --strict dist/edgeinfer_kernels-*.whl

release-check: $(TOOLS)/.installed
	$(TOOLS)/bin/python scripts/check_release.py $(RELEASE)

# --strict: what cannot be looked up is a failure, too
audit: $(CLEAN)/.installed
	$(TOOLS)/bin/pip --disable-pip-version-check --python $(CLEAN)/bin/python freeze --exclude edgeinfer > $(CLEAN)/versions.txt
	$(TOOLS)/bin/pip-audit --strict --progress-spinner off --no-deps --disable-pip --requirement $(CLEAN)/versions.txt

licences: $(TOOLS)/.installed
	$(TOOLS)/bin/python scripts/licences.py docs/LICENCES.md

sbom: $(CLEAN)/.installed
	@mkdir -p dist
	$(TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--output-file dist/edgeinfer.cdx.json $(CLEAN)/bin/python

.PHONY: docs
# The pages are written by edgeinfer itself, and built by programs that it does not need; tests misspell on purpose.
docs: $(VENV)/.installed $(SITE)/.installed
	$(BIN)/python -m scripts.docs_site.assemble build/docs
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict --quiet
	$(BIN)/python -m scripts.docs_site.check_site site
	$(SITE)/bin/codespell $(SPELLED)

clean:
	rm -rf $(VENV) $(TOOLS) $(CLEAN) $(SITE) build/docs site .pytest_cache .mypy_cache .ruff_cache

$(BIN)/python:
	@echo "setting up $(VENV) (once)" >&2
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "edgeinfer needs Python 3.11 or newer: make PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip >&2

# --no-compile: Python compiles what is used when it is used, which is a fraction; the first answer comes sooner
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[app]' >&2
	@touch $@

$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]' >&2
	@touch $@ $(VENV)/.installed

# What looks at dependencies stands apart from them: $(CLEAN) has what users install, and not even pip.
$(TOOLS)/.installed: Makefile
	@$(PYTHON) -m venv $(TOOLS)
	@$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip \
		'pip-audit>=2.7' 'cyclonedx-bom>=5' 'build>=1.2' 'twine>=6.1' 'pipx>=1.7' 'uv>=0.5' >&2
	@touch $@

$(CLEAN)/.installed: pyproject.toml $(TOOLS)/.installed
	@rm -rf $(CLEAN)
	@$(PYTHON) -m venv --without-pip $(CLEAN)
	@$(TOOLS)/bin/pip --disable-pip-version-check --python $(CLEAN)/bin/python install --quiet --no-compile '.[all]' >&2
	@touch $@

$(SITE)/.installed: Makefile
	@$(PYTHON) -m venv $(SITE)
	@$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip \
		'mkdocs-material>=9.5,<10' 'codespell>=2.3' >&2
	@touch $@
