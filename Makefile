# Everything a developer runs. Needs Python 3.11+ with pip, and make; the rest is installed below .venvs/.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
ARGS ?=
# The environment of `make test`: a file of requirements/ without its ending.
VENV ?= test
# One more than there are cores: many tests wait, for a lease to run out or a server to come back.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 1)

# What `make check` runs: tables of what is decided, the store's contract, and messages through a broker, on one driver.
CHECKED := tests/test_fake.py tests/test_integration.py tests/test_retry.py tests/test_unit.py tests/engine/claim \
  tests/engine/dispatch tests/engine/settle tests/runtime tests/storage/contract tests/storage/ordering \
  tests/subscriber/test_judge.py tests/broker/test_ordering.py tests/broker/test_publishing.py tests/faststream/test_imports.py

# The Pythons that are supported beside the one of `make test`, and what runs on each: what depends on the version of
# Python (asyncio, annotations, processes), on both drivers.
PYTHONS ?= 3.12 3.13
CORE := $(filter-out tests/faststream/% tests/subscriber/%,$(CHECKED)) tests/faststream tests/subscriber \
  tests/engine/test_pull.py tests/engine/test_shutdown.py tests/broker/test_handler_sessions.py \
  tests/broker/test_returned_values.py tests/broker/test_stop_exceptions.py tests/django

.PHONY: help demo console check test versions lint bench peers plot docs screenshots dist soak soak-report clean
.DEFAULT_GOAL := help

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venvs/demo/.ready  ## a FastStream app on a Postgres of its own: rollbacks, retries, timers, ordered keys, Kafka, a kill; checked
	@.venvs/demo/bin/python -m examples.demo $(ARGS)

console: .venvs/demo/.ready  ## the web console over a shop with a running load: customers, failures, a parked key, a relay (ARGS="--port 8010 --read-only")
	@.venvs/demo/bin/python -m examples.console $(ARGS)

check: .venvs/test/.ready  ## before each commit, in two minutes: ruff, what decides, the store on one driver and in memory, a broker
	@.venvs/test/bin/ruff check .
	@.venvs/test/bin/ruff format --check .
	@.venvs/test/bin/python -m pytest -q -n $(WORKERS) --dist worksteal -k "not psycopg" $(CHECKED) $(ARGS)

test: .venvs/$(VENV)/.ready  ## all tests, on a Postgres of their own (OUTBOX_TEST_DSN=postgresql://… for one of yours)
	@.venvs/$(VENV)/bin/python -m tests.servers.kafka_jars || true
	@.venvs/$(VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

versions:  ## the core of the tests on the other Pythons that are supported (PYTHONS="3.12 3.13"), as far as they are here
	@for version in $(PYTHONS); do \
	  if ! .ci/find-python $$version >/dev/null; then echo "Python $$version is not here: its tests were skipped."; continue; fi; \
	  $(MAKE) --no-print-directory .venvs/python-$$version/.ready || exit; \
	  echo "Python $$version"; \
	  .venvs/python-$$version/bin/python -m pytest -q -n $(WORKERS) --dist worksteal $(CORE) $(ARGS) || exit; \
	done

lint: .venvs/test/.ready  ## ruff, mypy --strict, import-linter
	@.venvs/test/bin/ruff check .
	@.venvs/test/bin/ruff format --check .
	@.venvs/test/bin/mypy
	@.venvs/test/bin/lint-imports --no-cache

# Who cannot be installed is left out, and so is the relay where there is no Kafka. Only the tables go to the standard output.
bench: .venvs/test/.ready  ## ours beside its peers, in about 5 minutes (ARGS="--help" for its options)
	@$(MAKE) --no-print-directory --keep-going peers >&2 || echo "Not all peers could be installed: those that miss are left out." >&2
	@.venvs/test/bin/python -m tests.servers.kafka_jars >&2 || true
	@.venvs/test/bin/python -m benchmarks $(ARGS)

# Those of requirements/peer-*.txt: what the scenarios peers-… compare with, and ours with an event loop like theirs.
peers: $(patsubst requirements/%.txt,.venvs/%/.ready,$(wildcard requirements/peer-*.txt))  ## install what `make bench` compares with

plot: .venvs/plot/.ready  ## the plots of the documentation, from what `make bench` wrote (ARGS="results.json")
	@.venvs/plot/bin/python -m benchmarks.plots $(ARGS)

# The variable silences what Material prints about its successor, which reads our mkdocs.yml too (but runs no hooks yet).
docs: .venvs/docs/.ready  ## the documentation as a site in site/, to be opened from the disk: site/index.html
	@NO_MKDOCS_2_WARNING=1 .venvs/docs/bin/mkdocs build --strict $(ARGS)

screenshots: .venvs/test/.ready  ## the pictures of the console in the documentation, taken in Chromium
	@.venvs/test/bin/python docs/_tools/screenshots.py

# The wheel is built from the archive of the sources, as an installer would do it.
dist: .venvs/dist/.ready  ## wheel and archive of the sources in dist/, checked for what a registry refuses
	@rm -rf dist
	@.venvs/dist/bin/python -m build --no-isolation --outdir dist . >/dev/null
	@.venvs/dist/bin/twine check --strict dist/*

soak: .venvs/test/.ready  ## random faults for as long as wanted (ARGS="--seconds 600 --seed 7"; of keys with "--order HashShards", of a relay with "--relay kafka", beside an older version with "--beside")
	@.venvs/test/bin/python -m tests.soak $(ARGS)

# Two hours by default, or a part of it with --jobs; ARGS="--minutes 0.5 --relay-minutes 0.5" to see that it works.
soak-report: .venvs/test/.ready  ## all soaks, written to docs/soak.md (ARGS="--minutes 15 --relay-minutes 5 --seed 7"; so many side by side with "--jobs 2")
	@.venvs/test/bin/python -m tests.servers.kafka_jars || true
	@.venvs/test/bin/python -m tests.soak_report $(ARGS)

clean:  ## remove everything the other targets made
	rm -rf .venvs site dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A peer stands alone: our package has the name of one of them. Before the rules below, which would do for them too.
.venvs/peer-%/.ready: requirements/peer-%.txt
	@echo "Installing requirements/peer-$*.txt into .venvs/peer-$* (once)"
	@rm -rf .venvs/peer-$* && $(PYTHON) -m venv --without-pip .venvs/peer-$*
	@$(PYTHON) -m pip --python .venvs/peer-$*/bin/python --disable-pip-version-check install --quiet --no-deps -r $<
	@touch $@

# One virtual environment per requirements file: $(call install,ENVIRONMENT,REQUIREMENTS,PYTHON). pip is borrowed from
# $(PYTHON), so a Python without ensurepip will do.
define install
@echo "Installing $(2) into .venvs/$(1) (once)"
@rm -rf .venvs/$(1) && $(3) -m venv --without-pip .venvs/$(1)
@$(PYTHON) -m pip --python .venvs/$(1)/bin/python --disable-pip-version-check install --quiet -r $(2)
@$(PYTHON) -m pip --python .venvs/$(1)/bin/python --disable-pip-version-check install --quiet --no-deps --no-build-isolation --editable .
@touch .venvs/$(1)/.ready
endef

# What `make test` needs, for another Python.
.venvs/python-%/.ready: requirements/test.txt pyproject.toml
	$(call install,python-$*,$<,"$$(.ci/find-python $*)")

.venvs/%/.ready: requirements/%.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11")'
	$(call install,$*,$<,$(PYTHON))

.SECONDARY:
