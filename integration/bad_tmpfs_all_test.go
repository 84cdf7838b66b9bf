package integration

import "testing"

// TestBadTmpfs has a dump fail while the contents of a tmpfs are being saved: for want of room, and because the program that does it
// is killed. The container runs on.
func TestBadTmpfs(t *testing.T) {
	a, _ := pair(t)
	id, ref := name(t), "bad/tmpfs:1"
	start(t, a, id, []string{"--mount", "type=tmpfs,src=tmpfs,dst=/cache,options=size=256m:mode=1777"}, "workload", "tmpfs", "--dir", "/cache/files", "--large", "120")
	forget(t, a, ref)
	t.Run("full", func(t *testing.T) {
		inside, outside := small(t, a, 60)
		refused(t, a, codeFull, "o space left", "checkpoint", id, ref, "--leave-running", "--root", inside)
		counts(t, a, id)
		empty(t, outside)
	})
	t.Run("killed", func(t *testing.T) {
		before := trace(t, a)
		for hit, tries := false, 0; !hit; tries++ {
			r := duringDump(t, a, id, ref, func(int) {
				if pid := find(t, a, called("tar")); pid != 0 { // that of a small tmpfs may end by itself
					kill(t, pid)
				}
			})
			if hit = r.Code != 0; hit {
				refusal(t, r, codeAborted, "the container runs on")
			}
			counts(t, a, id)
			a.Cryo(t.Context(), "rm", ref)
			wantTrace(t, a, before)
			if tries == 20 {
				t.Fatal("no dump was hit")
			}
		}
	})
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
}
