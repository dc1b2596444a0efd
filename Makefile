# Everything a developer types. `make help` prints the lines below that begin with a target and end in "## …".
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 4
# Most of these tests wait, too. Each process has control planes of its own, some two gigabytes together.
CLUSTER_WORKERS ?= 3
# These compute for less than half of their time.
SUITES_WORKERS ?= 6
INSTALLED := $(VENV)/.installed
# What the demo needs is a small part of what is installed otherwise, in the same versions.
DEMO := $(if $(wildcard $(INSTALLED)),$(INSTALLED),$(VENV)/.demo)
# By the system's certificates, as uv's own do not know an index behind a company's authority.
LOCK := $(BIN)/uv pip compile --system-certs --quiet --generate-hashes --no-header --no-emit-index-url --no-emit-find-links \
	--python-version 3.11

# Some machines switch the cache of compiled modules off, and each of the thousand processes that tests start would compile ours anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install dev demo replay mutants test test-long test-horovod test-frameworks test-frameworks-oldest test-torchrun test-torchrun-gpu test-gpu test-kinds test-fleet test-pythons test-versions test-chart chart clients operators hub test-cluster controlplane test-suites metadata-faults chaos chaos-wires chaos-cluster hostile soak properties bench goodput bench-page frameworks-costs handover-costs copies-costs check lint types imports proto proto-check sbom release images test-images test-monitoring dashboard-pictures pictures screenshots test-node lock site first-hour clean

help: ## Print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | awk -F '\t' '{ printf "  %-22s %s\n", $$1, $$2 }'

install: $(INSTALLED) ## Make .venv with all pinned and hash-locked packages

