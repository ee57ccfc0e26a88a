# The short way to everything. `cargo xtask` has the chores themselves.

# rustup puts cargo here, and a shell that was open before does not know.
export PATH := $(PATH):$(HOME)/.cargo/bin
TARGET := $(or $(CARGO_TARGET_DIR),target)
BINARIES := --package propylon --package propylonctl --package propylon-keyserver --package propylon-bench --package propylon-chaos --bins

.PHONY: help build release packages docs profile demo cluster-demo conformance test test-long fuzz tidy bench clean

help:
	@echo "make demo    build, start Propylon in front of servers of its own, show how to talk to it"
	@echo "make cluster-demo  as root: engines, routers and etcd in network namespaces, and what their changes and faults cost clients"
	@echo "make release build the programs of a release into $(TARGET)/dist, by the profile in profile/ where the compiler can use it"
	@echo "make packages  of a release: Debian packages, RPMs, a tarball, OCI images and what each program is made of, in $(TARGET)/packages"
	@echo "make docs    the documentation as HTML, in $(TARGET)/site"
	@echo "make profile make that profile anew, which takes some 20 minutes; to be committed"
	@echo "make test    install what the tests need (as root, with apt-get), then check and test everything"
	@echo "make test-long  the same with the tests that take long: what a release must pass"
	@echo "make fuzz    run every decoder under libFuzzer, a minute each: SECONDS=600 TARGETS=\"import requests\" make fuzz"
	@echo "make conformance  as root: the Gateway API's suite against the controller; builds an API server, which takes 15 minutes once"
	@echo "make tidy    the house rules only; takes seconds"
	@echo "make bench   measure this machine, next to the other proxies that are installed"
	@echo "make clean   remove what was built"

build:
	@scripts/setup.sh build
	PROPYLON_COMMIT="$$(scripts/commit.sh)" cargo build --locked --release $(BINARIES)

demo: build
	$(TARGET)/release/propylon demo

release:
	@scripts/setup.sh build
	@scripts/release.sh

packages: release
	PROPYLON_COMMIT="$$(scripts/commit.sh)" cargo build --locked --release --package propylon-bench --package propylon-gateway --bins
	cp --remove-destination $(TARGET)/release/propylon-bench $(TARGET)/release/propylon-gateway $(TARGET)/dist/
	@scripts/packages.sh

docs:
	cargo xtask site $(TARGET)/site

profile:
	@scripts/setup.sh build
	@scripts/profile.sh

# Of the whole workspace, as the tests' own programs are. ARGUMENTS="--engines 8 --json" and the like go to the demo.
cluster-demo:
	@scripts/setup.sh cluster
	cargo build --locked --release --workspace --bins
	$(TARGET)/release/propylon-e2e-cluster-demo $(ARGUMENTS)

# Of the whole workspace as well. ARGUMENTS="--run-test NAME" runs one test.
conformance:
	@scripts/setup.sh build
	cargo build --locked --release --workspace --bins
	@scripts/conformance/run.sh $(ARGUMENTS)

test:
	@scripts/setup.sh test
	cargo xtask ci

test-long:
	@scripts/setup.sh test
	cargo xtask ci --long

fuzz:
	@scripts/fuzz.sh

tidy:
	cargo xtask tidy

bench: build
	$(TARGET)/release/propylon-bench compare

clean:
	cargo clean
