package criu

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
)

// Annotation is the container annotation through which runc is told of a CRIU configuration file. What the file says
// overrides what runc passes itself. Source: runc, docs/checkpoint-restore.md.
const Annotation = "org.criu.config"

// RuncConfig is the file runc uses where a container has no [Annotation].
const RuncConfig = "/etc/criu/runc.conf"

// SkipLock has CRIU let packets reach a container while it dumps the container. Packets do no harm where no connection is saved. A connection that a client opens meanwhile waits in
// the kernel until the container goes on. CRIU 4.1 crashes if a configuration file that runc passes to it has the option network-lock.
const SkipLock = "skip"

// savesConnections finds the option in a configuration file.
var savesConnections = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^\s*tcp-established\b`) })

// Options are what runc has no flag for. The zero value leaves CRIU's own choices.
type Options struct {
	GhostLimit      int64         // largest deleted but open file that is dumped, bytes; CRIU's own limit is 1 MiB
	Timeout         time.Duration // for seizing all tasks; CRIU's own is 10 s
	NetworkLock     string        // iptables, nftables or skip; skip does not count where connections are saved, unless Fenced
	Fenced          bool          // no packet reaches the connections that are saved, whether CRIU locks the network or not
	Libdir          string        // where CRIU looks for plugins
	TCPEstablished  bool
	FileLocks       bool
	ExternalSockets bool
	SkipInFlight    bool // leave out connections that no process has accepted yet; else a dump fails where there are any
	LinkRemap       bool // dump files that are open by a name that is gone, but have another; also files of overlayfs's lower layers
	// InotifyPaths are directories of the container where a dump looks for what inotify and fanotify watch, beside CRIU's own. Source: CRIU 4.2, criu/irmap.c.
	InotifyPaths []string
	// PagesDescriptor, unless 0, is a socket that CRIU inherits: a dump sends pages there instead of writing them to files.
	PagesDescriptor int
	// LazyPages has a restore leave out memory that is filled in later: see package fill.
	LazyPages bool
	// Include is a configuration file whose contents come last, and so win: the user's own.
	Include string
}

// Encode returns the options in the form of CRIU's configuration files (man 8 criu, CONFIGURATION FILES).
func (o Options) Encode() ([]byte, error) {
	var b bytes.Buffer
	var own []byte
	if o.Include != "" {
		var err error
		if own, err = os.ReadFile(o.Include); err != nil && !os.IsNotExist(err) {
			return nil, fmt.Errorf("read CRIU configuration %s: %w", o.Include, err)
		}
	}
	if o.NetworkLock == SkipLock && !o.Fenced && (o.TCPEstablished || savesConnections().Match(own)) {
		o.NetworkLock = ""
	}
	values := []struct{ name, value string }{{"network-lock", o.NetworkLock}, {"libdir", o.Libdir}}
	for _, path := range o.InotifyPaths {
		values = append(values, struct{ name, value string }{"irmap-scan-path", path})
	}
	for _, v := range values {
		if strings.ContainsAny(v.value, "\n\"#") {
			return nil, fmt.Errorf("encode CRIU option %s: value %q", v.name, v.value)
		}
		if v.value != "" {
			fmt.Fprintf(&b, "%s %s\n", v.name, v.value)
		}
	}
	if o.GhostLimit > 0 {
		fmt.Fprintf(&b, "ghost-limit %d\n", o.GhostLimit)
	}
	if o.Timeout > 0 {
		fmt.Fprintf(&b, "timeout %d\n", int64((o.Timeout+time.Second-1)/time.Second))
	}
	if o.PagesDescriptor > 0 {
		fmt.Fprintf(&b, "page-server\nps-socket %d\n", o.PagesDescriptor)
	}
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"tcp-established", o.TCPEstablished},
		{"file-locks", o.FileLocks},
		{"ext-unix-sk", o.ExternalSockets},
		{"skip-in-flight", o.SkipInFlight},
		{"link-remap", o.LinkRemap},
	} {
		if f.set {
			fmt.Fprintf(&b, "%s\n", f.name)
		}
	}
	b.Write(own)
	if o.LazyPages { // whatever the user says: the images lack that memory
		b.WriteString("\nlazy-pages\n")
	}
	return b.Bytes(), nil
}

// WriteFile writes the options to path, whole or not at all.
func (o Options) WriteFile(path string) error {
	data, err := o.Encode()
	if err != nil {
		return err
	}
	staged := path + ".new"
	if err := os.WriteFile(staged, data, 0o600); err != nil {
		return fmt.Errorf("write CRIU configuration: %w", err)
	}
	if err := os.Rename(staged, path); err != nil {
		_ = os.Remove(staged)
		return fmt.Errorf("write CRIU configuration %s: %w", filepath.Base(path), err)
	}
	return nil
}
