package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"text/template"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/node"
)

// manifests is contrib/kubernetes.
const manifests = "../../contrib/kubernetes"

// objects decodes the documents of YAML by their kind; a field that the kind does not have is an error.
func objects(t *testing.T, text string) map[string]any {
	t.Helper()
	all := map[string]any{}
	for _, document := range strings.Split("\n"+text, "\n---\n") {
		if strings.TrimSpace(document) == "" {
			continue
		}
		var head struct {
			metav1.TypeMeta
			Metadata struct{ Name string }
		}
		if err := yaml.Unmarshal([]byte(document), &head); err != nil {
			t.Fatalf("%v in %s", err, document)
		}
		o, known := map[string]any{
			"v1 Namespace": &corev1.Namespace{}, "v1 ServiceAccount": &corev1.ServiceAccount{}, "v1 ConfigMap": &corev1.ConfigMap{}, "apps/v1 DaemonSet": &appsv1.DaemonSet{},
			"rbac.authorization.k8s.io/v1 ClusterRole": &rbacv1.ClusterRole{}, "rbac.authorization.k8s.io/v1 ClusterRoleBinding": &rbacv1.ClusterRoleBinding{},
			"rbac.authorization.k8s.io/v1 Role": &rbacv1.Role{}, "rbac.authorization.k8s.io/v1 RoleBinding": &rbacv1.RoleBinding{}, "node.k8s.io/v1 RuntimeClass": &nodev1.RuntimeClass{},
			"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy":        &admissionv1.ValidatingAdmissionPolicy{},
			"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding": &admissionv1.ValidatingAdmissionPolicyBinding{},
			"apiextensions.k8s.io/v1 CustomResourceDefinition":                 &map[string]any{}, // its types are in none of our modules
		}[head.APIVersion+" "+head.Kind]
		if !known {
			t.Fatalf("there is no %s %s", head.APIVersion, head.Kind)
		}
		if err := yaml.UnmarshalStrict([]byte(document), o); err != nil {
			t.Fatalf("%s %s: %v", head.Kind, head.Metadata.Name, err)
		}
		all[head.Kind+" "+head.Metadata.Name] = o
	}
	return all
}

// kustomized are the resources of the kustomization, before it changes them, and its names of configuration maps with their files.
func kustomized(t *testing.T) (all map[string]any, maps map[string][]string) {
	t.Helper()
	var k struct {
		metav1.TypeMeta
		Resources          []string
		ConfigMapGenerator []struct {
			Name, Namespace string
			Files           []string
			Options         map[string]bool
		}
		Images []map[string]string
	}
	if err := yaml.UnmarshalStrict([]byte(readManifest(t, "kustomization.yaml")), &k); err != nil {
		t.Fatal(err)
	}
	all, maps = map[string]any{}, map[string][]string{}
	for _, name := range k.Resources {
		for key, o := range objects(t, readManifest(t, name)) {
			all[key] = o
		}
	}
	for _, g := range k.ConfigMapGenerator {
		maps[g.Name] = g.Files
	}
	return all, maps
}

