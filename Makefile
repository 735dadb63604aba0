# The whole interface: each target sets up what it needs in .venv.
#   make demo    stage a model runner's inputs, checking every byte
#   make test    build and run every test
#   make bench   run the benchmarks
#   make lint    style, types, layout
#   make build   only build
#   make test-sanitized  the C++ tests under ASan with UBSan, and under TSan
#   make test-cpu-wheel  build a wheel for the CPU build of torch and test it installed
#   make race    100,000 random operations on buffers for each schedule
#   make sweep   the server, short of each thing that can run out
#   make soak    the long runs of which CI does a little
#
# PYTHON=python3.12 picks the interpreter, TORCH='torch==2.13.0' the torch to install,
# ARGS='-k name' goes to the command that a target ends with.

PYTHON ?= python3.11
VENV ?= .venv
TORCH ?= torch
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check
export PATH := $(abspath $(VENV))/bin:$(PATH)

# Over the simulated device where this machine has no GPU; see scripts/on_device.
ON_DEVICE := scripts/on_device $(PY)

.PHONY: build demo test test-python test-core test-sanitized test-cpu-wheel bench lint format soak race sweep clean
.DEFAULT_GOAL := build

$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) '$(TORCH)' numpy
	touch $@

$(VENV)/.deps: $(VENV)/.torch pyproject.toml scripts/install_deps
	scripts/install_deps $(PY)
	touch $@

SOURCES := $(shell find csrc staging tests/csrc benchmarks/csrc -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name 'CMakeLists.txt' 2>/dev/null)

$(VENV)/.built: $(VENV)/.deps $(SOURCES) CMakeLists.txt setup.py
	$(PY) setup.py --quiet build_ext --inplace
	touch $@

build: $(VENV)/.built

demo: build
	$(PY) -m staging demo $(ARGS)

test: test-core test-python

test-core: build
	scripts/test_core $(abspath $(PY))

# The same under AddressSanitizer with UBSan, and under ThreadSanitizer.
test-sanitized: build
	scripts/test_core $(abspath $(PY)) -DSTAGING_SANITIZE=address,undefined
	scripts/test_core $(abspath $(PY)) -DSTAGING_SANITIZE=thread

test-python: build
	$(ON_DEVICE) -m pytest $(ARGS)

test-cpu-wheel:
	scripts/test_cpu_wheel $(PYTHON)

# Every operation of the race test, some minutes.
race: build
	$(ON_DEVICE) -m pytest -q tests/staging/test_race.py --ops 100000 $(ARGS)

# Some minutes.
sweep: build
	STAGING_SWEEP=1 $(PY) -m pytest tests/staging/process/test_exhaustion.py $(ARGS)

soak: build
	$(ON_DEVICE) -m benchmarks.staging.soak
	$(PY) -m benchmarks.staging.process.soak $(ARGS)

bench: build
	$(ON_DEVICE) -m pytest -q benchmarks $(ARGS)

# The list of tools is in .pre-commit-config.yaml.
lint: $(VENV)/.deps
	$(PY) -m pre_commit run --all-files --show-diff-on-failure

format: $(VENV)/.deps
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	git ls-files 'csrc/*.h' 'csrc/*.cpp' 'csrc/*.cu' 'csrc/*.cuh' 'tests/*.cpp' 'tests/*.h' | xargs $(VENV)/bin/clang-format -i
	git ls-files '*CMakeLists.txt' | xargs $(VENV)/bin/gersemi --in-place --quiet

clean:
	rm -rf build staging/*.so staging/sim/lib $(VENV)/.built
