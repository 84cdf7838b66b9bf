package integration

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/integration/lab"
)

// Images of the programs of [programs]. "make programs-roots" makes those of Debian's packages.
const (
	serversImage = "cryo.test/servers:1"
	largeImage   = "cryo.test/large:1"
)

// program is one that users run: how it is started, what it is asked before a snapshot and after a restore, and what a user is told of it.
type program struct {
	name   string   // as in the page
	image  string   // empty: the lab's
	run    []string // in the container; one word is for bash -c
	users  bool     // it has processes that are not root's
	volume bool     // /srv is a directory of the host
	start  []string // flags of "ctr run"
	flags  []string // of cryo checkpoint
	grant  []string // flags of cryo restore
	ready  []step
	after  []step
	rule   string // that refuses the checkpoint; empty: it works
	with   string // what a user must do or know, beside flags of cryo checkpoint
}

// step is a command in the container, and a regular expression for what it prints, in the end.
type step struct{ command, want string }

// outcome is the program's line of the page.
func (p program) outcome() string {
	switch {
	case p.rule != "" && p.with != "":
		return "refused, `" + p.rule + "`; works with " + p.with
	case p.rule != "":
		return "refused, `" + p.rule + "`"
	case p.with != "" || len(p.flags) > 0:
		with := []string{}
		if len(p.flags) > 0 {
			with = append(with, "`"+strings.Join(p.flags, " ")+"`")
		}
		if p.with != "" {
			with = append(with, p.with)
		}
		return "works with " + strings.Join(with, " and ")
	}
	return "works"
}

