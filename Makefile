# make demo    the real thing on real input, in about two minutes after the build
# make test    unit, integration and documentation tests against real servers
# make test-postgres-17   the same on the other supported Postgres
# make trials   with default settings: a hundred workers killed, and how long until their jobs run elsewhere;
#               servers restarted or out of reach for a minute, and nobody else's jobs taken
# make faults   every fault of docs/reliability.md, forced
# make fuzz     what others send, ten minutes each: MINUTES=10
# make deny     the dependencies' licences, sources and advisories
# make msrv     that tenure compiles with the oldest Rust that Cargo.toml says
# make ci       all that must pass before anything lands, and deny and msrv, which install tools
# make mutants  mistakes in tenure's own statements, each of which a test must catch
# make mutants-rust   small mistakes in the code of the steps, all in one build: ONLY=src/job/claim.rs
# make chaos    a minute of faults in random order, and an account of every job; MINUTES=60 SEED=7 make chaos
# make bench   what tenure costs on this machine, in a minute, and the same work on four other libraries
# make bench-retention   what removing finished jobs costs running work
# make bench-peers   the whole comparison: three rounds
# make rolling-upgrade FROM=v0.1.0   that release's program and this one's side by side: a migration, the update, the way back
# make check-deploy   the manifests for Kubernetes, docker-compose.yml and the Dockerfile, without any of these
# make static   the program as one static binary
# make pictures   those of the dashboard, in docs/images
# make check   formatter, lints, documentation without warnings
# make check-docs   every link and anchor of the guide, and that its code is that of the examples
# make book   the guide as a book, in target/book: needs mdBook (cargo install mdbook)
# Each installs what is missing first: see scripts/setup.

SHELL := /bin/sh
CARGO ?= cargo

# The one that scripts/setup installed, if none was there.
ifeq ($(TENURE_NATS_SERVER),)
ifneq ($(wildcard .tools/nats/bin/nats-server),)
export TENURE_NATS_SERVER := $(CURDIR)/.tools/nats/bin/nats-server
endif
endif

.PHONY: help demo test test-postgres-17 trials bench bench-tenure bench-peers check setup setup-test

# The lines above, and nothing else: no tool is installed, and nothing is built.
help:
	@sed -n '/^# make /,/^$$/{/^#/s/^# //p;/^$$/q}' Makefile

setup:
	@scripts/setup

setup-test:
	@scripts/setup test

# Again, so that make sees what setup has installed.
demo: setup
	@$(MAKE) --no-print-directory run-demo

test: setup-test
	@$(MAKE) --no-print-directory run-test

# What has to do with Postgres; that build of it has no pg_basebackup. The tests' Postgres may have to run as another user, who cannot reach into a home folder.
test-postgres-17:
	@scripts/setup postgres-17
	@copy=$$(mktemp -d) && chmod 755 $$copy && cp -r .tools/postgres-17/native $$copy/postgres && \
		TENURE_PG_BIN=$$copy/postgres/bin $(MAKE) --no-print-directory run-test \
			TESTS="--test it -- schema:: plans:: claim:: batches:: effects:: recover:: retention:: queues:: schedules:: dead:: \
				enqueue:: submit:: cancel:: migrations:: verify:: faults::postgres faults::answers dashboard::with dashboard::every_page"; \
		code=$$?; rm -rf $$copy; exit $$code

# TRIALS=20 make trials: fewer of them. Ten at a time, half a minute each.
TRIALS ?= 100
trials: setup-test
	@TENURE_TRIALS=$(TRIALS) $(MAKE) --no-print-directory run-test \
		TESTS="--test it -- --nocapture a_killed_workers_jobs no_healthy_job_is_taken a_worker_that_is_paused wrong_clocks"

# Workers, producers and servers while things go wrong, then an account. SEED=7 repeats a plan; MINUTES=60 lasts.
MINUTES ?= 1
.PHONY: chaos run-chaos
chaos: setup-test
	@$(MAKE) --no-print-directory run-chaos

run-chaos:
	$(CARGO) test --quiet --locked --all-features --test chaos -- --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(CHAOS)

# Mistakes in tenure's own statements and code, each of which a test must catch.
.PHONY: mutants
mutants: setup-test
	@ONLY="$(ONLY)" LIST="$(LIST)" scripts/mutants

# The kinds that cargo-mutants makes. It may be stopped, and goes on with what is not decided yet.
.PHONY: mutants-rust
mutants-rust: setup-test
	@CARGO="$(CARGO)" ONLY="$(ONLY)" LIST="$(LIST)" ANEW="$(ANEW)" QUICK="$(QUICK)" scripts/mutants-rust

# An update under load with the programs of two releases: FROM is a tag or a commit, whose program is built once.
.PHONY: rolling-upgrade
rolling-upgrade: setup-test
	@CARGO="$(CARGO)" scripts/rolling-upgrade $(FROM)

# All faults of docs/reliability.md, and only them; also those that need root, minutes or PgBouncer 1.21.
.PHONY: faults
faults: setup-test
	@scripts/faults

