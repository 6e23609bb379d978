# `make demo` runs the whole job on the built-in market; `make test` runs every check that must pass, `make quick` a few of
# them in a minute, `make verify` samples of the proofs that go on for hours.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test quick verify lint types unit bench reproduce check-learning check-random check-faults check-simulation \
  check-fuzz check-mutants check-container check-kernels check-light check-oldest sbom audit-deps docs pictures dist clean

demo: .venv/installed
	$(BIN)/vaiom demo --out runs/demo

test: lint types unit

lint: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/installed
	$(BIN)/mypy

PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist loadfile
DRIVER := OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m

unit: .venv/installed
	$(PYTEST) -m "not slow and not gpu and not kills" --no-loadscope-reorder

# One or two tests of every room.
quick: .venv/installed
	$(PYTEST) -m quick

# A sample of everything in verification/: forged evidence and planted leaks, simulated faults with bugs that must be found,
# kills, full disks, damaged inputs, and ten broken lines. The check-* targets below go on for hours.
verify: .venv/installed
	$(PYTEST) verification
	$(PYTEST) -m kills
	$(DRIVER) verification.simulation.run --histories 200 --workers 2
	$(DRIVER) verification.faults.run --kills 24 --workers 2
	$(DRIVER) verification.fuzz.run --executions 100000 --least 500 --workers 2
	$(BIN)/pip install --quiet --constraint constraints.txt coverage
	$(BIN)/python -m verification.mutants --mutants 10 --room features --room distribution --own --least 0.8

# Ratios against plain references; on a quiet machine.
bench: .venv/installed
	$(BIN)/python -m benchmarks

# docs/reproduction.md, its figure, docs/LOG.md and the README's results, from docs/results alone.
reproduce: .venv/installed
	$(BIN)/python -m reproduction --docs
	$(BIN)/python tools/pages.py

# Three seeds of a small model on the simulated market: each must close most of the way to the true law.
check-learning: .venv/installed
	$(BIN)/pytest -m slow -rP tests/training/test_learning.py tests/evaluation/test_simulated.py

# Property tests with fresh examples: five seeds of their own, or those that are named (make check-random SEEDS="1 2").
SEEDS ?= $(shell shuf -i 1-2000000000 -n 5)
check-random: .venv/installed
	for seed in $(SEEDS); do echo "seed $$seed"; $(PYTEST) -m "hypothesis and not slow and not gpu" \
	  --hypothesis-profile random --hypothesis-seed $$seed || exit 1; done

WORKERS ?= $(shell nproc)
# The service on a simulated machine that fails: first bugs that are planted and must be found, then as it is.
check-simulation: .venv/installed
	$(DRIVER) verification.simulation.run --planted --workers $(WORKERS)
	$(DRIVER) verification.simulation.run --histories 10000 --workers $(WORKERS)

# A thousand kills in the middle of every command; ten million damaged inputs, many for every reader.
check-faults: .venv/installed
	$(DRIVER) verification.faults.run --kills 1000 --workers $(WORKERS)

check-fuzz: .venv/installed
	$(DRIVER) verification.fuzz.run --executions 10000000 --least 100000 --workers $(WORKERS)

# Two hundred lines of src broken one at a time: the tests that cover each must notice 95% of them.
check-mutants: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt coverage
	$(BIN)/python -m verification.mutants --workers $(WORKERS)

# The steps of the Containerfile in a fresh environment, and its service from a read-only tree as a user who owns nothing
# else. It needs a Python that every user may run: make check-container PYTHON=/usr/bin/python3
check-container:
	$(PYTHON) tools/container.py

# The GPU kernels in Triton's interpreter, on a machine without a GPU; Triton, which is large, comes into a folder of its own.
check-kernels: .venv/installed
	$(BIN)/pip install --quiet --no-deps --upgrade --target build/triton triton==3.7.1
	TRITON_INTERPRET=1 PYTHONPATH=build/triton $(BIN)/pytest -m gpu tests/model/test_attention_gpu.py --numprocesses 2

# The tests with the oldest libraries that pyproject.toml allows: its ranges are promises. The deselected tests compare
# bytes with those of the pinned matplotlib and NumPy.
check-oldest:
	$(PYTHON) -m venv --clear build/oldest
	$(PYTHON) tools/oldest.py > build/oldest/constraints.txt
	build/oldest/bin/pip install --quiet --constraint build/oldest/constraints.txt --editable '.[all,dev]'
	OMP_NUM_THREADS=1 build/oldest/bin/pytest -m "not slow and not gpu and not kills" --numprocesses 2 --dist loadfile \
	  --deselect "tests/reproduction/test_page.py::test_a_page_is_written_from_results_alone[walk-forward.svg]"

# The parts of this installation, for whoever must know them; pip-audit asks which are known to be vulnerable.
sbom: .venv/installed
	$(BIN)/python tools/sbom.py --out dist/vaiom.cdx.json

audit-deps: .venv/installed
	$(BIN)/pip install --quiet pip-audit
	$(BIN)/pip-audit

# The site in build/site: the tutorial is done step by step first; a dead link or a page that nothing leads to is an error.
docs: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/cli/test_tutorial.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The README's pictures, from a fresh demo that has learned horizons and how its assets depend on each other.
pictures: demo
	$(BIN)/vaiom horizons runs/demo/run
	$(BIN)/vaiom dependence runs/demo/run
	$(BIN)/python tools/pictures.py runs/demo/run runs/demo/bars

# A wheel, and what is known of its parts.
dist: .venv/installed
	rm -rf dist build
	$(BIN)/python -m build --wheel --no-isolation
	$(BIN)/python tools/sbom.py --out dist/vaiom.cdx.json

# The wheel alone in an empty environment: how large that is, and a forecast there.
check-light: dist
	$(PYTHON) tools/light.py dist/*.whl

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "vaiom needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt setuptools wheel
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[all,dev]'
	touch $@

clean:
	rm -rf .venv build dist runs
