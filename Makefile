# cryo's build. "make help" lists the targets.
SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS   += --no-builtin-rules

VERSION  ?= 0.1.0-dev
REVISION ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
PREFIX   ?= /usr/local
DESTDIR  ?=
FUZZTIME ?= 1m
# Further flags of go test in "make unit".
TESTFLAGS ?=
# Further flags of integration/runner, for example: make integration RUNFLAGS='--run ^TestShim --verbose'
RUNFLAGS ?=
# Go's database of vulnerabilities, or a mirror of it.
VULNDB ?= https://vuln.go.dev
# Flags of the bench, see integration/bench/README.md.
BENCHFLAGS ?=
# Flags of the chaos, see integration/chaos/README.md.
CHAOSFLAGS ?=
# Flags of the fuzzer of restores: -fuzz-for, -fuzz-seed, -fuzz-corpus.
FUZZFLAGS ?=

# Without cgo and paths of this machine, for programs, tests and checks alike: a dependency is then compiled once, and not once for each.
export CGO_ENABLED = 0
export GOFLAGS     = -trimpath

GO       := go
comma    := ,
BUILD    := $(GO) build -ldflags "-s -w -X main.version=$(VERSION) -X main.revision=$(REVISION)"
BINARIES := containerd-shim-cryo-v1 cryo cryo-guard
# The helper opens NVIDIA's libraries at run time, and so needs cgo, glibc, and functions that are bound when they are called.
KEEPER   := cryo-gpu-keeper
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations
BUILDCGO := CGO_ENABLED=1 $(GO) build -ldflags "-s -w -extldflags=-Wl,-z,lazy -X main.version=$(VERSION) -X main.revision=$(REVISION)"
QUIETLY  := 2> >(grep -v '^go: downloading' >&2)
# What the demo needs, and what tests and packages need beyond that.
FEW      := libseccomp-dev pkg-config gcc libc6-dev iproute2 iptables nftables patchelf busybox-static tar ca-certificates
PACKAGES := $(FEW) zstd skopeo jq curl redis-tools rpm openssh-server openssh-client
demo: PACKAGES := $(FEW)
PURE      = $(shell $(GO) list ./... | grep -v '/$(KEEPER)$$')
UNIT      = $(filter-out %/integration %/integration/kubernetes,$(PURE))

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

.PHONY: deps
deps: ## install what building and testing needs: Debian packages where they are missing, and CRIU
	@if command -v apt-get >/dev/null; then \
		missing=(); \
		for package in $(PACKAGES); do \
			dpkg-query -W -f '$${Status}' "$$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$$package"); \
		done; \
		if [ "$${#missing[@]}" -gt 0 ]; then \
			echo "installing $${missing[*]}"; \
			apt-get update -q; \
			DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$${missing[@]}"; \
		fi; \
	else \
		echo "no apt-get here; needed are the equivalents of: $(PACKAGES)"; \
	fi
	@contrib/criu/install >/dev/null

.PHONY: build
build: programs preload workload ## build cryo's programs into bin/
	@$(BUILDCGO) -o bin/$(KEEPER) ./cmd/$(KEEPER) $(QUIETLY)

.PHONY: programs
programs: ## build cryo and its shim alone, into bin/
	@for name in $(BINARIES); do $(BUILD) -o bin/$$name ./cmd/$$name $(QUIETLY); done

.PHONY: workload
workload: ## build the program that runs in test containers, and one that uses shim/cryo as a platform does, into bin/tools/
	@for name in workload platform; do $(GO) build -ldflags "-s -w" -o bin/tools/$$name ./integration/$$name $(QUIETLY); done

# Never for use: each lacks one of the two ways by which a hostile snapshot is stopped, or both, so that tests see what the other one stops.
.PHONY: weakened
weakened: ## build programs without the review of CRIU's images, without confinement, and without both, for tests, into bin/unreviewed/, bin/unconfined/, bin/unprotected/
	@for name in $(BINARIES); do \
		$(BUILD) -tags unreviewed -o bin/unreviewed/$$name ./cmd/$$name $(QUIETLY); \
		$(BUILD) -tags unconfined -o bin/unconfined/$$name ./cmd/$$name $(QUIETLY); \
		$(BUILD) -tags unreviewed,unconfined -o bin/unprotected/$$name ./cmd/$$name $(QUIETLY); \
	done

