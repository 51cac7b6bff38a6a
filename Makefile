SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
BIN := .venv/bin
# The one dependency outside the lock: its CPU and CUDA builds differ. TORCH_INDEX_URL chooses where it comes from.
TORCH := $(shell sed -n 's/.*"\(torch==[0-9.]*\)".*/\1/p' pyproject.toml)
# Named after what it stands for, so that set-up runs again when the lock changes and only then.
READY := .venv/.ready-$(shell { cat requirements.lock; echo "$(TORCH)"; } | cksum | cut -d ' ' -f 1)
PIP := $(BIN)/python -m pip install --disable-pip-version-check --only-binary :all:
PROTOS := $(sort $(wildcard protos/tokenloom/api/*/v1/*.proto))
PROTOC = $(BIN)/python -m grpc_tools.protoc -Iprotos --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc \
	--python_out=$(1) --pyi_out=$(1) --grpc_python_out=$(1) --mypy_grpc_out=quiet:$(1) $(PROTOS)

.PHONY: help setup demo up test slow simulate mutants chaos fuzz bench bench-peers bench-profile bench-gpu bench-cancel bench-slow-readers lint types protos protos-check protos-baseline lock compose-env compose-smoke

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile

setup: $(READY) ## create .venv and install everything from the lock file

$(READY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Tokenloom needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.12" >&2; exit 2; }
	@echo "== set-up 1/5: virtual environment"
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	@echo "== set-up 2/5: locked packages"
	@$(PIP) --require-hashes -r requirements.lock
	@echo "== set-up 3/5: $(TORCH)"
	@$(PIP) $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) $(TORCH)
	@echo "== set-up 4/5: tokenloom itself"
	@$(PIP) --quiet --no-deps --no-build-isolation -e .
	@echo "== set-up 5/5: the CPU engine, where there is a C++ compiler"
	@$(BIN)/python -m services.worker.engine.native.build
	@rm -f .venv/.ready-* && touch $@

demo: setup ## start everything, stream one chat answer, show its bill, stop
	@$(BIN)/tokenloom demo

up: setup ## run the platform in the foreground; Ctrl-C drains (ARGS="--workers 2")
	@# On a terminal it gets a process group of its own: Ctrl-C reaches it alone, and make reports its exit code.
	@if [ -t 0 ]; then set -m; $(BIN)/tokenloom up $(ARGS); else exec $(BIN)/tokenloom up $(ARGS); fi

test: setup ## run the whole test suite (ARGS="tests/unit -k name")
	@$(BIN)/python -m pytest $(ARGS)

slow: setup ## run the tests that take minutes and that `make test` leaves out
	@$(BIN)/python -m pytest -m slow $(ARGS)

simulate: setup ## run the platform in 2,000 simulated worlds and hold it to its promises (ARGS="--seed 17 --trace" replays one)
	@$(BIN)/python -m tests.simulation $(ARGS)

mutants: setup ## plant known bugs in copies of the tree and see that each is caught (ARGS="skip_a_release")
	@$(BIN)/python -m tests.mutants $(ARGS)

chaos: setup ## kill and pause every service for 10 minutes under load, then compare callers with the ledger (ARGS="--minutes 2")
	@$(BIN)/python -m tests.chaos $(ARGS)

fuzz: setup ## run generated input at length (FUZZ_SEED=17 FUZZ_SCALE=1 ARGS="tests/fuzz -k name" repeats a failure)
	@TOKENLOOM_FUZZ_SEED=$${FUZZ_SEED:-$$RANDOM} TOKENLOOM_FUZZ_SCALE=$${FUZZ_SCALE:-16} \
		$(BIN)/python -m pytest $(or $(ARGS),tests/fuzz)

bench: setup ## measure this platform alone, about 4 minutes (ARGS="streaming ledger" for some of it)
	@$(BIN)/python -m bench $(ARGS)

bench-profile: setup ## serve 8 and 32 streams and show what each process spends its time on (ARGS="--streams 8")
	@$(BIN)/python -m bench.profile $(ARGS)

bench-peers: setup ## measure the whole path beside vLLM and llama.cpp, three rounds, about half an hour (ARGS="--rounds 1 --only '128/128, 8'")
	@$(BIN)/python -m bench.peers $(ARGS)

bench-cancel: setup ## time from a client's going to its pages free, 32 streams, and hold it to a step and 50 ms (ARGS="--samples 40")
	@$(BIN)/python -m bench.cancel $(ARGS)

bench-slow-readers: setup ## measure what clients that never read cost those that do (ARGS="--rounds 2")
	@$(BIN)/python -m bench.slow_readers $(ARGS)

bench-gpu: setup ## check and time the GPU engine, 8 minutes on a GPU (ARGS="--interpret" tries the script without one)
	@$(BIN)/python -m bench.gpu $(ARGS)

lint: setup ## check style, format and the import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@PYTHONPATH=. $(BIN)/lint-imports --no-cache

types: setup ## check types, strictly
	@$(BIN)/mypy

protos: setup ## regenerate the stubs in tokenloom/api
	@$(call PROTOC,.)

protos-check: setup ## lint the protos, refuse breaking changes and stale stubs
	@cd protos && ../$(BIN)/buf lint
	@cd protos && ../$(BIN)/buf breaking --against baseline.binpb
	@fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
		$(call PROTOC,"$$fresh"); \
		diff -r --exclude=__pycache__ --exclude=__init__.py "$$fresh/tokenloom/api" tokenloom/api \
		|| { echo "The stubs are stale: run make protos." >&2; exit 1; }
	@echo "protos: clean, compatible, stubs up to date"

protos-baseline: setup ## accept the protos of now as what later changes must not break
	@cd protos && ../$(BIN)/buf build --exclude-source-info -o baseline.binpb

lock: ## resolve every dependency anew into requirements.lock
	@tools=$$(mktemp -d); trap 'rm -rf "$$tools"' EXIT; \
		$(PYTHON) -m venv "$$tools" && "$$tools/bin/pip" install --quiet --disable-pip-version-check pip-tools==7.6.2; \
		CUSTOM_COMPILE_COMMAND="make lock" "$$tools/bin/pip-compile" --quiet --extra dev --generate-hashes --strip-extras \
			--unsafe-package torch --unsafe-package tokenloom --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-annotate \
			$(ARGS) --output-file requirements.lock pyproject.toml; \
		sed -i.bak '/^# WARNING: The following packages were not pinned/,$$d' requirements.lock; rm requirements.lock.bak

compose-env: ## write .env with fresh secrets for docker-compose.yml, unless there is one
	@if [ -e .env ]; then echo ".env is there already: left alone"; else \
		(umask 077; $(PYTHON) deploy/environment.py > .env); echo "wrote .env"; fi

compose-smoke: setup ## build the compose stack, bring it up, break it, upgrade it, restore it, remove it (COMPOSE="docker-compose")
	@# The worker's image takes the build of torch that set-up takes.
	@ls deploy/wheels/cpu/*.whl >/dev/null 2>&1 || $(BIN)/python -m pip download --disable-pip-version-check --quiet --no-deps \
		--only-binary :all: $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) --dest deploy/wheels/cpu $(TORCH)
	@$(BIN)/python -m tests.compose.smoke
