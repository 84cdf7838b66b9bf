package main

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/shim/worker"
)

// property is a part of a schema of OpenAPI.
type property struct {
	Type                 string
	Properties           map[string]property
	AdditionalProperties *property
	Items                *property
	MaxLength            *int
	MaxItems             *int
	MaxProperties        *int
	Enum                 []string
}

// TestGroupSchema: the API server keeps each field that nodes write, and has no other; and it bounds what a node may write.
func TestGroupSchema(t *testing.T) {
	var crd struct {
		Spec struct {
			Group    string
			Versions []struct {
				Name   string
				Schema struct{ OpenAPIV3Schema property }
			}
			Names struct{ Plural string }
		}
	}
	if err := yaml.Unmarshal([]byte(readManifest(t, "checkpointgroup.yaml")), &crd); err != nil {
		t.Fatal(err)
	}
	v := crd.Spec.Versions[0]
	if crd.Spec.Group != groupResource.Group || v.Name != groupResource.Version || crd.Spec.Names.Plural != groupResource.Resource {
		t.Errorf("%+v is not %v", crd, groupResource)
	}
	var compare func(path string, p property, of reflect.Type)
	compare = func(path string, p property, of reflect.Type) {
		for of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		switch of.Kind() {
		case reflect.Struct:
			fields := map[string]reflect.Type{}
			for _, f := range reflect.VisibleFields(of) {
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				if f.IsExported() && !f.Anonymous && name != "" {
					fields[name] = f.Type
				}
			}
			if got, want := slices.Sorted(maps.Keys(p.Properties)), slices.Sorted(maps.Keys(fields)); p.Type != "object" || !slices.Equal(got, want) {
				t.Errorf("%s is of type %s and has %v, want %v", path, p.Type, got, want)
			}
			for name, sub := range p.Properties {
				if fields[name] != nil {
					compare(path+"."+name, sub, fields[name])
				}
			}
		case reflect.Map:
			if p.AdditionalProperties == nil || p.MaxProperties == nil {
				t.Fatalf("%s is a map without a bound: %+v", path, p)
			}
			compare(path+"[]", *p.AdditionalProperties, of.Elem())
		case reflect.Slice:
			if p.Items == nil || p.MaxItems == nil {
				t.Fatalf("%s is an array without a bound: %+v", path, p)
			}
			compare(path+"[]", *p.Items, of.Elem())
		default:
			want := map[reflect.Kind]string{reflect.String: "string", reflect.Bool: "boolean", reflect.Int64: "integer"}[of.Kind()]
			if p.Type != want || want == "string" && p.MaxLength == nil && p.Enum == nil {
				t.Errorf("%s is a %s, want %s with a bound: %+v", path, p.Type, want, p)
			}
		}
	}
	root := v.Schema.OpenAPIV3Schema.Properties
	compare("spec", root["spec"], reflect.TypeFor[groupSpec]())
	compare("status", root["status"], reflect.TypeFor[groupStatus]())
	member := root["status"].Properties["nodes"].AdditionalProperties.Properties["members"].AdditionalProperties.Properties
	for name, c := range map[string]struct{ got, want int }{
		"reason": {*root["status"].Properties["reason"].MaxLength, maxReason}, "message": {*member["failed"].Properties["message"].MaxLength, maxMessage}, "hint": {*member["failed"].Properties["hint"].MaxLength, maxHint},
		"warnings": {*member["warnings"].MaxItems, maxWarnings}, "warning": {*member["warnings"].Items.MaxLength, maxHint},
	} {
		if c.got != c.want {
			t.Errorf("%s: the API server takes %d, not %d", name, c.got, c.want)
		}
	}
	if got := root["status"].Properties["phase"].Enum; !slices.Equal(got, []string{string(groupWaiting), string(groupRunning), string(groupPublished), string(groupRestored), string(groupFailed)}) {
		t.Errorf("phases %v", got)
	}
}

