# Everything a person or a machine does here. `make demo` and `make test` need only Python and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
ALL_CORES := --numprocesses auto --dist worksteal
# Without bytecode every process would rewrite the asserts of all tests again, which takes 5 seconds.
export PYTHONDONTWRITEBYTECODE :=
# What a file starts, such as Spark or a browser, starts once.
BY_FILE := --numprocesses auto --dist loadfile
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# What other versions of the dependencies can break. Not the attacks, nor test_exact.py: test_independent.py compares the same releases.
CORE := tests/kernels/test_kernels.py tests/kernels/test_certified.py tests/kernels/test_cache.py tests/noise tests/core/test_inputs.py \
	tests/core/test_interrupts.py tests/core/test_precision.py $(patsubst %,tests/release/test_%.py,independent mechanisms values selection parameters) \
	tests/statistics/test_functions.py tests/cli/test_cli.py

.PHONY: help setup demo test test-long test-internals test-core test-oldest test-integrations test-engines test-peers test-opendp test-coming-from test-torch test-browser proof proof-rocq mutants lint format figures bench errors bench-engines bench-persons bench-spark bench-gpu audit-bench audit-bugs audit-wide audit-peers audit-training false-alarms \
	clock attacks audits paper pictures screenshots docs docs-serve clean

help:
	@echo "Times are of two cores (x86-64 for the tests, proof, docs and lint, aarch64 for the rest) and after the install."
	@echo "make demo          see it work: publishes, attacks, races, audits; needs Python, make; takes a minute, after the install"
	@echo "make test          the tests; needs Python, make; takes about 5 minutes on two cores"
	@echo "make test-long     the tests with ten times the samples and all their parameters; needs Python, make; takes half an hour or more"
	@echo "make test-internals  the tests that read what LLVM, CPython and Triton make of our code, and those that take seconds each; CI runs them; needs Python, make; takes a minute"
	@echo "make test-core     the tests of noise, release and statistics that need no POSIX; needs Python, make; takes a minute"
	@echo "make test-oldest   the core of the tests with the oldest dependencies allowed, in .venv-oldest; needs Python, make; takes 2 minutes"
	@echo "make test-integrations  generators for NumPy and the standard library, diffprivlib with its own tests, which it downloads, and the fixture for pytest; needs Python, make; takes 3 minutes"
	@echo "make test-engines  plans on a Spark of several workers and on Dask, which it installs, and on PostgreSQL; needs Java 17, and PostgreSQL's server, else its tests are skipped; takes 4 minutes"
	@echo "make test-peers    the attacks on PyTorch, JAX, PyDP and others, which it installs first; needs 3 GB of disk for the .venv; takes 3 minutes"
	@echo "make test-opendp   one task in OpenDP, diffprivlib and dpnoise, in .venv-opendp; needs Python, make; takes half a minute"
	@echo "make test-coming-from  the same in Tumult Analytics and PipelineDP, too; needs Java 17, x86-64; takes 3 minutes"
	@echo "make test-torch    tensors and device kernels; needs a CUDA device or Triton's interpreter, and PyTorch, which it installs; takes 2 minutes"
	@echo "make test-browser  the pages and the site in a headless Chromium; needs Chromium; takes a minute"
	@echo "make proof         the error bounds of exact release, proved by Gappa; writes docs/exact-release-proof.md's table; needs Gappa; takes 2 minutes"
	@echo "make proof-rocq    some of these proofs checked by Rocq; needs coq, libcoq-gappa; takes ten minutes"
	@echo "make mutants       plants errors, one at a time, in the lines that decide sensitivities, bounds and scales, and lists those that no test finds; needs Python, make; takes 45 minutes"
	@echo "make figures       every target that measures, proves or draws, one after the other; an error in one does not stop the others; needs what they need; takes four hours"
	@echo "make bench         speed and memory, side by side with the peers; writes tables of the README and of docs/performance.md; needs a quiet machine; takes 6 minutes"
	@echo "make errors        how far statistics are off beside the peers', of which some get environments of their own; writes tables of docs/accuracy.md; needs Python, make; takes 8 minutes"
	@echo "make bench-engines exact integers beside plain queries of DuckDB and Polars; writes a table of docs/performance.md; needs a quiet machine; takes 12 minutes"
	@echo "make bench-persons bounding persons compared with the same by hand in SQL; writes a table of docs/performance.md; needs a quiet machine; takes 6 minutes"
	@echo "make bench-spark   the same on a Spark of two workers; writes a table of docs/performance.md; needs Java 17, a quiet machine; takes 17 minutes"
	@echo "make bench-gpu     releases, DP-SGD and searches on a GPU; prints tables of docs/performance.md, dp-sgd-design.md and attacks.md; needs a CUDA device; takes ten minutes"
	@echo "make audit-bench   audits of the mechanisms that DP-Sniper was measured on; writes a table of docs/dp-sniper.md; needs a quiet machine; takes 7 minutes"
	@echo "make audit-wide    audits of outputs with many parts, next to a logistic regression; writes a table of docs/audit-measurements.md; needs Python, make; takes 10 minutes"
	@echo "make audit-bugs    audits of bugs that people make; writes a table of docs/audit-measurements.md; needs Python, make; takes two minutes"
	@echo "make audit-peers   audits of mechanisms of other libraries and our own; writes a table of docs/audit-measurements.md; needs the peers, which it installs; takes 2 minutes"
	@echo "make audit-training  audits of DP-SGD with canaries; writes tables of docs/audit-training.md and docs/audit-measurements.md; needs Opacus, which it installs; takes 7 minutes"
	@echo "make false-alarms  audits of mechanisms that keep their claim, 1,000 of each kind; writes a table of docs/audit-bounds.md; needs Python, make; takes an hour"
	@echo "make clock         what the time of a release reveals of its value; writes the table of docs/timing.md; needs a quiet machine; takes 6 minutes"
	@echo "make attacks       every attack against the peers; writes the tables of docs/attacks.md; needs the peers, which it installs; takes 11 minutes"
	@echo "make audits        an audit of every peer; writes the scoreboard of the docs and its picture; needs the peers, which it installs; takes 20 minutes"
	@echo "make paper         the paper, checked statement by statement, in paper/; writes docs/paper.md; needs the peers, which it installs; takes 5 minutes"
	@echo "make docs          the documentation as a site, in site/; a warning fails; needs Python, make; takes 10 seconds"
	@echo "make docs-serve    the same at http://localhost:8000, rebuilt as you write, until you stop it; needs Python, make; takes 10 seconds to begin"
	@echo "make pictures      the pictures of the docs, the game and the help of commands; needs Python, make; takes half a minute"
	@echo "make screenshots   the pictures of pages; needs Chromium; takes half a minute"
	@echo "make lint          ruff, mypy (strict), the layers of imports, unused code; needs Python, make; takes a minute"
	@echo "make format        ruff lays out the code, and mends what it can; needs Python, make; takes a second"
	@echo "make setup         only the .venv, with everything that 'make test' needs; needs Python, make; takes 2 minutes, by the network"
	@echo "make clean         remove the .venv and all that is generated; needs make; takes 10 seconds"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# One stamp for each set of extras, remade when pyproject.toml changes.
