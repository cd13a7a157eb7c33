# `make demo`, `make test`, and `make quick` for everyday work. They make what they need, also on a machine that has only
# Python 3.11 or later (Debian, Ubuntu): a venv, the packages, for the tests a browser and a C compiler.
# One suite that fails does not keep the next from running: a run tells everything that is wrong.
MAKEFLAGS += --keep-going
# pip leaves compiling to the first import, which is worth it only if it is kept.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= python3
VENV = .venv
TEST_VENV = .venv-test
INC2_VENV = .venv-inc2
MXNET_VENV = .venv-mxnet
AUDIT_VENV = .venv-audit
BIN = $(TEST_VENV)/bin
SUDO = $(shell [ "$$(id -u)" = 0 ] || echo sudo)
APT = $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq --no-install-recommends
BROWSER = $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)
COMPILER = $(shell command -v cc || command -v gcc || command -v clang)
PAGE = tb_plugin/frontend
WITHOUT_FRAMEWORKS = tests/measure/test_stats.py tests/measure/test_metrics.py tests/records tests/advise/test_rules.py \
    tests/search/test_journal.py $(addprefix tests/profiling/test_,noise.py timetable.py join.py)
BUILT_FROM = pyproject.toml hatch_build.py inc_tb/measure/_stats.c $(shell find $(PAGE) -name node_modules -prune -o -type f -print)
# node and npm come from PyPI with the other test tools.
NPM = cd $(PAGE) && PATH="$(abspath $(BIN)):$$PATH" npm

.PHONY: demo test audit fuzz quick lint tests tests-page tests-main tests-old tests-inc2 tests-mxnet tests-left-out browser compiler bench screenshots clean

demo: $(VENV)/ready
	$(VENV)/bin/inc-tb demo

test: lint tests

# Hostile files of every kind, of which `make test` reads a minute's worth: FUZZ="--inputs 5000 --first 1000000", say.
FUZZ ?= --inputs 5000

fuzz: $(TEST_VENV)/ready
	$(ONE_THREAD) $(BIN)/python -m tests.fuzz $(FUZZ)

# Every room but integrations, and every framework by its contracts, without a browser and without what takes long.
QUICK = tests/trackers tests/records tests/measure tests/advise tests/profiling tests/store tests/tb_plugin tests/sources tests/commands \
    $(addprefix tests/search/test_,search.py simulation.py journal.py probe.py) tests/tuning/test_own_tools.py tests/test_data.py \
    tests/test_package.py tests/test_contributing.py tests/test_framework_names.py $(wildcard tests/frameworks/test_*contract.py) \
    $(addprefix tests/frameworks/test_,registry.py describe.py edges.py toy_framework.py)