var programs = []program{
	{name: "Redis", image: serversImage, run: []string{"redis-server"},
		ready: []step{{"redis-cli set greeting hello", "OK"}},
		after: []step{{"redis-cli get greeting", "hello"}, {"redis-cli set after restore", "OK"}, {"redis-cli save", "OK"}}},
	{name: "Valkey", image: serversImage, run: []string{"valkey-server"},
		ready: []step{{"valkey-cli set greeting hello", "OK"}},
		after: []step{{"valkey-cli get greeting", "hello"}, {"valkey-cli set after restore", "OK"}, {"valkey-cli save", "OK"}}},
	{name: "memcached", image: serversImage, users: true, run: []string{"memcached", "-u", "memcache"},
		ready: []step{{tcp(11211, `set k 0 0 5\r\nhello\r\nquit\r\n`), "STORED"}},
		after: []step{{tcp(11211, `get k\r\nquit\r\n`), "hello"}, {tcp(11211, `set l 0 0 1\r\nx\r\nquit\r\n`), "STORED"}}},
	{name: "PostgreSQL, with a transaction open over TCP", image: serversImage, users: true, run: []string{postgres}, flags: []string{"--tcp-established"},
		ready: []step{{entered("create table t(a int); begin; insert into t values (42); select 6*7;"), "42"}},
		after: []step{{"psql -h /run/postgresql -U postgres -Atc 'select count(*) from t'", "^0"},
			{entered("commit;"), "COMMIT"}, {"psql -h /run/postgresql -U postgres -Atc 'select a from t'", "^42"}}},
	{name: "MariaDB", image: serversImage, users: true, run: []string{mariadb}, rule: "io-uring",
		ready: []step{{count(1), "^1"}}, after: []step{{count(2), "^2"}}},
	{name: "MariaDB without io_uring, which has asynchronous I/O instead", image: serversImage, users: true, run: []string{mariadb}, start: []string{"--annotation", "io.cryo.io-uring=refuse"}, flags: []string{"--file-locks"}, with: "`--annotation io.cryo.io-uring=refuse`, or a default seccomp profile, when the container is started",
		ready: []step{{count(1), "^1"}}, after: []step{{count(2), "^2"}}},
	{name: "nginx", image: serversImage, users: true, run: []string{"nginx", "-g", "daemon off;"},
		ready: []step{{"curl -s localhost", "Welcome to nginx"}}, after: []step{{"curl -s localhost", "Welcome to nginx"}}},
	{name: "NATS, with JetStream", image: serversImage, run: []string{"nats-server", "-js", "-sd", "/tmp/js", "-m", "8222"}, start: []string{"--env", "GODEBUG=multipathtcp=0"}, with: "`GODEBUG=multipathtcp=0` in its environment, where the kernel has Multipath TCP",
		ready: []step{
			{tcp(4222, `CONNECT {"verbose":false}\r\nPUB $JS.API.STREAM.CREATE.S r 33\r\n{"name":"S","subjects":["foo.*"]}\r\nPING\r\n`), "PONG"},
			{tcp(4222, `CONNECT {"verbose":false}\r\nPUB foo.a 5\r\nhello\r\nPING\r\n`), "PONG"}, {"curl -s localhost:8222/jsz", `"messages": 1,`}},
		after: []step{{tcp(4222, `CONNECT {"verbose":false}\r\nPUB foo.b 5\r\nhello\r\nPING\r\n`), "PONG"}, {"curl -s localhost:8222/jsz", `"messages": 2,`}}},
	{name: "etcd", image: serversImage, run: []string{"etcd", "--data-dir", "/tmp/etcd"}, flags: []string{"--tcp-established", "--file-locks"},
		ready: []step{{"etcdctl put greeting hello", "OK"}},
		after: []step{{"etcdctl get greeting", "hello"}, {"etcdctl put after restore", "OK"}}},
	{name: "Node.js", image: serversImage, run: node, rule: "io-uring",
		ready: []step{{"curl -s localhost:8080", "^1$"}}, after: []step{{"curl -s localhost:8080", "^[2-9]$"}}},
	{name: "Node.js without io_uring", image: serversImage, run: node, start: []string{"--annotation", "io.cryo.io-uring=refuse"}, with: "`--annotation io.cryo.io-uring=refuse`, or a default seccomp profile, when the container is started",
		ready: []step{{"curl -s localhost:8080", "^1$"}}, after: []step{{"curl -s localhost:8080", "^[2-9]$"}}},
	{name: "gunicorn", image: serversImage, run: []string{gunicorn},
		ready: []step{{"curl -s localhost:8000", "^1$"}}, after: []step{{"curl -s localhost:8000", "^[2-9]$"}}},
	{name: "Puma, which forks its worker", image: serversImage, run: []string{puma},
		ready: []step{{"curl -s localhost:8000", "^1$"}}, after: []step{{"curl -s localhost:8000", "^[2-9]$"}}},
	{name: "PHP 8.4", image: serversImage, run: []string{php("")}, rule: "shared-code",
		ready: []step{{"curl -s localhost:8000", "^7$"}}, after: []step{{"curl -s localhost:8000", "^7$"}}},
	{name: "PHP 8.4 without memory for its compiler", image: serversImage, run: []string{php("-d opcache.jit_buffer_size=0 ")}, with: "`opcache.jit_buffer_size=0` in its configuration",
		ready: []step{{"curl -s localhost:8000", "^7$"}}, after: []step{{"curl -s localhost:8000", "^7$"}}},
	{name: "supervisord with cron", image: serversImage, run: []string{supervisor("")}, rule: "renamed-socket",
		ready: []step{{"supervisorctl status", "RUNNING"}}, after: []step{{"supervisorctl status", "RUNNING"}}},
	{name: "supervisord with cron, controlled by TCP", image: serversImage, run: []string{supervisor("sed -i 's/^\\[unix_http_server\\]/[inet_http_server]/; s/^file=.*/port=127.0.0.1:9001/; /^chmod/d; s/unix:.*/http:\\/\\/127.0.0.1:9001/' /etc/supervisor/supervisord.conf")},
		flags: []string{"--file-locks"}, with: "`[inet_http_server]` instead of `[unix_http_server]` in its configuration",
		ready: []step{{"supervisorctl status", "RUNNING"}}, after: []step{{"supervisorctl status", "RUNNING"}, {"supervisorctl restart cron", "started"}}},
	{name: "tmux", image: serversImage, run: []string{"tmux new-session -d -s one bash; sleep infinity"},
		ready: []step{{"tmux send-keys -t one 'X=hello' Enter; tmux list-sessions", "one"}},
		after: []step{{"tmux send-keys -t one 'echo is $X' Enter; sleep 0.2; tmux capture-pane -p -t one", "is hello"}}},
	{name: "SQLite, rollback journal, on a volume", image: serversImage, run: []string{sqlite("/srv/data.db", "delete")}, volume: true, with: "`cryo restore --allow mounts`, which every volume needs",
		ready: []step{{insert(1), `rows\|1`}}, after: []step{{insert(2), `rows\|2`}}},
	{name: "SQLite, rollback journal, on the root file system", image: serversImage, run: []string{sqlite("/tmp/data.db", "delete")},
		with:  "a warning: reads go on, and writes fail until the program opens the database again",
		ready: []step{{insert(1), `rows\|1`}}, after: []step{{insert(2), `readonly database`}, {"sqlite3 /tmp/data.db 'insert into t values(2); select count(*) from t'", "^2"}}},
	{name: "SQLite, WAL", image: serversImage, run: []string{sqlite("/tmp/data.db", "wal")}, rule: "mapped-lock",
		ready: []step{{insert(1), `rows\|1`}}, after: []step{{insert(2), `rows\|2`}}},
	{name: "SQLite, WAL, locked exclusively, on a volume", image: serversImage, run: []string{sqlite("/srv/data.db", "wal; pragma locking_mode=exclusive")}, volume: true, flags: []string{"--file-locks"},
		with: "`PRAGMA locking_mode=EXCLUSIVE` before the database is first used", ready: []step{{insert(1), `rows\|1`}}, after: []step{{insert(2), `rows\|2`}}},

	{name: "RabbitMQ", image: largeImage, users: true, run: []string{"rabbitmq-server"}, flags: []string{"--tcp-established"},
		ready: []step{{"rabbitmqctl await_startup && rabbitmqctl add_vhost before", "Adding vhost"}},
		after: []step{{"rabbitmqctl list_vhosts", "before"}, {"rabbitmqctl add_vhost after", "Adding vhost"}}},
	{name: "Tomcat", image: largeImage, run: []string{tomcat},
		ready: []step{{"curl -s localhost:8080/n.jsp", "^1$"}}, after: []step{{"curl -s localhost:8080/n.jsp", "^[2-9]$"}}},
	{name: "ffmpeg", image: largeImage, run: []string{"exec ffmpeg -nostdin -loglevel error -progress /tmp/progress -re -f lavfi -i testsrc=size=320x240 -f null -"},
		ready: []step{{"grep frame= /tmp/progress | tail -1", "frame="}},
		after: []step{{"a=$(grep -c frame= /tmp/progress); sleep 2; b=$(grep -c frame= /tmp/progress); echo more $((b > a))", "more 1"}}},
	{name: "Chromium, headless", image: largeImage, run: []string{chromium},
		ready: []step{{"curl -s localhost:9222/json/list", `"title": "\d+"`}},
		after: []step{{"n() { curl -s localhost:9222/json/list | sed -n 's/.*\"title\": \"\\([0-9]*\\)\".*/\\1/p'; }; a=$(n); sleep 1; b=$(n); echo more $((b > a && a > 0))", "more 1"}}},

	workloadProgram("500 processes", "tree", "--width", "22", "--depth", "2", "--threads", "1"),
	workloadProgram("5,000 threads", "tree", "--width", "1", "--depth", "1", "--threads", "5000"),
	workloadProgram("timerfd", "descriptor", "--what", "timerfd"),
	workloadProgram("signalfd", "descriptor", "--what", "signalfd"),
	workloadProgram("eventfd", "descriptor", "--what", "eventfd"),
	workloadProgram("asynchronous I/O (`io_submit`, libaio)", "descriptor", "--what", "aio"),
	workloadProgram("epoll", "descriptor", "--what", "epoll"),
	workloadProgram("pidfd", "descriptor", "--what", "pidfd"),
	workloadProgram("memfd", "descriptor", "--what", "memfd"),
	workloadProgram("memfd with `F_SEAL_SEAL`", "descriptor", "--what", "memfd-seal"),
	workloadProgram("memfd with `F_SEAL_SHRINK`", "descriptor", "--what", "memfd-shrink"),
	workloadProgram("memfd with `F_SEAL_GROW`", "descriptor", "--what", "memfd-grow"),
	workloadProgram("memfd with `F_SEAL_WRITE`, not mapped", "descriptor", "--what", "memfd-write"),
	workloadProgram("memfd with `F_SEAL_FUTURE_WRITE`", "descriptor", "--what", "memfd-future"),
	workloadProgram("memfd with `F_SEAL_EXEC`", "descriptor", "--what", "memfd-exec"),
	workloadProgram("inotify of /etc", "descriptor", "--what", "inotify-config"),
	workloadProgram("inotify of /tmp", "descriptor", "--what", "inotify-tmp"),
	workloadProgram("inotify of another directory", "descriptor", "--what", "inotify-deep"),
	workloadProgram("fanotify", "descriptor", "--what", "fanotify").capable("CAP_SYS_ADMIN"),
	workloadProgram("POSIX message queue (mqueue)", "descriptor", "--what", "mqueue").refused("message-queue"),
	workloadProgram("io_uring", "descriptor", "--what", "io_uring").refused("io-uring"),
	workloadProgram("userfaultfd", "descriptor", "--what", "userfaultfd").capable("CAP_SYS_PTRACE").refused("userfaultfd"),
	workloadProgram("perf event", "descriptor", "--what", "perf").capable("CAP_PERFMON").refused("perf-event"),
	workloadProgram("BPF map", "descriptor", "--what", "bpf").capable("CAP_BPF").refused("unknown-descriptor"),
}

