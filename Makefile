# Two commands do everything on a fresh machine: make demo, make test.

PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
RUN := $(VENV)/bin

.PHONY: demo test faults site lint clean

demo: $(READY)
	$(RUN)/msvq demo

test: $(READY) lint
	OMP_NUM_THREADS=1 $(RUN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder    # a core each, a file at a time

faults: $(READY)    # kills, full disks, damaged files: some minutes
	OMP_NUM_THREADS=1 $(RUN)/python -m faults --markdown faults.md

site: $(READY)    # the documentation, to open from disk
	OMP_NUM_THREADS=1 NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build --strict --site-dir site

lint: $(READY)
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy
	$(RUN)/python scripts/audit.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "msvq needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (PyTorch is large: some minutes)"
	$(RUN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build site dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
