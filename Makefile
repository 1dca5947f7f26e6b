# Each target sets itself up: the first `make run`, `make test`, `make lint` or `make bench`
# creates .venv with the versions of constraints.txt (a CPU build of torch).
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: run test lint format bench docs clean

run: $(STAMP)
	$(BIN)/halfstep train lm --compare

test: $(STAMP)
	$(BIN)/pytest -q

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python benchmarks/update.py
	$(BIN)/python benchmarks/trace.py
	$(BIN)/python benchmarks/checkpoint.py
	$(BIN)/python benchmarks/policy.py
	$(BIN)/python benchmarks/check.py

docs: $(STAMP)
	$(BIN)/python scripts/rule_docs.py

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
