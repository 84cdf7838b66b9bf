package pages

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/inventory"
)

// NetworkLock is how CRIU keeps a network still, for a dump and again for its restore.
type NetworkLock uint32

// Source: CRIU, criu/include/cr_options.h, enum NETWORK_LOCK_METHOD.
const (
	LockIPTables NetworkLock = iota
	LockNFTables
	LockSkip
)

// ReadNetworkLock reads how the network of the dump in dir was locked. Images that do not say, and a directory without
// inventory.img, mean iptables, as to CRIU.
func ReadNetworkLock(dir string) (NetworkLock, error) {
	const name = "inventory.img"
	f, err := os.Open(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return LockIPTables, nil
	} else if err != nil {
		return 0, fmt.Errorf("read CRIU images: %w", err)
	}
	defer f.Close()
	return readNetworkLock(name, f)
}

// readNetworkLock knows that this image has one magic number, since it says whether the others have two.
func readNetworkLock(name string, r io.Reader) (NetworkLock, error) {
	var magic [4]byte
	if _, err := io.ReadFull(r, magic[:]); err != nil {
		return 0, (&records{file: name}).failed("header", err)
	}
	if got := binary.LittleEndian.Uint32(magic[:]); got != magicInventory {
		return 0, Malformed(name, "magic number %#x instead of %#x", got, uint32(magicInventory))
	}
	record, err := newBareRecords(name, r).next()
	if err == io.EOF {
		return 0, Malformed(name, "is empty")
	} else if err != nil {
		return 0, err
	}
	var e inventory.InventoryEntry
	if err := unmarshal(name, record, &e, "its record is no inventory"); err != nil {
		return 0, err
	}
	return NetworkLock(e.GetNetworkLockMethod()), nil
}
