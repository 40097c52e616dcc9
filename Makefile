# Each target does its own set-up; a machine needs Python 3.10 to 3.13 and, for Spark, Java 17 or later.

VENV ?= .venv
export VENV
BIN = $(VENV)/bin
SEED ?= 1
ROUNDS ?= 20

.PHONY: help demo test check lint docs bench rounds clean

help:
	@echo "make demo      the main job on one laptop: a table, a fleet, a lake; under two minutes (SEED=$(SEED))"
	@echo "make test      lint, types, all tests, documentation"
	@echo "make bench     one table of measurements"
	@echo "make rounds    worker processes under kill -9, splits and merges (ROUNDS=$(ROUNDS) SEED=$(SEED))"
	@echo "make docs      the documentation, in docs/_build/html"
	@echo "make clean     remove everything made here"

demo:
	@tools/setup-environment spark,cli
	@$(BIN)/python -m samples.demo --seed $(SEED)

test: check
	@$(BIN)/python -m pytest

check:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(MAKE) --no-print-directory docs

lint: check

docs:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

bench:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m benchmarks

rounds:
	@tools/setup-environment spark,cli,docs,dev
	@$(BIN)/python -m tests.rounds --rounds $(ROUNDS) --seed $(SEED)

clean:
	rm -rf $(VENV) docs/_build demo-output build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
