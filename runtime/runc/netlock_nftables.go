package runc

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// tablePrefix begins the names of CRIU's tables. CRIU cuts the id off where its buffer ends, after more than minID characters.
const (
	tablePrefix = "CRIU-"
	minID       = 16
)

// removeTables removes CRIU's tables.
func (n *Network) removeTables(run string) error {
	conn, err := nftables.New(nftables.WithNetNSFd(int(n.file.Fd())))
	if err != nil {
		return fmt.Errorf("ask for nftables: %w", err)
	}
	for range 2 { // the second time to see that they are gone
		tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
		if absent(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list tables of nftables: %w", err)
		}
		found := false
		for _, table := range tables {
			if id, ok := strings.CutPrefix(table.Name, tablePrefix); ok && (!n.shared || len(id) >= minID && strings.HasPrefix(run, id)) {
				conn.DelTable(table)
				found = true
			}
		}
		if !found {
			return nil
		}
		if err := conn.Flush(); err != nil {
			return fmt.Errorf("delete CRIU's tables of nftables: %w", err)
		}
	}
	return errors.New("delete CRIU's tables of nftables: they are still there")
}

// absent reports whether an error says that the kernel has no nftables.
func absent(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT)
}
