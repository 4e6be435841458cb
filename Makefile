# make demo     set up, check the machine, compile a first function and a real model
# make test     set up and run the whole test suite
# make bench    set up and run the benchmarks
# make sanitize set up and run parts of the suite with the C++ parts built for address, undefined-behaviour and thread checks (half an hour)
# make doctor   set up and check the compiler's tools, with a cure for each that is missing
# make docs     set up and build the documentation as a site, build/site/index.html
# make wheel    set up and make two wheels in dist/: one for all supported versions, which builds its native runtime by
#               g++ where it is used; and one with the native runtime in it, for machines with the same torch and
#               Python: they need no g++ unless they run CPU kernels
# make clean    remove the environment and build leftovers
#
# PYTHON=python3.12     another interpreter (3.11 to 3.15)
# VENV=none             install nothing: use $(PYTHON) as it is, with the torch that it has
# PIP_FLAGS=...         more flags for pip, such as --index-url https://download.pytorch.org/whl/cpu
#                       --extra-index-url https://pypi.org/simple for a torch without CUDA

PYTHON ?= python3
VENV ?= .venv
PIP_FLAGS ?=
# A process of tests per core, where pytest-xdist is there; the tests of one file stay together.
PYTEST_FLAGS ?= $(shell $(PY) -c 'import xdist' 2>/dev/null && printf '%s' '-n auto --dist loadfile')

ifeq ($(VENV),none)
PY := $(PYTHON)
READY := check-python
else
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
PIP := $(PY) -m pip install -qq --disable-pip-version-check --no-input $(PIP_FLAGS)
endif

export PYTHONPATH := $(CURDIR)
export PYTHONUNBUFFERED := 1
.SHELLFLAGS := -eu -c
.PHONY: demo test sanitize bench doctor docs docs-tools wheel clean check-python setup
.DEFAULT_GOAL := help

.PHONY: help
help:
	@sed -n '/^#/!q;s/^# \{0,1\}//p' Makefile

setup: $(READY)

check-python:
	@command -v $(PYTHON) >/dev/null || { echo "jit: no $(PYTHON) on the PATH; say which with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 16))' || \
	{ echo "jit: $(PYTHON) is $$($(PYTHON) -V); Python 3.11 to 3.15 is needed: PYTHON=python3.12 make ..." >&2; exit 1; }
	@test "$(VENV)" != none || $(PYTHON) -c 'import torch' || \
	{ echo "jit: VENV=none uses $(PYTHON) as it is, and it lacks the package named above; pip install it there, or leave VENV out" >&2; exit 1; }

# The stamp depends on everything that is installed, so that a second run installs nothing.
$(VENV)/.ready: requirements.txt requirements-triton.txt requirements-models.txt setup.cfg pyproject.toml | check-python
	@echo "jit: setting up $(VENV) (a few minutes the first time)"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || \
	{ echo "jit: $(PYTHON) cannot make a virtual environment; on Debian: apt install python3-venv" >&2; exit 1; }
	@$(PIP) -r requirements.txt || { echo "jit: pip could not install requirements.txt (its message is above)" >&2; exit 1; }
	@$(PY) -c 'import triton' 2>/dev/null || $(PIP) -r requirements-triton.txt || echo "jit: no Triton here: GPU kernels cannot be compiled" >&2
	@$(PIP) --no-deps --target $(VENV)/extra --upgrade -r requirements-models.txt || \
	echo "jit: timm and torchvision could not be installed: examples/vision.py will not run" >&2
	@$(PIP) --no-deps --no-build-isolation -e . || { echo "jit: could not install this checkout into $(VENV)" >&2; exit 1; }
	@touch $@

doctor: $(READY)
	@$(PY) -m jit doctor

demo: doctor
	@echo; echo "== examples/quickstart.py"; $(PY) examples/quickstart.py
	@echo; echo "== examples/transformer.py"; $(PY) examples/transformer.py

# The tests of the documentation's site need its tools; without them they are skipped.
ifeq ($(VENV),none)
docs-tools: ;
else
docs-tools: $(READY)
	@test -e $(VENV)/.docs -a ! requirements-docs.txt -nt $(VENV)/.docs || \
	{ $(PIP) -r requirements-docs.txt && touch $(VENV)/.docs; } || \
	echo "jit: pip could not install requirements-docs.txt (its message is above): there is no site of the documentation here" >&2
endif

docs: docs-tools $(READY)
	@$(PY) -c 'import mkdocs, material, mkdocstrings' || \
	{ echo "jit: the site needs what requirements-docs.txt lists" >&2; exit 1; }
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	@echo "jit: build/site/index.html"

# The native runtime is built first, so that its minute does not count against the first test that needs it.
test: $(READY) docs-tools
	@$(PY) -c 'import jit.runtime; jit.runtime.native()'
	@$(PY) -m pytest $(PYTEST_FLAGS)

sanitize: $(READY)
	@$(PY) tests/sanitized.py address
	@$(PY) tests/sanitized.py thread

bench: $(READY)
	@for b in call_overhead breaks kernels cold_start models; do echo; echo "== benchmarks/$$b.py"; $(PY) benchmarks/$$b.py; done

wheel: $(READY)
	@$(PY) tools/wheel.py

clean:
	@rm -rf build dist *.egg-info .pytest_cache .hypothesis
	@test "$(VENV)" = none || rm -rf -- "$(VENV)"
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