$(VENV)/.demo: REQUIREMENTS := requirements/demo.txt
$(INSTALLED): REQUIREMENTS := requirements/dev.txt
$(VENV)/.demo: requirements/demo.txt
$(INSTALLED): requirements/dev.txt
$(VENV)/.demo $(INSTALLED): pyproject.toml sdk/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(REQUIREMENTS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e . -e sdk
	@touch $@

dev: $(DEMO) ## Run a supervisor, simulated hosts and a small job on this machine (options: ARGS=--drill, ARGS="--hosts 8")
	@$(BIN)/elastic-job-supervisor dev $(ARGS)

demo: $(DEMO) ## Replay real reclaims against a real training job and judge the outcome (options: ARGS="--seed 2 --min 12")
	@$(BIN)/python -m simulator demo $(ARGS)

replay: $(DEMO) ## Replay the whole trace and synthetic ones, and judge each (options: ARGS="--part ci --json replay.json")
	@$(BIN)/python -m simulator replay $(ARGS)

mutants: $(INSTALLED) ## Insert one defect after another; demo and replay must fail for each (options: ARGS="--part ci --jobs 6")
	@$(BIN)/python -m mutants $(ARGS)

test: $(INSTALLED) ## Run the tests, several at a time because most of them wait, but for the long ones (options: ARGS="-k plan" WORKERS=0)
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal -m "brief or not long" $(ARGS)

test-long: $(INSTALLED) ## Run what `make test` leaves out because other tests prove most of it
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal -m "long and not brief" $(ARGS)

metadata-faults: $(INSTALLED) ## Run a node agent for three minutes against misbehaving metadata (options: SEED=2)
	METADATA_FAULTS_SEED=$(or $(SEED),1) METADATA_FAULTS_ROUNDS=3 METADATA_FAULTS_LONGEST_SECONDS=2 \
		$(BIN)/python -m pytest tests/node_agent/test_agent_faults.py

test-horovod: $(INSTALLED) ## Run jobs under the real elastic driver of Horovod 0.28.1, with and without a compiled core (installed once, in its own cache)
	-@$(BIN)/python -m tests.horovod.horovod_installation
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal tests/horovod $(ARGS)

test-frameworks: $(INSTALLED) ## Run jobs of the real training frameworks with several processes each (installed once, in their own cache)
	-@$(BIN)/python -m tests.frameworks.frameworks_installation frameworks jax
	$(BIN)/python -m pytest tests/frameworks $(ARGS)

test-frameworks-oldest: $(INSTALLED) ## The same with the oldest versions that are supported
	-@$(BIN)/python -m tests.frameworks.frameworks_installation oldest fsdp2 jax-oldest tensorflow-oldest trl-oldest
	FRAMEWORKS_ENVIRONMENT=oldest $(BIN)/python -m pytest tests/frameworks $(ARGS)

test-torchrun: $(INSTALLED) ## Lose and regain hosts of jobs under the real torchrun, of two versions, beside its own backend (short form: ARGS="-m brief")
	-@$(BIN)/python -m tests.frameworks.frameworks_installation frameworks torchrun
	$(BIN)/python -m pytest tests/torchrun $(ARGS)

# Its torch is not ours, so one version is enough.
OLDER_TORCH := 2.6.0

test-torchrun-gpu: $(INSTALLED) ## The same with NCCL, on a machine with eight GPUs and a torch (PYTHON=…); skipped without
	TORCHRUN_BACKEND=nccl TORCHRUN_PYTHON=$(PYTHON) $(BIN)/python -m pytest tests/torchrun -k "not $(OLDER_TORCH)" $(ARGS)

IN_PROCESS := tests/frameworks/test_own_loop.py tests/frameworks/test_in_process.py
# One rank is frozen with a connection that only gloo has.
NOT_NCCL := not waits_for_the_next_round
ON_GPU := FRAMEWORKS_DEVICE=cuda FRAMEWORKS_STEP_SECONDS=0.2

# Its ranks share one GPU, also those of NCCL, which takes them for ranks of several hosts.
test-gpu: $(INSTALLED) ## Start workers warm and change rounds in process on one GPU, by gloo and by NCCL, with a torch that finds it (PYTHON=…); skipped without
	FRAMEWORKS_PYTHON=$(PYTHON) $(BIN)/python -m pytest tests/gpu $(ARGS)
	FRAMEWORKS_PYTHON=$(PYTHON) $(ON_GPU) $(BIN)/python -m pytest $(IN_PROCESS) $(ARGS)
	FRAMEWORKS_PYTHON=$(PYTHON) $(ON_GPU) FRAMEWORKS_BACKEND=nccl $(BIN)/python -m pytest $(IN_PROCESS) -k "$(NOT_NCCL)" $(ARGS)

controlplane: $(INSTALLED) ## Build a real Kubernetes control plane for tests, once, in its own cache (needs Go 1.24)
	@$(BIN)/python -m tests.testkit.controlplane.binaries

clients: $(INSTALLED) ## Build the helm and kubectl that tests use, once, in their own cache (needs Go 1.24)
	@$(BIN)/python -m tests.testkit.controlplane.binaries clients

operators: $(INSTALLED) ## Build the operators of training jobs that tests use, once, in their own cache (needs Go 1.26)
	@$(BIN)/python -m tests.testkit.controlplane.binaries operators

hub: $(INSTALLED) ## Build the programs of a hub of many clusters that tests use, once, in their own cache (needs Go 1.24)
	@$(BIN)/python -m tests.testkit.controlplane.binaries hub

chart: $(INSTALLED) ## Generate the chart's schema, README tables, roles and dashboards
	$(BIN)/python -m charts

test-chart: $(INSTALLED) ## Render the chart in many ways and check the results, without a cluster; skipped without Go
	-@$(BIN)/python -m tests.testkit.controlplane.binaries clients >/dev/null
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal tests/chart $(ARGS)

test-cluster: $(INSTALLED) ## Run the tests that need a real control plane, built first; skipped without Go (short form: ARGS='-m "brief or not long"')
	-@$(BIN)/python -m tests.testkit.controlplane.binaries >/dev/null
	-@$(BIN)/python -m tests.testkit.controlplane.binaries clients >/dev/null
	-@$(BIN)/python -m tests.testkit.controlplane.binaries operators >/dev/null
	$(BIN)/python -m pytest --numprocesses $(CLUSTER_WORKERS) --dist worksteal tests/controlplane $(ARGS)

KINDS := kinds operator trainingjob

test-kinds: $(INSTALLED) ## Reclaim jobs of every kind and queue under their controllers, built first; skipped without Go (short form: ARGS="-m brief")
	-@$(BIN)/python -m tests.testkit.controlplane.binaries >/dev/null
	-@$(BIN)/python -m tests.testkit.controlplane.binaries operators >/dev/null
	$(BIN)/python -m pytest --numprocesses $(CLUSTER_WORKERS) --dist worksteal $(KINDS:%=tests/controlplane/%) $(ARGS)

test-fleet: $(INSTALLED) ## Run jobs in two members of a real hub (Karmada), all built first; skipped without Go (short form: ARGS="-m brief")
	-@$(BIN)/python -m tests.testkit.controlplane.binaries >/dev/null
	-@$(BIN)/python -m tests.testkit.controlplane.binaries operators >/dev/null
	-@$(BIN)/python -m tests.testkit.controlplane.binaries hub >/dev/null
	$(BIN)/python -m pytest tests/fleet $(ARGS)

# The oldest and the newest of Kubernetes that the chart claims; any suite on a cluster takes one of them as KUBERNETES=1.30.
VERSIONS := 1.30 1.36

test-versions: $(INSTALLED) ## Reclaim jobs and install the chart on the oldest and the newest Kubernetes, built first; skipped without Go (one of them: VERSIONS=1.36)
	-@for version in $(VERSIONS); do KUBERNETES=$$version $(BIN)/python -m tests.testkit.controlplane.binaries >/dev/null; done
	-@$(BIN)/python -m tests.testkit.controlplane.binaries clients >/dev/null
	@set -e; for version in $(VERSIONS); do \
		KUBERNETES=$$version $(BIN)/python -m pytest --numprocesses $(CLUSTER_WORKERS) --dist worksteal \
			tests/controlplane/kinds/batchjob tests/controlplane/chart $(ARGS); done

# The Pythons that the services claim besides that of the images. One that is not here is skipped.
PYTHONS := 3.12 3.13 3.14

test-pythons: $(INSTALLED) ## Run the suites of services and SDK under other Pythons (one of them: PYTHONS=3.13, options: ARGS="-k settings")
	$(BIN)/python -m tests.testkit.pythons $(PYTHONS) -- $(ARGS)

# Suites that need more of a machine than Python. What of it cannot be had is skipped.
SUITES := chart clocks browser horovod monitoring chaos controlplane

test-suites: $(INSTALLED) ## Run the short forms of all suites that need more than Python, except containers, in one run
	-@$(BIN)/python -m tests.testkit.controlplane.binaries >/dev/null
	-@$(BIN)/python -m tests.testkit.controlplane.binaries clients >/dev/null
	-@$(BIN)/python -m tests.testkit.controlplane.binaries operators >/dev/null
	-@$(BIN)/python -m tests.monitoring.monitoring_programs >/dev/null
	-@$(BIN)/python -m tests.horovod.horovod_installation
	$(BIN)/python -m pytest --numprocesses $(SUITES_WORKERS) --dist worksteal -m "brief or not long" \
		$(addprefix tests/,$(SUITES)) $(ARGS)

test-monitoring: $(INSTALLED) ## Check dashboards and rules, and scrape a replay with a real Prometheus; skipped if that is not available
	-@$(BIN)/python -m tests.monitoring.monitoring_programs >/dev/null
	$(BIN)/python -m pytest tests/monitoring $(ARGS)

dashboard-pictures: $(INSTALLED) ## Draw the results of the dashboards' queries for a replay, to docs/images/
	@$(BIN)/python -m tests.monitoring.monitoring_pictures

images: $(INSTALLED) ## Build both container images with buildah, and print their sizes (Debian, as root)
	@$(BIN)/python -m tests.images.images_building

test-images: $(INSTALLED) ## Run both images as containers, built first; skipped if that is not possible
	-@$(BIN)/python -m tests.images.images_building
	$(BIN)/python -m pytest tests/images $(ARGS)

test-node: $(INSTALLED) ## Run everything on a real node: kubelet, containerd, our images, the chart, a PyTorchJob; skipped if that is not possible (short form: ARGS='-m "not long"')
	-@$(BIN)/python -m tests.testkit.controlplane.binaries operators >/dev/null
	-@$(BIN)/python -m tests.frameworks.frameworks_installation frameworks tensorflow >/dev/null
	$(BIN)/python -m tests.node.node_ground $(ARGS)

test-browser: $(INSTALLED) ## Open the status page in Debian's Chromium; skipped if that is not available
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal tests/browser $(ARGS)

test-clocks: $(INSTALLED) ## Run the services on machines whose clock is stepped, with Debian's libfaketime; skipped if that is not available
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal tests/clocks $(ARGS)

# One after the other, as each plays a replay whose times are in the pictures.
pictures: $(INSTALLED) ## Make all pictures in docs/images/ again: `make screenshots`, then `make dashboard-pictures`
	@$(MAKE) --no-print-directory screenshots
	@$(MAKE) --no-print-directory dashboard-pictures

screenshots: $(INSTALLED) ## Take the pictures of docs/guide/status-page.md again, from a real replay
	@$(BIN)/python -m tests.browser.browser_pictures

sbom: $(INSTALLED) ## Write the bill of materials of each image, including its base, to dist/sbom/ (CycloneDX; Debian, as root)
	@$(BIN)/python -m tests.images.images_bill dist/sbom

release: $(INSTALLED) ## Build everything that is published of a version into dist/, and publish nothing (VERSION=1.2.3, options: ARGS="--images none")
	@$(BIN)/python -m release $(or $(VERSION),$(error say which: make release VERSION=1.2.3)) $(ARGS)

chaos: $(INSTALLED) ## Kill or stop every process at each of its steps; nothing may be lost (short form: ARGS="-m brief")
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal tests/chaos $(ARGS)

chaos-wires: $(INSTALLED) ## Disturb both wires of a supervisor with 1,000 nodes and 8,000 processes (short form: ARGS="-m brief")
	$(BIN)/python -m pytest tests/chaos/test_chaos_wires.py $(ARGS)

chaos-cluster: $(INSTALLED) ## Kill the leader of two supervisors at each of its steps, stop the API server for a long time, and add faults to it (40 min)
	LEADER_FAILPOINTS=all $(BIN)/python -m pytest --numprocesses 2 --dist worksteal \
		tests/controlplane/leader/test_leader_line.py tests/controlplane/line/test_line_leader_killed.py $(ARGS)
	LEADER_OUTAGE_SECONDS=30 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal \
		tests/controlplane/line/test_line_outages.py $(ARGS)
	FAULTS_ROUNDS=5 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal tests/controlplane/faults $(ARGS)

hostile: $(INSTALLED) ## Open ten thousand garbage connections, and fuzz wires and objects three times as long as usual, at random (longer: FUZZ=100)
	HOSTILE_CONNECTIONS=10000 PROPERTY_EXAMPLES=$(or $(FUZZ),3) $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal \
		tests/hostile/test_hostile_peers.py tests/hostile/test_hostile_memory.py tests/hostile/test_hostile_fuzz_*.py \
		$(ARGS)

soak: $(INSTALLED) ## Run 200 honest jobs without tenants, beside ten honest ones, and beside ten who write odd objects and messages, on a real control plane, for 20 minutes (options: ARGS="--minutes 4 --jobs 50 --seed 2")
	-@$(BIN)/python -m tests.testkit.controlplane.binaries >/dev/null
	$(BIN)/python -m tests.hostile.hostile_soak $(ARGS)

properties: $(INSTALLED) ## Try every property with ten times the examples, at random (options: PROPERTY_EXAMPLES=100)
	PROPERTY_EXAMPLES=$(or $(PROPERTY_EXAMPLES),10) $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal \
		--timeout 3600 $$(grep -rl "testkit.properties" tests --include='test_*.py') $(ARGS)

bench: $(INSTALLED) ## Measure everything and write docs/maintainers/benchmarks.md (a quick check: ARGS=--short)
	$(BIN)/python -m benchmarks run $(ARGS)
	$(if $(ARGS),,$(BIN)/python -m benchmarks page)

goodput: $(INSTALLED) ## Replay reclaims in simulated time, and compare what training each policy makes of the capacity (a quick check: ARGS=--short)
	@$(BIN)/python -m benchmarks run --only goodput $(ARGS)

frameworks-costs: $(INSTALLED) ## Measure what a stop and a start of each training framework take
	$(BIN)/python -m tests.frameworks.frameworks_costs

handover-costs: $(INSTALLED) ## Measure a change of hosts with sharded state from memory to memory, beside one through a checkpoint
	$(BIN)/python -m benchmarks.handover $(ARGS)

copies-costs: $(INSTALLED) ## Measure copies of sharded state on peers, and a loss without notice with them and with checkpoints
	$(BIN)/python -m benchmarks.copies $(ARGS)

bench-page: $(INSTALLED) ## Write docs/maintainers/benchmarks.md from the last results
	$(BIN)/python -m benchmarks page

check: lint types imports proto-check ## Run all static checks

lint: $(INSTALLED) ## Lint and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/hadolint Dockerfile.server Dockerfile.agent examples/Dockerfile

types: $(INSTALLED) ## mypy --strict, including tests; the SDK must not need a Python above 3.8
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.10 -p kubeai.elastic -p kubeai.torchrun -p kubeai.torch -p kubeai.warm
	$(BIN)/vermin --quiet --no-tips --violations --target=3.8- sdk tests/sdk/sdk_selfcheck.py

imports: $(INSTALLED) ## Check which package may import which
	$(BIN)/lint-imports

proto: $(INSTALLED) ## Generate the stubs of the agent stream
	$(BIN)/python -m grpc_tools.protoc -Iproto \
		--plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc \
		--python_out=$(or $(OUT),proto) --mypy_out=$(or $(OUT),proto) \
		--grpc_python_out=$(or $(OUT),proto) --mypy_grpc_out=$(or $(OUT),proto) proto/reclaim/v1/reclaim.proto

proto-check: $(INSTALLED) ## Check that the stubs are generated from the contract
	@out=$$(mktemp -d) && $(MAKE) --no-print-directory proto OUT=$$out >/dev/null 2>&1 && \
		for file in $$out/reclaim/v1/*; do diff -u proto/reclaim/v1/$$(basename $$file) $$file || exit 1; done && rm -r $$out

lock: $(INSTALLED) ## Pin every package with its hashes again (names, versions and hashes only)
	$(LOCK) --all-extras --group dev $(ARGS) pyproject.toml -o requirements/dev.txt
	$(LOCK) --extra server --extra agent --group build --group simulator -c requirements/dev.txt pyproject.toml -o requirements/demo.txt
	$(LOCK) --extra server --extra tracing -c requirements/dev.txt pyproject.toml -o requirements/server.txt
	$(LOCK) --extra agent -c requirements/dev.txt pyproject.toml -o requirements/agent.txt
	$(LOCK) --group build -c requirements/dev.txt -o requirements/build.txt
	$(LOCK) requirements/docs.in -o requirements/docs.txt
	HOROVOD_SKIP_COMPILE=1 $(LOCK) $(ARGS) requirements/horovod.in -o requirements/horovod.txt
	$(LOCK) --no-emit-package horovod -c requirements/horovod.txt requirements/horovod.in -o requirements/horovod-build.txt
	$(LOCK) --no-deps $(ARGS) requirements/frameworks.in -o requirements/frameworks.txt
	$(LOCK) --no-deps requirements/frameworks-oldest.in -o requirements/frameworks-oldest.txt
	$(LOCK) --no-deps requirements/fsdp2-oldest.in -o requirements/fsdp2-oldest.txt
	$(LOCK) --no-deps requirements/torchrun.in -o requirements/torchrun.txt
	$(LOCK) $(ARGS) requirements/jax.in -o requirements/jax.txt
	$(LOCK) requirements/jax-oldest.in -o requirements/jax-oldest.txt
	$(LOCK) $(ARGS) requirements/tensorflow.in -o requirements/tensorflow.txt
	$(LOCK) requirements/tensorflow-oldest.in -o requirements/tensorflow-oldest.txt
	$(LOCK) --no-deps requirements/megatron.in -o requirements/megatron.txt
	$(LOCK) --no-deps requirements/torchtitan.in -o requirements/torchtitan.txt
	$(LOCK) --no-deps requirements/trl.in -o requirements/trl.txt
	$(LOCK) --no-deps requirements/trl-oldest.in -o requirements/trl-oldest.txt
	$(LOCK) --no-deps $(ARGS) requirements/ray.in -o requirements/ray.txt
	printf 'setuptools\nwheel\n' | $(LOCK) --no-deps -c requirements/frameworks.txt - -o requirements/frameworks-build.txt

first-hour: ## Follow README.md on one machine: in a fresh clone of the last commit, with an empty environment
	$(PYTHON) tests/docs/docs_first_hour.py

# Its packages have an environment of their own, because nothing else needs them.
SITE_BIN := $(VENV)/site/bin

$(SITE_BIN)/mkdocs: requirements/docs.txt
	$(PYTHON) -m venv $(VENV)/site
	$(SITE_BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/docs.txt
	@touch $@

site: $(SITE_BIN)/mkdocs ## Build the documentation site into dist/site/; a broken link or a page without a place is an error
	@rm -rf dist/site-pages && mkdir -p dist/site-pages
	@git ls-files -z --cached --others --exclude-standard '*.md' ':!tests/*.md' docs/images examples LICENSE proto/reclaim \
		simulator/traces/LICENSE 'sdk/examples/*.py' 'tests/frameworks/test_*.py' 'tests/frameworks/*_on_cpu.py' 'tests/torchrun/test_*.py' tests/agreement tests/sdk/test_sdk_loop.py \
		| xargs -0 cp --parents -t dist/site-pages
	@cp docs/site-nav.yml dist/site-pages/.nav.yml
	NO_MKDOCS_2_WARNING=1 $(SITE_BIN)/mkdocs build --strict
	@test -s dist/site/llms.txt

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