$(VENV)/installed-%: pyproject.toml | $(BIN)/python
	@echo "Installing dpnoise[$*] into $(VENV) ..."
	$(PIP) install --editable ".[$*]"
	@touch $@

# Compiled once for every process that the tests start, also where Python is told to keep no bytecode.
setup: $(VENV)/installed-test
	@$(BIN)/python -m compileall -q src

demo: $(VENV)/installed-cli
	$(BIN)/dpnoise release --sample --column income --query histogram --edges 0,20000,40000,60000,80000,120000 --epsilon 0.5
	@echo
	$(BIN)/python examples/demo.py

test: setup
	$(BIN)/python -m pytest $(ALL_CORES) -m "not internals and not long"

test-long: setup
	DPNOISE_TEST_LONG=1 $(BIN)/python -m pytest $(ALL_CORES)

test-internals: setup
	$(BIN)/python -m pytest $(ALL_CORES) -m "internals or long"

test-core: setup
	$(BIN)/python -m pytest $(ALL_CORES) $(filter-out tests/core/% tests/kernels/test_cache.py tests/cli/%,$(CORE))

test-oldest:
	PIP_CONSTRAINT=requirements/oldest.txt $(MAKE) --no-print-directory VENV=.venv-oldest setup
	.venv-oldest/bin/python -m pytest $(ALL_CORES) -m "not long" $(CORE)

# NumPy's and CPython's own tests run on our generators.
test-integrations: setup $(VENV)/installed-learning $(VENV)/installed-diffprivlib
	$(BIN)/python -m pytest $(ALL_CORES) tests/integrations $(patsubst %,src/dpnoise/integrations/%.py,numpy stdlib diffprivlib)

test-browser: setup $(VENV)/installed-docs
	$(BIN)/python -m pytest $(BY_FILE) tests/browser

test-engines: setup $(VENV)/installed-cluster
	$(BIN)/python -m pytest $(BY_FILE) tests/statistics/engines/test_engines.py tests/cluster tests/statistics/engines/test_persons.py::test_dask_says_what_to_do_instead

# PyPI's PyTorch for Linux brings GPU libraries; where pip knows an index of CPU builds, it is smaller.
# The last two learn trees, if scikit-learn is there, which diffprivlib brings.
test-peers: setup $(VENV)/installed-peers
	$(BIN)/python -m pytest $(ALL_CORES) tests/peers tests/auditing/test_learned.py tests/auditing/test_audit_seed.py

test-torch: setup $(VENV)/installed-opacus
	$(BIN)/python -m pytest $(ALL_CORES) tests/tensors src/dpnoise/integrations --ignore-glob='*/integrations/diffprivlib*.py'