# Coverage-guided, on a nightly compiler: what anybody may publish, what a command prints, settings. MINUTES each.
.PHONY: fuzz
fuzz:
	@cargo fuzz --version >/dev/null 2>&1 || $(CARGO) install --quiet --locked cargo-fuzz
	@cd fuzz && for target in message exec_output config; do mkdir -p corpus/$$target && \
		cargo +nightly fuzz run --sanitizer none $$target corpus/$$target seeds/$$target -- \
			-max_total_time=$$(( $(MINUTES) * 60 )) -max_len=8192 -print_final_stats=1 || exit 1; done

# Pictures of the dashboard, of real workers and jobs, into docs/images.
.PHONY: pictures
pictures:
	@scripts/pictures

# Licences, sources, and advisories as far as their list can be fetched.
.PHONY: deny
deny: export PATH := $(CURDIR)/.tools/cargo-deny/bin:$(PATH)
deny:
	@cargo deny --version >/dev/null 2>&1 || CARGO_PROFILE_DEV_DEBUG=0 $(CARGO) install --quiet --locked --debug --root .tools/cargo-deny cargo-deny
	cargo deny --log-level error check bans licenses sources
	@cargo deny --log-level error check advisories || { cargo deny fetch db >/dev/null 2>&1 && exit 1; \
		echo 'deny: the list of advisories cannot be fetched from here; they were not checked' >&2; }

# The oldest Rust that users may have, in a folder of its own: the other build stays as it is.
MSRV := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
.PHONY: msrv ci
msrv:
	@rustup run $(MSRV).0 rustc --version >/dev/null 2>&1 || rustup toolchain install --profile minimal $(MSRV).0
	CARGO_TARGET_DIR=target/msrv rustup run $(MSRV).0 cargo check --locked --quiet --lib --bins --all-features

ci:
	.ci/run
	@$(MAKE) --no-print-directory msrv deny

# Needs no Rust, no cluster and no Docker; half a minute after it has installed its tools.
.PHONY: check-deploy static
check-deploy:
	@scripts/check-deploy

static:
	@CARGO="$(CARGO)" scripts/static

bench: bench-tenure
	@$(MAKE) --no-print-directory run-peers PEERS="--rounds 1 --jobs 10000"

bench-tenure: setup
	@$(MAKE) --no-print-directory run-bench

# What retention costs running work: ROWS finished jobs are swept while one worker drains.
ROWS ?= 300000
.PHONY: bench-retention
bench-retention: setup
	@$(MAKE) --no-print-directory run-bench BENCH="retention --runs 3 --jobs 50000 --finished $(ROWS)"

bench-peers: setup
	@$(MAKE) --no-print-directory run-peers

.PHONY: run-bench run-peers
# BENCH_PROFILE=dev: whether it runs, with what the demo and the tests have built. The example is named for that: without
# a target that needs them, cargo leaves out what tests depend on, and builds the rest anew, with fewer features.
BENCH_PROFILE ?= release
run-bench:
	$(CARGO) build --profile $(BENCH_PROFILE) --quiet --locked --bin tenure \
		$(if $(filter dev,$(BENCH_PROFILE)),--all-features --example code_evolution,--features cli)
	$${CARGO_TARGET_DIR:-target}/$(if $(filter dev,$(BENCH_PROFILE)),debug,release)/tenure bench --quick --slots 2000 $(BENCH)

# A crate of its own, so that nobody who builds tenure builds its peers.
run-peers:
	$(CARGO) build --release --quiet --locked --features cli --bin tenure
	$(CARGO) run --release --quiet --locked --manifest-path benches/peers/Cargo.toml -- \
		--tenure $${CARGO_TARGET_DIR:-target}/release/tenure $(PEERS)

.PHONY: run-demo run-test
run-demo:
	$(CARGO) build --quiet --locked --all-features --bin tenure --example code_evolution
	$${CARGO_TARGET_DIR:-target}/debug/examples/code_evolution demo

# Most tests wait for something to be noticed: more of them at once than there are cores.
run-test: export RUST_TEST_THREADS ?= 4
run-test:
	PYTHONPATH=$(CURDIR)/.tools/python $(CARGO) test --locked --all-features $(TESTS)

# scripts/check_docs.py --write writes code that a page shows anew.
.PHONY: check-docs book
check-docs:
	@python3 scripts/check_docs.py

book: check-docs
	@command -v mdbook >/dev/null || { echo 'mdBook was not found: cargo install mdbook' >&2; exit 1; }
	mdbook build

check: setup check-docs
	@python3 scripts/check_dependencies.py
	@LIST=1 python3 scripts/mutants
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --all-targets --all-features -- -D warnings
	$(CARGO) clippy --locked --lib -- -D warnings
	$(CARGO) clippy --locked --all-features --test chaos -- -D warnings
	@! $(CARGO) tree --locked --edges normal --prefix none | grep -E '^(anyhow|axum|axum-extra|clap|clap_complete|clap_mangen|comfy-table|hyper-rustls|indicatif|json-subscriber|maud|metrics-exporter-prometheus|opentelemetry|opentelemetry-otlp|tower|tracing-opentelemetry|tracing-subscriber) ' || \
		{ echo 'a library user would pay for these of the program'; exit 1; }
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps --all-features
