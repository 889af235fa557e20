# All targets run on a fresh Debian 12 machine as root; PREFIX can be moved.
PREFIX ?= /opt/slurm-ncclmon
export NCCLMON_PREFIX = $(PREFIX)
VENV = $(PREFIX)/venv/bin
FAULT ?= not_entered
# Releases whose RAS the tests speak to, about 400 MB each.
NCCL_TESTED = 2.26.2,2.27.5,2.28.9,2.29.7,2.30.7,2.31.2,2.32.3

.PHONY: setup setup-tests build demo test test-fast lint types clean

setup:
	scripts/setup

setup-tests:
	scripts/setup --nccl $(NCCL_TESTED)

build:
	$(MAKE) -C spank
	$(MAKE) -C probe

demo: setup
	scripts/demo $(FAULT)

test: setup-tests
	$(VENV)/python -m pytest

test-fast: setup-tests
	$(VENV)/python -m pytest -m "not cluster"

lint:
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .

types:
	$(VENV)/mypy

clean:
	$(MAKE) -C spank clean
	$(MAKE) -C probe clean
