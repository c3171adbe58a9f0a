# `make demo` and `make test` need nothing but Python 3.10+ (with venv) and, for the tests, Debian or
# Ubuntu as root. Everything is installed into .venv, system packages by apt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# axe-playwright-python carries axe.min.js, which selenium runs in Debian's own Chromium.
DEV := axe-playwright-python hatchling hypothesis "mkdocs<2" mypy nvidia-ml-py pytest pytest-timeout rich ruff \
	selenium typing-extensions
# torch before what asks for it, so that accelerate takes this one. The tests need no CUDA: with
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu pip takes the small build.
TORCH := torch==2.13.0
LAUNCHERS := accelerate deepspeed ray

.PHONY: demo test lint bench fuzz setup docs site dist clean

$(VENV)/made: pyproject.toml scripts/numabind man/numabind.1 $(shell find src -type f -not -name '*.pyc')
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps .
	@touch $@

$(VENV)/dev: $(VENV)/made
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(DEV) $(LAUNCHERS)
	@touch $@

demo: $(VENV)/made
	@echo "== This machine, its plan, and what stands in the way"
	@$(BIN)/numabind
	@echo; echo "== A machine with eight GPUs, planned from its snapshot"
	@$(BIN)/numabind plan --mode exclusive --snapshot examples/hgx-h100.json
	@echo; echo "== The kernel's books of a process on this machine that nobody bound"
	@$(BIN)/python examples/readback.py
	@echo; echo "== The same under numabind run"
	@$(BIN)/numabind run -- $(BIN)/python examples/readback.py

setup: $(VENV)/dev
	@sh tests/setup.sh $(BIN)/python

test: setup lint
	@$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@# A program that uses numabind as it is installed. With these settings, which are stricter than
	@# --strict, mypy knows torch already.
	@cd tests/typing && ../../$(BIN)/mypy --config-file ../../pyproject.toml \
		--cache-dir ../../.mypy_cache .
	@$(BIN)/mkdocs build --strict --quiet --site-dir $(VENV)/site

docs: $(VENV)/made
	@$(BIN)/python -m numabind._problems > docs/problems.md
	@$(BIN)/python -m numabind._doctor > docs/doctor.md
	@$(BIN)/python -m numabind._manual > man/numabind.1

# The documentation, to be read in a browser from site/.
site: $(VENV)/dev
	@$(BIN)/mkdocs build --strict --quiet

bench: setup
	@$(BIN)/python benchmarks/startup.py
	@$(BIN)/python benchmarks/bind.py
	@$(BIN)/python benchmarks/discovery.py
	@$(BIN)/python benchmarks/scaling.py
	@$(BIN)/python benchmarks/status.py
	@$(BIN)/python benchmarks/fleet.py
	@$(BIN)/python benchmarks/pool.py
	@$(BIN)/python benchmarks/optimizer.py

# FUZZ_SECONDS=600 by default; ARGS='trees maps' for some targets only.
fuzz: $(VENV)/dev
	@cd tests && ../$(BIN)/python -W error -m fuzz $(ARGS)

# The same bytes for everyone who has the same source and the same hatchling.
dist: $(VENV)/dev
	@rm -rf dist
	@$(BIN)/python -m hatchling build

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache
