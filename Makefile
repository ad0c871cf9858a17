# Thin: what to type. The work is in scripts/. `make help` lists the targets.
#   make PRESET=dev build     another CMake preset        make PYTHON=python3.12 setup     another interpreter
#   make PIP_ARGS="..." setup  further arguments for pip (an index of your own, for instance)
PRESET ?= release
PYTHON ?= python3
export PRESET PYTHON PIP_ARGS
VENV_PYTHON := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: setup peers build demo test test-full bench docs lint format generate wheel conformance new-kernel clean help

setup: ## system packages, .venv, Python packages
	@scripts/setup.sh

# Its products with AMX end the process (0.3.36: also without torch, on one thread); without them AVX-512 VNNI multiplies.
peers: NO_AMX = $(shell grep -qm1 amx_int8 /proc/cpuinfo && echo 'CFLAGS=-mno-amx-int8 CXXFLAGS=-mno-amx-int8')
peers: setup ## llama.cpp from source (about 15 minutes), for `layerzero bench e2e --peers`
	@$(NO_AMX) $(VENV_PYTHON) -m pip install -q --no-deps --upgrade --target .venv/peers $(PIP_ARGS) -r requirements/peers.txt

build: setup ## compile, and make `import layerzero` work in .venv
	@scripts/build.sh $(PRESET)

demo: setup ## a real model answers with and without LayerZero
	@scripts/build.sh $(PRESET) $(if $(wildcard /dev/nvidia[0-9]*),python_package,python_package_cpu)
	@scripts/demo.sh

test: build ## the CI tier: C++ and Python tests
	@scripts/test.sh

test-full: setup ## everything: sanitizers, fuzzing, matrices; goes on where it stopped
	@$(VENV_PYTHON) scripts/test_full.py $(STAGES)

bench: build ## selection, host cost and end-to-end numbers of this machine
	@scripts/bench.sh

docs: setup ## the documentation as a site, build/site/index.html; a broken link is an error
	@scripts/docs.sh

lint: setup ## formatting, layers, pairs, sizes, ruff, clang-tidy on changed files (ALL=1: on all)
	@scripts/format.sh --check
	@scripts/lint.sh $(if $(ALL),--all)

format: setup ## rewrite sources in the project's format
	@scripts/format.sh

generate: build ## files made from contracts, kernels and folders: stubs, pages of operations, the support matrix, ARCHITECTURE
	@$(VENV_PYTHON) scripts/generate_api.py

wheel: setup ## dist/layerzero_kernels-*.whl for manylinux_2_28; LOCAL=1: for this machine alone, quicker
	@scripts/wheel.sh $(if $(LOCAL),--local)

conformance: build ## every kernel on every case, random calls, planted faults: a table, and JSON in bench/results
	@$(VENV_PYTHON) scripts/conformance.py

new-kernel: ## OP=norm.rms NAME=mine: a kernel file and its test from the annotated skeleton
	@$(PYTHON) scripts/new_kernel.py "$(OP)" "$(NAME)"

clean: ## remove build/ and dist/; .venv stays
	rm -rf build dist

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /  make \1|/p' Makefile | column -t -s '|'
