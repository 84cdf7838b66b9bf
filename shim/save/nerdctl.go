package save

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/cryo-project/cryo/shim/daemon"
)

// nerdctlNetwork returns a warning about the network that nerdctl has made for a container by hooks of its specification, which are programs of this host and no part of a snapshot; empty if there is none.
// Source: nerdctl, pkg/labels: networks and ports are JSON.
func nerdctlNetwork(labels map[string]string) string {
	name := labels[daemon.NameLabel]
	var networks []string
	if name == "" || json.Unmarshal([]byte(labels["nerdctl/networks"]), &networks) != nil {
		return ""
	}
	networks = slices.DeleteFunc(networks, func(n string) bool {
		return n == "host" || n == "none" || strings.HasPrefix(n, "container:") || strings.HasPrefix(n, "ns:")
	})
	if len(networks) == 0 {
		return ""
	}
	var ports []struct {
		HostPort, ContainerPort int
		Protocol, HostIP        string
	}
	_ = json.Unmarshal([]byte(labels["nerdctl/ports"]), &ports) // not each version of nerdctl keeps them here
	flags := "--network " + strings.Join(networks, " --network ")
	published := "published ports"
	if len(ports) > 0 {
		var all []string
		for _, p := range ports {
			all = append(all, fmt.Sprintf("%s:%d:%d/%s", p.HostIP, p.HostPort, p.ContainerPort, p.Protocol))
			flags += " --publish " + all[len(all)-1]
		}
		published += " " + strings.Join(all, ", ")
	}
	return fmt.Sprintf("nerdctl made the network %s of %s, with %s: a restored container has none of that. Have nerdctl make it for a container that only waits (nerdctl run --detach --name NET %s IMAGE sleep infinity), "+
		"and restore with --network-ns /proc/PID/ns/net, PID as \"nerdctl inspect --format {{.State.Pid}} NET\" prints it", strings.Join(networks, ", "), name, published, flags)
}
