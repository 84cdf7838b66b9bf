package kubernetes

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/integration/kubernetes/cluster"
	"github.com/cryo-project/cryo/integration/lab"
)

// eventually waits for up to two minutes.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !is(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not come", what)
		}
	}
}

// cryoImage is what the Dockerfile makes, but for CRIU.
func cryoImage(t *testing.T) string {
	t.Helper()
	var files []lab.File
	for to, from := range map[string]string{"opt/cryo/bin/cryo": shared.Lab.Tool("../cryo"), "opt/cryo/bin/containerd-shim-cryo-v1": shared.Lab.Tool("../containerd-shim-cryo-v1"), "opt/cryo/bin/cryo-guard": shared.Lab.Tool("../cryo-guard"), "opt/cryo/share/containerd.toml": "../../contrib/containerd/cryo.toml"} {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, lab.File{Name: to, Mode: 0o755, Content: data})
	}
	layer, err := lab.Layer(files)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := shared.Registry.Push(t.Context(), "cryo:1", ocispec.ImageConfig{Entrypoint: []string{"/opt/cryo/bin/cryo"}}, layer)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// manifest is a file of contrib/kubernetes, with words replaced.
func manifest(t *testing.T, name string, replace ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../contrib/kubernetes", name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer(replace...).Replace(string(text)) + "\n---\n"
}

func configMap(name, file, content string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: cryo-system}\ndata:\n  %s: %q\n---\n", name, file, content)
}

// labelsOf are a node's.
func labelsOf(t *testing.T, n *cluster.Node) map[string]string {
	t.Helper()
	var o struct {
		Metadata struct{ Labels map[string]string }
	}
	if err := shared.Get(t.Context(), "/api/v1/nodes/"+n.Name, &o); err != nil {
		t.Fatal(err)
	}
	return o.Metadata.Labels
}

