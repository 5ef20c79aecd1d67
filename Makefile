# Everything a developer runs. Needs only Python 3.11+, pip and make; uv is used when it is on PATH because it is faster.

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help setup demo demo-containers test test-fast test-long generate plugin image lock clean

PYTHON ?= python3
WORKERS ?= auto
PYTEST_ARGS ?=

# Tests start hundreds of processes. Where Python writes no bytecode, each of them compiles every module again.
export PYTHONDONTWRITEBYTECODE :=

UV := $(shell command -v uv 2>/dev/null)
RUN := .venv/bin/python -m
# Beyond eight workers, starting them costs more than they save.
PYTEST := $(RUN) pytest -n $(WORKERS) --maxprocesses 8 --dist worksteal

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-19s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: .venv/.installed ## create .venv with the locked dependencies and this package

demo: .venv/.running ## the whole federation on this machine, and a workload in two cities
	@demo/run

demo-containers: .venv/.running ## the same in containers, with an image built here; needs Docker or Podman, and Go or busybox
	@demo/containers

test: .venv/.installed ## lint, types, generated files, and all tests with small counts
	$(checks)
	$(PYTEST) $(PYTEST_ARGS)

# The packages below operator; the embedded engine's tests take too long for an inner loop.
FAST := kube runtime api answers federation karmada management cell platform providers admission

test-fast: .venv/.installed ## lint, and the tests of the packages below operator, without the embedded engine's own
	$(RUN) ruff check .
	$(PYTEST) tests/test_layers.py $(FAST:%=tests/%) $(PYTEST_ARGS)

test-long: export LONG := 1
test-long: .venv/.installed ## make test with full counts
	$(checks)
	$(PYTEST) --timeout 900 $(PYTEST_ARGS)

generate: .venv/.installed ## write what follows from tables (most of deploy/; docs/reference, cli.md, man)
	$(RUN) tools.generate
	$(RUN) tools.manual

plugin: .venv/.installed ## build the datumctl plugin as a single file, dist/datumctl-compute
	$(RUN) tools.bundle

CONTAINER := $(shell command -v podman 2>/dev/null || command -v docker 2>/dev/null)
IMAGE ?= compute-manager:$(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/datum_compute/__init__.py)
IMAGE_ARGS ?=

image: ## build the image of compute-manager with podman or docker (IMAGE=name:tag, IMAGE_ARGS='--build-arg BASE=...')
	@test -n "$(CONTAINER)" || { echo "an image needs podman or docker, and neither is on PATH." >&2; exit 1; }
	$(CONTAINER) build --tag $(IMAGE) $(IMAGE_ARGS) .

lock: ## pin the dependencies of pyproject.toml and the clients in their locks (LOCK_ARGS=--upgrade: newest)
	$(need_python)
ifeq ($(UV),)
	@$(PYTHON) -m venv build/lock
	@build/lock/bin/python -m pip install --quiet --disable-pip-version-check uv
endif
	$(call pin,requirements.lock)
	$(call pin,requirements-dev.lock,--extra dev --extra tracing --constraint requirements.lock)
	$(call pin,clients/requirements.lock,,clients/requirements.in)

clean: ## remove .venv, caches and build output
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find src tests tools engine bench -name __pycache__ -type d -prune -exec rm -rf {} +

define checks
$(RUN) ruff check .
$(RUN) ruff format --check .
$(RUN) mypy
$(RUN) tools.generate --check
$(RUN) tools.manual --check
endef

define need_python
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	echo "Python 3.11 or newer is needed, and '$(PYTHON)' is not; name one with make PYTHON=python3.11." >&2; exit 1; }
endef

define pin
@$(or $(UV),build/lock/bin/uv) pip compile --quiet $(or $(3),pyproject.toml) $(2) --output-file $(1) \
	--no-config --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --no-annotate --custom-compile-command "make lock" $(LOCK_ARGS)
endef

# Installs what a lock pins, and this package.
ifeq ($(UV),)
define install
@test -x .venv/bin/python || $(PYTHON) -m venv .venv
@$(RUN) pip install --quiet --disable-pip-version-check --require-hashes -r $(1)
@$(RUN) pip install --quiet --disable-pip-version-check --no-deps $(2) -e .
endef
else
define install
@$(UV) venv --quiet --allow-existing --python $(PYTHON) .venv
@$(UV) pip install --quiet --python .venv/bin/python --require-hashes -r $(1)
@$(UV) pip install --quiet --python .venv/bin/python --no-deps $(2) -e .
endef
endif

# Everything that runs, without developer tools.
.venv/.running: requirements.lock pyproject.toml
	$(need_python)
	$(call install,requirements.lock)
	@touch $@

.venv/.installed: requirements-dev.lock pyproject.toml
	$(need_python)
	$(call install,requirements-dev.lock,--no-build-isolation)
	@touch $@ .venv/.running

.PHONY: engine engine-up engine-down engine-chainsaw test-engine test-engine-sample test-engine-long

engine: .venv/.installed ## build the real engine (Kubernetes, Karmada) into a cache; needs Go
	$(RUN) engine build

engine-up: .venv/.installed ## start the real engine on loopback and wait until it is ready (ENGINE_ARGS=--cell NAME=CITY)
	$(RUN) engine up $(ENGINE_ARGS)

engine-down: ## stop the real engine
	@if [ -d $(or $(ENGINE_FOLDER),.engine) ]; then $(RUN) engine down; fi

# Sequentially, because the planes are shared and a test fails on what the one before left behind. After several failures
# the rest would only wait in vain.
test-engine test-engine-sample: ENGINE_ARGS += --kwok pop-dfw
test-engine: engine engine-up ## the scenarios, and what we rely on in Karmada, on the real engine
	$(call on_engine,1)

test-engine-sample: engine engine-up ## what runs only on the real engine, and a sample of the rest
	$(call on_engine,sample)

define on_engine
ENGINE=$(1) $(RUN) pytest --timeout 600 tests/cli/test_on_engine.py $(PYTEST_ARGS)
ENGINE=$(1) $(RUN) pytest --timeout 600 --maxfail 5 tests/engine tests/scenarios tests/conformance $(PYTEST_ARGS)
endef

test-engine-long: export LONG := 1
test-engine-long: test-engine ## test-engine with full counts, and two managers whose leader is killed repeatedly

.PHONY: test-install

INSTALL ?= $(CURDIR)/build/install

test-install: .venv/.installed ## the commands of docs/install.md, on an engine of its own that knows nothing of compute
	$(RUN) engine build
	INSTALL=$(INSTALL) $(RUN) pytest --timeout 1200 -rs tests/install/test_install.py $(PYTEST_ARGS)

.PHONY: test-containers

test-containers: .venv/.installed ## what needs a container engine, on a Podman of its own; needs root, Podman and Go
	CONTAINERS=1 $(RUN) pytest --timeout 300 -rs tests/containers $(PYTEST_ARGS)

.PHONY: test-clients

test-clients: .venv/.installed build/clients/.installed ## other people's clients on the embedded engine and a kube-apiserver
	$(RUN) engine build etcd kubernetes helm
	CLIENTS=build/clients/bin/python $(RUN) pytest --timeout 600 tests/clients $(PYTEST_ARGS)

build/clients/.installed: clients/requirements.lock
	$(need_python)
	@$(PYTHON) -m venv --clear build/clients
	@build/clients/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

engine-chainsaw: .venv/.installed ## build chainsaw, for outside test suites
	$(RUN) engine build chainsaw
