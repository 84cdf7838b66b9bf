# The first process of a container of a job of MPI: sshd, and in the container that has RUN the job, whose output goes to /tmp/out.
set -eu
mkdir -p /root/.ssh /run/sshd
umask 077
echo "$KEY" >/root/.ssh/id_ed25519
echo "$PUBLIC" >/root/.ssh/authorized_keys
printf 'Port 2200\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n' >/root/.ssh/config
umask 022
echo "$RING" >/tmp/ring.py
/usr/sbin/sshd -p 2200 -E /tmp/sshd.log
if [ -n "$RUN" ]; then
	for h in $HOSTS; do
		until ssh "$h" true </dev/null; do sleep 0.2; done
	done
	eval "$RUN" </dev/null >/tmp/out 2>&1 &
fi
exec sleep infinity