// workloadProgram is the lab's program; it answers for itself.
func workloadProgram(name string, args ...string) program {
	return program{name: name, run: append([]string{"workload"}, args...), ready: []step{{"workload ask", ""}}, after: []step{{"workload ask", ""}}}
}

// refused is the program, of which no snapshot is taken.
func (p program) refused(rule string) program {
	p.rule = rule
	return p
}

// capable is the program with a capability that it needs.
func (p program) capable(name string) program {
	p.start = []string{"--cap-add", name}
	p.grant = []string{"--allow", "capabilities"}
	return p
}

// tcp is a command of bash that sends a text to a port and prints the answer, to its end or to PONG.
func tcp(port int, text string) string {
	return fmt.Sprintf(`exec 3<>/dev/tcp/127.0.0.1/%d; printf '%s' >&3; timeout 5 sed '/PONG/q' <&3; true`, port, strings.ReplaceAll(text, "%", "%%"))
}

var node = []string{"node", "-e", "let n = 0; require('http').createServer((q, s) => s.end(`${++n}\n`)).listen(8080)"}

const postgres = `mkdir -p /run/postgresql && chown postgres /run/postgresql
sed -i 's/scram-sha-256/trust/; s/peer/trust/' /etc/postgresql/17/main/pg_hba.conf
mkfifo /tmp/in
su postgres -c 'exec /usr/lib/postgresql/17/bin/postgres -D /var/lib/postgresql/17/main -c config_file=/etc/postgresql/17/main/postgresql.conf' &
until pg_isready -q; do sleep 0.1; done
exec 3<>/tmp/in
psql -h 127.0.0.1 -U postgres -At <&3 >/tmp/out`