.PHONY: previous
previous: ## build programs that speak the version before of the protocol between cryo and its shim, for tests of upgrades, into bin/previous/
	@for name in $(BINARIES); do $(BUILD) -tags previous -o bin/previous/$$name ./cmd/$$name $(QUIETLY); done

# Which tools a target runs; tools.go names the packages of all. Those of one target are built together, so that what they share is compiled once.
ALL_TOOLS = $(notdir $(shell sed -n 's/^\t_ "\(.*\)"$$/\1/p' integration/tools/tools.go))
TOOLS     = $(ALL_TOOLS)
PINNED_BY = $(addprefix integration/tools/,go.mod go.sum tools.go)
demo: TOOLS = containerd ctr runc registry
test kubernetes-test: TOOLS = containerd containerd-shim-runc-v2 ctr runc registry oras

.PHONY: tools
tools: ## build the pinned containerd, runc, registry and others into bin/tools/
	@$(if $(filter runc,$(TOOLS)),$(MAKE) --no-print-directory bin/tools/runc)
	@packages=(); \
	for tool in $(filter-out runc,$(TOOLS)); do \
		for source in $(PINNED_BY); do \
			if ! [ bin/tools/$$tool -nt $$source ]; then packages+=($$(sed -n "s|^\t_ \"\(.*/$$tool\)\"$$|\1|p" integration/tools/tools.go)); break; fi; \
		done; \
	done; \
	if [ "$${#packages[@]}" -gt 0 ]; then \
		echo "building the pinned $${packages[*]##*/}"; \
		mkdir -p bin/tools; \
		cd integration/tools; \
		$(GO) build -ldflags "-s -w" -o ../../bin/tools/ "$${packages[@]}" $(QUIETLY); \
		cd ../../bin/tools; touch "$${packages[@]##*/}"; \
	fi

# It needs cgo for libseccomp; the others are static.
bin/tools/runc: $(PINNED_BY)
	@echo "building the pinned runc"
	@cd integration/tools; CGO_ENABLED=1 $(GO) build -ldflags "-s -w" -tags seccomp -o ../../$@ github.com/opencontainers/runc $(QUIETLY)
	@touch $@

# Single tools, for targets that run one.
bin/tools/%: $(PINNED_BY)
	@$(MAKE) --no-print-directory tools TOOLS=$*

# Packages are installed while what needs none of them is built.
define install_and_build
	@$(MAKE) --no-print-directory deps PACKAGES="$(PACKAGES)" & deps=$$!; \
	$(MAKE) --no-print-directory tools TOOLS="$(filter-out runc,$(TOOLS))"; $(MAKE) --no-print-directory programs workload; wait $$deps
	@$(MAKE) --no-print-directory tools TOOLS="$(TOOLS)"
endef

.PHONY: preload
preload: bin/libcryo-gpu.so ## build the library that programs in containers with GPUs load, into bin/

