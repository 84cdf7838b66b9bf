package library

import "testing"

// TestManagedStorm has a thread change managed memory on both sides while others allocate and free, and capture graphs, and hands all of it over again and again.
func TestManagedStorm(t *testing.T) {
	r := newRig(t, 256)
	a := r.run("--alternate", "6", "--managed", "--blocks", "3,1,4", "--storm", "1")
	for range 5 {
		a.works()
		pieces, files := a.take()
		a.back(pieces, files)
	}
	a.works()
}

// TestManagedByDriver has the driver save what the devices have of managed memory, where nothing takes it: the host's faults wait for its lock.
func TestManagedByDriver(t *testing.T) {
	r := newRig(t, 256)
	k := newHelper(t, r)
	a := r.run("--alternate", "6", "--managed", "--blocks", "3,1,4")
	for range 3 {
		a.works()
		a.save(k)
		a.load(k)
	}
	a.works()
}
