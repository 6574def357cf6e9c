# Every target sets up what it needs. All that is asked of the machine: Python 3.11+, git and make.
# `make` alone prints this help; a line with two hashes after a target is its help text.

PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
DEMO    ?= demo
# A configuration in ./demo is found without being named.
AT      := $(if $(filter demo,$(DEMO)),, --config $(DEMO))
# One more than there are processors: much of a test is waiting for a process to start or to end.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

.DEFAULT_GOAL := help
.PHONY: help run demo-health test nightly check bench docs lock clean

help: ## Show what can be done
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.runtime ## Set up, write an example configuration to ./demo, and run a gateway with it
	@# What `init` prints are the next steps of a reader who has no gateway yet; this one starts right away.
	@test -e $(DEMO)/config.yaml || { $(BIN)/ductile init $(DEMO) --json >/dev/null && \
	    echo "Wrote an example configuration to $(DEMO)/; its API token is in $(DEMO)/.env."; }
	@echo; echo "The gateway runs here until Ctrl-C. In another terminal, in this directory:"; echo
	@echo '  export PATH="$$PWD/$(BIN):$$PATH"'; echo "  ductile run echo$(AT)"; echo "  ductile status$(AT)"
	@echo "  ductile ui open$(AT)     # the dashboard, in a browser"; echo
	@$(BIN)/ductile start --config $(DEMO) || { status=$$?; \
	    echo 'To type `ductile` in this terminal: export PATH="$$PWD/$(BIN):$$PATH"' >&2; exit $$status; }

demo-health: $(VENV)/.runtime ## Health data of local fakes: polls, a weekly report, and a gateway to look at
	@PYTHONPATH=examples/health $(BIN)/python examples/health/demo.py

test: $(VENV)/.dev ## Set up, then run every check and every test
	$(MAKE) check
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

nightly: $(VENV)/.dev ## What takes longer than a coffee: hundreds of kills, a minute of load
	$(BIN)/python -m pytest -n $(WORKERS) -m slow $(ARGS)

check: $(VENV)/.dev ## Formatting, lint, types and import directions
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --cache-dir .cache/import-linter

bench: $(VENV)/.dev ## Measure against the bare machine, in one run
	$(BIN)/python -m benchmarks $(ARGS)

docs: $(VENV)/.dev ## Write the generated parts of docs/ again, then check all of docs/
	$(BIN)/python docs/generate.py
	$(BIN)/python -m pytest tests/docs

lock: $(VENV)/.dev ## Resolve the dependencies anew and pin them with hashes
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --upgrade \
	    pyproject.toml --extra tui --group build --output-file requirements.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --upgrade \
	    pyproject.toml --group dev --output-file requirements-dev.lock

clean: ## Remove everything that was set up or built here
	rm -rf $(VENV) .cache build dist $(DEMO) demo-health .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The virtual environment: first what running needs, and on top of it what developing needs.
# Hatchling is installed from the lock too, so that nothing is fetched unpinned to build the package.

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else \
	    "Ductile needs Python 3.11 or newer, and $(PYTHON) is %d.%d. Name a newer one: make PYTHON=python3.12" % sys.version_info[:2])'
	@echo "Making a virtual environment in $(VENV)"
	@# Without pip it is of no use, and must not be taken for one that is (Debian has it in a package of its own).
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	    echo "$(PYTHON) cannot make a virtual environment with pip; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

$(VENV)/.runtime: requirements.lock pyproject.toml | $(VENV)/bin/python
	@$(BIN)/python tools/install.py requirements.lock
	@touch $@

$(VENV)/.dev: requirements-dev.lock pyproject.toml | $(VENV)/bin/python
	@$(BIN)/python tools/install.py requirements-dev.lock
	@touch $@
