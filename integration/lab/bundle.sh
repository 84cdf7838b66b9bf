# Packs what hosts of a lab are made of, for machines that have nothing of it; read by the bundle scripts of integration/gpu, integration/bench and integration/chaos.
# Both are in the checkout's root by then, and have the tools and cryo built.

# bundle_hosts STAGE: cryo, the pinned daemons and clients, CRIU with its libraries, ip and busybox.
bundle_hosts() {
	local stage=$1 criu ip library
	criu=$(contrib/criu/install)
	[ "$criu" = /opt/cryo/criu/bin/criu ] || {
		echo "the bundle needs CRIU with libraries of its own: contrib/criu/install has found $criu" >&2
		exit 1
	}
	mkdir -p "$stage"/{bin/tools,lib/ip,opt/cryo}
	cp bin/cryo bin/containerd-shim-cryo-v1 bin/cryo-guard "$stage/bin"
	cp bin/tools/{containerd,containerd-shim-runc-v2,ctr,runc,registry,workload} "$stage/bin/tools"
	cp "$(command -v busybox)" "$stage/bin/tools/busybox"

	# ip runs with the libraries it was built for, whatever that machine has.
	ip=$(readlink -f "$(command -v ip)")
	cp "$ip" "$stage/lib/ip/ip"
	ldd "$ip" | grep -o '/[^ ]*' | while read -r library; do cp -L "$library" "$stage/lib/ip/"; done
	cat >"$stage/bin/tools/ip" <<'IP'
#!/bin/sh
lib=$(dirname "$(readlink -f "$0")")/../../lib/ip
exec "$lib/ld-linux-x86-64.so.2" --library-path "$lib" "$lib/ip" "$@"
IP
	chmod +x "$stage/bin/tools/ip"
	cp -a /opt/cryo/criu "$stage/opt/cryo/criu"
}

# bundle_archive STAGE FILE. Programs of Go are much alike, and are next to each other in the archive so that xz sees it.
bundle_archive() {
	mkdir -p "$(dirname "$2")"
	tar -C "$1" --owner=0 --group=0 --sort=name -cf - . | xz -T2 -9 >"$2.new"
	mv "$2.new" "$2"
	ls -l "$2"
}
