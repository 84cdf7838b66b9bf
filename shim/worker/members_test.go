package worker

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

func TestRenewed(t *testing.T) {
	together := &Together{Addresses: map[string]string{"192.0.2.1": "192.0.2.2", "2001:db8:0::1": "2001:db8::2"}}
	got, err := together.Renewed()
	want := map[netip.Addr]netip.Addr{netip.MustParseAddr("192.0.2.1"): netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::1"): netip.MustParseAddr("2001:db8::2")}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, wrong := range []map[string]string{{"192.0.2.1/24": "192.0.2.2"}, {"192.0.2.1": "host"}} {
		if _, err := (&Together{Addresses: wrong}).Renewed(); !errdefs.IsInvalidArgument(err) || failure.Hint(err) == "" {
			t.Errorf("%v: %v", wrong, err)
		}
	}
	if got, err := (*Together)(nil).Renewed(); len(got) > 0 || err != nil {
		t.Errorf("alone: %v, %v", got, err)
	}
}

// TestCommitMember: the process of a member of a group hears with the question whether the container may run that the shim has put up a fence.
func TestCommitMember(t *testing.T) {
	for _, together := range []*Together{nil, {Addresses: map[string]string{"192.0.2.1": "192.0.2.2"}, Members: []Member{{Name: "a", Was: []string{"192.0.2.1"}, Is: []string{"192.0.2.2"}}}}} {
		p, v := process(t)
		v.Tell(Message{Prepared: &Prepared{Work: t.TempDir() + "/criu", Together: together}})
		_, prepared, err := p.prepare(t.Context())
		if err != nil || (prepared.Together == nil) != (together == nil) {
			t.Fatalf("%+v, %v", prepared, err)
		}
		asked := make(chan Message, 1)
		go func() {
			m, _, _ := v.Next(t.Context())
			asked <- m
			v.Tell(Message{Committed: true})
		}()
		if err := p.Commit(); err != nil {
			t.Fatal(err)
		}
		if m := <-asked; !m.Commit || m.Fenced != (together != nil) {
			t.Errorf("the process of a member hears %+v", m)
		}
		v.Close()
	}
}