// TestNodeService installs cryo by contrib/kubernetes on a node that has another, restarts its containerd as the installer asks for, and sees what the service tells Kubernetes.
func TestNodeService(t *testing.T) {
	n := shared.A
	p := run(t, pod{name: name(t), class: "cryo", node: n, command: []string{"workload", "count", "--memory", "8"}})
	ref, digest := snapshot(t, n, p)

	// A machine has its containerd in /usr/local/bin.
	const dropIn = "/etc/containerd/conf.d/cryo.toml"
	must(t, n.Run(t.Context(), "sh", "-c", "mount -t tmpfs tmpfs /usr/local/bin && cp \"$1\" /usr/local/bin/containerd && cp "+dropIn+" /opt/before.toml", "sh", shared.Lab.Tool("containerd")))
	t.Cleanup(func() {
		must(t, n.Run(cleanupContext(t), "sh", "-c", "umount /usr/local/bin; mv /opt/before.toml "+dropIn+"; rm -r /opt/cryo/bin /opt/cryo/share /etc/cryo"))
		if err := n.RestartContainerd(cleanupContext(t), syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	})
	settings := fmt.Sprintf("[restore.policy]\nrepositories = [%q]\nplain-http = [%[1]q]\n[trust.repositories]\n%[1]q = 'unsigned'\n", shared.Registry.Address)
	apply(t, manifest(t, "namespace.yaml")+manifest(t, "rbac.yaml")+manifest(t, "policy.yaml")+
		configMap("cryo-config", "config.toml", settings)+configMap("cryo-prewarm", "prewarm.toml", fmt.Sprintf("[[snapshot]]\nref = %q\n", ref)))
	service := manifest(t, "daemonset.yaml", "image: cryo\n", "image: "+cryoImage(t)+"\n", "kubernetes.io/arch: amd64\n", "kubernetes.io/arch: amd64\n        kubernetes.io/hostname: "+n.Name+"\n")
	apply(t, service)

	var pods struct{ Items []cluster.Pod }
	look := func() *cluster.Pod {
		if err := shared.Get(t.Context(), "/api/v1/namespaces/cryo-system/pods", &pods); err != nil || len(pods.Items) != 1 {
			return &cluster.Pod{}
		}
		return &pods.Items[0]
	}
	defer func() {
		if t.Failed() {
			for _, container := range []string{"install", "node"} {
				r := shared.Kubectl(cleanupContext(t), "-n", "cryo-system", "logs", "-l", "app.kubernetes.io/name=cryo-node", "-c", container)
				t.Logf("%s: %s%s", container, r.Stdout, r.Stderr)
			}
			t.Logf("%+v", look().Status)
		}
	}()
	eventually(t, "the installer's wish", func() bool {
		for _, s := range look().Status.InitContainerStatuses {
			if end := s.State.Terminated; end != nil && end.ExitCode == 4 {
				return true
			}
			if end := s.LastState.Terminated; end != nil && end.ExitCode == 4 {
				return true
			}
		}
		return false
	})
	if err := n.RestartContainerd(t.Context(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the service", func() bool { return look().Ready() })
	readyLabel := "ready.io.cryo/" + digest[7:39]
	eventually(t, "the label of the snapshot", func() bool { return labelsOf(t, n)[readyLabel] == "memory" })
	if l := labelsOf(t, n); len(l["io.cryo/cpu"]) != 16 || l["io.cryo.runtime"] != "true" || l["kubernetes.io/hostname"] != n.Name {
		t.Errorf("labels %v", l)
	}

	// tells waits for an event of a pod.
	tells := func(pod, reason, words string) {
		eventually(t, "the event "+reason+" of "+pod, func() bool {
			all, err := shared.Events(t.Context(), pod)
			return err == nil && slices.ContainsFunc(all, func(e cluster.Event) bool { return e.Reason == reason && strings.Contains(e.Message, words) })
		})
	}

	// The pod's containers run under the shim that was installed.
	cold := pod{name: name(t), class: "cryo", node: n, command: []string{"workload", "count"}, annotations: map[string]string{"io.cryo.restore": "elsewhere.example/x:1", "io.cryo.restore.fallback": "start"}}
	run(t, cold)
	tells(cold.name, "StartedCold", "restore-policy: ")
	restored := pod{name: name(t), class: "cryo", node: n, image: ref, annotations: map[string]string{"io.cryo.checkpoint-to": shared.Registry.Address + "/sent/node"}}
	b := run(t, restored)
	tells(restored.name, "Restored", ref)
	unfit := pod{name: name(t), class: "cryo", node: n, image: ref, spec: "shareProcessNamespace: true"}
	run(t, unfit)
	tells(unfit.name, "StartedCold", "pid-namespace: ")
	otherProcessor(t, n, func() {
		slow := pod{name: name(t), class: "cryo", node: n, image: ref}
		run(t, slow)
		tells(slow.name, "StartedCold", "cpu-features: ")
		slow.name, slow.annotations = name(t), map[string]string{"io.cryo.restore.fallback": "fail"}
		refuses(t, slow, "cpu-features: ")
	})

	// Checkpoints by the command, and by the kubelet, which may send one.
	snapshot(t, n, b)
	before := string(read(t, n.Dir+"/cryo.toml"))
	checkpoint := func(config string) error {
		if err := n.Configure(config); err != nil {
			t.Fatal(err)
		}
		archive, err := n.Checkpoint(t.Context(), "default", restored.name, "main")
		if err == nil {
			err = os.Remove(archive)
		}
		return err
	}
	if err := checkpoint(before); err == nil {
		t.Error("a snapshot was sent that the configuration does not allow")
	}
	err := checkpoint(before + fmt.Sprintf("\n[checkpoint]\nrepositories = [%q]\nplain-http = [%[1]q]\n", shared.Registry.Address))
	if err := errors.Join(err, n.Configure(before)); err != nil {
		t.Error(err)
	}
	if r := n.Run(t.Context(), "sh", "-c", "ls -l /proc/[0-9]*/exe 2>/dev/null | grep -c /opt/cryo/bin/containerd-shim-cryo-v1"); strings.TrimSpace(r.Stdout) == "0" {
		t.Error("no shim of /opt/cryo runs")
	}
	text := ""
	defer func() {
		if t.Failed() {
			t.Log(text)
		}
	}()
	eventually(t, "what is counted", func() bool {
		answer, err := http.Get("http://" + look().Status.PodIP + ":9464/metrics")
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		data, err := io.ReadAll(answer.Body)
		text = string(data)
		return err == nil && !slices.ContainsFunc([]string{
			`cryo_cold_starts_total{reason="restore-policy"} 1`, `cryo_cold_starts_total{reason="pid-namespace"} 1`, `cryo_cold_starts_total{reason="cpu-features"} 1`,
			`cryo_restores_total{prewarmed="true"} 1`, `cryo_prewarm_snapshots{state="ready"} 1`,
			`cryo_checkpoints_total{result="done"} 2`, `cryo_checkpoints_total{result="checkpoint-to"} 1`, `cryo_checkpoint_freeze_seconds_count 2`,
		}, func(line string) bool { return !strings.Contains(text, line+"\n") })
	})
	for _, never := range []string{"cryo_checkpoint_bytes_total 0\n", "cryo_checkpoint_sent_bytes_total 0\n", `cryo_checkpoint_phase_seconds_total{phase="dump"} 0` + "\n", `cryo_checkpoint_phase_seconds_total{phase="push"} 0` + "\n"} {
		if strings.Contains(text, never) {
			t.Errorf("%s: %s", never, text)
		}
	}

	// Its token is good for its own node's own labels, and events of pods that are restored there.
	token := must(t, n.Run(t.Context(), "sh", "-c", "cat /var/lib/kubelet/pods/"+look().Metadata.UID+"/volumes/kubernetes.io~projected/*/token")).Stdout
	for _, c := range []struct {
		node, patch string
		code        int
	}{
		{n.Name, `{"metadata":{"finalizers":["cryo.test/x"]}}`, http.StatusForbidden},
		{n.Name, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Namespace","name":"gone","uid":"gone"}]}}`, http.StatusForbidden},
		{n.Name, `{"metadata":{"labels":{"io.cryo/test":"1"}}}`, http.StatusOK},
		{n.Name, `{"metadata":{"labels":{"io.cryo/test":null}}}`, http.StatusOK},
		{n.Name, `{"metadata":{"labels":{"test":"1"}}}`, http.StatusForbidden},
		{n.Name, `{"metadata":{"labels":{"kubernetes.io/hostname":null}}}`, http.StatusForbidden},
		{n.Name, `{"metadata":{"annotations":{"io.cryo/test":"1"}}}`, http.StatusForbidden},
		{n.Name, `{"spec":{"unschedulable":true}}`, http.StatusForbidden},
		{shared.B.Name, `{"metadata":{"labels":{"io.cryo/test":"1"}}}`, http.StatusForbidden},
	} {
		if code, body := requestAs(t, token, http.MethodPatch, "/api/v1/nodes/"+c.node, c.patch); code != c.code {
			t.Errorf("patch %s by %s: %d, want %d: %s", c.node, c.patch, code, c.code, body)
		}
	}
	for _, c := range []struct {
		node, reason string
		code         int
	}{{n.Name, "Restored", http.StatusCreated}, {shared.B.Name, "Restored", http.StatusForbidden}, {n.Name, "Killing", http.StatusForbidden}} {
		event := fmt.Sprintf(`{"metadata":{"generateName":"x."},"involvedObject":{"kind":"Pod","namespace":"default","name":%q},"source":{"component":"cryo","host":%q},"reason":%q}`, cold.name, c.node, c.reason)
		if code, body := requestAs(t, token, http.MethodPost, "/api/v1/namespaces/default/events", event); code != c.code {
			t.Errorf("create %s: %d, want %d: %s", event, code, c.code, body)
		}
	}

	if err := shared.Delete(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the labels' end", func() bool { l := labelsOf(t, n); return l[readyLabel] == "" && l["io.cryo/cpu"] == "" })
}

// otherProcessor has a node's processor lack what all of this machine's have, while f runs.
func otherProcessor(t *testing.T, n *cluster.Node, f func()) {
	t.Helper()
	must(t, n.Run(t.Context(), "sh", "-c", "sed 's/ sse2 / /' /proc/cpuinfo >/opt/cpuinfo && mount --bind /opt/cpuinfo /proc/cpuinfo"))
	defer func() { must(t, n.Run(cleanupContext(t), "sh", "-c", "umount /proc/cpuinfo && rm /opt/cpuinfo")) }()
	f()
}

// requestAs asks for a change of an object of the API as a service account.
func requestAs(t *testing.T, token, method, path, body string) (code int, answered string) {
	t.Helper()
	kubeconfig, err := os.ReadFile(shared.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(kubeconfig), `server: "`)
	server, _, _ := strings.Cut(rest, `"`)
	r, err := http.NewRequestWithContext(t.Context(), method, server+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(token))
	if r.Header.Set("Content-Type", "application/json"); method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}
