# `make` alone lists the targets: each line with two hash signs is its help.

PYTHON ?= python3
BIN := .venv/bin
CHECKED := $(wildcard src tests benchmarks tools)
READY = @command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) is not installed"; echo "fix: install Python 3.11 or newer"; exit 1; }; \
	$(PYTHON) tools/setup.py

.DEFAULT_GOAL := help
.PHONY: help setup ready ready-to-test demo test long check bench chaos contracts docs lock clean

help:
	@echo "Forge: every change, captured once. What you can do:"
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## set up everything in .venv (the other targets do it themselves)
	$(READY)

ready:
	$(READY) --quiet

ready-to-test:
	$(READY) --quiet --test

demo: ready ## run a small shop on an embedded PostgreSQL and watch its changes (SECONDS=20 to end by itself)
	@$(BIN)/forge demo $(if $(SECONDS),--seconds $(SECONDS))

test: ready-to-test ## run all tests, on real servers that they start themselves (ARGS="-k name" to choose)
	@$(BIN)/python tools/tests.py $(ARGS)

long: ready-to-test ## run the tests that take minutes each, one after the other: the pipeline's, slow consumers
	$(BIN)/pytest -m long --timeout 1200 $(ARGS)

check: ready ## lint, format, types, the import arrows, the documents' links and the words
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(CHECKED)
	$(BIN)/lint-imports
	$(BIN)/python tools/links.py
	$(BIN)/python tools/words.py
	$(BIN)/python tools/names.py
	@if [ -d clients/node_modules ]; then npm run check --prefix clients; else echo "the types of clients/ need Node.js"; fi

bench: ready ## measure speed, each figure beside its target
	$(BIN)/python -m benchmarks $(ARGS)

chaos: ready-to-test ## run the randomized checkers for long: histories with faults, live queries, the pipeline, deliveries, change versions (MINUTES=10 each)
	$(BIN)/python -m tests.checkers history --long --minutes $(or $(MINUTES),10) $(ARGS)
	@for checker in oracle lake delivery versions; do \
		$(BIN)/python -m tests.checkers $$checker --long --minutes $(or $(MINUTES),10) || exit 1; \
	done

contracts: ready-to-test ## print every promise with the tests that passed for it (REUSE=1: of the last run)
	@$(BIN)/python tools/contracts.py $(if $(REUSE),--reuse)

docs: ready ## check every link between the documents
	@$(BIN)/python tools/links.py

lock: ready ## pin the newest versions that pyproject.toml allows, with hashes
	$(BIN)/uv pip compile pyproject.toml --extra embedded --extra spark --extra otel --extra serve --extra client \
		--extra sqlalchemy --extra mysql --extra mongo --extra sqlite \
		--extra redis --extra kafka --extra nats --extra webhooks --group dev --universal --python-version 3.11 --upgrade --quiet \
		--generate-hashes --no-emit-index-url --no-emit-find-links --no-header -o requirements/dev.lock

clean: ## remove caches and build results (.venv and .forge stay)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
