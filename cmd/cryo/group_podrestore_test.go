package main

import (
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/shim/worker"
)

// restoringPod is a pod on a node that waits for the group "again".
func restoringPod(t *testing.T, name, node string, more ...string) groupPod {
	t.Helper()
	return podOn(t, name, node, append([]string{`"uid"`, `"annotations": {"io.cryo.restore-group": "again"}, "uid"`, `"Running"`, `"Pending"`}, more...)...)
}

// TestGroupPlace: each pod is for one member, by its annotation, its name, or the name that its controller has begun with. A group waits for pods that are not there, and refuses those that cannot be its own.
func TestGroupPlace(t *testing.T) {
	o := &groupObject{Spec: groupSpec{Operation: restorePods}}
	o.Name = "again"
	index := image.Group{Members: []image.GroupMember{{Name: "rank-0-x7k2p"}, {Name: "rank-1-9zq4b"}}}
	member := func(name string) []string {
		return []string{`"io.cryo.restore-group"`, `"io.cryo.restore-member": "` + name + `", "io.cryo.restore-group"`}
	}
	zero, one := restoringPod(t, "new-a", "n2", member("rank-0-x7k2p")...), restoringPod(t, "rank-1-9zq4b", "n1")
	job := restoringPod(t, "rank-0-abcde", "n2", `"uid"`, `"generateName": "rank-0-", "uid"`)
	ended := restoringPod(t, "rank-0-x7k2p", "n1", "Pending", "Failed")
	long := strings.Repeat("long-", 11) + "lau" // of 58 characters
	cut := restoringPod(t, long+"abcde", "n2", `"uid"`, `"generateName": "`+long+`ncher-", "uid"`)
	for name, c := range map[string]struct {
		pods   []groupPod
		want   []groupPlan
		absent []string
	}{
		"all":         {[]groupPod{one, zero}, []groupPlan{{Name: "new-a", Member: "rank-0-x7k2p", UID: "uid-new-a", Node: "n2"}, {Name: "rank-1-9zq4b", Member: "rank-1-9zq4b", UID: "uid-rank-1-9zq4b", Node: "n1"}}, nil},
		"of a job":    {[]groupPod{job}, []groupPlan{{Name: "rank-0-abcde", Member: "rank-0-x7k2p", UID: "uid-rank-0-abcde", Node: "n2"}}, []string{"rank-1-9zq4b"}},
		"none":        {nil, nil, []string{"rank-0-x7k2p", "rank-1-9zq4b"}},
		"one ended":   {[]groupPod{ended, zero}, []groupPlan{{Name: "new-a", Member: "rank-0-x7k2p", UID: "uid-new-a", Node: "n2"}}, []string{"rank-1-9zq4b"}},
		"on no node":  {[]groupPod{restoringPod(t, "rank-1-9zq4b", ""), zero}, []groupPlan{{Name: "new-a", Member: "rank-0-x7k2p", UID: "uid-new-a", Node: "n2"}}, []string{"rank-1-9zq4b"}},
		"being ended": {[]groupPod{restoringPod(t, "rank-1-9zq4b", "n1", `"uid"`, `"deletionTimestamp": "2026-01-01T00:00:00Z", "uid"`)}, nil, []string{"rank-0-x7k2p", "rank-1-9zq4b"}},
	} {
		from := groupSource{index: index}
		if err := from.place(o, c.pods); err != nil || !reflect.DeepEqual(from.pods, c.want) || !reflect.DeepEqual(from.absent, c.absent) {
			t.Errorf("%s: %+v, %v, %v", name, from.pods, from.absent, err)
		}
		for _, p := range c.want {
			if from.member[p.UID] != "main" {
				t.Errorf("%s: the container of %s is %q", name, p.Name, from.member[p.UID])
			}
			if _, err := from.find(p); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			p.Member = "other"
			if _, err := from.find(p); err == nil {
				t.Errorf("%s: the coordinator names another member for %s", name, p.Name)
			}
		}
	}
	cutting := groupSource{index: image.Group{Members: []image.GroupMember{{Name: long + "9zq4b"}}}}
	if err := cutting.place(o, []groupPod{cut}); err != nil || len(cutting.absent) > 0 {
		t.Errorf("a long name: %+v, %v", cutting, err)
	}
	alike := image.Group{Members: []image.GroupMember{{Name: "rank-0-x7k2p"}, {Name: "rank-0-9zq4b"}}}
	for name, c := range map[string]struct {
		index image.Group
		pods  []groupPod
	}{
		"no annotation":         {index, []groupPod{podOn(t, "rank-0-x7k2p", "n1")}},
		"another group":         {index, []groupPod{restoringPod(t, "rank-0-x7k2p", "n1", "again", "other")}},
		"no such member":        {index, []groupPod{restoringPod(t, "new-a", "n1", member("rank-2")...)}},
		"unknown":               {index, []groupPod{restoringPod(t, "new-a", "n1")}},
		"twice":                 {index, []groupPod{zero, restoringPod(t, "rank-0-x7k2p", "n1")}},
		"two of one controller": {alike, []groupPod{job}},
		"several containers":    {index, []groupPod{restoringPod(t, "rank-0-x7k2p", "n1", `[{"name": "main"}]`, `[{"name": "main"}, {"name": "side"}]`)}},
	} {
		from := groupSource{index: c.index}
		if err := from.place(o, c.pods); !errdefs.IsInvalidArgument(err) || hintOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestGroupVerdict: a container of a pod waits while its group may be restored, is refused when it is not, and is started when it was restored before or is none of the group.
func TestGroupVerdict(t *testing.T) {
	pod := worker.Pod{Name: "a", UID: "u", Container: "main"}
	with := func(phase groupPhase, m *memberShare) *groupObject {
		o := &groupObject{Spec: groupSpec{Operation: restorePods}}
		o.Status.Phase, o.Status.Reason = phase, "the reason"
		if m != nil {
			o.Status.Nodes = map[string]nodeShare{"n": {Members: map[string]memberShare{"a": *m}}}
		}
		return o
	}
	done := &memberShare{UID: "u", Done: true}
	failed := &memberShare{UID: "u", Failed: failure.New(errdefs.ErrAborted, "", "the reason")}
	side := with("", nil)
	side.Spec.Container = "other"
	checkpoint := with("", nil)
	checkpoint.Spec.Operation = checkpointPods
	for name, c := range map[string]struct {
		o       *groupObject
		starts  bool
		refused string
	}{
		"not begun":              {with("", nil), false, ""},
		"begun":                  {with(groupRunning, &memberShare{UID: "u"}), false, ""},
		"failed itself":          {with(groupRunning, failed), false, "the reason"},
		"another has failed":     {with(groupFailed, done), false, "the reason"},
		"restored before":        {with(groupRestored, done), true, ""},
		"restored, a new pod":    {with(groupRestored, &memberShare{UID: types.UID("other")}), false, "does not restore pod a"},
		"restored without it":    {with(groupRestored, nil), false, "does not restore pod a"},
		"a container beside":     {side, true, ""},
		"an object of other use": {checkpoint, false, "takes a checkpoint"},
	} {
		starts, err := c.o.verdict(pod)
		if starts != c.starts || (err != nil) != (c.refused != "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%s: %v, %v", name, starts, err)
		}
	}
}
