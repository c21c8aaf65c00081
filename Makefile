# Everything works from a fresh clone: each target first makes .venv, once, with the project installed into it.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check format load engine bench fuzz

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@

demo: .venv/installed  ## sweep the embedded engine over real HTTP; print the table and where the curve is
	$(BIN)/loadgen run sim:llama-3.1-8b@h100,max_num_seqs=32 --concurrency 1..64 --input lognormal:256,0.5 --output lognormal:64,0.5 --duration 8s || [ $$? -eq 4 ]  # 4: a level is INVALID, as on a busy machine; the table says so

test: .venv/installed  ## the unit tests, under a minute
	$(BIN)/pytest --numprocesses auto

check: .venv/installed  ## the gate: format, lint, strict types, tests with warnings as errors
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest --numprocesses auto

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

load: .venv/installed  ## the schedule and the lengths as a server sees them, in real time: two minutes
	$(BIN)/pytest tests/load

engine: .venv/installed  ## against a real vLLM; ENGINE_URL=http://host:port tests your own instead of installing one
	$(BIN)/pytest tests/engine --timeout 1800

bench: .venv/installed  ## accuracy and cost against a ground truth, beside other clients; needs cc
	$(BIN)/python -m tests.bench.accuracy
	$(BIN)/python -m tests.bench.open_loop

fuzz: .venv/installed  ## random bytes, splits and resets at the whole client
	$(BIN)/python -m tests.fuzz --streams 100000
