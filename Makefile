# `make help` lists the targets. Everything is installed into .venv; nothing else on the machine is changed.

MAKEFLAGS += --no-print-directory
BIN := .venv/bin
EXTRAS ?= dev
STAMP := .venv/installed-$(EXTRAS)

.DEFAULT_GOAL := help
.PHONY: venv demo test lint bench conformance sweep screenshots clean help

venv: $(STAMP) ## install into .venv (EXTRAS=dev,cuda12 for CUDA)

$(STAMP): pyproject.toml
	@if ! $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then \
	    python=$$(scripts/find-python) && "$$python" -m venv --clear .venv; \
	fi
	@echo "installing luminal-tui[$(EXTRAS)] into .venv"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[$(EXTRAS)]'
	@touch $@

demo: $(STAMP) ## the workbench on the built-in model (its report, where there is no terminal)
	@if [ -t 0 ] && [ -t 1 ]; then $(BIN)/luminal-tui demo; else $(BIN)/luminal-tui compile demo --limit 40; fi

test: $(STAMP) ## the tests, then the checks of `make lint`; runs all, fails if any fails
	@status=0; \
	$(BIN)/python -m pytest -n 2 --dist loadfile || status=1; \
	$(MAKE) lint || status=1; \
	exit $$status

lint: $(STAMP) ## ruff, mypy and the import contract; runs all, fails if any fails
	@status=0; \
	check() { output=$$("$$@" 2>&1) && echo "$$1: passed" | sed 's|.*/||' || { echo "$$output"; status=1; }; }; \
	check $(BIN)/ruff check .; \
	check $(BIN)/mypy; \
	check $(BIN)/lint-imports --no-logo; \
	exit $$status

bench: $(STAMP) ## the benchmarks; writes benchmarks/results.json
	@$(BIN)/python -m benchmarks

conformance: $(STAMP) ## ONNX's node tests, one line per operator, beside onnxruntime
	@$(BIN)/python -W ignore -m tests.frontend.conformance

sweep: $(STAMP) ## every model at hand compiled, one line each (ARGS="--limit 40 NAME ..")
	@$(BIN)/python -m tests.sweep $(ARGS)

screenshots: $(STAMP) ## draw the screenshots anew
	@$(BIN)/python screenshots/make.py

clean: ## remove what building, testing and compiling left behind (.venv too)
	@rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache luminal_artifacts
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1	\2/p' Makefile | expand -t 20
