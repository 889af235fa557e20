# All targets run on a fresh Debian 12 machine as root; PREFIX can be moved.
PREFIX ?= /opt/slurm-ncclmon
export NCCLMON_PREFIX = $(PREFIX)
VENV = $(PREFIX)/venv/bin
FAULT ?= not_entered

.PHONY: setup build demo test test-fast lint types bench clean

setup:
	scripts/setup

build:
	$(MAKE) -C spank
	$(MAKE) -C probe

demo: setup
	scripts/demo $(FAULT)

test: setup
	$(VENV)/python -m pytest

test-fast:
	$(VENV)/python -m pytest -m "not cluster"

lint:
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .

types:
	$(VENV)/mypy

clean:
	$(MAKE) -C spank clean
	$(MAKE) -C probe clean