// podOn is a pod that runs on a node.
func podOn(t *testing.T, name, node string, more ...string) groupPod {
	t.Helper()
	var p groupPod
	text := `{"metadata": {"name": "` + name + `", "uid": "uid-` + name + `"}, "spec": {"nodeName": "` + node + `", "containers": [{"name": "main"}]},
		"status": {"phase": "Running", "containerStatuses": [{"name": "main", "containerID": "containerd://id-` + name + `", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]}}`
	for i := 0; i < len(more); i += 2 {
		text = strings.Replace(text, more[i], more[i+1], 1)
	}
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestGroupPlan(t *testing.T) {
	o := &groupObject{Spec: groupSpec{Reference: "r.example/jobs/a:1"}}
	b, a := podOn(t, "b", "n2"), podOn(t, "a", "n1")
	plan, full, err := o.plan([]groupPod{b, a})
	if want := []groupPlan{{Name: "a", UID: "uid-a", Node: "n1"}, {Name: "b", UID: "uid-b", Node: "n2"}}; err != nil || full != "r.example/jobs/a:1" || !reflect.DeepEqual(plan, want) {
		t.Errorf("%+v, %s, %v", plan, full, err)
	}
	if id, err := a.container(""); err != nil || id != "id-a" {
		t.Errorf("%s, %v", id, err)
	}
	for name, p := range map[string]groupPod{
		"no pod runs":         podOn(t, "c", "n1", `"Running"`, `"Pending"`),
		"no container":        podOn(t, "c", "n1", `{"running": {"startedAt": "2026-01-01T00:00:00Z"}}`, `{"waiting": {}}`),
		"another engine":      podOn(t, "c", "n1", "containerd://", "cri-o://"),
		"several containers":  podOn(t, "c", "n1", `[{"name": "main"}]`, `[{"name": "main"}, {"name": "side"}]`),
		"being deleted":       podOn(t, "c", "n1", `"uid"`, `"deletionTimestamp": "2026-01-01T00:00:00Z", "uid"`),
		"no name of a member": podOn(t, strings.Repeat("c", 64), "n1"),
		"too long a tag":      {},
	} {
		o := *o
		if name == "too long a tag" {
			p, o.Spec.Reference = podOn(t, "c", "n1"), "r.example/jobs/a:"+strings.Repeat("x", 127)
		}
		if _, _, err := o.plan([]groupPod{a, p}); err == nil || hintOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := o.plan(nil); !errdefs.IsNotFound(err) {
		t.Errorf("no pod: %v", err)
	}
}

func TestGroupLeader(t *testing.T) {
	a, b, nowhere := podOn(t, "a", "n1"), podOn(t, "b", "n2"), podOn(t, "0", "")
	for want, pods := range map[string][]groupPod{"n1": {b, nowhere, a}, "n2": {b, nowhere}, "": {nowhere}} {
		if got := leader(pods); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestGroupShares: what the coordinator and a member send by their shares is what they would send by a line, in its order, also where a node sees several changes at once.
func TestGroupShares(t *testing.T) {
	index := &groupIndex{Ref: "r.example/a:1", Digest: digest.FromString("x")}
	together := &worker.Together{Members: []worker.Member{{Name: "b", Was: []string{"10.0.0.2/24"}, Is: []string{}}}}
	lead, seen := groupLead{Members: []groupPlan{{Name: "b"}}}, groupLead{}
	step := func(sent ...groupMessage) {
		t.Helper()
		for _, m := range sent {
			lead.Members = slices.Clone(lead.Members)
			lead.note(m)
			lead.note(m) // for another member
		}
		if got := lead.news(seen, image.Group{}); !reflect.DeepEqual(got, sent) {
			t.Errorf("%+v, want %+v", got, sent)
		}
		seen = lead
		if again := lead.news(seen, image.Group{}); again != nil {
			t.Errorf("twice: %+v", again)
		}
	}
	step()
	step(groupMessage{Permit: worker.Admitted, Together: together})
	step(groupMessage{Permit: worker.Frozen})
	step(groupMessage{Publishing: index}, groupMessage{Permit: worker.Complete})
	seen, lead = groupLead{}, groupLead{}
	step(groupMessage{Publishing: index}, groupMessage{Abandoned: true})

	member, was := memberShare{}, memberShare{}
	tell := func(sent groupMessage, want ...groupMessage) {
		t.Helper()
		member.note(sent)
		if got := member.news(was); !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
		was = member
	}
	addresses := []string{"10.0.0.2/24"}
	at := func(s worker.Step, d digest.Digest, n int64) groupMessage {
		return groupMessage{Reached: &worker.Reached{Step: s, Digest: d, Manifest: n}, Addresses: addresses}
	}
	tell(at(worker.Admitted, "", 0), at(worker.Admitted, "", 0))
	tell(groupMessage{Warning: "w"})
	tell(at(worker.Complete, index.Digest, 7), at(worker.Complete, index.Digest, 7))
	told := at(stepTold, "", 0)
	told.Addresses = nil
	tell(told, at(stepTold, index.Digest, 7)) // the snapshot stays known
	long := failure.New(errdefs.ErrUnavailable, "hint", "%s", strings.Repeat("x", 2*maxMessage)).By("rule")
	member.note(groupMessage{Failed: long, State: &worker.State{Lost: true}})
	got := member.news(was)
	if len(got) != 1 || got[0].Failed.Rule != "rule" || len(got[0].Failed.Message) != maxMessage || !got[0].State.Lost || !errdefs.IsUnavailable(got[0].Failed) {
		t.Errorf("%+v", got)
	}
	done := memberShare{}
	done.note(groupMessage{Done: json.RawMessage(`{"freeze": 0.25}`)})
	if got := done.news(memberShare{}); len(got) != 1 || got[0].Done == nil || done.Frozen != 250 || !done.ended() {
		t.Errorf("%+v, %+v", got, done)
	}
	for range 2 * maxWarnings {
		done.note(groupMessage{Warning: "w"})
	}
	if len(done.Warnings) != maxWarnings {
		t.Errorf("%d warnings", len(done.Warnings))
	}
}

// TestGroupPlacedShares: of a restore, each node finds the new addresses by the index that it has read.
func TestGroupPlacedShares(t *testing.T) {
	group := groupOf(map[string][]string{"a": {"10.0.0.1/24"}, "b": {"10.0.0.2/24"}})
	restored := groupLead{Members: []groupPlan{{Name: "pod-b", Member: "b"}, {Name: "pod-a", Member: "a"}}}
	want, err := together(group, map[string][]string{"a": {"10.1.0.1/24"}, "b": {"10.1.0.2/24"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	restored.note(groupMessage{Permit: worker.Placed, Together: want})
	if got := restored.news(groupLead{}, group); !reflect.DeepEqual(got, []groupMessage{{Permit: worker.Placed, Together: want}}) || want.Addresses["10.0.0.2"] != "10.1.0.2" {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestGroupSilent(t *testing.T) {
	p := newGroupPulse(nil, "n1", "")
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	p.seen = map[string]sign{"dead": {at: ago(silentTime + time.Second)}, "alive": {at: ago(silentTime - 5*time.Second)}}
	for _, c := range []struct {
		node  string
		since time.Duration // for which it is expected
		want  bool
	}{{"dead", time.Minute, true}, {"dead", time.Second, false}, {"alive", time.Minute, false}, {"never seen", time.Minute, true}, {"never seen", time.Second, false}} {
		if got := p.silent(c.node, ago(c.since)); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestGroupEnded(t *testing.T) {
	o := &groupObject{}
	if s := o.ended("", failure.New(errdefs.ErrUnavailable, "do\nit", "a\nb")); s.Phase != groupFailed || s.Reason != "a; b; hint: do; it" || s.Digest != "" || s.CompletionTime == "" || !s.over() {
		t.Errorf("%+v", s)
	}
	if s := o.ended(digest.FromString("x"), nil); s.Phase != groupPublished || s.Reason != "" || s.Digest == "" {
		t.Errorf("%+v", s)
	}
	restored := &groupObject{Spec: groupSpec{Operation: restorePods}}
	if s := restored.ended(digest.FromString("x"), nil); s.Phase != groupRestored || !s.over() {
		t.Errorf("%+v", s)
	}
	if s := restored.ended("", errdefs.ErrAborted); s.Phase != groupFailed || s.Reason == "" {
		t.Errorf("%+v", s)
	}
	if (groupSummary{Phase: groupRunning}).over() {
		t.Error("it runs")
	}
	if _, err := (&groupService{}).selected(t.Context(), &groupObject{Spec: groupSpec{Selector: metav1.LabelSelector{}}}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("an empty selector: %v", err)
	}
}
