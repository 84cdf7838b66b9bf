package format

import "github.com/checkpoint-restore/go-criu/v8/crit/images/inventory"

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
	var e inventory.InventoryEntry
	err := readFirst(dir, "inventory.img", magicInventory, &e)
	return NetworkLock(e.GetNetworkLockMethod()), err
}
