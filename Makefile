# Everything works from a fresh clone: the virtual environment is made when it is first needed.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test coverage test-federation lint bench bench-peers bench-growth docs clean

demo: .venv/.installed
	$(BIN)/python examples/demo.py

test: .venv/.developed
	$(BIN)/python -m pytest -m "not federation"

# The same, and what of the code they reach; half as long again.
coverage: .venv/.developed
	$(BIN)/python -m pytest -m "not federation" --cov --cov-report=term:skip-covered

# Faults and attacks on federations of real processes: minutes.
test-federation: .venv/.developed
	$(BIN)/python -m pytest -m federation

lint: .venv/.developed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/.installed
	$(BIN)/fedsaddle bench --out benchmarks/results/bench-$$(date -u +%FT%H%M).json

# Makes a virtual environment for every peer: some gigabytes, once.
bench-peers: .venv/.installed
	$(BIN)/python benchmarks/peers/run.py

bench-growth: .venv/.installed
	$(BIN)/python benchmarks/growth.py --out benchmarks/results/growth-$$(date -u +%FT%H%M).json

# The tables of the documentation are printed by commands, never typed.
docs: .venv/.installed
	$(BIN)/python examples/configuration.py > docs/configuration.md
	$(BIN)/python examples/methods.py > docs/methods.md
	$(BIN)/python benchmarks/page.py
	$(BIN)/python examples/results.py > docs/results.md

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.installed: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL) -e .
	touch $@

.venv/.developed: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL) -e '.[dev]'
	touch .venv/.installed $@

clean:
	rm -rf .venv benchmarks/peers/.venvs runs .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis
