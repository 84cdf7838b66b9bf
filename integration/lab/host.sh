# Becomes the init of a lab's host: a sleeping process that holds the host's namespaces.
# Started as: sh host.sh join NAME RUN LAYOUT DEV [NODE HOSTNAME], with NAME the host's cgroup below each hierarchy, RUN its /run,
# LAYOUT "unified" for a host that has cgroup v2 alone, with the controllers that v1 leaves it, else "machine", DEV "own" for one
# that has a /dev of its own, else "machine", and for a node of Kubernetes NODE, the directory of what it writes below /etc, /opt and
# /var, and its HOSTNAME.
set -eu

# hierarchies: one line each: type, mount point, super block options. CRIU mounts them elsewhere for moments.
hierarchies() {
	sed -n 's/^[^ ]* [^ ]* [^ ]* [^ ]* \(\/sys\/fs\/cgroup[^ ]*\) .* - \(cgroup2\{0,1\}\) [^ ]* \([^ ]*\)$/\2 \1 \3/p' /proc/self/mountinfo
}

case $1 in
join)
	# The cgroup this process is in when it unshares becomes the root of the new cgroup namespace.
	hierarchies | while read -r _ point _; do
		echo $$ >"$point/$2/cgroup.procs"
	done
	shift 2
	exec unshare --mount --cgroup --net --uts --ipc --propagation private sh "$0" settle "$@"
	;;
settle)
	mount --bind "$2" /run
	mount -o remount,bind,nosuid,nodev,noexec /run # as distributions have it
	if [ "$4" = own ]; then
		mkdir -p "$2/dev"
		mount -t tmpfs -o mode=755 dev "$2/dev"
		for entry in /dev/*; do
			case $entry in /dev/nvidia*) continue ;; esac # the machine's GPUs are not the host's
			if [ -d "$entry" ] && [ ! -L "$entry" ]; then
				mkdir "$2$entry"
				mount --rbind "$entry" "$2$entry"
			elif [ ! -S "$entry" ]; then
				cp -a "$entry" "$2$entry"
			fi
		done
		mount --move "$2/dev" /dev
		rmdir "$2/dev"
	fi
	found=$(hierarchies)
	if [ "$3" = unified ]; then
		# Processes are in the hierarchies of v1 all the same, so these are mounted where nobody looks for them.
		umount -l /sys/fs/cgroup
		mount -t cgroup2 none /sys/fs/cgroup
		found=$(echo "$found" | sed -n 's|^cgroup /sys/fs/cgroup|cgroup /run/cgroup1|p'; hierarchies)
		mkdir -p $(echo "$found" | cut -d " " -f 2)
	fi
	echo "$found" | while read -r type point options; do
		umount -l "$point" 2>/dev/null || [ "$3" = unified ]
		case $type in
		cgroup2) mount -t cgroup2 none "$point" ;;
		*) mount -t cgroup -o "$(echo "$options" | sed 's/^rw,//; s/^name=/none,&/')" none "$point" ;;
		esac
		# With cgroup v2 a cgroup with members cannot hand controllers on.
		mkdir -p "$point/daemon"
		for name in cpuset.cpus cpuset.mems; do
			if [ "$type" = cgroup ] && [ -e "$point/$name" ]; then
				cat "$point/$name" >"$point/daemon/$name"
			fi
		done
		echo $$ >"$point/daemon/cgroup.procs"
	done
	if [ -n "${5-}" ]; then
		hostname "$6"
		resolver=$(cat /etc/resolv.conf) # which may be a mount, and so not below the overlay
		for name in etc opt var/lib var/log; do
			mkdir -p "$5/upper/$name" "$5/work/$name"
			mount -t overlay -o "lowerdir=/$name,upperdir=$5/upper/$name,workdir=$5/work/$name" overlay "/$name"
		done
		echo "$resolver" >/etc/resolv.conf
		# Volumes and logs are on the disk, as on a machine: Kubernetes looks how much of it is free.
		for name in var/lib/kubelet var/log/pods; do
			mkdir -p "$5/disk/$name" "/$name"
			mount --bind "$5/disk/$name" "/$name"
		done
		echo 1 >/proc/sys/net/ipv4/ip_forward
	fi
	mount --make-rshared / # as systemd has it
	ip link set lo up
	echo ready
	exec sleep infinity
	;;
esac