const mariadb = `mkdir -p /run/mysqld; chown mysql /run/mysqld; exec mariadbd --user=mysql`

// count returns a command of bash that inserts a row into a table of MariaDB and prints the number of its rows. The rows are numbered from 1.
func count(row int) string {
	return fmt.Sprintf("mariadb -Ne 'create database if not exists d; create table if not exists d.t (a int primary key) engine=innodb; replace into d.t values (%d); select count(*) from d.t'", row)
}

const puma = `cd /tmp; echo 'run ->(e) { $n = ($n || 0) + 1; [200, {}, ["#{$n}\n"]] }' >config.ru; exec puma -w 1 -b tcp://127.0.0.1:8000 config.ru`

func php(flags string) string {
	return "cd /tmp; echo '<?php echo 3 + 4, \"\\n\";' >index.php; exec php " + flags + "-S 127.0.0.1:8000"
}

const gunicorn = `cat >/tmp/counter.py <<'END'
n = 0
def app(environ, start_response):
    global n
    n += 1
    start_response('200 OK', [])
    return [b'%d\n' % n]
END
cd /tmp; exec gunicorn --bind 127.0.0.1:8000 counter:app`

const tomcat = `echo '<%! static int n; %><%= ++n %>' >/var/lib/tomcat10/webapps/ROOT/n.jsp
export CATALINA_HOME=/usr/share/tomcat10 CATALINA_BASE=/var/lib/tomcat10 CATALINA_TMPDIR=/tmp
exec /usr/share/tomcat10/bin/catalina.sh run`