quick: $(TEST_VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(ONE_THREAD) $(BIN)/pytest -q -n 2 --dist loadfile -m "not slow and not browser" $(QUICK) \
	    --ignore tests/commands/test_tensorflow_cli.py --ignore tests/advise/test_tensorflow_recipes.py \
	    --ignore tests/advise/test_recipes_in_tools.py

# Weaknesses that are known of what is installed; not part of `make test`, since the index that it asks is not everywhere.
audit: $(TEST_VENV)/ready
	$(PYTHON) -m venv $(AUDIT_VENV)
	$(AUDIT_VENV)/bin/pip install -q --disable-pip-version-check pip-audit
	$(BIN)/pip freeze --exclude-editable > $(AUDIT_VENV)/installed.txt
	$(AUDIT_VENV)/bin/pip-audit --strict --no-deps --disable-pip -r $(AUDIT_VENV)/installed.txt
	$(NPM) audit --omit=dev

lint: $(TEST_VENV)/ready
	$(BIN)/pip check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(NPM) run check

# Neural Compressor 2.x and MXNet want other versions of nearly everything, and no newer Python.
OLD_PYTHON = $(shell $(PYTHON) -c "import sys; print('yes' if sys.version_info < (3, 13) else '')")

OLD_VENVS = $(if $(OLD_PYTHON),$(INC2_VENV)/ready $(MXNET_VENV)/ready)

# The old tools' venvs come first: configs are tried in them, which would else make their own.
tests: tests-page $(OLD_VENVS) tests-main tests-old

# These suites have one process each, so that two of them take as long as one.
tests-old: $(OLD_VENVS)
	$(MAKE) -j2 --output-sync=target $(if $(OLD_PYTHON),tests-inc2 tests-mxnet,tests-left-out)

tests-page: $(TEST_VENV)/ready
	$(NPM) test

# Two tests at a time with one thread each: threads that wait for each other take many times as long.
ONE_THREAD = OMP_NUM_THREADS=1 TF_NUM_INTRAOP_THREADS=1

tests-main: $(TEST_VENV)/ready browser
	$(ONE_THREAD) $(BIN)/pytest -n 2 --dist loadfile

tests-inc2: $(INC2_VENV)/ready
	$(ONE_THREAD) $(INC2_VENV)/bin/python -m pytest tests/neural_compressor_2 $(addprefix tests/mxnet/test_,contract.py library.py recipes.py)

tests-mxnet: $(MXNET_VENV)/ready
	$(MXNET_VENV)/bin/python -m pytest tests/mxnet $(WITHOUT_FRAMEWORKS) $(addprefix tests/trackers/test_,mlflow.py tables.py documents.py)

tests-left-out:
	@echo "Left out: Neural Compressor 2.6 and MXNet have no packages for this Python; set PYTHON= to a 3.11 or 3.12."

bench: $(TEST_VENV)/ready browser
	$(BIN)/python -m benchmarks.all
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.parts
	$(BIN)/python benchmarks/stats.py
	$(BIN)/python -m benchmarks.diagnose
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python -m benchmarks.growth
	$(BIN)/python -m benchmarks.page
	$(BIN)/python -m benchmarks.report
	$(BIN)/python -m benchmarks.ranking
	$(BIN)/python -m benchmarks.first_suggestion --cases 3
	$(BIN)/python -m benchmarks.equalize --seeds 4
	$(BIN)/python -m benchmarks.probe
	$(BIN)/python -m benchmarks.cures --peers
	$(BIN)/python -m benchmarks.torch
	$(BIN)/python -m benchmarks.torch_ranking
	$(BIN)/python -m benchmarks.training
	$(BIN)/python -m benchmarks.tensorflow
	$(BIN)/python -m benchmarks.times --threads 1
	$(BIN)/python -m benchmarks.scale
	$(BIN)/python -m benchmarks.llm_sensitivity

screenshots: $(TEST_VENV)/ready browser
	$(BIN)/python -m tests.browser.screenshots

$(VENV)/ready: $(BUILT_FROM)
	$(call make-venv,$(VENV))
	$(VENV)/bin/pip install -q --disable-pip-version-check -e ".[onnx]"
	touch $@

$(TEST_VENV)/ready: $(BUILT_FROM) | compiler
	$(call make-venv,$(TEST_VENV))
	@echo "Installing all frameworks and test tools: 4 GB, a few minutes."
	$(BIN)/pip install -q --disable-pip-version-check --no-compile -e ".[all,test]"
	$(NPM) ci --silent
	touch $@

$(INC2_VENV)/ready: $(BUILT_FROM) tests/neural_compressor_2/requirements.txt | $(TEST_VENV)/ready
	$(call make-venv,$(INC2_VENV))
	@echo "Installing Neural Compressor 2.6 with the frameworks that it works with: 3 GB."
	$(INC2_VENV)/bin/pip install -q --disable-pip-version-check --no-compile -e . -r tests/neural_compressor_2/requirements.txt
	touch $@

$(MXNET_VENV)/ready: $(BUILT_FROM) tests/mxnet/requirements.txt | $(TEST_VENV)/ready
	$(call make-venv,$(MXNET_VENV))
	$(MXNET_VENV)/bin/pip install -q --disable-pip-version-check --no-compile -e . -r tests/mxnet/requirements.txt
	touch $@

define make-venv
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'inc-tb needs Python 3.11 or later; set PYTHON=')"
	$(PYTHON) -m venv $(1) || { $(APT) python3-venv && $(PYTHON) -m venv --clear $(1); }
endef

browser: | $(TEST_VENV)/ready
	@[ -n "$(BROWSER)" ] || { $(APT) chromium || $(BIN)/playwright install --with-deps chromium; }

compiler:
	@[ -n "$(COMPILER)" ] || { $(APT) gcc libc6-dev; }

clean:
	rm -rf $(VENV) $(TEST_VENV) $(INC2_VENV) $(MXNET_VENV) $(AUDIT_VENV) inc_tb/measure/_stats.so tb_plugin/static $(PAGE)/node_modules nc_workspace build dist