# Nothing but libc is needed, of versions that old images have. It says nothing of where it was built: hosts compare it.
bin/libcryo-gpu.so: $(wildcard runtime/gpu/preload/*.[chS])
	@mkdir -p bin
	@cd runtime/gpu/preload; \
	gcc -std=gnu11 -O2 -g -Wall -Wextra -Werror -fvisibility=hidden -fPIC -fno-plt -ffile-prefix-map=$(CURDIR)=cryo -DVERSION='"$(VERSION)"' \
		-shared -Wl,-soname,libcryo-gpu.so -Wl,-z,defs -Wl,--build-id -o ../../../$@ *.c *.S

.PHONY: fakecuda
fakecuda: bin/fakecuda/.built ## build the fake NVIDIA driver and its test program into bin/fakecuda/

# The program brings the loader and the C library it is built with, so that it runs in an empty image.
bin/fakecuda/.built: $(wildcard integration/fakecuda/*.[ch] integration/fakecuda/*.cubin)
	@mkdir -p bin/fakecuda/program
	@cd integration/fakecuda; \
	out=../../bin/fakecuda; \
	flags='-std=gnu11 -O2 -g -Wall -Wextra -Werror -Wno-format-truncation -fvisibility=hidden -fPIC -pthread'; \
	gcc $$flags -shared -Wl,-soname,libcuda.so.1 -o $$out/libcuda.so.1 driver.c context.c local.c stream.c copy.c ipc.c memory.c virtual.c multicast.c asked.c saved.c residue.c kernel.c image.c link.c managed.c pools.c names.c directory.c text.c orders.c outside.c; \
	gcc $$flags -shared -Wl,-soname,libnvidia-ml.so.1 -o $$out/libnvidia-ml.so.1 nvml.c nvml_files.c directory.c text.c; \
	gcc $$flags -o $$out/program/fakeapp fakeapp.c children.c devices.c exchange.c team.c casts.c mapped.c shared.c calls.c storm.c churn.c alternate.c graphs.c watch.c -L$$out -l:libcuda.so.1 -Wl,--dynamic-linker=/fake/ld.so -Wl,-rpath,/fake:/usr/lib64:/usr/lib; \
	cp -L "$$(gcc -print-file-name=libc.so.6)" $$out/program/libc.so.6; \
	cp -L "$$(ldd $$out/libcuda.so.1 | grep -o '/[^ ]*/ld-linux[^ ]*')" $$out/program/ld.so
	@touch $@

.PHONY: test
test: ## run the tests that everybody runs: the unit tests, and the first tier of the integration tests (as root)
	$(install_and_build)
	@$(MAKE) --no-print-directory unit build
	@$(GO) run ./integration/runner --tier first --retry $(RUNFLAGS)

.PHONY: test-all
test-all: ## run all other tests: the second tier of the integration tests, Kubernetes, fuzzing and chaos (as root)
	@$(MAKE) --no-print-directory programs-roots
	@$(MAKE) --no-print-directory integration RUNFLAGS='--tier second $(RUNFLAGS)'
	@$(MAKE) --no-print-directory monitoring
	@$(MAKE) --no-print-directory kubernetes-test
	@$(MAKE) --no-print-directory fuzz FUZZTIME=3000x
	@$(MAKE) --no-print-directory chaos CHAOSFLAGS='$(or $(CHAOSFLAGS),--seed 1 --for 6m)'

# Many tests wait for most of their time, so that more run than there are cores. "make lint" vets.
.PHONY: unit
unit: fakecuda preload ## run the unit tests
	@$(GO) test -vet=off -p $$((2 * $$(nproc))) $(TESTFLAGS) $(UNIT)
	@CGO_ENABLED=1 $(GO) test -vet=off $(TESTFLAGS) ./cmd/$(KEEPER)
	@cd integration/forgetful; $(GO) test $(TESTFLAGS) .

.PHONY: tour
tour: deps build tools fakecuda ## run the tour of README.md and record it as integration/demo/tour.svg (as root)
	@CRYO_RECORDING=$(CURDIR)/integration/demo/tour.svg $(GO) run ./integration/runner --tier second --run '^TestDocuments$$' --jobs 1

# A module of its own, whose first build takes minutes.
.PHONY: monitoring
monitoring: ## test contrib/monitoring with Prometheus' own code
	@cd integration/prometheus; $(GO) test -count=1 $(TESTFLAGS) .

# Root file systems of Debian 13 with programs that users run, whichever Debian this is. The larger half is for make test-all, too.
SERVERS = redis-server valkey-server memcached postgresql mariadb-server nginx-light nats-server etcd-server etcd-client nodejs gunicorn puma php-cli sqlite3 python3 python3-numpy android-libboringssl supervisor cron tmux curl procps
LARGE   = rabbitmq-server tomcat10 openjdk-21-jre-headless ffmpeg chromium-headless-shell curl procps
MPI     = openmpi-bin mpich openssh-server openssh-client python3-mpi4py python3-numpy procps

.PHONY: programs-roots
programs-roots: PACKAGES += mmdebstrap
programs-roots: deps bin/programs/servers.tar bin/programs/large.tar bin/programs/mpi.tar ## make root file systems of Debian's packages for TestPrograms, TestLargePrograms, TestGroupOpenMPI and TestGroupMPICH, into bin/programs/ (3 GB)

bin/programs/servers.tar: INCLUDE = $(SERVERS)
bin/programs/large.tar: INCLUDE = $(LARGE)
bin/programs/mpi.tar: INCLUDE = $(MPI)
bin/programs/%.tar:
	@mkdir -p bin/programs
	@mmdebstrap --quiet --format=tar --variant=minbase --mode=root --skip=check/empty --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
		--include=$(subst $() ,$(comma),$(strip $(INCLUDE))) trixie $@.new
	@mv $@.new $@

.PHONY: integration
integration: deps build weakened previous tools fakecuda packages ## run both tiers of the integration tests: real containerds, runc, CRIU and registries (as root)
	@$(GO) run ./integration/runner $(RUNFLAGS)

# Kubernetes' own components, built of the module in integration/kubernetes/tools: several minutes of both cores at first, seconds afterwards.
KUBERNETES = integration/kubernetes/tools
PINNED     = $(addprefix $(KUBERNETES)/,go.mod go.sum tools.go)
COMPONENTS = kubelet kube-apiserver kube-controller-manager kube-scheduler kubectl etcd
CNI        = host-local bridge loopback portmap
JOBS       = jobset lws mpi-operator

.PHONY: kubernetes
kubernetes: bin/kubernetes/components bin/kubernetes/critest $(addprefix bin/kubernetes/cni/,$(CNI)) $(patsubst %,bin/kubernetes/%/manager,$(JOBS)) ## build the pinned Kubernetes, etcd, CNI plugins, critest and controllers of jobs into bin/kubernetes/
	@for name in $(COMPONENTS); do ln -sf components bin/kubernetes/$$name; done
	@$(GO) build -ldflags "-s -w" -o bin/kubernetes/standin ./integration/kubernetes/standin $(QUIETLY)

bin/kubernetes/components: $(PINNED) $(KUBERNETES)/components/main.go
	@echo "building the pinned Kubernetes"
	@cd $(KUBERNETES); \
	version=$$($(GO) list -m -f '{{.Version}}' k8s.io/kubernetes); \
	minor=$${version#v1.}; \
	v=k8s.io/component-base/version; \
	$(GO) build -ldflags "-s -w -X $$v.gitVersion=$$version -X $$v.gitMajor=1 -X $$v.gitMinor=$${minor%%.*}" -o ../../../$@ ./components $(QUIETLY)
	@touch $@

# It is a test of its package, which has nothing else.
bin/kubernetes/critest: $(PINNED)
	@echo "building the pinned critest"
	@cd $(KUBERNETES); $(GO) test -c -ldflags "-s -w" -o ../../../$@ sigs.k8s.io/cri-tools/cmd/critest $(QUIETLY)
	@touch $@

bin/kubernetes/crictl: $(PINNED)
	@cd $(KUBERNETES); $(GO) build -ldflags "-s -w" -o ../../../$@ sigs.k8s.io/cri-tools/cmd/crictl $(QUIETLY)
	@touch $@

bin/kubernetes/cni/%: $(PINNED)
	@cd $(KUBERNETES); \
	package=$$(sed -n 's|^\t_ "\(.*/$*\)"$$|\1|p' tools.go); \
	$(GO) build -ldflags "-s -w" -o ../../../$@ $$package $(QUIETLY)
	@touch $@

# Controllers of jobs, each with its manifests. Each is built in its own module, with the dependencies that it was released with: no module has versions that all compile with.
bin/kubernetes/jobset/manager: SOURCE = sigs.k8s.io/jobset@v0.10.1 . config
bin/kubernetes/lws/manager: SOURCE = sigs.k8s.io/lws@v0.7.0 ./cmd config
bin/kubernetes/mpi-operator/manager: SOURCE = github.com/kubeflow/mpi-operator@v0.6.0 ./cmd/mpi-operator deploy
bin/kubernetes/%/manager: Makefile
	@echo "building the pinned controller $*"
	@read -r module package manifests <<<"$(SOURCE)"; \
	dir=$$($(GO) mod download -json "$$module" | sed -n 's/^\t"Dir": "\(.*\)",\?$$/\1/p'); \
	rm -rf $(@D); \
	mkdir -p $(@D); \
	cp -r --no-preserve=mode "$$dir/$$manifests" $(@D)/; \
	cd "$$dir"; \
	$(GO) build -ldflags "-s -w" -o $(CURDIR)/$@ "$$package" $(QUIETLY)

.PHONY: kubernetes-test
kubernetes-test: PACKAGES += mmdebstrap
kubernetes-test: deps build fakecuda kubernetes tools bin/programs/mpi.tar ## run the tests under Kubernetes' own components, two nodes and a registry on this machine (as root)
	@$(GO) run ./integration/runner $(RUNFLAGS) --tier kubernetes

.PHONY: kubernetes-bench
kubernetes-bench: deps build kubernetes tools ## measure a Deployment scaled from nothing, started and restored; CRYO_SCALE=PODS,MIB
	@$(GO) test ./integration/kubernetes -count=1 -timeout 60m -run '^$$' -bench Scale -benchtime 1x

.PHONY: lint
lint: bin/tools/staticcheck ## check formatting, go vet, staticcheck and the syntax of scripts
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
	if [ -n "$$unformatted" ]; then echo "gofmt: $$unformatted"; exit 1; fi
	@$(GO) vet $(PURE)
	@CGO_ENABLED=1 $(GO) vet ./cmd/$(KEEPER)
	@cd contrib/contract; $(GO) vet ./...
	@bin/tools/staticcheck $(PURE)
	@CGO_ENABLED=1 bin/tools/staticcheck ./cmd/$(KEEPER)
	@for script in $$(git grep -lE '^#!.*\bbash$$'); do bash -n "$$script"; done
	@for script in $$(git ls-files '*.sh'); do sh -n "$$script"; done

# By the source, which tells what is called: by a program without symbols, whatever its modules have counts.
.PHONY: vulncheck
vulncheck: bin/tools/govulncheck ## look for known vulnerabilities in what cryo calls, the standard library included; asks VULNDB (https://vuln.go.dev)
	CGO_ENABLED=1 bin/tools/govulncheck -db $(VULNDB) ./cmd/...

# What a program was built of, it says itself: the list must have every module of that. libcryo-gpu.so has no code of others.
.PHONY: sbom
sbom: build bin/tools/cyclonedx-gomod ## write a bill of materials of each program, CycloneDX, into bin/sbom/
	@mkdir -p bin/sbom
	@for name in $(BINARIES) $(KEEPER); do \
		list=bin/sbom/$$name.cdx.json; \
		bin/tools/cyclonedx-gomod bin -json -std -noserial -notimestamp -version $(VERSION) -output $$list bin/$$name 2>/dev/null; \
		diff <($(GO) version -m bin/$$name | awk 'NR == 1 { print "std@" $$2 } $$1 == "dep" || $$1 == "=>" { print $$2 "@" $$3 }' | sort) \
			<(jq -r 'select(.bomFormat == "CycloneDX") | .components[] | .name + "@" + .version' $$list | sort) || \
			{ echo "$$list does not list what bin/$$name was built of"; exit 1; }; \
	done

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (1m)
	@for package in $(UNIT); do \
		for target in $$($(GO) test -list '^Fuzz' "$$package" | grep '^Fuzz' || true); do \
			echo "$$package $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x "$$package"; \
		done; \
	done

.PHONY: demo
demo: ## snapshot a container on one host and restore it on another, with private containerds
	$(install_and_build)
	@$(GO) run ./integration/demo

.PHONY: bench
bench: deps build tools ## measure cryo beside stock containerd and CRIU; for example: make bench BENCHFLAGS='--full --json full.json'
	@$(GO) build -o bin/bench/bench ./integration/bench $(QUIETLY)
	@bin/bench/bench $(BENCHFLAGS)

.PHONY: picture
picture: PACKAGES += podman
picture: deps build tools ## measure freezes and first answers on a machine that does nothing else, and draw integration/bench/picture.svg
	@$(GO) build -o bin/bench/bench ./integration/bench $(QUIETLY)
	@bin/bench/bench --cases snapshot,restore --sizes 256 --rounds 5 --json integration/bench/picture.json
	@bin/bench/bench --merge --json integration/bench/picture.json --picture integration/bench/picture.svg integration/bench/picture.json

.PHONY: bench-bundle
bench-bundle: deps build tools ## pack what integration/bench/run needs on a machine without Go into bin/bench/bundle.tar.xz
	@integration/bench/bundle

# A module of its own: what it needs is not the product's.
.PHONY: forgetful
forgetful: ## build the disk whose power "make chaos" cuts into bin/tools/
	@cd integration/forgetful; $(GO) build -ldflags "-s -w" -o ../../bin/tools/forgetful . $(QUIETLY)

.PHONY: chaos
chaos: deps build tools fakecuda forgetful ## break cryo at random and look whether anything was lost; for example: make chaos CHAOSFLAGS='--seed 7 --for 1h'
	@$(GO) build -o bin/chaos/chaos ./integration/chaos $(QUIETLY)
	@bin/chaos/chaos $(CHAOSFLAGS)

.PHONY: fuzz-restore
fuzz-restore: deps build tools ## restore changed CRIU images and ask the kernel what became of it; for example: make fuzz-restore FUZZFLAGS='-fuzz-for 1h -fuzz-seed 7'
	@$(GO) test ./integration -run '^TestFuzzRestore$$' -count=1 -timeout 0 -v -fuzz-corpus $(CURDIR)/bin/fuzz-restore $(FUZZFLAGS) | grep -v '^=== '

.PHONY: chaos-bundle
chaos-bundle: deps build tools fakecuda forgetful ## pack what integration/chaos/run needs on a machine without Go into bin/chaos/bundle.tar.xz
	@integration/chaos/bundle

.PHONY: gpu-bundle
gpu-bundle: deps build tools ## pack what integration/gpu/run needs on a machine with GPUs into bin/gpu/bundle.tar.xz
	@integration/gpu/bundle

.PHONY: install
install: build man ## install cryo, the shim and the GPU helper below DESTDIR/PREFIX (/usr/local), with manual and completion for bash, zsh and fish
	install -D -m 0755 -t $(DESTDIR)$(PREFIX)/bin $(addprefix bin/,$(BINARIES) $(KEEPER))
	install -D -m 0755 -t $(DESTDIR)$(PREFIX)/lib/cryo bin/libcryo-gpu.so
	@d=$(DESTDIR)$(PREFIX)/share; \
	mkdir -p $$d/bash-completion/completions $$d/zsh/site-functions $$d/fish/vendor_completions.d; \
	bin/cryo completion bash >$$d/bash-completion/completions/cryo; \
	bin/cryo completion zsh >$$d/zsh/site-functions/_cryo; \
	bin/cryo completion fish >$$d/fish/vendor_completions.d/cryo.fish; \
	install -D -m 0644 -t $$d/man/man1 bin/man/*.1; \
	install -D -m 0644 -t $$d/doc/cryo LICENSE CHANGELOG.md; \
	for file in $$(find contrib -mindepth 2 -type f ! -path 'contrib/packages/*' | sort); do \
		if [ -x $$file ]; then mode=0755; else mode=0644; fi; \
		install -D -m $$mode $$file $$d/cryo/$$file; \
	done

.PHONY: man
man: ## write the manual, from the commands, into bin/man/
	@rm -rf bin/man
	@$(BUILD) -tags man -o bin/cryo-man ./cmd/cryo $(QUIETLY)
	@CRYO_MAN=bin/man SOURCE_DATE_EPOCH=$(SOURCE_DATE) bin/cryo-man

# What is released. The package cryo wants CRIU 4.2 of the distribution or of the package cryo-criu. The example of the configuration is that of the
# documentation, every line a comment. All times are those of the last commit, so that the same source gives the same files.
RELEASE = bin/packages/cryo-$(VERSION)-linux-amd64
SOURCE_DATE ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
.PHONY: packages
packages: sbom bin/tools/nfpm ## build what is released: deb, rpm, an archive, bills of materials and SHA256SUMS, into bin/packages/
	@rm -rf bin/packages bin/stage
	@mkdir -p bin/packages bin/stage/etc/cryo bin/stage/usr/lib/systemd/system/containerd.service.d
	@$(MAKE) --no-print-directory install DESTDIR=bin/stage PREFIX=/usr >/dev/null
	@cp contrib/systemd/cryo.conf bin/stage/usr/lib/systemd/system/containerd.service.d/
	@cp contrib/systemd/cryo-node.service bin/stage/usr/lib/systemd/system/
	@sed -n '/^```toml$$/,/^```$$/p' cmd/cryo/README.md | sed '/^```/d; s/^[^#]/# &/' >bin/stage/etc/cryo/config.toml
	@tar --sort=name --owner=0 --group=0 --mtime=@$(SOURCE_DATE) --transform 's|^\.|$(notdir $(RELEASE))|' -C bin/stage/usr -cf - . | gzip -9n >$(RELEASE).tar.gz
	@DESTDIR=$(CURDIR)/bin/criu contrib/criu/install >/dev/null
	@cp -a bin/criu/opt/cryo/criu bin/stage/criu
	@find bin/stage -exec touch --no-dereference --date @$(SOURCE_DATE) {} +
	@for package in cryo cryo-criu; do \
		for packager in deb rpm; do \
			VERSION=$(VERSION) SOURCE_DATE_EPOCH=$(SOURCE_DATE) \
				CRIU_VERSION=$$(bin/criu/opt/cryo/criu/lib/ld-linux-x86-64.so.2 --library-path bin/criu/opt/cryo/criu/lib bin/criu/opt/cryo/criu/bin/criu --version | sed -n 's/^Version: //p') \
				bin/tools/nfpm package --config contrib/packages/$$package.yaml --packager $$packager --target bin/packages/; \
		done; \
	done
	@cp bin/sbom/*.cdx.json bin/packages/
	@cd bin/packages; sha256sum * >SHA256SUMS; ls -l

.PHONY: clean
clean: ## remove what was built
	rm -rf bin
