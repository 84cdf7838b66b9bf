package keeper

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/gpu/driver"
)

// fakeDriver has memory in memfds, of which this process maps nothing. The descriptor of one is the memory itself.
type fakeDriver struct {
	mu      sync.Mutex
	devices map[string]*fakeDevice
	orders  []fakeOrder // guarded by mu
	pinned  int         // guarded by mu
	sparse  int         // pages that had no memory when they were pinned; guarded by mu
}

// fakeOrder makes the nth call from here of a name do something else.
type fakeOrder struct {
	call string // "import"
	n    int
	do   string // "2": that code; "kill"; "hang"
}

// parseOrders reads "import 3 1, read 1 kill".
func parseOrders(text string) (orders []fakeOrder) {
	for one := range strings.SplitSeq(text, ",") {
		if f := strings.Fields(one); len(f) == 3 {
			n, _ := strconv.Atoi(f[1])
			orders = append(orders, fakeOrder{f[0], n, f[2]})
		}
	}
	return orders
}

func newFake(orders string, devices ...*fakeDevice) *fakeDriver {
	f := &fakeDriver{devices: make(map[string]*fakeDevice), orders: parseOrders(orders)}
	for _, d := range devices {
		d.driver = f
		f.devices[d.uuid] = d
	}
	return f
}

// call is one of the driver's.
func (f *fakeDriver) call(name string) error {
	f.mu.Lock()
	var do string
	for i := range f.orders {
		if o := &f.orders[i]; o.call == name && o.n > 0 {
			if o.n--; o.n == 0 {
				do = o.do
			}
		}
	}
	f.mu.Unlock()
	switch do {
	case "":
		return nil
	case "kill":
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		select {}
	case "hang":
		select {}
	}
	code, _ := strconv.Atoi(do)
	return &driver.CallError{Call: name, Code: code, Name: "CUDA_ERROR_" + do}
}

func (f *fakeDriver) Device(uuid string) (Device, error) {
	if err := f.call("device"); err != nil {
		return nil, err
	}
	if d := f.devices[uuid]; d != nil {
		return d, nil
	}
	return nil, fmt.Errorf("open %s: %w", uuid, errdefs.ErrNotFound)
}

func (f *fakeDriver) Pin(host []byte) error {
	if err := f.call("pin"); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pinned++
	f.sparse += absent(host)
	return nil
}

// absent counts pages without memory.
func absent(host []byte) (pages int) {
	there := make([]byte, len(host)/os.Getpagesize())
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&host[0])), uintptr(len(host)), uintptr(unsafe.Pointer(&there[0]))); errno != 0 {
		return len(there)
	}
	for _, b := range there {
		if b&1 == 0 {
			pages++
		}
	}
	return pages
}

type fakeDevice struct {
	uuid   string
	total  int64
	driver *fakeDriver

	mu   sync.Mutex
	used int64         // guarded by mu
	busy [Streams]bool // guarded by mu

	meet    func() // called while a stream works
	cleared []int  // how many pieces at a time
}

func (d *fakeDevice) take(bytes int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.used+bytes > d.total {
		return &driver.CallError{Call: "cuMemCreate", Code: driver.OutOfMemory, Name: "CUDA_ERROR_OUT_OF_MEMORY"}
	}
	d.used += bytes
	return nil
}

func (d *fakeDevice) Import(file *os.File, size int64) (Memory, error) {
	if err := d.driver.call("import"); err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil || info.Size() != size {
		return nil, &driver.CallError{Call: "cuMemImportFromShareableHandle", Code: 1, Name: "CUDA_ERROR_INVALID_VALUE"}
	}
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &fakeMemory{device: d, file: os.NewFile(uintptr(fd), "imported"), size: size}, nil
}

func (d *fakeDevice) Make(size int64) (Memory, error) {
	if err := d.driver.call("make"); err != nil {
		return nil, err
	}
	if err := d.take(size); err != nil {
		return nil, err
	}
	file, err := fakeFile(size)
	if err != nil {
		return nil, err
	}
	if _, err := file.WriteAt([]byte("what somebody else has left"), size/2); err != nil {
		return nil, err
	}
	return &fakeMemory{device: d, file: file, size: size, own: true}, nil
}

// fakeFile is memory of a device.
func fakeFile(size int64) (*os.File, error) {
	fd, err := unix.MemfdCreate("device", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "device")
	return file, file.Truncate(size)
}

func (d *fakeDevice) Clear(all []Memory) error {
	d.cleared = append(d.cleared, len(all))
	for _, one := range all {
		if err := d.driver.call("clear"); err != nil {
			return err
		}
		m := one.(*fakeMemory)
		if err := errors.Join(m.file.Truncate(0), m.file.Truncate(m.size)); err != nil {
			return err
		}
	}
	return nil
}

func (d *fakeDevice) Copy(to, from Memory) error {
	if err := d.driver.call("copy"); err != nil {
		return err
	}
	t, f := to.(*fakeMemory), from.(*fakeMemory)
	if _, err := io.Copy(io.NewOffsetWriter(t.file, 0), io.NewSectionReader(f.file, 0, f.size)); err != nil {
		return err
	}
	return nil
}

func (d *fakeDevice) Room() (int64, error) {
	if err := d.driver.call("room"); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.total - d.used, nil
}

// on has a stream work. It is no more than one's at a time.
func (d *fakeDevice) on(stream int, call string, work func() error) error {
	d.mu.Lock()
	if d.busy[stream] {
		d.mu.Unlock()
		return errors.New("two copies are on one stream")
	}
	d.busy[stream] = true
	d.mu.Unlock()
	if d.meet != nil {
		d.meet()
	}
	defer func() {
		d.mu.Lock()
		d.busy[stream] = false
		d.mu.Unlock()
	}()
	if err := d.driver.call(call); err != nil {
		return err
	}
	return work()
}

type fakeMemory struct {
	device *fakeDevice
	file   *os.File
	size   int64
	own    bool
}

func (m *fakeMemory) Read(stream int, to []byte, offset int64) error {
	return m.device.on(stream, "read", func() error {
		_, err := m.file.ReadAt(to, offset)
		return err
	})
}

func (m *fakeMemory) Write(stream int, from []byte, offset int64) error {
	return m.device.on(stream, "write", func() error {
		_, err := m.file.WriteAt(from, offset)
		return err
	})
}

func (m *fakeMemory) Export() (*os.File, error) {
	if err := m.device.driver.call("export"); err != nil {
		return nil, err
	}
	fd, err := unix.FcntlInt(m.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "exported"), nil
}

func (m *fakeMemory) Free() error {
	if err := m.device.driver.call("free"); err != nil {
		return err
	}
	if m.own {
		m.device.mu.Lock()
		m.device.used -= m.size
		m.device.mu.Unlock()
	}
	return m.file.Close()
}
