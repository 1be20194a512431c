# Every target makes its own environment first: nothing to install by hand.

PY := .venv/bin/python
BIN := .venv/bin
# The variable silences the advertisement of a successor.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs
# Sized for two cores: a third process, since those with a cluster mostly wait.
JOBS ?= 3
PYTEST_ARGS ?=
CLUSTER_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow check bench docs soak soak-slurm cluster model format lock clean venv system-packages bench-packages

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: venv ## train, sample, score and report a toy video study; kill it and run it again at any point
	$(PY) examples/video/run_demo.py

# The checks come first and the tests last, so that the last line printed is the count of tests.
test: check system-packages ## all checks, then all tests
	$(PY) -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

test-slow: venv system-packages ## the cluster tests with the timers of a real site: up to an hour
	$(PY) -m pytest -n $(JOBS) --dist worksteal -m "needs_slurm and not soak" --real-timers --timeout=1800 $(PYTEST_ARGS)

check: venv ## lint, format, types, import floors, dependencies, changelog fragments, documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/deptry src
	$(BIN)/towncrier build --draft --version next >/dev/null
	$(MKDOCS) build --strict --quiet --site-dir build/site

bench: venv bench-packages ## measure against the floor and the peers; prints a table and writes JSON
	$(PY) bench/run.py

docs: venv ## build the documentation into build/site
	$(MKDOCS) build --strict --site-dir build/site

soak: venv system-packages ## the long crash tests: up to an hour
	$(PY) -m pytest -m "soak and not needs_slurm" --timeout=7200 $(PYTEST_ARGS)

soak-slurm: venv system-packages ## fleets on a real Slurm in a storm: 20 fleets, 20,000 tasks, 200 faults (SOAK_TASKS=600: smaller)
	$(PY) -m pytest -m soak --timeout=7200 -s tests/cluster/test_fleet_soak.py $(PYTEST_ARGS)

cluster: venv system-packages ## a real Slurm cluster to play with, until Ctrl-C
	$(PY) -m tests.cluster.play $(CLUSTER_ARGS)

model: venv system-packages ## check the protocol model with large bounds
	$(PY) model/check.py --large

format: venv ## format the code and fix what can be fixed safely
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: ## resolve requirements/dev.lock anew; make lock ARGS=--upgrade takes the newest versions
	scripts/lock $(ARGS)

clean: ## remove what was built or cached here; never a spool, a demo result or the environment
	rm -rf build dist site htmlcov .coverage .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find src tests bench examples scripts -name __pycache__ -type d -prune -exec rm -rf {} +

venv:
	@scripts/bootstrap

system-packages:
	@scripts/system-packages

bench-packages:
	@scripts/system-packages gcc libc6-dev parallel strace
