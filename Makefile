# Everything a newcomer needs. The first target that needs it makes .venv from the lock files.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SECONDS ?= 30
BENCH  ?= broker
# More than cores: most tests wait for clients, servers and timeouts. Two workers have a Spark session.
WORKERS ?= 6
.DEFAULT_GOAL := help
# The broker starts in a blink from cached bytecode, and twice as slow without it.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help install demo test coverage check docs reference bench test-cluster test-demo test-page test-deploy test-s3 soak lock format clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Headrace needs Python 3.11 or later: make PYTHON=python3.12 …")'
	@echo "Making $(VENV)"
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: $(BIN)/python requirements.lock pyproject.toml
	@echo "Installing Headrace from requirements.lock"
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements-dev.lock
	@echo "Installing the tools of the tests from requirements-dev.lock"
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on --require-hashes -r requirements-dev.lock
	@touch $@

bench/.venv/.ready: requirements.lock bench/requirements.lock
	$(PYTHON) -m venv bench/.venv
	bench/.venv/bin/python -m pip install --disable-pip-version-check --progress-bar on --require-hashes -r bench/requirements.lock
	bench/.venv/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
	@touch $@

install: $(VENV)/.runtime  ## .venv with Headrace in it

demo: $(VENV)/.runtime  ## a small shop on all there is, in the terminal and on a page: make demo SECONDS=30
	@$(BIN)/headrace demo --seconds $(SECONDS) $(ARGS)

check: $(VENV)/.dev  ## lint, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.dev  ## the documentation site in build/site, with its links checked
	$(BIN)/python -m tools.site

reference: $(VENV)/.dev  ## write the configuration reference and the table of metrics again from the code
	$(BIN)/python -m tools.configuration_page
	$(BIN)/python -m tools.metrics_table

test: $(VENV)/.dev  ## the tests, with real clients against a real broker
	$(BIN)/python -m pytest -n $(WORKERS) -m "not cluster and not demo and not browser and not deploy and not s3 and not soak" $(ARGS)

coverage: $(VENV)/.dev  ## the tests again, slower, and which lines they reach
	$(BIN)/python -m pytest -n $(WORKERS) -m "not cluster and not demo and not browser and not deploy and not s3 and not soak" --cov --cov-report=term $(ARGS)

test-cluster: $(VENV)/.dev  ## the same behaviors against Apache Kafka, fetched by Maven
	$(BIN)/python -m pytest -m cluster $(ARGS)

test-demo: $(VENV)/.dev  ## the demo to its end, with and without chaos, and a new user's first steps
	$(BIN)/python -m pytest -m demo $(ARGS)

test-page: $(VENV)/.dev  ## the console and the demo's page in Chromium (apt-get install chromium)
	$(BIN)/python -m pytest -m browser $(ARGS)

tools/s3/.venv/.ready: tools/s3/requirements.lock
	$(PYTHON) -m venv tools/s3/.venv
	tools/s3/.venv/bin/python -m pip install --disable-pip-version-check --progress-bar on --require-hashes -r tools/s3/requirements.lock
	@touch $@

test-s3: $(VENV)/.dev tools/s3/.venv/.ready  ## tiered storage and files as an output on a server with S3's protocol
	$(BIN)/python -m pytest -m s3 $(ARGS)

test-deploy: $(VENV)/.dev  ## what deploy/ has: dashboard and alerts in a Prometheus, units of systemd (apt-get install prometheus systemd)
	$(BIN)/python -m pytest -m deploy $(ARGS)

soak: $(VENV)/.dev  ## long storms of kill -9
	$(BIN)/python -m pytest -n 2 -m soak --hypothesis-profile=random --randomly-seed=default $(ARGS)

bench: bench/.venv/.ready  ## compare with others on this machine: make bench BENCH=broker|queue|events|gateway|spark|streams|capture|outputs|archive
	bench/.venv/bin/python -m bench.$(BENCH) $(ARGS)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: $(VENV)/.dev  ## make the lock files again from pyproject.toml
	$(BIN)/python -m pip install --disable-pip-version-check --quiet uv
	$(BIN)/python tools/lock.py

clean:  ## remove what was made
	rm -rf $(VENV) bench/.venv tools/s3/.venv build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
