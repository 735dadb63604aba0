# The whole interface: each target sets up what it needs in .venv.
#   make demo    stage a model runner's inputs, checking every byte
#   make test    build and run every test
#   make bench   run the benchmarks
#   make lint    style, types, layout
#   make build   only build, and install (editable) in .venv
#   make test-sanitized  the C++ tests under ASan with UBSan, and under TSan
#   make test-pair PYTHON=python3.12 TORCH='torch==2.11.0'   build a wheel for another pair of
#                Python and torch, in an environment of its own, and test it installed
#   make test-cpu-wheel  the same for the CPU build of torch, without what needs no torch
#   make clean-pairs     remove the environments of the two, some 6 GB each
#   make race    100,000 random operations on buffers for each schedule
#   make sweep   the server, short of each thing that can run out
#   make soak    the long runs of which CI does a little
#
# PYTHON=python3.12 picks the interpreter (default: the newest on PATH, from 3.10 on) and
# TORCH='torch==2.13.0' the torch of an environment that is not there yet: VENV names another,
# ARGS='-k name' goes to the command that a target ends with.

PYTHON ?=
VENV ?= .venv
TORCH ?= torch
PY := $(VENV)/bin/python
export PATH := $(abspath $(VENV))/bin:$(PATH)

# Over the simulated device where this machine has no GPU; see scripts/on_device.
ON_DEVICE := scripts/on_device $(PY)

.PHONY: build demo test test-python test-core test-sanitized test-pair test-cpu-wheel bench lint \
        format soak race sweep clean clean-pairs
.DEFAULT_GOAL := build

$(VENV)/.torch:
	scripts/make_venv $(VENV) '$(TORCH)' $(PYTHON)
	touch $@

$(VENV)/.deps: $(VENV)/.torch pyproject.toml scripts/install_deps
	scripts/install_deps $(PY)
	touch $@

SOURCES := $(shell find csrc staging tests/csrc benchmarks/csrc -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name 'CMakeLists.txt' 2>/dev/null)

$(VENV)/.built: $(VENV)/.deps $(SOURCES) CMakeLists.txt setup.py pyproject.toml
	$(PY) -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
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

test-pair:
	scripts/test_pair '$(TORCH)' '$(PYTHON)' $(ARGS)

# What needs no torch is the same code in both builds: it is tested with the other one.
test-cpu-wheel:
	STAGING_CUDA=off scripts/test_pair 'torch==2.13.0' '$(PYTHON)' \
	  --ignore=tests/staging/process --ignore=tests/staging/sim $(ARGS)

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
	rm -rf build staging/*.so staging/sim/lib *.egg-info $(VENV)/.built

clean-pairs:
	rm -rf .venv-pairs
