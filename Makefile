# Two commands do everything on a fresh machine: make demo, make test.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
INSTALL := $(RUN)/python -m pip install --quiet --constraint constraints.txt --editable
# A core each, file by file, in the order of tests/conftest.py.
PYTEST := OMP_NUM_THREADS=1 $(RUN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

.PHONY: demo test check faults site lint static clean

demo: $(VENV)/.demo
	$(RUN)/msvq demo

test: $(VENV)/.test lint
	$(PYTEST)

check: $(VENV)/.test static    # while working: a minute or two
	$(PYTEST) -m 'not slow'

faults: $(VENV)/.test    # kills, full disks, damaged files: some minutes
	OMP_NUM_THREADS=1 $(RUN)/python -m faults --markdown faults.md

site: $(VENV)/.test    # the documentation, to open from disk
	OMP_NUM_THREADS=1 NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build --strict --site-dir site

lint: $(VENV)/.test static
	$(RUN)/python scripts/audit.py

static: $(VENV)/.test
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

$(VENV)/.new:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 4) and "msvq needs Python 3.11.4 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.demo: $(VENV)/.new pyproject.toml constraints.txt    # what running needs
	@echo "installing into $(VENV) (PyTorch is large: some minutes)"
	$(INSTALL) .
	touch $@

$(VENV)/.test: $(VENV)/.new pyproject.toml constraints.txt    # and what testing needs on top
	@echo "installing into $(VENV) (PyTorch is large: some minutes)"
	$(INSTALL) '.[dev]'
	touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) build site dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
