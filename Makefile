# Everything works from a fresh clone: the virtual environment is made when it is first needed.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint bench docs clean

demo: .venv/.installed
	$(BIN)/python examples/demo.py

test: .venv/.developed
	$(BIN)/python -m pytest --cov --cov-report=term:skip-covered

lint: .venv/.developed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/.installed
	$(BIN)/python benchmarks/rounds.py

# The tables of the documentation are printed by commands, never typed.
docs: .venv/.installed
	$(BIN)/python examples/configuration.py > docs/configuration.md
	$(BIN)/python examples/methods.py > docs/methods.md

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.installed: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL) -e .
	touch $@

.venv/.developed: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL) -e '.[dev]'
	touch .venv/.installed $@

clean:
	rm -rf .venv runs .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis
