# Each target sets itself up: the first `make run`, `make test`, `make lint` or `make bench`
# creates .venv with the versions of constraints.txt (a CPU build of torch).
PYTHON ?= python3
# make test TORCH=2.10.0: that torch instead, in .venv-2.10.0 (on Linux several gigabytes).
TORCH ?=
# make zoo: the doctor on the development half; HALF=held-out for the half that nobody works
# towards, ZOO="--only gpt2 --again" for further options of `python -m zoo`.
HALF ?= development
ZOO ?=
VENV := .venv$(addprefix -,$(TORCH))
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install run test lint format bench zoo docs clean

install: $(STAMP)

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
	$(BIN)/python benchmarks/loop.py
	$(BIN)/python benchmarks/ranks.py
	$(BIN)/python benchmarks/trace.py
	$(BIN)/python benchmarks/checkpoint.py
	$(BIN)/python benchmarks/policy.py
	$(BIN)/python benchmarks/check.py

zoo: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint $(VENV)/constraints.txt --editable '.[zoo]'
	PYTHONPATH=$(CURDIR)/tests $(BIN)/python -m zoo --half $(HALF) --json runs/zoo/$(HALF).json $(ZOO)

docs: $(STAMP)
	$(BIN)/python scripts/linter_docs.py

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	sed '$(TORCH:%=s/^torch==.*/torch==%/)' constraints.txt > $(VENV)/constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint $(VENV)/constraints.txt --editable '.[dev]'
	touch $(STAMP)

clean:
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis
