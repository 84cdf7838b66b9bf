package main

import (
	"maps"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
)

func TestGroupFlags(t *testing.T) {
	for text, wrong := range map[string]bool{
		"rank0=node1/web": false, "rank0=root@node-1.example/web": false, "rank0=/web": false, "rank0=[fd00::1]/web": true, "rank0=node1": true, "rank0=node1/": true, "node1/web": true,
		"rank0=-oProxyCommand=x/web": true, "rank0=a b/web": true, "rank0=$(x)/web": true, "Rank=node1/web": true, "../x=node1/web": true, "rank0=a;b/web": true,
	} {
		f := groupFlags{members: []string{text}}
		if err := f.parse("cryo checkpoint", true); (err != nil) != wrong || err != nil && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", text, err)
		}
	}
	f := groupFlags{members: []string{"a=x/1", "a=y/2"}}
	if err := f.parse("cryo checkpoint", true); !errdefs.IsInvalidArgument(err) {
		t.Errorf("twice: %v", err)
	}
	f = groupFlags{members: []string{"a=x"}}
	if err := f.parse("cryo restore", false); err != nil || f.parsed[0] != (groupPlace{"a", "x", ""}) {
		t.Errorf("%+v, %v", f.parsed, err)
	}
}

func TestMemberRef(t *testing.T) {
	for full, want := range map[string]string{
		"r.example:5000/jobs/a:1": "r.example:5000/jobs/a:1-rank0", "r.example:5000/jobs/a": "", "r.example/a@sha256:" + strings.Repeat("0", 64): "", "a:1": "", "r.example/a:" + strings.Repeat("x", 123): "",
	} {
		if got, err := memberRef(full, "rank0"); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %s, %v", full, got, err)
		}
	}
}

func TestPairAddresses(t *testing.T) {
	for name, test := range map[string]struct {
		was, is []string
		want    map[string]string
	}{
		"another":       {[]string{"10.0.0.1/24", "fe80::1/64", "fd00::1/64"}, []string{"fe80::2/64", "fd00::7/64", "10.0.0.7/24"}, map[string]string{"10.0.0.1": "10.0.0.7", "fd00::1": "fd00::7"}},
		"the same":      {[]string{"10.0.0.1/24"}, []string{"10.0.0.1/24"}, map[string]string{"10.0.0.1": "10.0.0.1"}},
		"one is there":  {[]string{"10.0.0.1/24", "10.1.0.1/24"}, []string{"10.1.0.1/24", "10.0.0.9/24"}, map[string]string{"10.0.0.1": "10.0.0.9", "10.1.0.1": "10.1.0.1"}},
		"too few":       {[]string{"10.0.0.1/24", "10.1.0.1/24"}, []string{"10.0.0.9/24"}, map[string]string{"10.0.0.1": "10.0.0.9"}},
		"other family":  {[]string{"10.0.0.1/24"}, []string{"fd00::1/64"}, map[string]string{}},
		"no network":    {[]string{"10.0.0.1/24"}, nil, map[string]string{}},
		"not addresses": {[]string{"x"}, []string{"y"}, map[string]string{}},
	} {
		if got := pairAddresses(test.was, test.is); !maps.Equal(got, test.want) {
			t.Errorf("%s: %v, not %v", name, got, test.want)
		}
	}
}

func groupOf(was map[string][]string) (g image.Group) {
	for _, name := range []string{"a", "b"} {
		g.Members = append(g.Members, image.GroupMember{Name: name, Addresses: was[name], Snapshot: ocispec.Descriptor{Digest: digest.FromString(name)}})
	}
	return g
}

func TestTogether(t *testing.T) {
	members := func(a, b string) map[string][]string { return map[string][]string{"a": {a}, "b": {b}} }
	exchanged := groupOf(map[string][]string{"a": {"10.0.0.1/24"}, "b": {"10.0.0.2/24"}})
	got, err := together(exchanged, members("10.0.0.2/24", "10.0.0.1/24"), nil)
	if err != nil || !maps.Equal(got.Addresses, map[string]string{"10.0.0.1": "10.0.0.2", "10.0.0.2": "10.0.0.1"}) || got.Members[0].Name != "a" || got.Members[0].Is[0] != "10.0.0.2/24" {
		t.Errorf("%+v, %v", got, err)
	}
	same := groupOf(map[string][]string{"a": {"10.0.0.1/24"}, "b": {"10.0.0.1/24"}})
	if _, err := together(same, members("10.0.0.3/24", "10.0.0.4/24"), nil); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("one address became two: %v", err)
	}
	if got, err := together(same, members("10.0.0.3/24", "10.0.0.4/24"), map[string]string{"10.0.0.1": "10.0.0.4"}); err != nil || got.Addresses["10.0.0.1"] != "10.0.0.4" {
		t.Errorf("the user's own pair: %+v, %v", got, err)
	}
	if got, err := together(exchanged, members("10.0.0.1/24", "10.0.0.2/24"), nil); err != nil || len(got.Addresses) != 0 {
		t.Errorf("nothing moved: %+v, %v", got, err)
	}
}

func TestMembersRefs(t *testing.T) {
	g := groupOf(nil)
	places := []groupPlace{{name: "b"}, {name: "a"}}
	for _, full := range []string{"r.example:5000/jobs/x:1", "r.example:5000/jobs/x@sha256:" + strings.Repeat("1", 64), "r.example:5000/jobs/x:1@sha256:" + strings.Repeat("1", 64)} {
		refs, err := membersRefs(full, g, places)
		if err != nil || refs["a"] != "r.example:5000/jobs/x@"+digest.FromString("a").String() {
			t.Errorf("%s: %v, %v", full, refs, err)
		}
	}
	if _, err := membersRefs("r.example/x:1", g, places[:1]); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "members a") {
		t.Errorf("one is missing: %v", err)
	}
	if _, err := membersRefs("r.example/x:1", g, append(places, groupPlace{name: "c"})); !errdefs.IsInvalidArgument(err) {
		t.Errorf("one too many: %v", err)
	}
}
