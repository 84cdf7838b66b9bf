package library

import (
	"testing"
	"time"
)

// managedSteps is a program with a chunk in each state, which it has looked at and changed step by step. Each chunk has 2 MiB.
const managedSteps = `
static uint64_t *m;
static void *touch(void *number)
{
	fill(m + (size_t)number * MIB / 4, MIB / 4, 77, 0);
	return NULL;
}
int main(void)
{
	const size_t chunk = MIB / 4, chunks = 4;
	char step[64];
	pthread_t thread;
	begin();
	m = managed(chunks * 2 * MIB);
	while (next(step)) {
		if (!strcmp(step, "sides")) { // 0: host, 1: both, 2 and 3: device
			fill(m, chunks * chunk, 0, 0);
			launch(m, chunks * chunk, 1);
			MUST(cuCtxSynchronize());
			fill(m, chunk, 10, 1);
			sums(m + chunk, chunk, 1, 0);
		} else if (!strcmp(step, "check")) {
			sums(m, chunk, 10, 1);
			sums(m + chunk, 3 * chunk, 1, 0);
		} else if (!strcmp(step, "host")) {
			fill(m, chunks * chunk, 3, 2);
		} else if (!strcmp(step, "checkhost")) {
			sums(m, chunks * chunk, 3, 2);
		} else if (!strcmp(step, "device")) {
			launch(m, chunks * chunk, 1000);
		} else if (!strcmp(step, "checkdevice")) {
			sums(m, chunks * chunk, 1003, 2);
		} else if (!strcmp(step, "touch")) { // by a thread: chunk 2
			MUST(pthread_create(&thread, NULL, touch, (void *)2));
		} else if (!strcmp(step, "join")) {
			pthread_join(thread, NULL);
			sums(m + 2 * chunk, chunk, 77, 0);
			fill(m + 2 * chunk, chunk, 1, 0);
		} else {
			return 1;
		}
		printf("done %s\n", step);
	}
}`

// TestManagedHanded hands over memory with a chunk in each state. The program then receives the same memory, or other memory with the same bytes.
func TestManagedHanded(t *testing.T) {
	r, path := managedProgram(t, managedSteps, 256)
	a := r.steps(path).app(r)
	for elsewhere := range 2 {
		for _, state := range [][2]string{{"sides", "check"}, {"host", "checkhost"}, {"device", "checkdevice"}} {
			a.does(state[0])
			pieces, files := a.take()
			if len(pieces) != 2 { // of 4 MiB each
				t.Errorf("%d pieces, %s", len(pieces), state[0])
			}
			if elsewhere == 1 {
				moved := r.elsewhere(0, files)
				closeFiles(files)
				files = moved
			}
			a.back(pieces, files)
			a.does(state[1])
		}
	}
}

// TestManagedUntouched: memory that no device has had is the host's alone.
func TestManagedUntouched(t *testing.T) {
	r, path := managedProgram(t, managedSteps, 256)
	a := r.steps(path).app(r)
	a.does("host")
	pieces, files := a.take()
	if len(pieces) != 0 {
		t.Errorf("%d pieces", len(pieces))
	}
	a.does("checkhost") // while it is handed over
	a.back(pieces, files)
	a.does("device")
	a.does("checkdevice")
}

// TestManagedTouched has the host touch memory while it is handed over: what the host has goes on, and what is elsewhere is waited for.
func TestManagedTouched(t *testing.T) {
	r, path := managedProgram(t, managedSteps, 256)
	a := r.steps(path).app(r)
	for range 3 {
		a.does("sides")
		p := a.dial()
		a.must(p.Close(t.Context(), patient))
		a.does("touch")
		pieces, err := p.Table()
		a.must(err)
		files, err := p.Give()
		a.must(err)
		a.must(p.Release())
		a.must(p.HangUp())
		a.ask("join")
		joined := make(chan struct{})
		go func() {
			defer close(joined)
			a.says("done join")
		}()
		select {
		case <-joined:
			t.Fatal("memory that is elsewhere was not waited for")
		case <-time.After(200 * time.Millisecond):
		}
		a.back(pieces, files)
		<-joined
		a.does("check")
	}
}

// TestManagedFails has the driver refuse each call by which memory changes sides. The program's launch fails, and its memory is as before. If only the device has no room, the launch succeeds, with memory of the host.
func TestManagedFails(t *testing.T) {
	r, path := managedProgram(t, `
int main(void)
{
	begin();
	uint64_t *m = managed(4 * MIB);
	fill(m, MIB / 2, 5, 1);
	int r = try_launch(m, MIB / 2, 1);
	MUST(cuCtxSynchronize());
	sums(m, MIB / 2, r ? 5 : 6, 1);
	launch(m, MIB / 2, 1);
	MUST(cuCtxSynchronize());
	sums(m, MIB / 2, r ? 6 : 7, 1);
	MUST(cuMemFree_v2((CUdeviceptr)m));
	printf("%d\n", r);
}`, 256)
	const full = "cuMemCreate * error 2"
	for _, test := range []struct {
		orders []string
		want   string
	}{
		{[]string{"cuMemCreate * error 999"}, "2"},
		{[]string{"cuMemMap * error 999"}, "2"},
		{[]string{"cuMemSetAccess * error 999"}, "2"},
		{[]string{"cuMemcpyHtoDAsync * error 2"}, "2"},
		{[]string{"cuStreamCreate * error 2"}, "2"},
		{[]string{"cuMemHostAlloc * error 2"}, "2"},
		{[]string{full}, "0"},
		{[]string{"cuMemMap * error 2"}, "0"},
		{[]string{"cuMemSetAccess * error 2"}, "0"},
		{[]string{full, full}, "2"},
		{[]string{full, "cuMemAddressReserve * pass", "cuMemAddressReserve * error 2"}, "2"}, // the first is for the program's memory
		{[]string{full, "cuMemMap * error 2"}, "2"},
		{[]string{full, "cuMemMap * pass", "cuMemMap * error 2"}, "2"},
		{[]string{full, "cuMemSetAccess * error 2"}, "2"},
		{[]string{full, "cuMemSetAccess * pass", "cuMemSetAccess * error 2"}, "2"},
	} {
		r.Order(test.orders...)
		if out := r.runs(path); out != test.want+"\n" {
			t.Errorf("%q: %s", test.orders, out)
		}
		r.Order()
	}
}