const chromium = `cat >/tmp/page.html <<'END'
<title>0</title><script>let n = 0; setInterval(() => document.title = ++n, 100)</script>
END
exec chromium-headless-shell --no-sandbox --disable-gpu --remote-debugging-port=9222 file:///tmp/page.html`

func supervisor(change string) string {
	return "printf '[program:cron]\\ncommand=cron -f\\n' >/etc/supervisor/conf.d/cron.conf\n" + change + "\nexec supervisord -n -c /etc/supervisor/supervisord.conf"
}

// sqlite is a program that has a database open, and does what is written into a FIFO.
func sqlite(path, journal string) string {
	mode, lock, _ := strings.Cut(journal, ";")
	return `mkfifo /tmp/in; exec 3<>/tmp/in
(echo '` + lock + `; pragma journal_mode=` + mode + `; create table t(a);'; cat <&3) | stdbuf -oL sqlite3 ` + path + ` >/tmp/out 2>&1`
}

func insert(value int) string {
	return entered(fmt.Sprintf("insert into t values(%d); select 'rows', count(*) from t;", value))
}

// entered is a command of bash that enters a line into a program by its FIFO, once, however often the command is run, and prints all that the program has answered.
func entered(line string) string {
	return fmt.Sprintf(`[ -p /tmp/in ] && mkdir /tmp/entered-%x 2>/dev/null && echo "%s" >/tmp/in; sleep 0.2; cat /tmp/out`, sha256.Sum256([]byte(line)), line)
}

