package integration

import "testing"

// TestInsideFiles has files open that were deleted, renamed, locked, and one that grows all the time: not a line of it
// is missing or there twice.
func TestInsideFiles(t *testing.T) {
	before, after := travel(t, journey{checkpoint: []string{"--file-locks"}}, "files", "--lock", "--size", "2048")
	if before.State["lines"].(float64) > after.State["lines"].(float64) {
		t.Errorf("the growing file had %v lines and has %v", before.State["lines"], after.State["lines"])
	}
}
