# make setup   everything into .venv: locked packages, this project, the default model
# make serve   setup, then the whole server on this machine     (ARGS="--port 9000")
# make test    setup, test tools, the whole test suite          (ARGS="tests/launch -x")
# make compat  setup, then the official SDK, old and new, against a real server
# make lint    ruff and mypy                                     make format   let ruff rewrite
# make lock    new lock files from pyproject.toml                make clean    forget .venv and caches

SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VARIANT ?= $(shell nvidia-smi >/dev/null 2>&1 && echo cuda || echo cpu)
BIN := .venv/bin
STAMPS := .venv/stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check
ARGS ?=
# The SDKs that tests/compat runs with, each in a virtual environment of its own.
COMPAT ?= 3.57.0 1.109.1

.DEFAULT_GOAL := serve
.PHONY: setup dev serve test compat lint format lock chromium clean

setup: $(STAMPS)/model

dev: setup $(STAMPS)/dev

serve: setup
	@exec $(BIN)/midstream serve $(ARGS)

test: dev chromium
	@exec $(BIN)/pytest $(ARGS)

compat: dev $(COMPAT:%=.venv-compat-%/pyvenv.cfg)
	@exec $(BIN)/python -m tests.compat.run $(COMPAT)

.venv-compat-%/pyvenv.cfg:
	@echo "Installing openai $* for tests/compat"
	@rm -rf .venv-compat-$*.new && $(PYTHON) -m venv .venv-compat-$*.new
	@.venv-compat-$*.new/bin/python -m pip --disable-pip-version-check install -qq \
	  "openai[realtime]==$*" "$$(grep -o '^pytest==[0-9.]*' requirements/dev.txt)"
	@mv .venv-compat-$*.new .venv-compat-$*

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock:
	requirements/lock.sh $(ARGS)

clean:
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info

.venv/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Midstream needs Python 3.11 or newer: make PYTHON=…")'
	@echo "Creating .venv with $(PYTHON)"
	@$(PYTHON) -m venv .venv

# Two steps: the lock file is complete, except that a torch wheel may name CUDA libraries which cpu.txt leaves out.
$(STAMPS)/packages: requirements/$(VARIANT).txt pyproject.toml | .venv/pyvenv.cfg
	@echo "Installing the $(VARIANT) packages (a few minutes the first time)"
	@$(PIP) install -qq --no-deps -r requirements/$(VARIANT).txt
	@$(PIP) install -qq "$$(grep '^torch==' requirements/$(VARIANT).txt)"
	@$(PIP) install -qq --no-deps --no-build-isolation -e .
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/dev: requirements/dev.txt $(STAMPS)/packages
	@echo "Installing the test tools"
	@$(PIP) install -qq --no-deps -r requirements/dev.txt
	@touch $@

$(STAMPS)/model: $(STAMPS)/packages
	@$(BIN)/midstream prepare
	@touch $@

chromium:
	@command -v chromium >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "Installing chromium for the browser tests"; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; \
	  else \
	    echo "The browser tests need chromium on PATH, e.g. sudo apt-get install chromium"; exit 1; \
	  fi; }