func readManifest(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(manifests, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// chartFiles is what templates have of Helm as .Files.
type chartFiles struct{ t *testing.T }

func (f chartFiles) Get(name string) string { return readManifest(f.t, "chart/"+name) }

// charted renders the chart by those of Helm's functions that it uses.
func charted(t *testing.T, namespace string, values map[string]any) map[string]any {
	t.Helper()
	defaults := map[string]any{}
	if err := yaml.UnmarshalStrict([]byte(readManifest(t, "chart/values.yaml")), &defaults); err != nil {
		t.Fatal(err)
	}
	for key, v := range values {
		if _, known := defaults[key]; !known {
			t.Fatalf("the chart has no value %s", key)
		}
		defaults[key] = v
	}
	tmpl, err := template.New("chart").Option("missingkey=error").Funcs(template.FuncMap{
		"list": func(all ...string) []string { return all }, "replace": func(old, with, s string) string { return strings.ReplaceAll(s, old, with) },
		"trunc": func(n int, s string) string { return s[:n] }, "toString": func(v any) string { return strings.Trim(string(must(t)(yaml.Marshal(v))), "\n") },
		"sha256sum": func(s string) string { sum := sha256.Sum256([]byte(s)); return hex.EncodeToString(sum[:]) },
		"indent": func(n int, s string) string {
			pad := strings.Repeat(" ", n)
			return pad + strings.ReplaceAll(s, "\n", "\n"+pad)
		},
		"default": func(otherwise, s string) string {
			if s == "" {
				return otherwise
			}
			return s
		},
	}).Parse(readManifest(t, "chart/templates/cryo.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := tmpl.Execute(&out, map[string]any{"Values": defaults, "Files": chartFiles{t}, "Release": map[string]any{"Namespace": namespace}}); err != nil {
		t.Fatal(err)
	}
	return objects(t, out.String())
}

// must ends the test unless there is no error.
func must(t *testing.T) func([]byte, error) []byte {
	return func(data []byte, err error) []byte {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
}

// TestManifests: Kubernetes knows every field, and cryo every flag and file of the DaemonSet.
func TestManifests(t *testing.T) {
	all, maps := kustomized(t)
	d := all["DaemonSet cryo-node"].(*appsv1.DaemonSet)
	s := d.Spec.Template.Spec
	for _, c := range append(s.InitContainers, s.Containers...) {
		cmd, rest, err := newRoot(&app{}).Find(c.Args)
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		if err != nil || cmd.Args(cmd, cmd.Flags().Args()) != nil {
			t.Errorf("%s: cryo %v: %v", c.Name, c.Args, err)
		}
		if want := map[string]string{"install": "cryo node install", "node": "cryo node"}[c.Name]; cmd.CommandPath() != want {
			t.Errorf("%s runs %q", c.Name, cmd.CommandPath())
		}
		for _, m := range c.VolumeMounts {
			if !slices.ContainsFunc(s.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
				t.Errorf("%s: there is no volume %s", c.Name, m.Name)
			}
		}
		p := c.SecurityContext
		if p == nil || p.Privileged != nil || !*p.ReadOnlyRootFilesystem || *p.AllowPrivilegeEscalation || !slices.Equal(p.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("%s has %+v", c.Name, p)
		}
	}
	for _, v := range s.Volumes {
		if v.ConfigMap != nil && len(maps[v.ConfigMap.Name]) != 1 {
			t.Errorf("nobody makes ConfigMap %s", v.ConfigMap.Name)
		}
	}
	var may []string
	for _, r := range slices.Concat(all["ClusterRole cryo-node"].(*rbacv1.ClusterRole).Rules, all["Role cryo-node"].(*rbacv1.Role).Rules) {
		for _, verb := range r.Verbs {
			may = append(may, verb+" "+strings.Join(r.Resources, ","))
		}
	}
	needs := []string{"patch nodes", "create events", "list pods", "list checkpointgroups", "watch checkpointgroups", "patch checkpointgroups/status", "create leases", "list leases", "patch leases"}
	if !slices.Equal(may, needs) {
		t.Errorf("it may %v, and needs %v", may, needs)
	}
	if r := all["RuntimeClass cryo"].(*nodev1.RuntimeClass); r.Scheduling.NodeSelector[node.RuntimeLabel] != "true" {
		t.Errorf("its pods are for nodes with %v", r.Scheduling.NodeSelector)
	}
	if _, err := config.Load(filepath.Join(manifests, "config.toml")); err != nil {
		t.Error(err)
	}
	if _, _, err := node.Read(filepath.Join(manifests, "prewarm.toml")); err != nil {
		t.Error(err)
	}
}

// TestChart: the chart makes what kustomize applies, but for the namespace, which is Helm's.
func TestChart(t *testing.T) {
	want, maps := kustomized(t)
	delete(want, "Namespace cryo-system")
	got := charted(t, "cryo-system", map[string]any{"image": "cryo"})
	settings := 0
	for key, o := range got {
		m, is := o.(*corev1.ConfigMap)
		if !is {
			continue
		}
		settings++
		for name, files := range maps {
			if strings.HasPrefix(m.Name, name) && strings.TrimSpace(m.Data[files[0]]) != strings.TrimSpace(readManifest(t, files[0])) {
				t.Errorf("%s has %q", key, m.Data)
			}
		}
		delete(got, key)
	}
	d := got["DaemonSet cryo-node"].(*appsv1.DaemonSet)
	for i, v := range d.Spec.Template.Spec.Volumes {
		if v.ConfigMap != nil && strings.HasPrefix(v.ConfigMap.Name, "cryo-config-") {
			d.Spec.Template.Spec.Volumes[i].ConfigMap.Name = "cryo-config"
		}
	}
	if settings != len(maps) || !reflect.DeepEqual(got, want) {
		t.Errorf("the chart makes %v and %d configuration maps, want %v", got, settings, want)
	}

	other := charted(t, "other", map[string]any{"image": "reg/cryo:2", "restartContainerd": true, "config": "root = '/x'", "prewarm": "# none"})
	d = other["DaemonSet cryo-node"].(*appsv1.DaemonSet)
	s := d.Spec.Template.Spec
	if d.Namespace != "other" || s.Containers[0].Image != "reg/cryo:2" || s.InitContainers[0].Image != "reg/cryo:2" || s.InitContainers[0].Env[0].Value != "true" {
		t.Errorf("%+v", d)
	}
	if c := other["ConfigMap cryo-prewarm"].(*corev1.ConfigMap); strings.TrimSpace(c.Data["prewarm.toml"]) != "# none" {
		t.Errorf("%q", c.Data)
	}
	i := slices.IndexFunc(s.Volumes, func(v corev1.Volume) bool { return v.Name == "config" })
	if c, is := other["ConfigMap "+s.Volumes[i].ConfigMap.Name].(*corev1.ConfigMap); !is || strings.TrimSpace(c.Data["config.toml"]) != "root = '/x'" {
		t.Errorf("%+v", c)
	}
	if p := other["ValidatingAdmissionPolicy cryo-node"].(*admissionv1.ValidatingAdmissionPolicy); !strings.Contains(p.Spec.MatchConditions[0].Expression, "serviceaccount:other:") {
		t.Errorf("%+v", p.Spec.MatchConditions)
	}
}