// TestProgramsPage compares the page for users with [programs].
func TestProgramsPage(t *testing.T) {
	text, err := os.ReadFile("../shim/PROGRAMS.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "| --- | --- |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	want := ""
	for _, p := range programs {
		want += "| " + p.name + " | " + p.outcome() + " |\n"
	}
	if !found || strings.TrimSpace(table) != strings.TrimSpace(want) {
		t.Errorf("the table of shim/PROGRAMS.md should be\n%s", want)
	}
}

// TestPrograms takes a snapshot of each server of [programs] as a new user would, and restores it. What works, with which flags, and what is refused by which rule, is what the page tells users.
func TestPrograms(t *testing.T) { tryPrograms(t, serversImage) }

// TestLargePrograms does so for programs whose image is large.
func TestLargePrograms(t *testing.T) { tryPrograms(t, largeImage) }

// TestDescriptors does so for the test's own programs, most of which hold one kind of descriptor.
func TestDescriptors(t *testing.T) { tryPrograms(t, "") }

func tryPrograms(t *testing.T, image string) {
	h := newHost(t, name(t), lab.HostOptions{})
	for _, p := range programs {
		if p.image == image {
			t.Run(p.name, func(t *testing.T) { p.try(t, h) })
		}
	}
}

func (p program) try(t *testing.T, h *lab.Host) {
	p.provide(t, h)
	id := name(t)
	ref := "programs/" + id + ":1"
	run := p.run
	if len(run) == 1 && strings.ContainsAny(run[0], " \n") {
		run = []string{"bash", "-c", run[0]}
	}
	image := p.image
	if image == "" {
		image = lab.ImageName
	}
	if p.volume {
		dir := filepath.Join(h.Dir, id)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		p.start, p.grant = append(p.start, "--mount", "type=bind,src="+dir+",dst=/srv,options=rbind:rw"), []string{"--allow", "mounts"}
	}
	startImage(t, h, image, id, slices.Concat(p.start, p.otherUsers(t)), run...)
	p.ask(t, h, id, p.ready)
	forget(t, h, ref)
	r := h.Cryo(t.Context(), append([]string{"checkpoint", id, ref}, p.flags...)...)
	if p.rule != "" {
		if r.Code != codePrecondition || !strings.Contains(r.Stderr, p.rule+": ") || !strings.Contains(r.Stderr, "\nhint: ") || strings.Contains(r.Stderr, "hint: try again") {
			t.Fatalf("exit code %d, want a refusal by %s, with a hint:\n%s", r.Code, p.rule, r.Stderr)
		}
		p.ask(t, h, id, p.after) // it runs on
		return
	}
	must(t, r)
	t.Logf("checkpoint: %.1f s\n%s", r.Elapsed.Seconds(), r.Stderr)
	again := id + "-again" // the old container stays, so that its inode numbers are in use, and the restored files have others
	cleanup(t, h, again)
	r = must(t, h.Cryo(t.Context(), append([]string{"restore", ref, "--name", again}, p.grant...)...))
	t.Logf("restore: %.1f s\n%s", r.Elapsed.Seconds(), r.Stderr)
	p.ask(t, h, again, p.after)
}

// otherUsers returns flags by which root may dump processes of other users, which those of Debian's servers are: root of a container that runs a machine's tests often lacks CAP_SYS_RESOURCE, but has all capabilities in
// user namespaces of its own.
func (p program) otherUsers(t *testing.T) []string {
	t.Helper()
	if !p.users || capable(t, unix.CAP_SYS_RESOURCE) {
		return nil
	}
	return []string{"--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536"}
}

func capable(t *testing.T, capability int) bool {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
	return data[capability/32].Effective&(1<<(capability%32)) != 0
}

// provide imports the program's image, once.
func (p program) provide(t *testing.T, h *lab.Host) {
	t.Helper()
	if p.image == "" || strings.Contains(h.Ctr(t.Context(), "images", "ls", "-q").Stdout, p.image) {
		return
	}
	root := filepath.Join("../bin/programs", strings.TrimSuffix(filepath.Base(p.image), ":1")+".tar")
	if dir := os.Getenv("CRYO_PROGRAMS"); dir != "" {
		root = filepath.Join(dir, filepath.Base(root))
	}
	err := h.ImportRoot(t.Context(), p.image, root)
	var missing *lab.MissingError
	if errors.As(err, &missing) && os.Getenv("CI") == "" {
		t.Skip("NOT RUN:", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// ask runs the command of each step in the container until its output matches, for half a minute at most.
func (p program) ask(t *testing.T, h *lab.Host, id string, steps []step) {
	t.Helper()
	shell := "bash"
	if p.image == "" {
		shell = "sh"
	}
	for i, s := range steps {
		want := regexp.MustCompile("(?m)" + s.want)
		var last lab.Result
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		for n := 0; ; n++ {
			r := h.Ctr(ctx, "tasks", "exec", "--exec-id", fmt.Sprint("step-", i, "-", n), id, shell, "-c", s.command)
			if n == 0 || ctx.Err() == nil {
				last = r
			}
			if last.Code == 0 && want.MatchString(last.Stdout) || ctx.Err() != nil {
				break
			}
			if _, status, _ := h.Task(ctx, id); status != "RUNNING" {
				break
			}
			time.Sleep(200 * time.Millisecond)
		}
		cancel()
		if last.Code != 0 || !want.MatchString(last.Stdout) {
			_, status, _ := h.Task(t.Context(), id)
			t.Fatalf("%s (%s): %s: exit status %d, want %q:\n%s%s\noutput:\n%s", p.name, status, s.command, last.Code, s.want, last.Stdout, last.Stderr, output(t, h, id))
		}
	}
}
