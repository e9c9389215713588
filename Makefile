# Each target makes the environment it needs, once. `make` alone lists them.

PYTHON ?= python3
PORT ?= 8000
CHAPTER ?= 6
NOTEBOOKS ?= book
CHAPTERS ?= all
ARGS ?=

VENV = .venv
BIN = $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check

.PHONY: help book test lab class slides pdf notebooks assignments detection serve test-portable \
	benchmark benchmark-gpu mutation lint clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

book: $(VENV)/book.stamp ## build the book, every warning an error
	$(BIN)/jupyter-book build . -W -n --keep-going
	@$(BIN)/python -c "from pathlib import Path; \
		print('\nOpen', Path('_build/html/index.html').resolve().as_uri())"

test: $(VENV)/test.stamp ## run every test, notebooks included (ARGS="-k masks" for some)
	$(BIN)/python -m pytest $(ARGS)

lab: $(VENV)/lab.stamp ## open the chapters in JupyterLab
	$(BIN)/jupyter lab book

class: $(VENV)/book.stamp ## build the book without the solutions of its exercises
	$(BIN)/python tools/class_edition.py

slides: $(VENV)/class.stamp class ## make slides of a chapter (CHAPTER=6, or "6 7")
	$(BIN)/python tools/slides.py $(CHAPTER)

pdf: $(VENV)/class.stamp book ## print the whole book as one PDF, through Chromium
	$(BIN)/python tools/pdf.py

notebooks: $(VENV)/book.stamp ## run the chapters and store their outputs (NOTEBOOKS=... for one)
	$(BIN)/python tools/notebooks.py run $(NOTEBOOKS)

assignments: $(VENV)/book.stamp ## zips for students, keys and graders (CHAPTERS="6 7" for some)
	$(BIN)/python tools/make_class.py $(CHAPTERS) $(ARGS)

detection: $(VENV)/test.stamp ## examine the planted faults again, for the page that lists them
	$(BIN)/python tests/doctor/record_detection.py

serve: book ## build the book and serve it on this computer (PORT=8000)
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory _build/html $(PORT)

test-portable: $(VENV)/test.stamp ## compare the chapters as another processor would compute them
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
		ATEN_CPU_CAPABILITY=default $(BIN)/python -m pytest book/*.ipynb $(ARGS)

benchmark: $(VENV)/benchmark.stamp ## measure the package beside its peers (ARGS=--quick to try)
	$(BIN)/python benchmarks/import_time.py $(ARGS)
	$(BIN)/python benchmarks/decode.py $(ARGS)
	$(BIN)/python benchmarks/peers.py $(ARGS)

benchmark-gpu: $(VENV)/book.stamp ## on a CUDA GPU: check the Triton kernels, time them beside torch's
	$(BIN)/python benchmarks/gpu.py $(ARGS)

mutation: $(VENV)/mutation.stamp ## change the package in small ways: does a test fail? (resumes)
	OMP_NUM_THREADS=1 nice $(BIN)/mutmut run --max-children 2 $(ARGS)
	$(BIN)/mutmut results

lint: $(VENV)/test.stamp ## format, lint, types and the form of notebooks
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tools/notebooks.py check

clean: ## remove the built book and caches; the environment is the folder .venv
	rm -rf _build .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache

$(VENV)/book.stamp: requirements.txt pyproject.toml
	@command -v $(PYTHON) > /dev/null || { \
		echo "There is no $(PYTHON) here. Python 3.11 or later is needed."; exit 1; }
	@$(PYTHON) -c "import sys; sys.version_info < (3, 11) and sys.exit( \
		'$(PYTHON) is Python %d.%d and the book needs 3.11 or later. ' \
		'Name another: make book PYTHON=python3.12' % sys.version_info[:2])"
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -r requirements.txt
	@touch $@

$(VENV)/class.stamp: requirements-class.txt $(VENV)/book.stamp
	$(INSTALL) -r requirements-class.txt
	@touch $@

$(VENV)/test.stamp: requirements-test.txt $(VENV)/class.stamp
	$(INSTALL) -r requirements-test.txt
	@touch $@

$(VENV)/lab.stamp: requirements-lab.txt $(VENV)/book.stamp
	$(INSTALL) -r requirements-lab.txt
	@touch $@

$(VENV)/benchmark.stamp: requirements-benchmark.txt $(VENV)/book.stamp
	$(INSTALL) -r requirements-benchmark.txt
	@touch $@

$(VENV)/mutation.stamp: requirements-mutation.txt $(VENV)/test.stamp
	$(INSTALL) -r requirements-mutation.txt
	@touch $@