# Both need versions of Spark or NumPy that dpnoise does not take.
test-coming-from: test-opendp
	$(PYTHON) -m venv .venv-tumult && .venv-tumult/bin/python -m pip install --quiet tmlt.analytics==0.21.0
	$(PYTHON) -m venv .venv-pipelinedp && .venv-pipelinedp/bin/python -m pip install --quiet pipeline-dp==0.3.1
	.venv-opendp/bin/python -m pytest tests/peers/test_coming_from.py

test-opendp:
	$(MAKE) --no-print-directory VENV=.venv-opendp setup .venv-opendp/installed-opendp
	.venv-opendp/bin/python -m pytest tests/peers/test_coming_from.py

proof: setup
	$(BIN)/python -m tools.proof --table
	$(BIN)/python -m pytest $(ALL_CORES) tests/proof

# The same by Rocq, for some of it; needs coq and libcoq-gappa, and ten minutes.
proof-rocq: setup
	$(BIN)/python -m tools.proof.rocq

# Status 1: an error survived that tools/mutants.toml does not list, or a listed one is gone.
mutants: setup
	$(BIN)/python tools/mutants.py

lint: $(VENV)/installed-test $(VENV)/installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vulture

format: $(VENV)/installed-lint
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

FIGURES := bench errors bench-engines bench-persons bench-spark bench-gpu audit-bench audit-bugs audit-wide audit-peers \
	audit-training false-alarms clock attacks audits paper proof pictures screenshots

# Two at once would slow each other down.
figures:
	$(MAKE) --keep-going --jobs=1 $(FIGURES)

bench: $(VENV)/installed-bench
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.noise

# OpenDP takes one version of Polars, and SmartNoise SQL an older OpenDP: each has an environment of its own.
errors: $(VENV)/installed-bench
	$(MAKE) --no-print-directory VENV=.venv-opendp .venv-opendp/installed-opendp
	$(MAKE) --no-print-directory VENV=.venv-smartnoise .venv-smartnoise/installed-smartnoise
	$(BIN)/python -m benchmarks.errors

bench-engines: setup
	$(BIN)/python -m benchmarks.engines

bench-persons: setup
	$(BIN)/python -m benchmarks.persons
	$(BIN)/python -m benchmarks.persons --medians

bench-spark: setup $(VENV)/installed-cluster
	$(BIN)/python -m benchmarks.persons --spark

bench-gpu: $(VENV)/installed-opacus
	$(BIN)/python -m benchmarks.gpu

audit-bench: setup
	$(BIN)/python -m benchmarks.audit_bench

audit-bugs: setup
	$(BIN)/python -m benchmarks.audit_bugs

audit-wide: setup $(VENV)/installed-learning
	$(BIN)/python -m benchmarks.audit_wide

audit-peers: $(VENV)/installed-test $(VENV)/installed-peers
	$(BIN)/python -m benchmarks.audit_peers

audit-training: setup $(VENV)/installed-opacus
	$(BIN)/python -m benchmarks.canaries --ceilings
	$(BIN)/python -m benchmarks.canaries --controls
	$(BIN)/python -m benchmarks.canaries
	$(BIN)/python examples/dp_sgd.py

# One kind of output is audited with trees.
false-alarms: setup $(VENV)/installed-learning
	$(BIN)/python -m benchmarks.false_alarms --write

# Status 1 says that a leak was found, or that one planted on purpose was not.
clock: setup
	$(BIN)/python -m benchmarks.clock --conversions
	$(BIN)/python -m benchmarks.clock

attacks: $(VENV)/installed-test $(VENV)/installed-peers
	PYTHONPATH=. $(BIN)/python tools/measure_attacks.py
	$(BIN)/python -m benchmarks.phases

# Status 1 says that something is broken, which is expected here.
audits: $(VENV)/installed-test $(VENV)/installed-peers
	$(BIN)/dpnoise audit --all --html docs/comparison.html --json docs/comparison.json || test $$? = 1
	$(BIN)/python tools/write_comparison.py docs/comparison.json
	rm docs/comparison.json

paper: $(VENV)/installed-test $(VENV)/installed-peers
	$(BIN)/python -m reproduction --output paper --force
	PYTHONPATH=. $(BIN)/python tools/write_paper.py paper/results.json

# The banner that is turned off here announces the theme's end of life in 2027 and its successor.
docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

pictures: setup
	$(BIN)/python tools/make_pictures.py
	$(BIN)/python tools/make_guesses.py
	$(BIN)/python tools/write_help.py

screenshots: setup
	$(BIN)/python tools/make_screenshots.py $(REPORT)

clean:
	rm -rf $(VENV) .venv-oldest .venv-opendp .venv-smartnoise .venv-tumult .venv-pipelinedp .mypy_cache .ruff_cache .pytest_cache .hypothesis dist site demo-pages paper
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
