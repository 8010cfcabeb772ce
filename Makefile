# The same targets for people, for pre-commit hooks and for CI. `make help` lists them.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin

# The CUDA set where an NVIDIA driver answers, the CPU set elsewhere.
SET := $(shell nvidia-smi > /dev/null 2>&1 && echo cuda || echo cpu)
REQUIREMENTS := $(if $(filter cuda,$(SET)),requirements.txt,requirements/cpu.txt)

# Everything in the sets is pinned, with all that it needs; --no-deps keeps pip from adding what was left out on purpose.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps
# Debian's packages of the servers and the browser that tests use, and of the allocator that an engine on the CPU wants; installed where
# this is root. Elsewhere those tests are skipped.
TEST_SERVERS := prometheus nginx-light chromium redis-server libtcmalloc-minimal4

TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-annotate --custom-compile-command 'make lock'

.PHONY: help install install-test servers serve test chaos bench bench-latency check fmt lock clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

install: .venv/$(SET).stamp  ## make .venv and install the pinned packages

.venv/bin/python:
	@echo 'making .venv'
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	@$(PYTHON) -m venv .venv

.venv/$(SET).stamp: $(REQUIREMENTS) | .venv/bin/python
	@echo 'installing $(REQUIREMENTS); the first time this takes a few minutes'
ifeq ($(SET),cpu)
	@$(INSTALL) --retries 0 --index-url $(TORCH_CPU_INDEX) "$$(grep '^torch==' $<)" > /dev/null 2>&1 \
		|| echo 'PyTorch'"'"'s CPU index does not answer; trying the default index'
endif
	@$(INSTALL) -r $<
	@touch $@

install-test: .venv/test.stamp  ## the packages that tests and checks need, too

.venv/test.stamp: requirements/test.txt .venv/$(SET).stamp
	@$(INSTALL) -r $<
	@touch $@

serve: install  ## serve the embedded model on port 8000; ARGS="--model X --port 9000" passes flags on
	@exec $(BIN)/python app.py $(ARGS)

servers:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null \
		&& ! { command -v promtool && command -v nginx && command -v chromium && command -v redis-server \
			&& ldconfig -p | grep libtcmalloc; } > /dev/null; then \
		echo 'installing $(TEST_SERVERS)'; \
		{ apt-get update -qq && apt-get install -y -qq $(TEST_SERVERS); } > /dev/null 2>&1 \
			|| echo 'could not install them; the tests that need them are skipped'; \
	fi

test: install-test servers  ## run every test; ARGS="-k name" passes flags on to pytest
	@$(BIN)/python -m pytest $(ARGS)

chaos: install-test  ## ten minutes of clients that leave, stall and lie; CHAOS_SECONDS and CHAOS_SEED change it
	@CHAOS_SECONDS=$${CHAOS_SECONDS:-600} $(BIN)/python -m pytest tests/chaos --log-cli-level=INFO

bench: install-test .venv/bench.stamp  ## every measurement, in half an hour; QUICK=1 takes minutes, ARGS="--only scale" some
	@$(BIN)/python -m bench $(if $(QUICK),--quick) $(ARGS)

bench-latency: install-test  ## an answer at once beside one that is streamed; MODEL=… names another model
	@$(BIN)/python -m bench.latency $(MODEL)

.venv/bench.stamp: requirements/bench.txt .venv/$(SET).stamp
	@$(INSTALL) -r $<
	@touch $@

check: install-test  ## lint, format and types; changes nothing
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/hadolint Dockerfile

fmt: install-test  ## format, and mend what the linter can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lock: install-test  ## make the pinned files anew from requirements/*.in
	@$(LOCK) --override requirements/data-only.txt requirements/cuda.in -o requirements.txt
	@$(LOCK) --override requirements/data-only.txt --override requirements/cpu-overrides.txt requirements/cpu.in -o requirements/cpu.txt
	@sed -i "/sys_platform == 'never'/d" requirements.txt requirements/cpu.txt
	@$(LOCK) requirements/test.in -o requirements/test.txt
	@$(LOCK) --no-emit-package numpy --no-emit-package pillow --no-emit-package packaging requirements/bench.in -o requirements/bench.txt

clean:  ## remove the virtual environment and caches
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
